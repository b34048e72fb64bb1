"""Nodes: the data kept for an inode while the kernel remembers it, open directory descriptors included.

A node knows its place in the view (parent and name), not its path: renaming a directory changes one node and
moves everything below. In the upper an object lies at its place in the view. In a lower layer an object lies
where the lower part of its parent lies, wherever the parent has been moved to in the view meanwhile.

A bounded number of directory descriptors is open (`DirectoryFds`). A directory's descriptors are opened when
first needed. They are closed when many others have been opened since, or when the kernel forgets the
directory; a tree of any size is walked with the same few descriptors. A directory in constant use is opened
again now and then: that costs less than keeping track of each use.
"""

import os
import stat
import time
from dataclasses import dataclass

from sandboxfs.hostfs.directory import HostDir
from sandboxfs.overlay.filesystem import ROOT_INODE, by_its_name, stale

OUTDATED = -1, -1, -1
"""The stamp of a file whose pages in the kernel are all stale."""

_NONE: frozenset[int] = frozenset()
_TYPE = 0o170000
SET_ID = stat.S_ISUID | stat.S_ISGID


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


class OpenFile:
    """The host descriptors of an open file: one set per inode, however many handles the inode has.

    Copy-up exchanges the descriptors, so that handles opened before see later writes. A review that removes
    the copy exchanges them too: then no descriptor is open for writing until the next write. *ends* are the
    sizes of the file at such exchanges: the kernel may believe in one of them. *bare*: the file is known to
    have no extended attributes, because it was made with these descriptors and given none. *paged*: a handle
    was open whose data the kernel keeps in pages; *mappable*: such a handle may have mapped the file for
    writing. *opener* is the thread whose share the file counts for. *set_id* are the set-id bits of the mode
    when the file was last opened for writing, or given a mode.
    """

    __slots__ = ("bare", "ends", "mappable", "opener", "paged", "read_fd", "set_id", "users", "write_fd")

    def __init__(self) -> None:
        self.bare = False
        self.paged = False
        self.mappable = False
        self.ends: frozenset[int] = _NONE
        self.read_fd = -1
        self.write_fd = -1
        self.users = 0
        self.opener = 0
        self.set_id = 0

    @property
    def fd(self) -> int:
        """Any descriptor of the file, for fstat."""
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

    *ino* is the number by which the kernel knows the inode. *number* is the view's number of its host object,
    which the index and the inode records use. They differ when the inode became another object while the
    kernel knew the inode (see `live_edits`).

    *layer* is the object's lower layer, unless *upper*. *host_dev* and *host_ino* identify the host object,
    so that another object at its name is noticed. *host_ctime* is its change time when the node began to
    stand for it: what was born later is another object, even if it has the number. *gone* holds the last
    status of a node without a name. *stamp* is the fingerprint of the file whose pages the kernel has; None
    until the file is first opened.
    """

    __slots__ = (
        "aliases",
        "gone",
        "host_ctime",
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
        self.host_ctime = 0
        self.indexed = False
        self.aliases: set[tuple[Directory, bytes]] | None = None
        self.gone: os.stat_result | None = None
        self.opened: OpenFile | None = None
        self.stamp: tuple[int, int, int] | None = None

    def stand_for(self, status: os.stat_result) -> None:
        """Have the object with *status* as host object."""
        self.host_dev, self.host_ino, self.host_ctime = status.st_dev, status.st_ino, status.st_ctime_ns

    def lose_object(self) -> None:
        """Stand for no host object: it was deleted, and its number is another object's now."""
        self.host_ino = 0

    def stands_for(self, status: os.stat_result) -> bool:
        """Whether the node's host object is the one with *status*.

        The type counts too: the host gives the number of a removed file to the next one that it makes, and
        the kernel gives an inode up for good when an answer has another type.
        """
        return (
            status.st_ino == self.host_ino
            and status.st_dev == self.host_dev
            and status.st_mode & _TYPE == self.kind
        )

    def places(self) -> "list[tuple[Directory, bytes]]":
        """The known names of the inode."""
        if self.parent is None or self.gone is not None:
            return []
        return list(self.aliases) if self.aliases else [(self.parent, self.name)]

    def place_at(self, parent: "Directory", name: bytes) -> None:
        """Record a name of the inode; that name is used to reach it from now on."""
        if self.aliases is not None:
            self.aliases.add((parent, name))
        elif (self.parent, self.name) != (parent, name) and self.parent is not None and self.gone is None:
            self.aliases = {(self.parent, self.name), (parent, name)}
        self.parent, self.name = parent, name
        self.gone = None

    def lose_place(self, parent: "Directory", name: bytes) -> bool:
        """Record that a name is gone; whether another one is known."""
        if self.aliases is not None:
            self.aliases.discard((parent, name))
            if self.aliases:
                self.parent, self.name = next(iter(self.aliases))
                return True
            self.aliases = None
        return (self.parent, self.name) != (parent, name)

    def move(self, old: "tuple[Directory, bytes]", parent: "Directory", name: bytes) -> None:
        """Replace one name by another."""
        if self.aliases is not None:
            self.aliases.discard(old)
            self.aliases.add((parent, name))
        self.parent, self.name = parent, name


class Directory(Node):
    """A directory of the view: an upper part, lower parts, or both.

    *origin* is the directory's path in the view of the lower layers alone, which a redirect to it names.
    *masks* are names that must not be looked up in the lower parts (see `HiddenNames`). *sealed* directories
    are shown empty and never entered. *absences* are names whose absence the kernel may cache for long.
    *watches* are those on the lower parts: empty where they cannot be watched, None before the first attempt.
    *steady*: all lower parts that may change are watched. *listed* are the times of the lower parts at the
    beginning of a listing that the kernel may have cached; None when the kernel has been told, or is about to
    be told, that the listing is stale. *told* counts the entries given to the kernel since the time
    *told_since*. *default_list* is the access list that new entries inherit from the upper part, empty where
    there is none; None before it is read.
    """

    __slots__ = (
        "absences",
        "default_list",
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
        self.default_list: bytes | None = None

    def tell(self, entries: int) -> None:
        """Count entries that are given to the kernel."""
        if not self.told:
            self.told_since = time.monotonic()
        self.told += entries

    @property
    def noticed(self) -> bool:
        """Whether every change by the host to names in the directory is noticed."""
        return self.steady or not self.lowers

    @property
    def only_upper(self) -> bool:
        """Whether the upper alone decides about the directory's entries."""
        return self.upper and not self.lowers and self.masks is None and self.gone is None

    @property
    def merged(self) -> bool:
        return self.upper and bool(self.lowers)


NodePlace = tuple[Directory, bytes]
"""A directory, and a name in it."""


def path_of(above: Directory | None, name: bytes) -> bytes:
    """The path in the view of a name in a directory."""
    while above is not None and above.ino != ROOT_INODE:
        name = above.name + b"/" + name
        above = above.parent
    return name


@dataclass(slots=True)
class Found:
    """One entry of the merged view, before it gets a node.

    *recorded*: the entry's number comes from a record, not from its host number.
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


MOST_OPEN = 512


class DirectoryFds:
    """Open host directories of the view's directories, opened on demand."""

    def __init__(self, upper: HostDir, lowers: list[HostDir], limit: int = MOST_OPEN) -> None:
        self._upper = upper
        self._lowers = lowers
        self._limit = limit
        self._recent: dict[Directory | LowerPart, None] = {}

    def upper(self, directory: Directory) -> HostDir:
        """The upper part of a directory, which must exist."""
        return directory.held or self._hold(directory, self._open_upper(directory))

    def lower(self, part: LowerPart) -> HostDir:
        """A lower part; ESTALE when the host has put another directory in its place."""
        if part.held is not None:
            return part.held
        try:
            opened = self._lowers[part.layer].descend(part.path)
        except OSError as error:
            raise by_its_name(error) from None
        status = opened.own_stat()
        if (status.st_dev, status.st_ino) != (part.dev, part.ino):
            opened.close()
            raise stale()
        return self._hold(part, opened)

    def drop(self, directory: Directory) -> None:
        """Close the descriptors of a directory that is no longer needed."""
        self._drop(directory)
        for part in directory.lowers:
            self._drop(part)

    def close(self) -> None:
        for holder in list(self._recent):
            self._drop(holder)

    def _open_upper(self, directory: Directory) -> HostDir:
        names: list[bytes] = []
        at = directory
        while at.held is None and at.parent is not None:
            names.append(at.name)
            at = at.parent
        start = at.held if at.held is not None else self._upper
        return start.descend(b"/".join(reversed(names)))

    def _hold(self, holder: Directory | LowerPart, opened: HostDir) -> HostDir:
        holder.held = opened
        self._recent[holder] = None
        if len(self._recent) > self._limit:
            # The last reference closes the descriptor: a caller may be in the middle of using it.
            oldest = next(iter(self._recent))
            del self._recent[oldest]
            oldest.held = None
        return opened

    def _drop(self, holder: Directory | LowerPart) -> None:
        if holder.held is not None:
            self._recent.pop(holder, None)
            holder.held = None
