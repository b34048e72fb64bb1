"""What is in an upper, and which place of the workspace does each directory of it stand for?

Every directory of the upper is listed once, from the top down. The *lower* path of one is where the workspace
has what the view merges with it, or what it took the place of: the same path, unless a redirect leads
elsewhere, there or further up. It is None where the workspace has nothing that belongs there, because what it
has was moved away: after `mv a b && mkdir a` the lower path of `b` is `a`, and the new `a` has none.
"""

import os
import stat
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from operator import itemgetter

from sandboxfs.changes.tree import Tree, join, split, vanished
from sandboxfs.layers import marks

# Either encoding is understood, whatever this upper's filesystem can do.
_WHITEOUTS = marks.Whiteouts(devices=False)


@dataclass(slots=True)
class UpperDirectory:
    """One directory of the upper.

    *hidden*: the view does not show what the workspace has at the lower path. *redirect* is where a redirect
    leads. *natural* is where the lower path would be without one. *entries* are the names in it, directories
    too, with None for a whiteout; *gone* are the whiteouts' times.
    """

    path: bytes
    status: os.stat_result
    opaque: bool
    redirect: bytes | None
    natural: bytes | None
    lower: bytes | None
    hidden: bool
    entries: dict[bytes, os.stat_result | None] = field(default_factory=dict)
    gone: dict[bytes, int] = field(default_factory=dict)

    @property
    def moved(self) -> bool:
        """Whether the directory came from another place of the workspace."""
        return self.redirect is not None and self.redirect != self.natural


class UpperMap:
    """All directories of an upper by their path in the view; *moved* tells where lower ones went."""

    def __init__(self, directories: dict[bytes, UpperDirectory], moved: dict[bytes, bytes]) -> None:
        self.directories = directories
        self.moved = moved

    def __iter__(self) -> Iterator[UpperDirectory]:
        return iter(self.directories.values())

    def get(self, path: bytes) -> UpperDirectory | None:
        return self.directories.get(path)

    def below(self, directory: UpperDirectory, name: bytes) -> bytes | None:
        """Return the lower path of *name* in *directory*, or None when nothing there belongs to it."""
        if directory.lower is None:
            return None
        lower = join(directory.lower, name)
        return None if lower in self.moved else lower


def map_upper(tree: Tree) -> UpperMap:
    """Look at all of the upper. What comes or goes meanwhile may be left out."""
    found = _list_all(tree)
    upper = UpperMap(found, {})
    while _note_moves(upper):
        for directory in found.values():
            if directory.path:
                _settle(upper, directory)
    return upper


def _note_moves(upper: UpperMap) -> bool:
    """Add the moves that show by now; each may take away the lower path of what seemed to be in place."""
    known = len(upper.moved)
    for directory in upper:
        if directory.moved and directory.redirect is not None:
            upper.moved.setdefault(directory.redirect, directory.path)
    return len(upper.moved) > known


def _settle(upper: UpperMap, directory: UpperDirectory) -> None:
    """Correct the lower path of *directory*, now that all moves are known and its parent's is right."""
    parent_path, name = split(directory.path)
    parent = upper.directories[parent_path]
    directory.natural = upper.below(parent, name)
    if directory.redirect is None:
        directory.lower = directory.natural
        directory.hidden = directory.opaque or parent.hidden


def _list_all(tree: Tree) -> dict[bytes, UpperDirectory]:
    top = tree.stat(b"")
    if top is None:
        return {}
    root = UpperDirectory(b"", top, opaque=False, redirect=None, natural=b"", lower=b"", hidden=False)
    found = {b"": root}
    pending = deque([root])
    while pending:
        directory = pending.popleft()
        for name in _list(tree, directory):
            inner = _directory(tree, directory, name)
            if inner is not None:
                found[inner.path] = inner
                pending.append(inner)
    return found


def _list(tree: Tree, directory: UpperDirectory) -> list[bytes]:
    """Fill in the entries of *directory*; return those that are directories."""
    found = []
    for entry in tree.entries(directory.path):
        name = os.fsencode(entry.name)
        try:
            status: os.stat_result | None = entry.stat(follow_symlinks=False)
        except OSError:
            # Gone, or in a directory that may be listed but not searched.
            status = tree.stat(join(directory.path, name))
        if status is not None:
            found.append((name, status))
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


def _is_whiteout(tree: Tree, directory: bytes, name: bytes, status: os.stat_result) -> bool:
    # Only what could be one is worth a look.
    if stat.S_ISCHR(status.st_mode) or (not status.st_size and stat.S_ISREG(status.st_mode)):
        return _WHITEOUTS.covers(tree.directory(directory), name, status)
    return False


def _directory(tree: Tree, parent: UpperDirectory, name: bytes) -> UpperDirectory | None:
    status = parent.entries[name]
    mark = _marks(tree, parent.path, name)
    if status is None or mark is None:
        del parent.entries[name]
        return None
    natural = None if parent.lower is None else join(parent.lower, name)
    redirect = None
    if mark.redirect is not None and not mark.opaque:
        redirect = marks.redirected_path(mark.redirect, parent.lower or b"")
    return UpperDirectory(
        join(parent.path, name),
        status,
        opaque=mark.opaque,
        redirect=redirect,
        natural=natural,
        lower=natural if redirect is None else redirect,
        hidden=redirect is None and (mark.opaque or parent.hidden),
    )


def _marks(tree: Tree, parent: bytes, name: bytes) -> marks.DirMarks | None:
    """The marks of a directory, None when it has just gone."""
    for _ in range(2):
        try:
            here = tree.directory(parent)
            return tree.reaching(here, partial(marks.read_directory, here, name))
        except OSError as error:
            if not vanished(error):
                raise
            # A mark may have been taken away between being listed and being read.
    return None
