"""Which inodes does the kernel remember?

The kernel names an inode by the number it was told (pyfuse3 makes it the `st_ino` too), and counts how
often it was told. A number stays taken until the kernel has given all its references back, even when the
file behind it is gone: the host may use a freed inode number again at once, and the mount must not answer
for the wrong file.
"""

import errno
import os
import stat
from collections.abc import Callable, Iterator

from sandboxfs.overlay.filesystem import ROOT_INODE
from sandboxfs.overlay.node import Directory, Found, Node
from sandboxfs.overlay.numbers import Numbers


class Inodes:
    """All nodes by their number."""

    def __init__(self, root: Directory, dropped: Callable[[Directory], None]) -> None:
        self._nodes: dict[int, Node] = {ROOT_INODE: root}
        self._dropped = dropped

    def __len__(self) -> int:
        return len(self._nodes)

    def node(self, ino: int) -> Node:
        try:
            return self._nodes[ino]
        except KeyError:
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE)) from None

    def directory(self, ino: int) -> Directory:
        node = self.node(ino)
        if not isinstance(node, Directory):
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
        return node

    def numbers(self) -> list[int]:
        return list(self._nodes)

    def directories(self) -> Iterator[Directory]:
        return (node for node in self._nodes.values() if isinstance(node, Directory))

    def known(self, found: Found) -> Node | None:
        """The node of a found entry, if there is one already."""
        node = self._nodes.get(found.ino)
        return node if node is not None and _same(node, found) else None

    def place(self, parent: Directory, name: bytes, found: Found) -> Node:
        """The node of a found entry, made when there is none; *found.ino* becomes its number."""
        node = self._nodes.get(found.ino)
        if node is None:
            return self._new(parent, name, found)
        if not _same(node, found):
            found.ino = self.free_number()
            return self._new(parent, name, found)
        if isinstance(node, Directory):
            node.parent, node.name = parent, name
            self._refresh(node, found)
        elif found.stat.st_nlink > 1 or found.indexed or node.parent is None:
            node.place_at(parent, name)
        else:
            # With one link only, another name means that the host renamed it.
            node.parent, node.name = parent, name
        return node

    def taken(self, ino: int) -> bool:
        return ino in self._nodes or ino == 0

    def free_number(self) -> int:
        ino = Numbers.random()
        while ino in self._nodes:
            ino = Numbers.random()
        return ino

    def remember(self, node: Node) -> None:
        node.lookups += 1

    def forget(self, ino: int, count: int) -> bool:
        """Take references back; whether the node went with the last of them."""
        node = self._nodes.get(ino)
        if node is None or ino == ROOT_INODE:
            return False
        node.lookups -= count
        if node.lookups > 0:
            return False
        self._discard(node)
        return True

    def discard_unused(self, node: Node) -> None:
        """Drop a node that was made for an answer the kernel never got."""
        if node.lookups <= 0 and node.ino != ROOT_INODE and self._nodes.get(node.ino) is node:
            self._discard(node)

    def _discard(self, node: Node) -> None:
        del self._nodes[node.ino]
        if isinstance(node, Directory):
            self._dropped(node)

    def _refresh(self, directory: Directory, found: Found) -> None:
        """Follow the host, which may have moved or replaced lower directories since the last look."""
        if [p.identity for p in directory.lowers] == [p.identity for p in found.lowers]:
            return
        self._dropped(directory)
        directory.lowers = found.lowers
        directory.origin = found.origin

    def _new(self, parent: Directory, name: bytes, found: Found) -> Node:
        mode = found.stat.st_mode
        node: Node
        if stat.S_ISDIR(mode):
            directory = Directory(found.ino, stat.S_IFDIR, parent, name)
            directory.lowers = found.lowers
            directory.origin = found.origin
            if found.sealed:
                directory.sealed = found.stat
            node = directory
        else:
            node = Node(found.ino, stat.S_IFMT(mode), parent, name)
            node.layer = found.layer
            node.indexed = found.indexed
        node.upper = found.upper
        node.host_dev, node.host_ino = found.stat.st_dev, found.stat.st_ino
        self._nodes[found.ino] = node
        return node


def _same(node: Node, found: Found) -> bool:
    """Whether a node still is the host object that was found under its number."""
    return node.stands_for(found.stat) and node.upper == found.upper and node.gone is None
