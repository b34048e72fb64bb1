"""Inode table: the inodes the kernel remembers, and the numbers the view shows for them.

The number must be the same before and after copy-up and in every session, and two objects must not share one:

- an object of the workspace's own filesystem keeps its host number, so that git's index stays valid
- an object of another filesystem mounted inside the workspace gets that filesystem's tag in the high bits
- an object made in the sandbox gets the upper's tag; a copied-up one has its old number in an inode record

The high seven bits below the sign are the tag. Host numbers too large to leave room for the tag are folded; a
number that clashes all the same is replaced by a random one (`Inodes.place`).

The kernel names an inode by the number in its entry, which is its node id and its `st_ino`, and counts how
often it was given the entry. A number stays taken until the kernel has given all its references back, even
when the file behind it is gone: the host may use a freed inode number again at once, and the mount must not
answer for the wrong file.
"""

import errno
import os
import secrets
import stat
from collections.abc import Callable, Iterator

from sandboxfs.overlay.filesystem import ROOT_INODE
from sandboxfs.overlay.nodes import OUTDATED, Directory, Found, Node

_TAG_SHIFT = 56
_LARGEST = 1 << _TAG_SHIFT
_UPPER = 127 << _TAG_SHIFT
_RANDOM = 126 << _TAG_SHIFT
_FIRST_TAG, _LAST_TAG = 1, 125
# Numbers of entries that exist only in the view: above all numbers of host objects.
FIRST_VIRTUAL = 128 << _TAG_SHIFT
_FOLD = 0x9E3779B97F4A7C15


class Numbers:
    """The numbering of one stack of layers."""

    def __init__(self, workspace_dev: int) -> None:
        self._tags = {workspace_dev: 0}

    def knows(self, dev: int) -> bool:
        return dev in self._tags

    def learn(self, dev: int, fsid: int) -> None:
        """Choose the tag of a filesystem, by its own id: device numbers change with the order of mounting."""
        taken = set(self._tags.values())
        tag = _FIRST_TAG + (fsid or dev) % (_LAST_TAG - _FIRST_TAG + 1)
        for _ in range(_LAST_TAG):
            if tag << _TAG_SHIFT not in taken:
                break
            tag = tag + 1 if tag < _LAST_TAG else _FIRST_TAG
        self._tags[dev] = tag << _TAG_SHIFT

    def of_lower(self, status: os.stat_result) -> int:
        ino = status.st_ino
        return self._tags.get(status.st_dev, 0) | (ino if ino < _LARGEST else _folded(ino))

    def of_host(self, dev: int, ino: int) -> int:
        return self._tags.get(dev, 0) | (ino if ino < _LARGEST else _folded(ino))

    def of_upper(self, status: os.stat_result) -> int:
        ino = status.st_ino
        return _UPPER | (ino if ino < _LARGEST else _folded(ino))

    @staticmethod
    def is_upper(number: int) -> bool:
        """Whether *number* was given to an object that the sandbox made."""
        return number >> _TAG_SHIFT == _UPPER >> _TAG_SHIFT

    @staticmethod
    def random() -> int:
        return _RANDOM | secrets.randbelow(_LARGEST)


def _folded(ino: int) -> int:
    return ((ino * _FOLD) & 0xFFFFFFFFFFFFFFFF) >> 8


class Inodes:
    """All nodes by their number."""

    def __init__(
        self,
        root: Directory,
        dropped: Callable[[Directory], None],
        exchanged: Callable[[Directory], None],
        left: Callable[[Directory, bytes], None],
    ) -> None:
        """Callbacks: *dropped* for directories that go, *exchanged* for those that get other lower parts.

        *left*, for names that the host took from a node.
        """
        self._nodes: dict[int, Node] = {ROOT_INODE: root}
        # The inode numbers of nodes whose number on disk is another one, by that number.
        self._renumbered: dict[int, int] = {}
        self._dropped = dropped
        self._exchanged = exchanged
        self._left = left

    def __len__(self) -> int:
        return len(self._nodes)

    def node(self, ino: int) -> Node:
        try:
            return self._nodes[ino]
        except KeyError:
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE)) from None

    def directory(self, ino: int) -> Directory:
        node = self._nodes.get(ino)
        if isinstance(node, Directory):
            return node
        number = errno.ESTALE if node is None else errno.ENOTDIR
        raise OSError(number, os.strerror(number))

    def nodes(self) -> Iterator[Node]:
        return iter(self._nodes.values())

    def numbers(self) -> list[int]:
        return list(self._nodes)

    def directories(self) -> Iterator[Directory]:
        return (node for node in self._nodes.values() if isinstance(node, Directory))

    def known(self, found: Found) -> Node | None:
        """The node of a found entry, if there is one."""
        node = self._nodes.get(found.ino)
        if node is not None and self.is_same(node, found):
            return node
        if not self._renumbered:
            return None
        node = self._nodes.get(self._renumbered.get(found.ino, 0))
        return node if node is not None and self.is_same(node, found) else None

    def made_here(self, number: int, status: os.stat_result) -> Node | None:
        """The node that stands for an upper file with *number* by its host number, and for no other number.

        Such a file was made in the sandbox, and has no inode record that would have to be read.
        """
        node = self._nodes.get(number)
        if (
            node is not None
            and node.upper
            and node.number == number
            and not node.indexed
            and node.gone is None
            and node.stands_for(status)
        ):
            return node
        return None

    def lower_file(self, number: int, parent: Directory, name: bytes) -> Node | None:
        """The workspace's file that the kernel knows by this number and by this name alone."""
        node = self._nodes.get(number)
        if (
            node is not None
            and node.parent is parent
            and node.name == name
            and node.kind == stat.S_IFREG
            and not node.upper
            and node.gone is None
            and node.aliases is None
            and node.lookups > 0
        ):
            return node
        return None

    def numbered(self, number: int) -> list[Node]:
        """The nodes of objects with a number on disk: two, while one is taking over from the other."""
        found = {self._nodes.get(ino) for ino in (number, self._renumbered.get(number, 0))}
        return [node for node in found if node is not None and node.number == number]

    def gone(self, found: Found) -> Node | None:
        """The node of a found entry, where that node had lost its name."""
        for ino in (found.ino, self._renumbered.get(found.ino, 0)):
            node = self._nodes.get(ino)
            if node is not None and node.gone is not None and node.stands_for(found.stat):
                return node if node.upper == found.upper else None
        return None

    def place(self, parent: Directory, name: bytes, found: Found) -> Node:
        """The node of a found entry, made when there is none.

        Where *found.ino* is taken, a free number is used: for the entry itself, if it lives in the upper and
        has no record yet; otherwise only for the node. An existing record stays: a file moved in the view
        has the number of the workspace's file at its old path, and the view may show both.
        """
        node = self.known(found)
        if node is None:
            return self._new(parent, name, found)
        if isinstance(node, Directory):
            self._move(node, parent, name)
            self._refresh(node, found)
        elif found.stat.st_nlink > 1 or found.indexed or node.parent is None:
            node.place_at(parent, name)
        else:
            # With a single link, another name means that the host renamed the file (see `Lookup.is_another`).
            self._move(node, parent, name)
        return node

    def place_plainly(
        self, number: int, parent: Directory, name: bytes, status: os.stat_result, layer: int
    ) -> Node | None:
        """The node of a lower file with one link, made when there is none; None where it takes `place`."""
        node = self._nodes.get(number)
        if node is None:
            node = self.new_file(number, parent, name, status)
            if node is not None:
                node.layer = layer
            return node
        if (
            node.parent is parent
            and node.name == name
            and not node.upper
            and node.gone is None
            and not node.indexed
            and node.stands_for(status)
        ):
            return node
        return None

    def new_file(self, number: int, parent: Directory, name: bytes, status: os.stat_result) -> Node | None:
        """A new node for a file with one name; None where its number is taken."""
        if number in self._nodes or number in self._renumbered:
            return None
        node = Node(number, stat.S_IFREG, parent, name)
        node.stand_for(status)
        self._nodes[number] = node
        return node

    def _move(self, node: Node, parent: Directory, name: bytes) -> None:
        if node.parent is parent and node.name == name:
            return
        if node.parent is not None:
            self._left(node.parent, node.name)
        node.parent, node.name = parent, name

    def become(self, node: Node, found: Found) -> None:
        """Point a node to another object of the same type; the kernel keeps the inode's number.

        No other node may stand for that object.
        """
        self._forget_number(node)
        node.number = found.ino
        if node.number != node.ino:
            self._renumbered[node.number] = node.ino
        node.upper, node.layer, node.indexed = found.upper, found.layer, found.indexed
        node.stand_for(found.stat)
        node.gone = None
        if node.stamp is not None or node.opened is not None:
            node.stamp = OUTDATED

    def _forget_number(self, node: Node) -> None:
        if self._renumbered.get(node.number) == node.ino:
            del self._renumbered[node.number]

    @staticmethod
    def is_same(node: Node, found: Found) -> bool:
        """Whether a node still stands for the host object that was found under its number."""
        return node.stands_for(found.stat) and node.upper == found.upper and node.gone is None

    def taken(self, ino: int) -> bool:
        return ino in self._nodes or ino == 0

    def free_number(self) -> int:
        ino = Numbers.random()
        while ino in self._nodes:
            ino = Numbers.random()
        return ino

    def forget(self, ino: int, count: int) -> bool:
        """Give references back; whether the node went with the last of them."""
        node = self._nodes.get(ino)
        if node is None or ino == ROOT_INODE:
            return False
        node.lookups -= count
        if node.lookups > 0:
            return False
        self._discard(node)
        return True

    def discard_unused(self, node: Node) -> None:
        """Drop a node that was made for an answer that the kernel never got."""
        if node.lookups <= 0 and node.ino != ROOT_INODE and self._nodes.get(node.ino) is node:
            self._discard(node)

    def _discard(self, node: Node) -> None:
        del self._nodes[node.ino]
        self._forget_number(node)
        if isinstance(node, Directory):
            self._dropped(node)

    def _refresh(self, directory: Directory, found: Found) -> None:
        """Follow the host, which may have moved or replaced lower directories since the last lookup."""
        if [p.identity for p in directory.lowers] == [p.identity for p in found.lowers]:
            return
        self._exchanged(directory)
        directory.lowers = found.lowers
        directory.origin = found.origin

    def _new(self, parent: Directory, name: bytes, found: Found) -> Node:
        mode = found.stat.st_mode
        ino = found.ino
        if ino in self._nodes:
            ino = self.free_number()
            if found.upper and not found.indexed and not found.recorded:
                found.ino = ino
            else:
                self._renumbered[found.ino] = ino
        node: Node
        if stat.S_ISDIR(mode):
            directory = Directory(ino, stat.S_IFDIR, parent, name)
            directory.lowers = found.lowers
            directory.origin = found.origin
            if found.sealed:
                directory.sealed = found.stat
            node = directory
        else:
            node = Node(ino, stat.S_IFMT(mode), parent, name)
            node.layer = found.layer
            node.indexed = found.indexed
        node.number = found.ino
        node.upper = found.upper
        node.stand_for(found.stat)
        self._nodes[ino] = node
        return node
