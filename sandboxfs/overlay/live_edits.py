"""Live edits: an upper changed by commit, discard or undo while programs work in the view.

The upper is edited as where no daemon serves it (`upper/writer`), between two requests of the kernel. Then
the inodes at the edited paths are renewed: an inode keeps its number and its open handles, and refers to the
object that the view shows at its place now. An inode without such an object of its type is gone, as after
unlink. The stale answers that the kernel may have cached are collected, and the caller notifies the kernel.
The policy is not asked: a person decided on the edit.
"""

import errno
import os
import stat
from collections.abc import Iterable
from dataclasses import dataclass

from sandboxfs.hostfs.directory import HostDir
from sandboxfs.overlay.files import Files
from sandboxfs.overlay.host_changes import Invalidation
from sandboxfs.overlay.lookup import Lookup
from sandboxfs.overlay.nodes import Directory, Found, LowerPart, Node, NodePlace, path_of
from sandboxfs.upper.edits import (
    ABSENT,
    BUSY,
    CHANGED,
    EditOutcome,
    FollowMove,
    Operation,
    Prune,
    Rebase,
    RemoveEntry,
    RestoreEntry,
    Resume,
    SetAttributes,
    UnfollowMove,
    Unhide,
    Whiteout,
    entered_by,
    paths_of,
    refused,
)
from sandboxfs.upper.unmounted import UnmountedUpper
from sandboxfs.upper.writer import UpperWriter


class NodeRenewal:
    """Renews nodes after the layers were edited, as long as no program can do anything."""

    def __init__(self, merge: Lookup, files: Files, outdated: Invalidation) -> None:
        self._merge = merge
        self._files = files
        self._outdated = outdated
        self._children: dict[Directory, list[tuple[bytes, Node]]] | None = None
        # Nodes still to be renewed, the next one last: a tree may be deeper than the interpreter's stack.
        self._pending: list[tuple[Node, NodePlace, Found | None, bool]] = []
        # Whether an open file became one that the daemon may not read.
        self.failed = False
        # Whether directories leave the upper with everything in them.
        self.whole = False

    def expire(self, place: NodePlace) -> None:
        """Make the kernel look a name up again, whether the name leads elsewhere or not."""
        self._outdated.expired.add((place[0].ino, place[1]))

    def renew(self, node: Node, place: NodePlace, last: Found | None, *, below: bool = True) -> None:
        """Point a node, and all nodes below, to the object now at its place; *last* was there before."""
        self._pending.append((node, place, last, below))
        while self._pending:
            self._renew(*self._pending.pop())

    def _renew(self, node: Node, place: NodePlace, last: Found | None, below: bool) -> None:
        self._outdated.inodes.add(node.ino)
        if not isinstance(node, Directory):
            self._renew_file(node, place, last)
            return
        found = self._find(place)
        if found is None or not stat.S_ISDIR(found.stat.st_mode):
            self._lost(node, last, [place])
            return
        if (other := self._merge.inodes.known(found)) is not None and other is not node:
            self._lost(node, last, [place])
            self._merge.node_of(*place, found)
            return
        before = node.lowers
        # Its open upper part may have been moved to the removed entries.
        self._merge.fds.drop(node)
        self._merge.inodes.become(node, found)
        self._merge.node_of(*place, found)
        if [part.identity for part in before] != [part.identity for part in node.lowers]:
            names = (node.absences or set()).union(*map(self._names_in, before))
            self._outdated.expired.update((node.ino, name) for name in names)
            node.absences = None
            for name, child in self._known_in(node) if below else ():
                self._outdated.expired.add((node.ino, name))
                self._pending.append((child, (node, name), None, True))

    def _renew_file(self, node: Node, place: NodePlace, last: Found | None) -> None:
        findings = {at: self._find(at) for at in [place, *node.places()]}
        same = self._merge.inodes.is_same
        exchanged = not any(found is not None and same(node, found) for found in findings.values())
        if exchanged:
            shown = _successor(node, list(findings.values()))
            if shown is None or self._is_shown_by_another(node, shown):
                self._lost(node, last, list(findings))
                return
            self._merge.inodes.become(node, shown)
        for at, found in findings.items():
            if found is None or not same(node, found):
                self._outdated.removed.add((at[0].ino, at[1]))
                if not node.lose_place(*at):
                    # The file has names, but the overlay knows none of them.
                    node.parent = None
        if exchanged:
            self.failed |= not self._files.rebind(node)

    def _is_shown_by_another(self, node: Node, found: Found) -> bool:
        """Whether another node stands for the found lower file of several names, and may stay the only one.

        Where *node* is open, its handles must go on, so *node* becomes the only one.
        """
        other = self._merge.inodes.known(found)
        if other is None or node.opened is None:
            return other is not None
        self._outdated.removed.update((parent.ino, name) for parent, name in other.places())
        return False

    def _lost(self, node: Node, last: Found | None, places: list[NodePlace]) -> None:
        """Mark a node as gone from the view; its open handles keep it."""
        self._outdated.removed.update((parent.ino, name) for parent, name in places)
        node.gone = self._last_status(node) if last is None else last.stat
        node.aliases = None
        node.indexed = False
        if isinstance(node, Directory):
            self._merge.let_go(node)
            # A directory without lower parts was empty, unless it left with everything in it.
            below = self._known_in(node) if node.lowers or self.whole else []
            node.lowers = ()
            self._pending += [(child, (node, name), None, True) for name, child in below]

    def _last_status(self, node: Node) -> os.stat_result:
        """The last known status of a node that lost its place."""
        try:
            if node.opened is not None:
                return os.fstat(node.opened.fd)
            if isinstance(node, Directory) and node.lowers:
                return self._merge.fds.lower(node.lowers[0]).own_stat()
        except OSError:
            pass
        # At least the type must stay: the kernel gives an inode up for good when its type changes.
        status = self._merge.stack.upper.own_stat()
        others = {name: getattr(status, name) for name in dir(status) if name.startswith("st_")}
        return os.stat_result((node.kind, *status[1:]), others | {"st_mode": node.kind})

    def revive(self, place: NodePlace) -> None:
        """Give a node that was gone its place again, where the very object of the node has come back."""
        found = self._find(place)
        if found is None or self._merge.inodes.known(found) is not None:
            return
        node = self._merge.inodes.gone(found)
        if node is None:
            return
        self._merge.inodes.become(node, found)
        node.parent, node.name = place
        if isinstance(node, Directory):
            self._merge.node_of(*place, found)

    def _find(self, place: NodePlace) -> Found | None:
        parent, name = place
        if parent.gone is not None:
            return None
        try:
            return self._merge.find(parent, name)
        except OSError:
            # The host is changing the entry; the next lookup gets the result.
            return None

    def _known_in(self, directory: Directory) -> list[tuple[bytes, Node]]:
        """The known entries of a directory, by name."""
        if self._children is None:
            self._children = {}
            for node in self._merge.inodes.nodes():
                for parent, name in node.places():
                    self._children.setdefault(parent, []).append((name, node))
        known = self._children.get(directory, [])
        # Some nodes may have been renewed since.
        return [(name, node) for name, node in known if (directory, name) in node.places()]

    def _names_in(self, part: LowerPart) -> list[bytes]:
        """The names of the view that come from a lower directory.

        Two directories may have shown it for a while; then a name may be known in only one of them.
        """
        try:
            with self._merge.stack.layers[part.layer].directory.descend(part.path) as directory:
                return directory.names()
        except OSError:
            return []

    # Directories that the workspace moved

    def follow_workspace(self, old: bytes, new: bytes) -> None:
        """Reach lower directories at their new path in the workspace; they are the same directories."""
        bottom = len(self._merge.stack.layers) - 1
        for directory in self._merge.inodes.directories():
            parts = [part for part in directory.lowers if part.layer == bottom]
            # A directory looked up since the workspace moved it has its new path already.
            if any(self._is_there(part) for part in parts):
                continue
            directory.origin = _moved(directory.origin, old, new)
            for part in parts:
                part.path = _moved(part.path, old, new)

    def _is_there(self, part: LowerPart) -> bool:
        try:
            with self._merge.stack.layers[part.layer].directory.descend(part.path) as directory:
                status = directory.own_stat()
        except OSError:
            return False
        return (status.st_dev, status.st_ino) == (part.dev, part.ino)


def _successor(node: Node, findings: list[Found | None]) -> Found | None:
    """The object that a node becomes: one with its number at any of its names, else one of its type."""
    fitting = [f for f in findings if f is not None and stat.S_IFMT(f.stat.st_mode) == node.kind]
    return next((f for f in fitting if f.ino == node.number), fitting[0] if fitting else None)


def _moved(path: bytes, old: bytes, new: bytes) -> bytes:
    return new + path[len(old) :] if path == old or path.startswith(old + b"/") else path


_UNTOUCHED = (ABSENT, BUSY, CHANGED)
_MASKED = "a mount of sandboxfs is in the way"


@dataclass
class _Spot:
    """A path of the view before an edit: the known directories on the way, and the entry there.

    *number* is that of an indexed file.
    """

    way: list[Directory]
    name: bytes
    found: Found | None
    node: Node | None
    number: int = 0


class LiveEdits:
    """Edits the upper of one overlay; *commits* is the directory of all records, the caller's to close."""

    def __init__(self, merge: Lookup, files: Files, commits: HostDir) -> None:
        stack = merge.stack
        self._merge = merge
        self._files = files
        self._tree = UnmountedUpper(
            upper=stack.upper,
            workspace=stack.workspace,
            staging=stack.staging,
            index=stack.index,
            whiteouts=stack.whiteouts,
            baseline=stack.baseline,
            lower_number=self._number,
            upper_number=merge.numbers.of_upper,
        )
        self._layers = UpperWriter(self._tree, commits)
        self._ways: dict[bytes, list[Directory]] = {}

    def close(self) -> None:
        self._layers.close()

    def written(self, operations: Iterable[Operation]) -> list[int]:
        """The inodes at the operations' paths that programs have open for writing."""
        paths = {path for operation in operations for path in paths_of(operation)}
        return [
            node.ino
            for node in self._files.written()
            if any(path_of(*place) in paths for place in node.places())
        ]

    def edit(self, record: int, operations: Iterable[Operation], outdated: Invalidation) -> list[EditOutcome]:
        """Carry out some operations at once; FileNotFoundError without the commit record *record*."""
        self._layers.use(record)
        # Between two calls programs may have changed everything.
        self._ways.clear()
        renewal = NodeRenewal(self._merge, self._files, outdated)
        operations = list(operations)
        if SetAttributes(b"") in operations or SetAttributes(b"", back=True) in operations:
            outdated.inodes.add(self._merge.root.ino)
        outcomes = [self._edit(operation, renewal) for operation in operations]
        for directory in self._merge.inodes.directories():
            # Any directory may have got or lost names: a review is rare, and reading one again is cheap.
            directory.default_list = None
            if directory.listed is not None:
                directory.listed = None
                outdated.inodes.add(directory.ino)
        return outcomes

    def _edit(self, operation: Operation, renewal: NodeRenewal) -> EditOutcome:
        try:
            try:
                return self._do(operation, renewal)
            except PermissionError:
                with self._tree.accessible(*entered_by(operation)):
                    return self._do(operation, renewal)
        except OSError as error:
            return refused(error.strerror or str(error))

    def _do(self, operation: Operation, renewal: NodeRenewal) -> EditOutcome:
        if self._leads_to_a_mount(operation):
            return refused(_MASKED)
        spots = [spot for path in paths_of(operation) if (spot := self._spot(path)) is not None]
        follows = self._follows(operation)
        renewal.failed = False
        renewal.whole = isinstance(operation, Prune) and operation.whole
        outcome = self._layers.edit(operation)
        if isinstance(operation, Prune) and not operation.whole:
            # The directories around it stay: a deep tree is removed from the bottom up, step by step.
            self._ways.pop(operation.path, None)
        elif isinstance(operation, RestoreEntry) and operation.path not in self._ways:
            # The entry comes back from the top down, and no directory was known there.
            pass
        elif not isinstance(operation, RemoveEntry | Rebase | Resume):
            # Directories may have come, gone or changed.
            self._ways.clear()
        if follows is not None and outcome.done:
            renewal.follow_workspace(*follows)
        if outcome.why not in _UNTOUCHED:
            self._renew(spots, operation, renewal)
            if any(directory.gone is not None for spot in spots for directory in spot.way):
                self._ways.clear()
        if renewal.failed and isinstance(operation, RemoveEntry):
            # Programs that have the file open could not go on: the entry comes back.
            self._layers.edit(RestoreEntry(operation.path, operation.keep))
            self._renew(spots, operation, renewal)
            return refused(os.strerror(errno.EACCES))
        return outcome

    # Known nodes

    def _spot(self, path: bytes) -> _Spot | None:
        """The known nodes at a path of the view; None where its directory, and so all in it, is unknown."""
        folder, _, name = path.rpartition(b"/")
        way = self._ways.get(folder) or self._way(folder)
        if way is None:
            return None
        found = self._merge.find(way[-1], name)
        if found is None:
            return _Spot(way, name, None, None)
        number = found.ino if found.indexed else 0
        return _Spot(way, name, found, self._merge.inodes.known(found), number)

    def _way(self, path: bytes) -> list[Directory] | None:
        """The directories from the root to *path*, if they are known."""
        at, names = path, []
        while at and at not in self._ways:
            at, _, name = at.rpartition(b"/")
            names.append(name)
        way = list(self._ways.get(at) or [self._merge.root])
        for name in reversed(names):
            found = self._merge.find(way[-1], name)
            node = None if found is None else self._merge.inodes.known(found)
            if found is None or not isinstance(node, Directory):
                return None
            # The host may have replaced lower directories since the kernel last looked.
            self._merge.node_of(way[-1], name, found)
            way.append(node)
            at = at + b"/" + name if at else name
            self._ways[at] = list(way)
        return way

    def _leads_to_a_mount(self, operation: Operation) -> bool:
        """Whether the operation would have to read a lower path below our own mount, or another sandbox's."""
        match operation:
            case Rebase() | Resume():
                lower: bytes | None = operation.lower
            case Unhide():
                lower = self._tree.natural(operation.path)
            case RestoreEntry() | Whiteout():
                lower = self._layers.lower_of(os.path.dirname(operation.path))
            case UnfollowMove():
                lower = self._tree.lower_of(os.path.dirname(operation.old))
            case _:
                return False
        return lower is not None and self._merge.is_masked(lower)

    def _number(self, status: os.stat_result) -> int:
        numbers = self._merge.numbers
        return numbers.of_lower(status) if numbers.knows(status.st_dev) else 0

    # Renewing

    def _renew(self, spots: list[_Spot], operation: Operation, renewal: NodeRenewal) -> None:
        for spot in spots:
            self._renew_spot(spot, operation, renewal)
        # Other names of a hard-linked file may show another object too, with other nodes for them.
        numbers = {spot.number for spot in spots if spot.number}
        if isinstance(operation, RemoveEntry | RestoreEntry | Whiteout) and operation.number is not None:
            numbers.add(operation.number)
        for node in [node for number in numbers for node in self._merge.inodes.numbered(number)]:
            for place in node.places()[:1]:
                renewal.renew(node, place, None)

    def _renew_spot(self, spot: _Spot, operation: Operation, renewal: NodeRenewal) -> None:
        for directory in spot.way[1:]:
            if not directory.upper and directory.parent is not None:
                # The upper may have got an entry below the directory.
                renewal.renew(directory, (directory.parent, directory.name), None)
        place = spot.way[-1], spot.name
        renewal.expire(place)
        if spot.node is None:
            renewal.revive(place)
        else:
            # When an opaque directory is unhidden, nothing below it changes, however many nodes are known.
            opaque = isinstance(spot.node, Directory) and not spot.node.lowers
            renewal.renew(spot.node, place, spot.found, below=not (isinstance(operation, Unhide) and opaque))

    def _follows(self, operation: Operation) -> tuple[bytes, bytes] | None:
        """The old and new path of a workspace directory whose move the operation is about to follow."""
        if isinstance(operation, FollowMove) and self._tree.lower_of(operation.new) == operation.old:
            return operation.old, operation.new
        if isinstance(operation, UnfollowMove) and self._tree.lower_of(operation.new) == operation.new:
            return operation.new, operation.old
        return None
