"""Lookup: which layer answers for a name of the view, and which names a directory has.

An entry in the upper wins over one in a lower, a higher lower over a deeper one. `upper/resolve` interprets
whiteouts, opaque marks and redirects: its step is taken here for the upper, and for every lower layer that
was an upper once. Directories of the same name are merged, down to the first layer with another type of entry
there. Temporary names of a commit in the workspace are in no view. Nothing here writes the layers, except for
the inode records of upper entries.
"""

import os
import stat
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from sandboxfs.hostfs.directory import HostDir, unlocked
from sandboxfs.hostfs.durable import is_temporary
from sandboxfs.overlay.filesystem import ROOT_INODE
from sandboxfs.overlay.host_changes import HostWatches
from sandboxfs.overlay.inode_table import Inodes, Numbers
from sandboxfs.overlay.layers import LayerStack
from sandboxfs.overlay.nodes import MOST_OPEN, Directory, DirectoryFds, Found, LowerPart, Node
from sandboxfs.paths import joined
from sandboxfs.upper import marks
from sandboxfs.upper.marks import ABSENT
from sandboxfs.upper.resolve import BELOW, COVERED, Resolved, resolve

_ENCODING = sys.getfilesystemencoding(), sys.getfilesystemencodeerrors()


class Lookup:
    """Finds entries of the view and gives them nodes."""

    def __init__(self, stack: LayerStack, watches: int = 0, open_directories: int = MOST_OPEN) -> None:
        self.stack = stack
        lowers = [layer.directory for layer in stack.layers]
        self.fds = DirectoryFds(stack.upper, lowers, open_directories)
        self.redirected = False
        self._marked = [layer.marked for layer in stack.layers]
        # A layer that was an upper once does not change any more.
        self.watching = HostWatches(self.fds, self._marked, watches)
        self.root = self._root()
        self.inodes = Inodes(self.root, self.let_go, self._exchanged, self.watching.left)
        self.numbers = Numbers(stack.workspace.own_stat().st_dev)

    # Nodes

    def let_go(self, directory: Directory) -> None:
        """Close the descriptors and watches of a directory that left the view, or that the kernel forgot."""
        self.watching.release(directory)
        self.fds.drop(directory)

    def _exchanged(self, directory: Directory) -> None:
        self.watching.exchanged(directory)
        directory.default_list = None
        self.fds.drop(directory)

    def node_of(self, parent: Directory, name: bytes, found: Found) -> Node:
        """The node of an entry that `find` found."""
        number = found.ino
        self._bury(parent, name, found)
        node = self.inodes.place(parent, name, found)
        if isinstance(node, Directory):
            node.masks = self._masks(node.lowers)
        if node.number != number and found.upper and not found.indexed and not found.recorded:
            self.keep_number(self.fds.upper(parent), name, found)
        return node

    def _bury(self, parent: Directory, name: bytes, found: Found) -> None:
        """Have the node of a found entry stand for nothing, if its object is gone and gave its number away.

        Otherwise the node would be moved to *name* as if the host had renamed its file, and programs that go
        by the old name would read, and change, the wrong file.
        """
        node = self.inodes.known(found)
        if node is not None and self.is_another(node, parent, name, found):
            for place in node.places():
                self.watching.left(*place)
            node.lose_object()

    def is_another(self, node: Node, parent: Directory, name: bytes, found: Found) -> bool:
        """Whether a lower entry only has the number of a node that was known by other names.

        The host gives the number of a deleted file to the next one that it makes. The time of birth tells the
        new file from a renamed one.
        """
        if found.upper or not node.host_ctime or (parent, name) in node.places():
            return False
        return self._born(parent, name, found) > node.host_ctime

    def _born(self, parent: Directory, name: bytes, found: Found) -> int:
        """The time of birth of a lower entry; 0 where that cannot be told."""
        layer = found.lowers[0].layer if found.lowers else found.layer
        for part in parent.lowers:
            if part.layer == layer:
                return self.fds.lower(part).born(name)
        return 0

    def made_file(self, parent: Directory, name: bytes, status: os.stat_result) -> Node:
        """The node of a file that was just made in the upper."""
        number = self.numbers.of_upper(status)
        node = self.inodes.new_file(number, parent, name, status)
        if node is None:
            return self.node_of(parent, name, Found(status, number, upper=True))
        node.upper = True
        return node

    def keep_number(self, directory: HostDir, name: bytes, found: Found) -> None:
        """Record the number shown for an upper entry, where its host number gives another."""
        mode = found.stat.st_mode
        if stat.S_ISREG(mode) or stat.S_ISDIR(mode):
            marks.write_record(directory, name, marks.InodeRecord(found.ino, 0))
        else:
            self.stack.index.set_number(found.stat.st_ino, found.ino)

    # Finding

    def look(self, parent: Directory, name: bytes) -> tuple[Node, os.stat_result] | None:
        """The node of the entry *name* of the view and the status of its host object, or None."""
        part = self._alone(parent)
        if part is not None and (name[:1] != b"." or not is_temporary(name)):
            # The usual case: a file of the workspace, and no other layer to look at.
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
        """The workspace's part of a directory, if the directory has no other part."""
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
            # Another directory has the path now.
            return None
        if parent.masks is not None and name in parent.masks:
            shown = parent.masks[name]
            return None if shown is None else self._sealed(shown)
        if not parent.upper:
            return self._lower_entry(parent, name) if parent.lowers else None
        upper = self.fds.upper(parent)
        status = upper.stat(name)
        state = ABSENT if status is None else marks.read_state(upper, name, status, self.stack.whiteouts)
        resolved = resolve(state, parent.origin if parent.lowers else None)
        if resolved is BELOW:
            return self._lower_entry(parent, name)
        if status is None or resolved is COVERED:
            return None
        if isinstance(state, marks.DirMarks):
            return self._upper_directory(parent, name, status, state.ino, resolved)
        return self._upper_entry(upper, name, status)

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
        """Whether the upper alone decides about *name*."""
        if not parent.lowers:
            return parent.only_upper
        if not parent.upper or (parent.masks is not None and name in parent.masks):
            return False
        return self._descend(parent.lowers, name)[1] is None

    def upper_has(self, parent: Directory, name: bytes) -> bool:
        """Whether the upper has anything at *name*, a whiteout included."""
        return parent.upper and self.fds.upper(parent).stat(name) is not None

    def _upper_entry(self, upper: HostDir, name: bytes, status: os.stat_result) -> Found:
        if stat.S_ISREG(status.st_mode):
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
        self, parent: Directory, name: bytes, status: os.stat_result, recorded: int, shown: Resolved
    ) -> Found:
        ino = recorded or self.numbers.of_upper(status)
        found = Found(status, ino, upper=True, recorded=recorded != 0)
        if shown.redirect is not None:
            self.redirected = True
            if not self._moved_below_too(parent, name, found):
                found.origin = shown.redirect
                found.lowers = self.lowers_at(shown.redirect)
        elif shown.beside:
            found.origin = joined(parent.origin, name)
            found.lowers, top = self._descend(parent.lowers, name)
            if found.lowers and top is not None and not recorded:
                # An upper written by kernel overlayfs has no record: overlayfs showed the lower's number.
                found.ino = self._number(top[0], name, top[1])
        return found

    def _moved_below_too(self, parent: Directory, name: bytes, found: Found) -> bool:
        """Find the lower part of a moved directory at its new path, if its number shows that it is there.

        A commit moves the directory in the workspace first; until the redirect goes, no entry may be missing.
        """
        lowers, top = self._descend(parent.lowers, name)
        if not lowers or top is None or self._number(top[0], name, top[1]) != found.ino:
            return False
        found.lowers, found.origin = lowers, joined(parent.origin, name)
        return True

    def _lower_entry(self, parent: Directory, name: bytes) -> Found | None:
        lowers, top = self._descend(parent.lowers, name)
        if top is None:
            return None
        part, status = top
        ino = self._number(part, name, status)
        if lowers:
            return Found(status, ino, upper=False, lowers=lowers, origin=joined(parent.origin, name))
        if stat.S_ISDIR(status.st_mode):
            return Found(status, ino, upper=False, sealed=True)
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

        Gives the directories to merge (none when the topmost entry is no directory, or a covered one), and
        the topmost entry: the part that has it, and its status.
        """
        found: list[LowerPart] = []
        top: tuple[LowerPart, os.stat_result] | None = None
        passing = is_temporary(name)
        covered = self.stack.masks.covered
        for part in parts:
            marked = self._marked[part.layer]
            if passing and not marked:
                continue
            directory = self.fds.lower(part)
            status = directory.stat(name)
            if status is None:
                continue
            shown = None
            if marked:
                state = marks.read_state(directory, name, status, self.stack.whiteouts)
                shown = resolve(state, part.path)
                if shown is COVERED:
                    break
            top = top or (part, status)
            if not stat.S_ISDIR(status.st_mode) or (status.st_dev, status.st_ino) in covered:
                break
            found.append(LowerPart(part.layer, joined(part.path, name), status.st_dev, status.st_ino))
            if shown is None or shown.beside:
                continue
            if shown.redirect is not None:
                self.redirected = True
                found += self.lowers_at(shown.redirect, below=part.layer)
            break
        return tuple(found), top

    def lowers_at(self, path: bytes, below: int = -1) -> tuple[LowerPart, ...]:
        """The lower directories at a path in the layers below layer *below*."""
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
        """Whether a path of the lower layers leads to, or through, a name that must not be looked up."""
        parts = self.root.lowers
        for name in path.split(b"/") if path else ():
            if self._masked(parts, name):
                return True
            parts, _ = self._descend(parts, name)
        return False

    def _masked(self, parts: tuple[LowerPart, ...], name: bytes) -> bool:
        """Whether a name must not be looked up: it may be our own mountpoint, and the answer ours to give."""
        return any(name in self.stack.masks.in_directory(part) for part in parts)

    def is_pinned(self, found: Found) -> bool:
        """Whether a directory keeps its name, because a run mounts below it."""
        pinned = self.stack.masks.pinned
        return bool(pinned) and any(part.path in pinned for part in found.lowers)

    def misplaced(self, path: bytes) -> bytes | None:
        """The first path on the way to the covered directory *path* that is not the workspace's directory."""
        *above, last = path.split(b"/")
        directory, walked, passed = self.root, b"", []
        try:
            for name in above:
                walked = joined(walked, name)
                found = self.find(directory, name)
                if found is None or not self.is_pinned(found):
                    return walked
                node = self.node_of(directory, name, found)
                passed.append(node)
                if isinstance(node, Directory):
                    directory = node
            found = self.find(directory, last)
            return None if found is not None and found.sealed else path
        finally:
            for node in reversed(passed):
                self.inodes.discard_unused(node)

    def _sealed(self, shown: os.stat_result) -> Found:
        return Found(shown, self.numbers.of_lower(shown), upper=False, sealed=True)

    # Listing

    def names(self, directory: Directory) -> dict[bytes, int]:
        """All names of a directory of the view; with the host number of each workspace file, otherwise 0."""
        part = self._alone(directory)
        if part is not None:
            return self._plain_names(self.fds.lower(part))
        seen: dict[bytes, int] = {}
        hidden: set[bytes] = {n for n, shown in (directory.masks or {}).items() if shown is None}
        if directory.upper:
            upper = self.fds.upper(directory)
            try:
                self._collect(upper, seen, hidden, marked=True)
            except PermissionError:
                # Listing the directory, or removing it when empty, needs no permission to read whiteouts.
                seen.clear()
                unlocked(
                    upper.own_path(),
                    upper.own_stat().st_mode,
                    lambda: self._collect(upper, seen, hidden, marked=True),
                )
        for part in directory.lowers:
            marked = self._marked[part.layer]
            self._collect(self.fds.lower(part), seen, hidden, marked=marked)
        return seen

    def mentions(self, directory: Directory) -> dict[bytes, tuple[int, int]]:
        """The types and numbers that listings alone give, for a directory that cannot be searched.

        A type that Python's listing does not give is 0.
        """
        parts = [self.fds.upper(directory)] if directory.upper else []
        parts += [self.fds.lower(part) for part in directory.lowers]
        found: dict[bytes, tuple[int, int]] = {}
        for part in parts:
            dev = part.own_stat().st_dev
            for entry in part.entries():
                number = self.numbers.of_host(dev, entry.inode())
                found.setdefault(entry.name.encode(*_ENCODING), (_kind(entry), number))
        return found

    def _plain_names(self, directory: HostDir) -> dict[bytes, int]:
        """All names of a directory that is only in the workspace, in one pass."""
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
            # The result of os.fsencode, in a third of the time.
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
        root.stand_for(status)
        root.lookups = 1
        return root

    def _masks(self, parts: tuple[LowerPart, ...]) -> dict[bytes, os.stat_result | None] | None:
        masks: dict[bytes, os.stat_result | None] = {}
        for part in parts:
            masks |= self.stack.masks.in_directory(part)
        return masks or None


def _file_number(entry: "os.DirEntry[str]") -> int:
    """The host number of a listed file; 0 for other types, and for an unreadable entry."""
    try:
        return entry.inode() if entry.is_file(follow_symlinks=False) else 0
    except OSError:
        return 0


def _kind(entry: "os.DirEntry[str]") -> int:
    if entry.is_symlink():
        return stat.S_IFLNK
    if entry.is_dir(follow_symlinks=False):
        return stat.S_IFDIR
    return stat.S_IFREG if entry.is_file(follow_symlinks=False) else 0


def ancestors(directory: Directory | None) -> Iterator[Directory]:
    """The directory and all directories above it."""
    while directory is not None:
        yield directory
        directory = directory.parent
