"""Delivering directory listings: order, positions, snapshots.

Names are listed in the order of their hashes, and positions are hashes. A position means the same to every
reader of the directory, however the directory changes, so no name is skipped or repeated and seekdir finds
its place again. The kernel relies on that when it continues one reader's listing for another. A listing is a
snapshot of the names, taken when it begins. Entries are looked up when they are delivered: an entry removed
since is left out.

Looking an entry up, and giving the kernel its attributes, is most of a listing's cost. After a program has
looked up the files of a directory one by one, as `git status` does before it lists the directory, the kernel
has all these attributes already: such files are only mentioned.
"""

import os
import stat
import time
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping
from itertools import count
from zlib import crc32

from sandboxfs.overlay.attributes import InodeAttributes
from sandboxfs.overlay.filesystem import Entry, Lasting, Syncs
from sandboxfs.overlay.lookup import Lookup
from sandboxfs.overlay.nodes import Directory

# The positions of the two dot entries come first, then those of the names.
_DOTS = {1: b".", 2: b".."}
_FIRST = 3
# A directory is familiar when the kernel was given so many of its entries, no longer ago than so many
# seconds: the kernel caches them for longer than that.
_MANY = 8
_RECENTLY = 30.0
# The fields of an entry that is only mentioned.
_BRIEFLY = Lasting.BRIEFLY
_A_FILE = os.stat_result((stat.S_IFREG, *[0] * 9))


class Snapshot:
    """The names of a directory in the order of the listing; *hosts* are their host numbers.

    *mentions* are the types and numbers of names that cannot be looked up; None until there is one.
    """

    __slots__ = ("_names", "_positions", "hosts", "mentions")

    def __init__(self, names: Iterable[bytes], hosts: Mapping[bytes, int] | None = None) -> None:
        self.hosts = hosts or {}
        self.mentions: Mapping[bytes, tuple[int, int]] | None = None
        places = sorted((_position(name), name) for name in names)
        # Two lists, because a pair for each name would take as much memory as the name.
        self._positions = [*_DOTS, *(position for position, _ in places)]
        self._names = [*_DOTS.values(), *(name for _, name in places)]
        if len(set(self._positions)) != len(self._positions):
            self._positions = _apart(self._positions)

    def is_over(self, position: int) -> bool:
        """Whether no name comes after a position."""
        return position >= self._positions[-1]

    def after(self, position: int) -> Iterator[tuple[int, bytes]]:
        """All names that come after a position, each with its own position."""
        positions, names = self._positions, self._names
        rest = range(bisect_right(positions, position), len(positions))
        return zip(map(positions.__getitem__, rest), map(names.__getitem__, rest), strict=True)


def _position(name: bytes) -> int:
    # The same in every session, so that an error that depends on the order can be repeated. Two checksums,
    # because a better hash takes four times as long; one backwards, because two alike would collide together.
    return (crc32(name) << 30 | crc32(name[::-1]) >> 2) + _FIRST


def _apart(positions: list[int]) -> list[int]:
    """Distinct positions. Any number of names can be made to have the same hash."""
    apart, last = [], 0
    for position in positions:
        last = max(position, last + 1)
        apart.append(last)
    return apart


class DirectoryListings:
    """The open directories of one overlay."""

    def __init__(self, merge: Lookup, attributes: InodeAttributes, syncs: Syncs) -> None:
        self._merge = merge
        self._syncs = syncs
        self._attributes = attributes
        self._open: dict[int, tuple[Directory, Snapshot | None]] = {}
        self._serial = count(1)

    def __len__(self) -> int:
        return len(self._open)

    def open(self, directory: Directory) -> int:
        handle = next(self._serial)
        self._open[handle] = directory, None
        return handle

    def is_familiar(self, handle: int, start: int) -> bool:
        """Whether the kernel knows most entries from a position on, if there are any."""
        directory, snapshot = self._open[handle]
        return (
            directory.told >= _MANY
            and (start == 0 or snapshot is None or not snapshot.is_over(start))
            and directory.masks is None
            and directory.steady
            and time.monotonic() - directory.told_since < _RECENTLY
        )

    def read(self, handle: int, start: int, *, brief: bool = False) -> Iterator[tuple[bytes, Entry, int]]:
        directory, snapshot = self._open[handle]
        if snapshot is None or start == 0:
            if directory.gone is not None:
                return
            self._merge.watching.need(directory)
            # Read before the names: any later change makes the times differ.
            directory.listed = self._times(directory)
            names = self._merge.names(directory)
            snapshot = Snapshot(names, names)
            self._open[handle] = directory, snapshot
            if not brief:
                directory.told = 0
                directory.tell(len(names))
        for position, name in snapshot.after(start):
            entry = self._mention(directory, name, snapshot.hosts) if brief else None
            if entry is None:
                entry = self._entry(directory, name, snapshot)
            if entry is not None:
                yield name, entry, position

    def lasts(self, handle: int) -> bool:
        """Whether a listing that was read to its end may stay cached until the kernel is notified."""
        directory, _ = self._open[handle]
        return (
            directory.listed is not None
            and directory.noticed
            and directory.gone is None
            and directory.sealed is None
            # The times show a change at once, an event only soon after.
            and directory.listed == self._times(directory)
        )

    def _times(self, directory: Directory) -> tuple[int, ...]:
        """The times of the host's last changes to the names in a directory's lower parts."""
        return tuple(self._merge.fds.lower(part).own_stat().st_mtime_ns for part in directory.lowers)

    def _mention(self, directory: Directory, name: bytes, hosts: Mapping[bytes, int]) -> Entry | None:
        """The bare mention of a workspace file that the kernel knows; None for any other entry."""
        host = hosts.get(name, 0)
        if not host:
            return None
        number = self._merge.numbers.of_host(directory.lowers[-1].dev, host)
        node = self._merge.inodes.lower_file(number, directory, name)
        if node is None or node.host_ino != host:
            return None
        return Entry(node.ino, _A_FILE, 1, _BRIEFLY, _BRIEFLY, False, True)

    def _entry(self, directory: Directory, name: bytes, snapshot: Snapshot) -> Entry | None:
        if name == b".":
            return self._attributes.entry(directory)
        if name == b"..":
            return self._attributes.entry(directory.parent or directory)
        try:
            found = self._merge.look(directory, name)
        except PermissionError:
            return self._bare(directory, name, snapshot)
        except OSError:
            # The entry changed during the listing; a lookup gives the error.
            return None
        return None if found is None else self._attributes.entry(*found)

    def _bare(self, directory: Directory, name: bytes, snapshot: Snapshot) -> Entry | None:
        """The mention of a name in a directory that may be listed but not searched."""
        if snapshot.mentions is None:
            snapshot.mentions = self._merge.mentions(directory)
        if name not in snapshot.mentions:
            return None
        kind, number = snapshot.mentions[name]
        return Entry(number, os.stat_result((kind, *[0] * 9)), 1, _BRIEFLY, _BRIEFLY, False, True)

    def sync(self, directory: Directory) -> None:
        if directory.upper and directory.gone is None:
            fd = self._merge.fds.upper(directory).open_for_listing()
            try:
                self._syncs.sync(fd)
            finally:
                os.close(fd)

    def release(self, handle: int) -> None:
        del self._open[handle]
