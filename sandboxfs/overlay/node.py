"""What is remembered of an inode while the kernel remembers it?

A node knows its place in the view (parent and name), not its path: renaming a directory changes one node
and moves everything below. In the upper layer an object lies at its place in the view; in a lower layer it
lies where the lower part of its parent says, wherever the parent has been moved to meanwhile.
"""

import os
import time
from dataclasses import dataclass

from sandboxfs.layers.hostdir import HostDir


def fingerprint(status: os.stat_result) -> tuple[int, int, int]:
    """What changes when a file's content does."""
    return status.st_mtime_ns, status.st_ctime_ns, status.st_size


OUTDATED = -1, -1, -1
"""The stamp of a file of which the kernel may hold pages, none of them right."""

_NONE: frozenset[int] = frozenset()
_TYPE = 0o170000


class LowerPart:
    """One lower directory that a directory of the view is merged from."""

    __slots__ = ("dev", "held", "ino", "layer", "path")

    def __init__(self, layer: int, path: bytes, dev: int, ino: int) -> None:
        self.layer = layer
        self.path = path
        self.dev = dev
        self.ino = ino
        self.held: HostDir | None = None

    @property
    def identity(self) -> tuple[int, int, int, bytes]:
        return self.dev, self.ino, self.layer, self.path

    def child_path(self, name: bytes) -> bytes:
        return self.path + b"/" + name if self.path else name


class OpenFile:
    """The host descriptors of an open file: one set per inode, however many handles it has.

    They are exchanged when the file is copied up, so that handles opened before see what is written after,
    and when a review takes the copy away: then nothing is open for writing until the next write. *ends* are
    the sizes that the file had when that happened: the kernel may believe in one of them. It is *bare* as
    long as it is known to have no extended attributes: it was made with these descriptors, and given none.
    It is *paged* once somebody had it open of whose doings the kernel keeps pages, and *mappable* once that
    was somebody who may have mapped it to write it.
    """

    __slots__ = ("bare", "ends", "mappable", "paged", "read_fd", "users", "write_fd")

    def __init__(self) -> None:
        self.bare = False
        self.paged = False
        self.mappable = False
        self.ends: frozenset[int] = _NONE
        self.read_fd = -1
        self.write_fd = -1
        self.users = 0

    @property
    def fd(self) -> int:
        """Some descriptor of the file, good for fstat."""
        return self.write_fd if self.write_fd >= 0 else self.read_fd

    def close(self) -> None:
        reading, writing = self.read_fd, self.write_fd
        self.read_fd = self.write_fd = -1
        if reading >= 0:
            os.close(reading)
        if writing >= 0 and writing != reading:
            os.close(writing)
        self.bare = False


class Node:
    """An inode that is not a directory.

    *ino* is the number by which the kernel knows it, *number* the one that its host object has in the view,
    by which the index and the records know it. They differ when the inode became another object while the
    kernel knew it (see `settling`).

    *layer* is the lower layer it lives in, unless *upper*. *host_dev* and *host_ino* say which host object
    it is, so that another one that took its name is noticed. *gone* holds the last status of a node without
    a name. *stamp* is the fingerprint of what the kernel's pages hold; None until it is first opened.
    """

    __slots__ = (
        "aliases",
        "gone",
        "host_dev",
        "host_ino",
        "indexed",
        "ino",
        "kind",
        "layer",
        "lookups",
        "name",
        "number",
        "opened",
        "parent",
        "stamp",
        "upper",
    )

    def __init__(self, ino: int, kind: int, parent: "Directory | None", name: bytes) -> None:
        self.ino = ino
        self.number = ino
        self.kind = kind
        self.parent = parent
        self.name = name
        self.lookups = 0
        self.upper = False
        self.layer = 0
        self.host_dev = 0
        self.host_ino = 0
        self.indexed = False
        self.aliases: set[tuple[Directory, bytes]] | None = None
        self.gone: os.stat_result | None = None
        self.opened: OpenFile | None = None
        self.stamp: tuple[int, int, int] | None = None

    def stands_for(self, status: os.stat_result) -> bool:
        """Whether this is still the host object with *status*.

        The type counts too: the host gives the number of a removed file to the next thing it makes, and the
        kernel gives an inode up for good when it is told of another type.
        """
        return (
            status.st_ino == self.host_ino
            and status.st_dev == self.host_dev
            and status.st_mode & _TYPE == self.kind
        )

    def places(self) -> "list[tuple[Directory, bytes]]":
        """The names by which it is known to be found."""
        if self.parent is None or self.gone is not None:
            return []
        return list(self.aliases) if self.aliases else [(self.parent, self.name)]

    def place_at(self, parent: "Directory", name: bytes) -> None:
        """Note a name of this inode; it becomes the one the inode is reached by."""
        if self.aliases is not None:
            self.aliases.add((parent, name))
        elif (self.parent, self.name) != (parent, name) and self.parent is not None and self.gone is None:
            self.aliases = {(self.parent, self.name), (parent, name)}
        self.parent, self.name = parent, name
        self.gone = None

    def lose_place(self, parent: "Directory", name: bytes) -> bool:
        """Note that a name has gone; whether another one is known."""
        if self.aliases is not None:
            self.aliases.discard((parent, name))
            if self.aliases:
                self.parent, self.name = next(iter(self.aliases))
                return True
            self.aliases = None
        return (self.parent, self.name) != (parent, name)

    def move(self, old: "tuple[Directory, bytes]", parent: "Directory", name: bytes) -> None:
        """Exchange one name for another."""
        if self.aliases is not None:
            self.aliases.discard(old)
            self.aliases.add((parent, name))
        self.parent, self.name = parent, name


class Directory(Node):
    """A directory of the view: an upper part, lower parts, or both.

    *origin* is its path in the view of the lower layers alone, which a redirect to it names. *masks* are
    names that the lower parts must not be asked for (see `Masks`). *sealed* directories are shown empty and
    never entered. *absences* are names that the kernel was told not to be there, for long. *watches* are
    those on its lower parts: none where it cannot be watched, None where nobody tried. It is *steady* while
    all of them that may change are watched. *listed* are the times of its lower parts when a listing of
    it was begun, which the kernel may remember; None when the kernel has been told, or is about to be, that
    it is not right. *told* is how many of its entries the kernel was told of since the time *told_since*.
    """

    __slots__ = (
        "absences",
        "held",
        "listed",
        "lowers",
        "masks",
        "origin",
        "sealed",
        "steady",
        "told",
        "told_since",
        "watches",
    )

    def __init__(self, ino: int, kind: int, parent: "Directory | None", name: bytes) -> None:
        super().__init__(ino, kind, parent, name)
        self.lowers: tuple[LowerPart, ...] = ()
        self.origin: bytes = b""
        self.held: HostDir | None = None
        self.listed: tuple[int, ...] | None = None
        self.absences: set[bytes] | None = None
        self.masks: dict[bytes, os.stat_result | None] | None = None
        self.sealed: os.stat_result | None = None
        self.watches: tuple[int, ...] | None = None
        self.steady = False
        self.told = 0
        self.told_since = 0.0

    def tell(self, entries: int) -> None:
        """Note that the kernel is told of so many entries."""
        if not self.told:
            self.told_since = time.monotonic()
        self.told += entries

    @property
    def noticed(self) -> bool:
        """Whether nothing that the host does to names in it goes unnoticed."""
        return self.steady or not self.lowers

    @property
    def only_upper(self) -> bool:
        """Whether what the upper has in it is all that there is."""
        return self.upper and not self.lowers and self.masks is None and self.gone is None

    @property
    def merged(self) -> bool:
        return self.upper and bool(self.lowers)


@dataclass(slots=True)
class Found:
    """One entry of the merged view, before it is given a node.

    *recorded*: its number is written down, and not the one that its host number gives.
    """

    stat: os.stat_result
    ino: int
    upper: bool
    layer: int = 0
    lowers: tuple[LowerPart, ...] = ()
    origin: bytes = b""
    indexed: bool = False
    sealed: bool = False
    recorded: bool = False
