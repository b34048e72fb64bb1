"""What git ignores on the host: ignore rules of the workspace and its user, but for what is tracked.

The rules are those of the workspace as it is on the host: the `.gitignore` files on the way to a path,
`info/exclude` of the repository at the top, and the user's own file. No file of a view is ever read, so that
a program in the sandbox has no say. A path need not exist: rules are about names.

What a repository tracks is not ignored, and no more is a directory that holds anything tracked; a directory
that is ignored is so with everything below. Nothing of `.git` is. An index that cannot be read tracks nothing
here, and ignore files that are too large ignore everything: a rule for what is ignored rather covers too
much. A path that is too long to be named has the answer of the last directory on its way that can be named.
"""

import os
import stat
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from pathlib import Path

from sandboxfs.hostfs.directory import HostDir
from sandboxfs.hostfs.tree import DirTree, Unreadable
from sandboxfs.paths import joined, parted
from sandboxfs.review.git_user import user_excludes
from sandboxfs.review.gitignore import IgnoreMatch, IgnoreRules
from sandboxfs.review.repositories import Reach, TrackedPaths, dot_git

USER_FILE = b"core.excludesFile"
"""The name of the user's own ignore file in a match."""

# The most files whose state is remembered, and bytes of their names; beyond, everything is to be read anew.
_MOST, _MOST_BYTES = 100_000, 32 << 20
# Bytes of the ignore files on the way to a path: each name is compared with all their patterns.
_LARGEST = 128 << 10
# The kernel, and git, name no longer path.
_LONGEST_PATH = 4096
_Stamp = tuple[int, int, int, int]


class HostIgnores:
    """The paths that git ignores in one *workspace*, at *root*; nothing that is *masked* is looked at.

    Answers are remembered, and stay as they are: `outdated` tells when they should be asked for anew.
    """

    def __init__(
        self,
        workspace: DirTree,
        masked: Collection[bytes],
        root: bytes,
        excludes: Callable[[], bytes] = user_excludes,
        *,
        lasting: bool = False,
        reach: Reach = HostDir.at,
    ) -> None:
        """*lasting*: programs ask, without end, and the host may rename directories between two questions.

        *reach* opens the directories of repositories that are elsewhere.
        """
        self._workspace = workspace
        self._lasting = lasting
        self._masked = frozenset(masked)
        self._root = root
        self._reach = reach
        self._named = 0
        self._stamps: dict[bytes, _Stamp | None] = {}
        self._excludes = excludes
        self._excluded = excludes()
        self._stale = False
        self._begin()

    def _begin(self) -> None:
        self.tracked = TrackedPaths(self._workspace, self._masked, self._root, self._consult, self._reach)
        everywhere = [(USER_FILE, self._excluded), (b".git/info/exclude", self.tracked.exclude())]
        self.rules = IgnoreRules(self._read, everywhere, _LARGEST if self._lasting else None)

    def mask(self, paths: Collection[bytes]) -> None:
        """Look at nothing at *paths* from now on, either: something is mounted there."""
        if not self._masked.issuperset(paths):
            self._masked |= frozenset(paths)
            self._stale = True
            self._workspace.let_go()
            self._begin()

    def match(self, path: bytes, is_dir: bool) -> IgnoreMatch | None:
        """Return what makes git ignore *path*, which need not exist; None where it does not."""
        if len(path) > _LONGEST_PATH:
            path, is_dir = path[: path.rfind(b"/", 0, _LONGEST_PATH)], True
        if not path or dot_git(path) is not None:
            return None
        known = len(self._stamps)
        found = self.rules.match(path, is_dir)
        if found is not None and (
            self.tracked.surely_tracks(path) or (is_dir and self.tracked.tracks_below(path))
        ):
            found = None
        if self._lasting and len(self._stamps) > known:
            self._workspace.let_go()
        return found

    def ignored(self, path: bytes, is_dir: bool) -> bool:
        """Tell whether git ignores *path*."""
        return self.match(path, is_dir) is not None

    def reason(self, path: bytes, is_dir: bool) -> str | None:
        """Say by which line of which file git ignores *path*, as `.gitignore:3 *.pem`."""
        found = self.match(path, is_dir)
        if found is None:
            return None
        file, pattern = os.fsdecode(found.file), os.fsdecode(found.pattern.text)
        return f"{file}:{found.pattern.number} {pattern}"

    def outdated(self) -> bool:
        """Tell whether any file has changed on which an answer depends. May be called in another thread."""
        if self._stale or len(self._stamps) > _MOST or self._named > _MOST_BYTES:
            return True
        if self._excludes() != self._excluded:
            return True
        return any(_stamp(path) != stamp for path, stamp in list(self._stamps.items()))

    def close(self) -> None:
        """Close the directories of the workspace."""
        self._workspace.close()

    def _consult(self, path: bytes) -> None:
        if path not in self._stamps:
            self._stamps[path] = _stamp(path)
            self._named += len(path)

    def _read(self, path: bytes) -> bytes | None:
        self._consult(joined(self._root, path))
        if not self.tracked.has_directory(parted(path)[0]):
            return None
        try:
            with os.fdopen(self._workspace.open(path), "rb") as file:
                # One byte more tells that it is too large.
                regular = stat.S_ISREG(os.fstat(file.fileno()).st_mode)
                return file.read(_LARGEST + 1 if self._lasting else -1) if regular else None
        except (OSError, Unreadable):
            return None


def _stamp(path: bytes) -> _Stamp | None:
    try:
        status = os.lstat(path)
    except OSError:
        return None
    if stat.S_ISDIR(status.st_mode):
        # The times of a `.git` change with every command of git.
        return status.st_dev, status.st_ino, 0, 0
    return status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


def ignores_of(workspace: Path, masked: Collection[bytes], reach: Reach = HostDir.at) -> HostIgnores:
    """Open *workspace*, and return what git ignores there; to be closed."""
    top = DirTree(HostDir.at(workspace))
    return HostIgnores(top, masked, os.fsencode(workspace), lasting=True, reach=reach)


@contextmanager
def opened_ignores(
    workspace: Path, masked: Collection[bytes], reach: Reach = HostDir.at
) -> Iterator[HostIgnores]:
    """Do so for as long as the block runs."""
    found = ignores_of(workspace, masked, reach)
    try:
        yield found
    finally:
        found.close()
