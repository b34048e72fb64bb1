"""The merged view: for every name, which layer answers.

An entry in the upper layer wins over one in a lower, a higher lower over a deeper one. A whiteout hides the
entries of that name below it; an opaque directory hides all of them; a redirect says that they are found
elsewhere. Directories of the same name are merged down to the first layer that has something else there.
What a commit has in the workspace for a moment is in no view. Nothing here writes the layers.
"""

import os
import stat
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from sandboxfs.layers import marks
from sandboxfs.layers.hostdir import HostDir
from sandboxfs.layers.temporary import is_temporary
from sandboxfs.overlay.dirfds import DirectoryFds
from sandboxfs.overlay.filesystem import ROOT_INODE
from sandboxfs.overlay.inodes import Inodes
from sandboxfs.overlay.node import Directory, Found, LowerPart, Node
from sandboxfs.overlay.numbers import Numbers
from sandboxfs.overlay.stack import Stack
from sandboxfs.overlay.watching import Watching

_ENCODING = sys.getfilesystemencoding(), sys.getfilesystemencodeerrors()


class Merge:
    """Finds entries of the view and gives them their nodes."""

    def __init__(self, stack: Stack, watches: int = 0) -> None:
        self.stack = stack
        self.fds = DirectoryFds(stack.upper, [layer.directory for layer in stack.layers])
        self._marked = [layer.marked for layer in stack.layers]
        # A layer that was an upper once is nobody's to change any more.
        self.watching = Watching(self.fds, self._marked, watches)
        self.root = self._root()
        self.inodes = Inodes(self.root, self.let_go, self._exchanged, self.watching.left)
        self.numbers = Numbers(stack.workspace.own_stat().st_dev)

    # Nodes

    def let_go(self, directory: Directory) -> None:
        """Give up what is held of a directory that is not in the view any more, or that nobody knows."""
        self.watching.release(directory)
        self.fds.drop(directory)

    def _exchanged(self, directory: Directory) -> None:
        self.watching.exchanged(directory)
        self.fds.drop(directory)

    def node_of(self, parent: Directory, name: bytes, found: Found) -> Node:
        """The node of an entry that `find` found."""
        number = found.ino
        node = self.inodes.place(parent, name, found)
        if isinstance(node, Directory):
            node.masks = self._masks(node.lowers)
        if node.number != number and found.upper and not found.indexed and not found.recorded:
            self.keep_number(self.fds.upper(parent), name, found)
        return node

    def made_file(self, parent: Directory, name: bytes, status: os.stat_result) -> Node:
        """The node of a file that was just made in the upper."""
        number = self.numbers.of_upper(status)
        node = self.inodes.new_file(number, parent, name, status)
        if node is None:
            return self.node_of(parent, name, Found(status, number, upper=True))
        node.upper = True
        return node

    def keep_number(self, directory: HostDir, name: bytes, found: Found) -> None:
        """Record the number shown for an upper entry, which is not the one its host number gives."""
        mode = found.stat.st_mode
        if stat.S_ISREG(mode) or stat.S_ISDIR(mode):
            marks.write_record(directory, name, marks.Record(found.ino, 0))
        else:
            self.stack.index.set_number(found.stat.st_ino, found.ino)

    # Finding

    def look(self, parent: Directory, name: bytes) -> tuple[Node, os.stat_result] | None:
        """The node of the entry *name* of the view and the status of its host object; None without any."""
        part = self._alone(parent)
        if part is not None and (name[:1] != b"." or not is_temporary(name)):
            # Nearly all that is ever looked at: a file of the workspace, and no other layer to ask.
            status = (part.held or self.fds.lower(part)).stat(name)
            if status is None:
                return None
            if stat.S_ISREG(status.st_mode) and status.st_nlink == 1 and status.st_dev == part.dev:
                number = self.numbers.of_lower(status)
                node = self.inodes.place_plainly(number, parent, name, status, part.layer)
                if node is not None:
                    return node, status
        found = self.find(parent, name)
        return None if found is None else (self.node_of(parent, name, found), found.stat)

    def _alone(self, directory: Directory) -> LowerPart | None:
        """The workspace's part of a directory, if that is all that there is."""
        lowers = directory.lowers
        if (
            len(lowers) == 1
            and not directory.upper
            and directory.masks is None
            and not self._marked[lowers[0].layer]
        ):
            return lowers[0]
        return None

    def find(self, parent: Directory, name: bytes) -> Found | None:
        """The entry *name* of the view, or None."""
        if parent.gone is not None:
            # What has its name now is another.
            return None
        if parent.masks is not None and name in parent.masks:
            shown = parent.masks[name]
            return None if shown is None else self._sealed(shown)
        if parent.upper:
            upper = self.fds.upper(parent)
            status = upper.stat(name)
            if status is not None:
                if self.stack.whiteouts.covers(upper, name, status):
                    return None
                return self._upper_entry(parent, upper, name, status)
        return self._lower_entry(parent, name) if parent.lowers else None

    def made_here(self, upper: HostDir, name: bytes) -> tuple[Node, os.stat_result] | None:
        """The file *name* of an upper directory, if it was made in the sandbox and has no other name."""
        status = upper.stat(name)
        if status is None or status.st_nlink != 1 or not stat.S_ISREG(status.st_mode):
            return None
        node = self.inodes.made_here(self.numbers.of_upper(status), status)
        return None if node is None else (node, status)

    def lower_has(self, parent: Directory, name: bytes) -> bool:
        """Whether a name removed from the upper would show again from below."""
        if not parent.lowers or (parent.masks is not None and name in parent.masks):
            return False
        return self._lower_entry(parent, name) is not None

    def is_plain(self, parent: Directory, name: bytes) -> bool:
        """Whether what the upper has at *name* is all that there is to think of."""
        if not parent.lowers:
            return parent.only_upper
        if not parent.upper or (parent.masks is not None and name in parent.masks):
            return False
        return self._descend(parent.lowers, name)[1] is None

    def upper_has(self, parent: Directory, name: bytes) -> bool:
        """Whether the upper has anything at *name*, a whiteout included."""
        return parent.upper and self.fds.upper(parent).stat(name) is not None

    def _upper_entry(self, parent: Directory, upper: HostDir, name: bytes, status: os.stat_result) -> Found:
        mode = status.st_mode
        if stat.S_ISDIR(mode):
            return self._upper_directory(parent, upper, name, status)
        if stat.S_ISREG(mode):
            number = self.numbers.of_upper(status)
            if self.inodes.made_here(number, status) is not None:
                return Found(status, number, upper=True)
            record = marks.read_record(upper, name)
            ino = record.ino or number
            return Found(status, ino, upper=True, indexed=record.nlink > 0, recorded=record.ino != 0)
        written = self.stack.index.number(status.st_ino)
        ino = written or self.numbers.of_upper(status)
        return Found(status, ino, upper=True, recorded=bool(written))

    def _upper_directory(
        self, parent: Directory, upper: HostDir, name: bytes, status: os.stat_result
    ) -> Found:
        mark = marks.read_directory(upper, name)
        ino = mark.ino or self.numbers.of_upper(status)
        found = Found(status, ino, upper=True, recorded=mark.ino != 0)
        if mark.opaque:
            return found
        if mark.redirect is not None:
            if not self._moved_below_too(parent, name, found):
                found.origin = marks.redirected_path(mark.redirect, parent.origin)
                found.lowers = self.lowers_at(found.origin)
        elif parent.lowers:
            found.origin = _join(parent.origin, name)
            found.lowers, top = self._descend(parent.lowers, name)
            if found.lowers and top is not None and not mark.ino:
                # An upper that kernel overlayfs wrote has no record; the lower's number is what it showed.
                found.ino = self._number(top[0], name, top[1])
        return found

    def _moved_below_too(self, parent: Directory, name: bytes, found: Found) -> bool:
        """Find the lower part of a moved directory in its new place, if it is there, by its number.

        A commit moves it in the workspace first; until the redirect goes, nothing must be missing.
        """
        lowers, top = self._descend(parent.lowers, name)
        if not lowers or top is None or self._number(top[0], name, top[1]) != found.ino:
            return False
        found.lowers, found.origin = lowers, _join(parent.origin, name)
        return True

    def _lower_entry(self, parent: Directory, name: bytes) -> Found | None:
        lowers, top = self._descend(parent.lowers, name)
        if top is None:
            return None
        part, status = top
        ino = self._number(part, name, status)
        if lowers:
            return Found(status, ino, upper=False, lowers=lowers, origin=_join(parent.origin, name))
        if status.st_nlink > 1 and self.stack.index.has_link(ino):
            directory, link = self.stack.index.directory, self.stack.index.link_name(ino)
            indexed = directory.stat(link)
            if indexed is not None:
                return Found(indexed, ino, upper=True, indexed=True)
        return Found(status, ino, upper=False, layer=part.layer)

    def _number(self, part: LowerPart, name: bytes, status: os.stat_result) -> int:
        """The number of the entry *name* of a lower directory."""
        if self._marked[part.layer]:
            return self._recorded(self.fds.lower(part), name, status) or self.numbers.of_upper(status)
        if not self.numbers.knows(status.st_dev):
            self.numbers.learn(status.st_dev, self.fds.lower(part).filesystem_id(name))
        return self.numbers.of_lower(status)

    def _recorded(self, directory: HostDir, name: bytes, status: os.stat_result) -> int:
        if stat.S_ISDIR(status.st_mode):
            return marks.read_directory(directory, name).ino
        return marks.read_record(directory, name).ino if stat.S_ISREG(status.st_mode) else 0

    def _descend(
        self, parts: tuple[LowerPart, ...], name: bytes
    ) -> tuple[tuple[LowerPart, ...], tuple[LowerPart, os.stat_result] | None]:
        """Look *name* up in lower directories from the top down.

        Gives the directories it is merged from (none when it is not a directory), and the topmost entry:
        the part that has it, and its status.
        """
        found: list[LowerPart] = []
        top: tuple[LowerPart, os.stat_result] | None = None
        passing = is_temporary(name)
        for part in parts:
            marked = self._marked[part.layer]
            if passing and not marked:
                continue
            directory = self.fds.lower(part)
            status = directory.stat(name)
            if status is None:
                continue
            if marked and self.stack.whiteouts.covers(directory, name, status):
                break
            if not stat.S_ISDIR(status.st_mode):
                if top is None:
                    top = part, status
                break
            if top is None:
                top = part, status
            found.append(LowerPart(part.layer, part.child_path(name), status.st_dev, status.st_ino))
            mark = marks.read_directory(directory, name) if marked else marks.NO_MARKS
            if mark.opaque:
                break
            if mark.redirect is not None:
                path = marks.redirected_path(mark.redirect, part.path)
                found += self.lowers_at(path, below=part.layer)
                break
        return tuple(found), top

    def lowers_at(self, path: bytes, below: int = -1) -> tuple[LowerPart, ...]:
        """The lower directories that the path leads to in the layers below layer *below*."""
        parts = tuple(part for part in self.root.lowers if part.layer > below)
        for name in path.split(b"/") if path else ():
            if self._masked(parts, name):
                return ()
            parts, _ = self._descend(parts, name)
        return parts

    def has(self, parts: tuple[LowerPart, ...], name: bytes) -> bool:
        """Whether lower directories have an entry of that name."""
        return not self._masked(parts, name) and self._descend(parts, name)[1] is not None

    def is_masked(self, path: bytes) -> bool:
        """Whether a path of the lower layers leads to a name that must not be asked for, or past it."""
        parts = self.root.lowers
        for name in path.split(b"/") if path else ():
            if self._masked(parts, name):
                return True
            parts, _ = self._descend(parts, name)
        return False

    def _masked(self, parts: tuple[LowerPart, ...], name: bytes) -> bool:
        """Whether a name must not be asked for: it may be our own mountpoint, and the answer ours to give."""
        return any(name in self.stack.masks.in_directory(part.dev, part.ino) for part in parts)

    def _sealed(self, shown: os.stat_result) -> Found:
        return Found(shown, self.numbers.of_lower(shown), upper=False, sealed=True)

    # Listing

    def names(self, directory: Directory) -> dict[bytes, int]:
        """All names of a directory of the view; those of the workspace's files with their host numbers."""
        part = self._alone(directory)
        if part is not None:
            return self._plain_names(self.fds.lower(part))
        seen: dict[bytes, int] = {}
        hidden: set[bytes] = {n for n, shown in (directory.masks or {}).items() if shown is None}
        if directory.upper:
            self._collect(self.fds.upper(directory), seen, hidden, marked=True)
        for part in directory.lowers:
            marked = self._marked[part.layer]
            self._collect(self.fds.lower(part), seen, hidden, marked=marked)
        return seen

    def _plain_names(self, directory: HostDir) -> dict[bytes, int]:
        """All names of a directory that only the workspace has, in one go."""
        return {
            name: _file_number(entry)
            for entry in directory.entries()
            if (name := entry.name.encode(*_ENCODING))[:1] != b"." or not is_temporary(name)
        }

    def is_empty(self, directory: Directory) -> bool:
        return not self.names(directory)

    def _collect(
        self, directory: HostDir, seen: dict[bytes, int], hidden: set[bytes], *, marked: bool
    ) -> None:
        whiteouts = set()
        for entry in directory.entries():
            # What os.fsencode does, in a third of the time.
            name = entry.name.encode(*_ENCODING)
            if name in hidden or name in seen:
                continue
            if not marked and name[:1] == b"." and is_temporary(name):
                continue
            if marked and self.stack.whiteouts.may_cover(entry):
                status = directory.stat(name)
                if status is None:
                    continue
                if self.stack.whiteouts.covers(directory, name, status):
                    whiteouts.add(name)
                    continue
            seen[name] = 0 if marked else _file_number(entry)
        hidden |= whiteouts

    # Setting up

    def seal_foreign(self, places: Iterable[Path]) -> None:
        self.stack.masks.seal_foreign(places)
        for directory in self.inodes.directories():
            directory.masks = self._masks(directory.lowers)
            directory.listed = None

    def _root(self) -> Directory:
        root = Directory(ROOT_INODE, stat.S_IFDIR, None, b"")
        parts = []
        for layer, opened in enumerate(self.stack.layers):
            status = opened.directory.own_stat()
            parts.append(LowerPart(layer, b"", status.st_dev, status.st_ino))
        root.lowers = tuple(parts)
        root.masks = self._masks(root.lowers)
        root.upper = True
        status = self.stack.upper.own_stat()
        root.host_dev, root.host_ino = status.st_dev, status.st_ino
        root.lookups = 1
        return root

    def _masks(self, parts: tuple[LowerPart, ...]) -> dict[bytes, os.stat_result | None] | None:
        masks: dict[bytes, os.stat_result | None] = {}
        for part in parts:
            masks |= self.stack.masks.in_directory(part.dev, part.ino)
        return masks or None


def _file_number(entry: "os.DirEntry[str]") -> int:
    """The host number of a listed file; 0 for anything else, and for what cannot be looked at."""
    try:
        return entry.inode() if entry.is_file(follow_symlinks=False) else 0
    except OSError:
        return 0


def ancestors(directory: Directory | None) -> Iterator[Directory]:
    """The directory and all above it."""
    while directory is not None:
        yield directory
        directory = directory.parent


def _join(parent: bytes, name: bytes) -> bytes:
    return parent + b"/" + name if parent else name
