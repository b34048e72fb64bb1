"""Git repositories of a workspace: as units of changes, their tracked paths, and `info/exclude`.

A path may lie in several repositories, one within the other; the path is tracked where any of them tracks it.
A repository whose index cannot be read counts as tracking every path in it. No file of the view is read, so a
program in the sandbox has no say. `.git` may be a file or a link that names the directory, as in linked work
trees and submodules.

A part of a repository breaks it: an index without its objects, a branch without its commits. So the unit is
the outermost `.git` on a path, with the submodules and worktrees kept inside, or a bare repository, which is
known by its HEAD, objects and refs.
"""

import os
import re
import stat
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from sandboxfs.hostfs.directory import HostDir
from sandboxfs.hostfs.tree import DirTree, OpenDirectories, contents
from sandboxfs.paths import PathSet, joined, parted
from sandboxfs.review import change, git_files
from sandboxfs.review.change import ChangeKind, PathChange
from sandboxfs.review.git_files import GitIndex, UnreadableIndex, parse_index
from sandboxfs.upper.sandbox_layers import Layers

Reach = Callable[[Path], HostDir]
"""Opens a directory of the host by its path; OSError for one that is not to be looked into."""

# Directories that are remembered.
_MOST_DIRECTORIES = 20_000
# Bytes of the files that name another directory, and of `info/exclude`.
_LARGEST_POINTER, _LARGEST_EXCLUDE = 1 << 13, 16 << 20
_GIT = b".git"
_POINTER = b"gitdir:"


@dataclass(frozen=True)
class _Repository:
    """A repository with the work tree *top*; without *index* every path in it counts as tracked."""

    top: bytes
    index: GitIndex | None

    def tracks(self, path: bytes) -> bool:
        return self.index is None or self.index.tracks(self.inside(path))

    def inside(self, path: bytes) -> bytes:
        """Return *path* as the repository calls it."""
        return path[len(self.top) + 1 :] if self.top else path


class TrackedPaths:
    """The repositories of a *workspace*, which is at *root*, read when they are needed."""

    def __init__(
        self,
        workspace: DirTree,
        masked: Collection[bytes],
        root: bytes,
        consult: Callable[[bytes], None] = lambda path: None,
        reach: Reach = HostDir.at,
    ) -> None:
        """Look at nothing *masked*; tell *consult* of each file before an answer depends on it.

        *reach* opens what a `.git` names that is no directory.
        """
        self._workspace = workspace
        self._masked = masked
        self._root = root
        self._consult = consult
        self._reach = reach
        self._indexes: dict[bytes, GitIndex | None] = {}
        # Bytes of indexes that are read at all: many repositories may name one index.
        self._left = git_files.LARGEST_INDEX
        # For each directory: the repositories around it, and whether the host has the directory.
        self._around: dict[bytes, tuple[tuple[_Repository, ...], bool]] = {}

    def tracks(self, path: bytes) -> bool:
        """Whether a repository of the host tracks the file at *path*."""
        return any(repository.tracks(path) for repository in self._of(parted(path)[0])[0])

    def tracks_below(self, directory: bytes) -> bool:
        """Whether a repository around *directory* is known to track anything in it."""
        return any(
            repository.index is not None and repository.index.tracks_below(repository.inside(directory))
            for repository in self._of(parted(directory)[0])[0]
        )

    def surely_tracks(self, path: bytes) -> bool:
        """Whether a repository of the host is known to track the file at *path*: one that can be read."""
        around = self._of(parted(path)[0])[0]
        return any(repository.index is not None and repository.tracks(path) for repository in around)

    def has_directory(self, directory: bytes) -> bool:
        """Whether the host has *directory*, and the directory may be read."""
        return self._of(directory)[1]

    def exclude(self) -> bytes:
        """The content of `info/exclude` of the repository at the workspace's top."""
        try:
            with self._git_directory(b"") as found, self._common(found) as common:
                self._consult(_place(common) + b"/info/exclude")
                with common.child(b"info") as info:
                    return _read(info, b"exclude", _LARGEST_EXCLUDE) or b""
        except (OSError, ValueError):
            return b""

    def _of(self, directory: bytes) -> tuple[tuple[_Repository, ...], bool]:
        """Return the repositories around *directory*; asks from the nearest known directory downwards."""
        if len(self._around) > _MOST_DIRECTORIES:
            self._around.clear()
        unknown = []
        while directory not in self._around:
            unknown.append(directory)
            if not directory:
                break
            directory = parted(directory)[0]
        for one in reversed(unknown):
            self._around[one] = self._look(one)
        return self._around[unknown[0] if unknown else directory]

    def _look(self, directory: bytes) -> tuple[tuple[_Repository, ...], bool]:
        outer: tuple[_Repository, ...] = ()
        if directory:
            outer, there = self._around[parted(directory)[0]]
            if not there or directory in self._masked:
                return outer, False
            try:
                status = self._workspace.stat(directory)
            except PermissionError:
                status = None
            if status is None or not stat.S_ISDIR(status.st_mode):
                return outer, False
        self._consult(joined(self._root, joined(directory, _GIT)))
        try:
            found = self._workspace.stat(joined(directory, _GIT))
        except PermissionError:
            return outer, False
        if found is None:
            return outer, True
        return (*outer, _Repository(directory, self._index(directory))), True

    def _index(self, top: bytes) -> GitIndex | None:
        if top not in self._indexes:
            self._indexes[top] = self._read_index(top)
        return self._indexes[top]

    def _read_index(self, top: bytes) -> GitIndex | None:
        try:
            with self._git_directory(top) as found:
                self._consult(_place(found) + b"/index")
                data = _read(found, b"index", self._left)
            # A repository without any added file has no index.
            if data is None:
                return GitIndex()
            if len(data) > self._left:
                raise UnreadableIndex("too large, with those of other repositories")
            self._left -= len(data)
            return parse_index(data)
        except (OSError, ValueError):
            # What a `.git` names may be no path at all.
            return None

    def _git_directory(self, top: bytes) -> HostDir:
        workspace = self._workspace
        found = workspace.stat(joined(top, _GIT))
        place = Path(os.fsdecode(self._root), os.fsdecode(top))
        if found is not None and stat.S_ISREG(found.st_mode):
            text = _read(workspace.directory(top), _GIT, _LARGEST_POINTER) or b""
            if not text.startswith(_POINTER):
                raise NotADirectoryError(str(place))
            return self._reach(place / os.fsdecode(text.removeprefix(_POINTER).strip()))
        if found is not None and stat.S_ISLNK(found.st_mode):
            return self._reach(place / ".git")
        return workspace.directory(top).child(_GIT)

    def _common(self, git_directory: HostDir) -> HostDir:
        """Return the directory that a linked work tree shares with the others, or *git_directory* itself."""
        text = _read(git_directory, b"commondir", _LARGEST_POINTER)
        if text is None:
            return git_directory.again()
        return self._reach(Path(os.fsdecode(_place(git_directory)), os.fsdecode(text.strip())))


def _place(directory: HostDir) -> bytes:
    """Return the path of an open directory that is good after the directory was closed."""
    return os.readlink(directory.own_path())  # noqa: PTH115 - in bytes


def _read(directory: HostDir, name: bytes, most: int) -> bytes | None:
    """Return a regular file's content, of a larger one *most* bytes and one; None where there is none."""
    status = directory.stat(name)
    if status is None or not stat.S_ISREG(status.st_mode):
        return None
    with os.fdopen(directory.open(name, os.O_RDONLY), "rb") as file:
        return file.read(most + 1)


_BARE = (b"HEAD", b"objects", b"refs")
# Every change of a repository's state changes an entry with one of these names.
_TELLING = frozenset((*_BARE, b"packed-refs"))
_OBJECTS = b"objects"
_LOOSE = re.compile(rb"(?:^|/)objects/([0-9a-f]{2})/([0-9a-f]{38})\Z")
# The kinds of change that take an object away from the sandbox.
_TAKING = (ChangeKind.DELETED, ChangeKind.RENAMED, ChangeKind.TYPE)


def dot_git(path: bytes) -> bytes | None:
    """Return the outermost `.git` at or above *path*, in any case: some filesystems ignore case."""
    parts = path.split(b"/")
    for number, part in enumerate(parts, 1):
        if part.lower() == _GIT:
            return b"/".join(parts[:number])
    return None


class Repositories:
    """The repositories around changes at *paths*; *exists* tells whether an object is at a path."""

    def __init__(self, paths: Iterable[bytes], exists: Callable[[bytes], bool]) -> None:
        found = list(paths)
        candidates = {above for path in found if dot_git(path) is None for above in _telling_parts(path)}
        bare = {one for one in candidates if all(exists(joined(one, name)) for name in _BARE)}
        self._bare = bare
        self._any_bare = PathSet(bare)

    def of(self, path: bytes) -> bytes | None:
        """Return the repository that *path* belongs to, None when there is none."""
        found = dot_git(path)
        if found is not None or not self._any_bare.hold(path):
            return found
        parts = path.split(b"/")
        places = (b"/".join(parts[:number]) for number in range(len(parts) + 1))
        return next(place for place in places if place in self._bare)

    def groups(self, findings: Iterable[PathChange]) -> list[list[int]]:
        """Return the numbers of the *findings* in each repository; a rename may be in two repositories."""
        members: dict[bytes, list[int]] = defaultdict(list)
        for number, finding in enumerate(findings):
            for unit in {self.of(place) for place in finding.places} - {None}:
                members[unit or b""].append(number)
        return list(members.values())


def _telling_parts(path: bytes) -> Iterator[bytes]:
    """Yield the directories above *path* that may be bare repositories, judging by the next name."""
    parts = path.split(b"/")
    for number, part in enumerate(parts):
        if part in _TELLING:
            yield b"/".join(parts[:number])


def in_tree(top: HostDir) -> Callable[[bytes], bool]:
    """Return a function that tells whether an object is at a path below *top*."""

    def exists(path: bytes) -> bool:
        folder, _, name = path.rpartition(b"/")
        with OpenDirectories(top) as ground:
            directory = ground.find(folder)
            return directory is not None and directory.stat(name) is not None

    return exists


def repositories_of(layers: Layers, findings: Iterable[PathChange]) -> Repositories:
    """Return the repositories around *findings*."""

    def exists(path: bytes) -> bool:
        return layers.workspace.stat(path) is not None or layers.upper.stat(path) is not None

    return Repositories((place for finding in findings for place in finding.places), exists)


def with_lost_objects(layers: Layers, findings: list[PathChange]) -> list[PathChange]:
    """Make conflicts of those *findings* that take objects from a repository which changed since.

    Objects that no branch needed when git in the sandbox looked may be needed by a branch of the host now.
    """
    taking = [number for number, finding in enumerate(findings) if _takes_object(finding)]
    if not taking:
        return findings
    repositories = repositories_of(layers, findings)
    units: dict[bytes, list[int]] = defaultdict(list)
    for number in taking:
        unit = repositories.of(findings[number].origin)
        if unit is not None:
            units[unit].append(number)
    own = {place for finding in findings for place in (finding.lower_path, finding.old_path)}
    judged = list(findings)
    for unit, numbers in units.items():
        since = min(findings[number].changed_ns for number in numbers)
        going = objects_at(findings[number].origin for number in numbers)
        workspace = layers.workspace.directory(b"")
        # Files that the sandbox changed too are judged by their own changes.
        if changed_since(workspace, unit, since, lambda path, _: path in own, going) is not None:
            for number in numbers:
                if findings[number].conflict is None:
                    judged[number] = replace(findings[number], conflict=change.REPOSITORY)
    return judged


def _takes_object(finding: PathChange) -> bool:
    went = finding.kind in _TAKING and (finding.kind is ChangeKind.RENAMED or not finding.is_dir)
    return went and _OBJECTS in finding.origin.split(b"/")


def objects_at(paths: Iterable[bytes]) -> frozenset[bytes] | None:
    """Return the names of the loose objects at *paths*; None where a path does not name its objects."""
    found = set()
    for path in paths:
        if _OBJECTS in path.split(b"/"):
            loose = _LOOSE.search(path)
            if loose is None:
                return None
            found.add(bytes.fromhex((loose[1] + loose[2]).decode("ascii")))
    return frozenset(found)


def changed_since(
    workspace: HostDir,
    unit: bytes,
    since: int,
    known: Callable[[bytes, os.stat_result], bool],
    going: frozenset[bytes] | None,
) -> bytes | None:
    """Return a file of the repository *unit* that changed after *since*, a ctime, and is not *known*.

    Objects do not count: an object that refers to another one is found through a branch, a log or an index.
    An index does not count that names none of the objects in *going*, the ones to be taken; *going* is None
    when they are not known.
    """

    def lists_none(path: bytes, status: os.stat_result) -> bool:
        folder, name = parted(path)
        if going is None or name != git_files.INDEX_NAME or status.st_size > git_files.LARGEST_INDEX:
            return False
        with OpenDirectories(workspace) as ground:
            return not git_files.names_any(ground.in_it(folder, lambda here: here.read(name)), going)

    with OpenDirectories(workspace) as ground:
        top = ground.find(unit)
        if top is None or not stat.S_ISDIR(top.own_stat().st_mode):
            return None
        for inner, status in contents(top):
            path = joined(unit, inner)
            changed = not stat.S_ISDIR(status.st_mode) and status.st_ctime_ns >= since
            if not changed or _OBJECTS in inner.split(b"/") or known(path, status):
                continue
            if not (stat.S_ISREG(status.st_mode) and lists_none(path, status)):
                return path
    return None
