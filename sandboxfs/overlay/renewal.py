"""What becomes of an inode when its place in the view shows something else than before?

It becomes the object that shows there now, under the number that programs know, and its open files go on with
that. An inode that nothing shows any more, or only something of another type, is gone, as after unlink. What
the kernel may have cached of all this is collected, to be told to it.
"""

import os
import stat
from dataclasses import dataclass, field

from sandboxfs.overlay.files import Files
from sandboxfs.overlay.merge import Merge
from sandboxfs.overlay.node import Directory, Found, LowerPart, Node

NodePlace = tuple[Directory, bytes]


@dataclass
class Outdated:
    """What the kernel must ask for again: attributes and content of *inodes*, names that may lead elsewhere.

    *removed* names lead nowhere any more, or to another inode; *expired* ones may still be right.
    """

    inodes: set[int] = field(default_factory=set)
    expired: set[tuple[int, bytes]] = field(default_factory=set)
    removed: set[tuple[int, bytes]] = field(default_factory=set)


class Renewal:
    """Renews nodes after the layers have been changed behind them, as long as no program can do anything."""

    def __init__(self, merge: Merge, files: Files, outdated: Outdated) -> None:
        self._merge = merge
        self._files = files
        self._outdated = outdated
        self._children: dict[Directory, list[tuple[bytes, Node]]] | None = None
        # Whether an open file became one that we may not read.
        self.failed = False

    def expire(self, place: NodePlace) -> None:
        """Have a name looked up again, whatever became of it."""
        self._outdated.expired.add((place[0].ino, place[1]))

    def renew(self, node: Node, place: NodePlace, last: Found | None, *, below: bool = True) -> None:
        """Let a node be what shows in its place now; *last* is what showed before."""
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
        # What is held of it may have been moved to where it is kept.
        self._merge.fds.drop(node)
        self._merge.inodes.become(node, found)
        self._merge.node_of(*place, found)
        if [part.identity for part in before] != [part.identity for part in node.lowers]:
            names = (node.absences or set()).union(*map(self._names_in, before))
            self._outdated.expired.update((node.ino, name) for name in names)
            node.absences = None
            for name, child in self._known_in(node) if below else ():
                self._outdated.expired.add((node.ino, name))
                self.renew(child, (node, name), None)

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
                    # It has names, and nobody knows one.
                    node.parent = None
        if exchanged:
            self.failed |= not self._files.rebind(node)

    def _is_shown_by_another(self, node: Node, found: Found) -> bool:
        """Whether another node is what was found, a lower file of several names, and may stay the only one.

        A file that is open must go on, so then its node becomes the one.
        """
        other = self._merge.inodes.known(found)
        if other is None or node.opened is None:
            return other is not None
        self._outdated.removed.update((parent.ino, name) for parent, name in other.places())
        return False

    def _lost(self, node: Node, last: Found | None, places: list[NodePlace]) -> None:
        """Note that nothing shows a node any more; whoever has it open keeps it."""
        self._outdated.removed.update((parent.ino, name) for parent, name in places)
        node.gone = self._last_status(node) if last is None else last.stat
        node.aliases = None
        node.indexed = False
        if isinstance(node, Directory):
            self._merge.let_go(node)
            # One without lower parts was empty, or it would not be lost.
            below = self._known_in(node) if node.lowers else []
            node.lowers = ()
            for name, child in below:
                self.renew(child, (node, name), None)

    def _last_status(self, node: Node) -> os.stat_result:
        """What can still be told of a node that lost its place."""
        try:
            if node.opened is not None:
                return os.fstat(node.opened.fd)
            if isinstance(node, Directory) and node.lowers:
                return self._merge.fds.lower(node.lowers[0]).own_stat()
        except OSError:
            pass
        # At least its type must stay: the kernel gives an inode up for good that changes it.
        status = self._merge.stack.upper.own_stat()
        others = {name: getattr(status, name) for name in dir(status) if name.startswith("st_")}
        return os.stat_result((node.kind, *status[1:]), others | {"st_mode": node.kind})

    def revive(self, place: NodePlace) -> None:
        """Give a node that was gone its place again, where the very object it stood for has come back."""
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
            # The host is changing it; whoever asks for it next is told.
            return None

    def _known_in(self, directory: Directory) -> list[tuple[bytes, Node]]:
        """The known entries of a directory."""
        if self._children is None:
            self._children = {}
            for node in self._merge.inodes.nodes():
                for parent, name in node.places():
                    self._children.setdefault(parent, []).append((name, node))
        known = self._children.get(directory, [])
        # Some may have been renewed since.
        return [(name, node) for name, node in known if (directory, name) in node.places()]

    def _names_in(self, part: LowerPart) -> list[bytes]:
        """The names that a lower directory gave to the view.

        Two directories may have shown it for a while; then not every name is known to be in both.
        """
        try:
            with self._merge.stack.layers[part.layer].directory.descend(part.path) as directory:
                return directory.names()
        except OSError:
            return []

    # Directories that the workspace moved

    def follow_workspace(self, old: bytes, new: bytes) -> None:
        """Find lower directories where the workspace has them now; they are the same directories."""
        bottom = len(self._merge.stack.layers) - 1
        for directory in self._merge.inodes.directories():
            parts = [part for part in directory.lowers if part.layer == bottom]
            # What was looked up since the workspace moved it has its new path already.
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


def path_of(place: NodePlace) -> bytes:
    """Where in the view a place is."""
    names = [place[1]]
    directory = place[0]
    while directory.parent is not None:
        names.append(directory.name)
        directory = directory.parent
    return b"/".join(reversed(names))


def _successor(node: Node, findings: list[Found | None]) -> Found | None:
    """What a node becomes: what has its number under any of its names, else what is of its type."""
    fitting = [f for f in findings if f is not None and stat.S_IFMT(f.stat.st_mode) == node.kind]
    return next((f for f in fitting if f.ino == node.number), fitting[0] if fitting else None)


def _moved(path: bytes, old: bytes, new: bytes) -> bytes:
    return new + path[len(old) :] if path == old or path.startswith(old + b"/") else path
