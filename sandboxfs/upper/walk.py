"""Walking the view by path without a mount: upper directories, what the view shows, and where links lead.

Two walks take the step of `resolve` from the root down: `way` along one path, and `map_upper` through all of
the upper, where every directory is listed once. The *lower* path of an upper directory is the path of the
workspace's content that the view merges with it, or that it replaced: the same path, unless a redirect leads
elsewhere, there or further up. The lower path is None where no content of the workspace belongs there,
because it was moved away: after `mv a b && mkdir a` the lower path of `b` is `a`, and the new `a` has none.

The merged view serves content that a scan leaves out as unchanged: the content of a renamed directory, the
other names of a hard link.

Links are resolved for rules: a program that opens `link/a` is judged by the target of the link. Only the
layers are read, and only along the way. The last name stands for itself, and so does a path whose links lead
out of the view, in circles or nowhere.
"""

import os
import stat
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from operator import itemgetter
from typing import NamedTuple

from sandboxfs.hostfs.tree import DirTree, vanished
from sandboxfs.paths import is_below, is_too_deep, joined, parted
from sandboxfs.upper import marks
from sandboxfs.upper.marks import ABSENT, WHITEOUT, NameState
from sandboxfs.upper.resolve import AnsweringLayer, Resolved, resolve
from sandboxfs.upper.sandbox_layers import Layers


@dataclass(slots=True)
class UpperDirectory:
    """One directory of the upper.

    *hidden*: the view does not show the workspace's content at the lower path. *redirect* is the path of the
    redirect. *natural* is the lower path without a redirect. *damaged*: the directory is opaque because its
    redirect leads to no directory. *entries* are the names in it, directories too, with None for a whiteout;
    *gone* are the whiteouts' times.
    """

    path: bytes
    status: os.stat_result
    opaque: bool
    redirect: bytes | None
    natural: bytes | None
    lower: bytes | None
    hidden: bool
    damaged: bool = False
    entries: dict[bytes, os.stat_result | None] = field(default_factory=dict)
    # An entry is too deep for a review: none is listed, and all are taken as a whole.
    cut: bool = False
    gone: dict[bytes, int] = field(default_factory=dict)

    @property
    def moved(self) -> bool:
        """Whether the directory came from another path of the workspace."""
        return self.redirect is not None and self.redirect != self.natural


class UpperMap:
    """All directories of an upper by their path in the view; *moved* maps old lower paths to new ones."""

    def __init__(self, directories: dict[bytes, UpperDirectory], moved: dict[bytes, bytes]) -> None:
        self.directories = directories
        self.moved = moved

    def __iter__(self) -> Iterator[UpperDirectory]:
        return iter(self.directories.values())

    def get(self, path: bytes) -> UpperDirectory | None:
        return self.directories.get(path)

    def below(self, directory: UpperDirectory, name: bytes) -> bytes | None:
        """Return the lower path of *name* in *directory*, or None when no lower content belongs to it."""
        if directory.lower is None:
            return None
        lower = joined(directory.lower, name)
        return None if lower in self.moved else lower


def map_upper(layers: Layers) -> UpperMap:
    """Scan all of the upper but covered paths. Entries that come or go meanwhile may be left out."""
    found = _list_all(layers.upper, layers.covered)
    for directory in found.values():
        if directory.redirect is not None and _is_astray(layers, directory.redirect):
            directory.redirect, directory.lower = None, directory.natural
            directory.opaque = directory.hidden = directory.damaged = True
    upper = UpperMap(found, {})
    while _note_moves(upper):
        for directory in found.values():
            if directory.path:
                _settle(upper, directory)
    return upper


def _is_astray(layers: Layers, redirect: bytes) -> bool:
    """Whether a redirect leads to or through an object that is no directory, or to a masked path."""
    if _is_masked(layers.masked, redirect):
        return True
    while (status := layers.workspace.stat(redirect)) is None:
        redirect = parted(redirect)[0]
    return not stat.S_ISDIR(status.st_mode)


def _note_moves(upper: UpperMap) -> bool:
    """Add the moves known by now; each may take the lower path away from a directory that kept its name."""
    known = len(upper.moved)
    for directory in upper:
        if directory.moved and directory.redirect is not None:
            upper.moved.setdefault(directory.redirect, directory.path)
    return len(upper.moved) > known


def _settle(upper: UpperMap, directory: UpperDirectory) -> None:
    """Correct the lower path of *directory*, now that all moves are known and its parent's is right."""
    parent_path, name = parted(directory.path)
    parent = upper.directories[parent_path]
    directory.natural = upper.below(parent, name)
    if directory.redirect is None:
        directory.lower = directory.natural
        directory.hidden = directory.opaque or parent.hidden


def _list_all(tree: DirTree, covered: frozenset[bytes]) -> dict[bytes, UpperDirectory]:
    top = tree.stat(b"")
    if top is None:
        return {}
    root = UpperDirectory(b"", top, opaque=False, redirect=None, natural=b"", lower=b"", hidden=False)
    found = {b"": root}
    pending = deque([root])
    while pending:
        directory = pending.popleft()
        for name in _list(tree, directory, covered):
            inner = _directory(tree, directory, name)
            if inner is not None:
                found[inner.path] = inner
                pending.append(inner)
    return found


def _list(tree: DirTree, directory: UpperDirectory, covered: frozenset[bytes]) -> list[bytes]:
    """Fill in the entries of *directory*; return those that are directories."""
    found = []
    for entry in tree.entries(directory.path):
        name = os.fsencode(entry.name)
        if joined(directory.path, name) in covered:
            continue
        try:
            status: os.stat_result | None = entry.stat(follow_symlinks=False)
        except OSError:
            # The entry is gone, or in a directory that may be listed but not searched.
            status = tree.stat(joined(directory.path, name))
        if status is not None:
            found.append((name, status))
    if any(is_too_deep(joined(directory.path, name)) for name, _ in found):
        directory.cut = True
        return []
    found.sort(key=itemgetter(0))
    inner = []
    for name, status in found:
        if stat.S_ISDIR(status.st_mode):
            inner.append(name)
        elif _is_whiteout(tree, directory.path, name, status):
            directory.gone[name] = status.st_ctime_ns
            directory.entries[name] = None
            continue
        directory.entries[name] = status
    return inner


def _is_whiteout(tree: DirTree, directory: bytes, name: bytes, status: os.stat_result) -> bool:
    # Only an entry that could be a whiteout is examined.
    if stat.S_ISCHR(status.st_mode) or (not status.st_size and stat.S_ISREG(status.st_mode)):
        return marks.read_state(tree.directory(directory), name, status) is WHITEOUT
    return False


def _directory(tree: DirTree, parent: UpperDirectory, name: bytes) -> UpperDirectory | None:
    status = parent.entries[name]
    mark = None if status is None else _state(tree, parent.path, name, status)
    if status is None or not isinstance(mark, marks.DirMarks):
        del parent.entries[name]
        return None
    shown = resolve(mark, None if parent.hidden else parent.lower)
    natural = None if parent.lower is None else joined(parent.lower, name)
    lost = not mark.opaque and mark.redirect is not None and shown.redirect is None
    return UpperDirectory(
        joined(parent.path, name),
        status,
        opaque=mark.opaque or lost,
        redirect=shown.redirect,
        natural=natural,
        lower=natural if shown.redirect is None else shown.redirect,
        hidden=shown.redirect is None and not shown.beside,
        damaged=mark.damaged or lost,
    )


def _state(tree: DirTree, parent: bytes, name: bytes, status: os.stat_result) -> NameState:
    """The upper's state at a name that was seen with *status*; the entry may have just gone."""
    for _ in range(2):
        try:
            here = tree.directory(parent)
            return tree.reaching(here, partial(marks.read_state, here, name, status))
        except OSError as error:
            if not vanished(error):
                raise
            # A mark may have been removed between being listed and being read.
    return ABSENT


class WalkedName(NamedTuple):
    """One name on the way to a path: *status* is that of the upper's entry, *lower* the lower path."""

    path: bytes
    status: os.stat_result | None
    shown: Resolved
    lower: bytes | None

    @property
    def in_upper(self) -> bool:
        """Whether the upper has a directory there, and so may have entries below."""
        return self.status is not None and stat.S_ISDIR(self.status.st_mode)


def look(upper: DirTree | None, directory: bytes, name: bytes, lower: bytes | None) -> WalkedName:
    """The state of *name* in *directory* of the view, which has the lower path *lower*.

    Without *upper* the view consists of the layers below alone.
    """
    path = joined(directory, name)
    status = None if upper is None else upper.stat(path)
    state: NameState = ABSENT
    if upper is not None and status is not None:
        state = _state(upper, directory, name, status)
    shown = resolve(state, lower)
    return WalkedName(path, None if state is ABSENT else status, shown, shown.lower_path(lower, name))


def way(upper: DirTree | None, path: bytes) -> Iterator[WalkedName]:
    """Every name on the way from the root of the view to *path*, the last included; no link is followed."""
    here = b""
    lower: bytes | None = b""
    for name in path.split(b"/") if path else ():
        walked = look(upper, here, name, lower)
        yield walked
        here, lower = walked.path, walked.lower
        if not walked.in_upper:
            upper = None


def shown_at(
    upper: DirTree | None, workspace: DirTree, masked: Iterable[bytes], path: bytes
) -> tuple[DirTree, bytes, os.stat_result] | None:
    """The layer of the object that the view shows at *path*, its path there, and its status; or None.

    *masked* paths of the workspace are not accessed.
    """
    layer, place = (workspace if upper is None else upper), b""
    for walked in way(upper, path):
        if upper is not None and walked.shown.answer is AnsweringLayer.UPPER:
            layer, place = upper, walked.path
        elif walked.lower is None or _is_masked(masked, walked.lower):
            return None
        else:
            layer, place = workspace, walked.lower
    status = layer.stat(place)
    return None if status is None else (layer, place, status)


def _is_masked(masked: Iterable[bytes], lower: bytes) -> bool:
    return any(is_below(lower, place) for place in masked)


@dataclass(frozen=True, slots=True)
class ShownFile:
    """A file of the view that is no directory; *upper* is its status there, None when it is lower only."""

    path: bytes
    lower_path: bytes | None
    upper: os.stat_result | None
    ino: int


class MergedView:
    """The merged tree of some layers, as it was when the upper was scanned."""

    def __init__(self, layers: Layers, upper: UpperMap) -> None:
        self.layers = layers
        self.upper = upper

    def below(self, top: bytes) -> Iterator[ShownFile]:
        """Everything in the view below the directory *top* that is no directory, in no order."""
        pending: list[tuple[bytes, bytes | None]] = [(top, None)]
        while pending:
            path, lower = pending.pop()
            directory = self.upper.get(path)
            if directory is not None:
                for name, status in directory.entries.items():
                    if status is None:
                        continue
                    inner = joined(path, name)
                    if stat.S_ISDIR(status.st_mode):
                        pending.append((inner, None))
                    else:
                        yield ShownFile(inner, self.upper.below(directory, name), status, status.st_ino)
                lower = None if directory.hidden else directory.lower
            if lower is not None:
                for name, is_directory, ino in self._lower_names(directory, lower):
                    inner, lower_path = joined(path, name), joined(lower, name)
                    if is_too_deep(inner) or is_too_deep(lower_path):
                        continue
                    if is_directory:
                        pending.append((inner, lower_path))
                    else:
                        yield ShownFile(inner, lower_path, None, ino)

    def _lower_names(self, above: UpperDirectory | None, lower: bytes) -> list[tuple[bytes, bool, int]]:
        covered = {} if above is None else above.entries
        found = []
        for entry in self.layers.workspace.entries(lower):
            name = os.fsencode(entry.name)
            path = joined(lower, name)
            if name not in covered and path not in self.layers.masked and path not in self.upper.moved:
                found.append((name, entry.is_dir(follow_symlinks=False), entry.inode()))
        return found


_MOST_LINKS = 40


class SymlinkResolver:
    """Resolves paths of one view; *tops* are the absolute paths of its root.

    Without *upper* the view is the workspace as it is. *masked* paths of the workspace are not accessed.
    """

    def __init__(
        self, upper: DirTree | None, workspace: DirTree, masked: frozenset[bytes], tops: Sequence[bytes]
    ) -> None:
        self._upper = upper
        self._workspace = workspace
        self._masked = masked
        self._tops = tops

    def followed(self, path: bytes) -> bytes:
        """Return *path* with the links on the way followed."""
        pending = list(reversed(path.split(b"/")))
        here = b""
        links = 0
        while pending:
            name = pending.pop()
            if name in (b"", b"."):
                continue
            if name == b"..":
                if not here or not self.is_directory(here):
                    return path
                here = parted(here)[0]
                continue
            here = joined(here, name)
            target = self._link(here) if pending else None
            if target is None:
                continue
            links += 1
            rest = self._from_top(target)
            if links > _MOST_LINKS or rest is None:
                return path
            here = b"" if target.startswith(b"/") else parted(here)[0]
            pending.extend(reversed(rest.split(b"/")))
        return here

    def is_directory(self, path: bytes) -> bool:
        """Whether the view shows a directory at *path*, which has no links on the way."""
        found = self._found(path)
        return found is not None and stat.S_ISDIR(found[2].st_mode)

    def origins(self, path: bytes) -> list[bytes]:
        """The workspace's paths of the view's object at *path*: one for each moved directory on the way.

        Rules apply to these paths too.
        """
        return [
            walked.shown.redirect + path[len(walked.path) :]
            for walked in way(self._upper, path)
            if walked.shown.redirect is not None
        ]

    def _from_top(self, target: bytes) -> bytes | None:
        """The rest of a link's *target* below the root of the view, None if the target is elsewhere."""
        if not target.startswith(b"/"):
            return target
        names = _names(target)
        for top in map(_names, self._tops):
            if names[: len(top)] == top:
                return b"/".join(names[len(top) :])
        return None

    def _link(self, path: bytes) -> bytes | None:
        """The target of the symlink that the view shows at *path*, if there is one."""
        found = self._found(path)
        if found is None or not stat.S_ISLNK(found[2].st_mode):
            return None
        try:
            return found[0].readlink(found[1])
        except OSError:
            return None

    def _found(self, path: bytes) -> tuple[DirTree, bytes, os.stat_result] | None:
        return shown_at(self._upper, self._workspace, self._masked, path)


def _names(path: bytes) -> list[bytes]:
    return [name for name in path.split(b"/") if name not in (b"", b".")]
