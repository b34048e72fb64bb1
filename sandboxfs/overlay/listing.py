"""How is a directory listed while it changes?

Names are listed in the order of their hashes, and positions are hashes: they mean the same to everyone who
reads the directory, however it changes, so nothing is skipped or repeated and seekdir finds its place again.
The kernel relies on that when it goes on with one reader's listing for another. A listing is a snapshot of
the names, taken when it begins. Entries are looked at when they are delivered: one that has gone since is
left out.

Looking at an entry, and telling the kernel what it is, is most of what a listing costs. A program that asked
for the files of a directory one by one and then lists it, as `git status` does, has the kernel know all that
already: such files are only mentioned.
"""

import os
import stat
import time
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping
from itertools import count
from zlib import crc32

from sandboxfs.overlay.attributes import Attributes
from sandboxfs.overlay.filesystem import Entry, Lasting
from sandboxfs.overlay.merge import Merge
from sandboxfs.overlay.node import Directory
from sandboxfs.overlay.syncing import Syncs

# The positions of the two dots come first, then those of the names.
_DOTS = {1: b".", 2: b".."}
_FIRST = 3
# A directory is familiar when the kernel was told of so many entries, no longer ago than so many seconds:
# what it was told is good for longer than that.
_MANY = 8
_RECENTLY = 30.0
# All that an entry says that is only mentioned.
_BRIEFLY = Lasting.BRIEFLY
_A_FILE = os.stat_result((stat.S_IFREG, *[0] * 9))


class Snapshot:
    """The names of a directory in the order in which they are listed; *hosts* are their host numbers."""

    __slots__ = ("_names", "_positions", "hosts")

    def __init__(self, names: Iterable[bytes], hosts: Mapping[bytes, int] | None = None) -> None:
        self.hosts = hosts or {}
        places = sorted((_position(name), name) for name in names)
        # Two lists, because a pair for each name would take as much memory as the name.
        self._positions = [*_DOTS, *(position for position, _ in places)]
        self._names = [*_DOTS.values(), *(name for _, name in places)]
        if len(set(self._positions)) != len(self._positions):
            self._positions = _apart(self._positions)

    def is_over(self, position: int) -> bool:
        """Whether nothing comes after a position."""
        return position >= self._positions[-1]

    def after(self, position: int) -> Iterator[tuple[int, bytes]]:
        """All names that come after a position, each with its own."""
        positions, names = self._positions, self._names
        rest = range(bisect_right(positions, position), len(positions))
        return zip(map(positions.__getitem__, rest), map(names.__getitem__, rest), strict=True)


def _position(name: bytes) -> int:
    # The same in every session, so that what goes wrong in some order goes wrong again. Checksums, because a
    # better hash takes four times as long; backwards, because two of one kind would differ together.
    return (crc32(name) << 30 | crc32(name[::-1]) >> 2) + _FIRST


def _apart(positions: list[int]) -> list[int]:
    """Positions of which none is taken twice. Names can be made to have the same hash, any number of them."""
    apart, last = [], 0
    for position in positions:
        last = max(position, last + 1)
        apart.append(last)
    return apart


class Listings:
    """The open directories of one overlay."""

    def __init__(self, merge: Merge, attributes: Attributes, syncs: Syncs) -> None:
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
        """Whether the kernel knows most of what is to be listed from a position on, if anything is."""
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
            # Before the names are: what happens from now on shows.
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
                entry = self._entry(directory, name)
            if entry is not None:
                yield name, entry, position

    def lasts(self, handle: int) -> bool:
        """Whether what was listed is right, now that it has been read to its end, and not only for now."""
        directory, _ = self._open[handle]
        return (
            directory.listed is not None
            and directory.noticed
            and directory.gone is None
            and directory.sealed is None
            # They tell at once what an event tells soon.
            and directory.listed == self._times(directory)
        )

    def _times(self, directory: Directory) -> tuple[int, ...]:
        """When the host last changed what names a directory gets from it."""
        return tuple(self._merge.fds.lower(part).own_stat().st_mtime_ns for part in directory.lowers)

    def _mention(self, directory: Directory, name: bytes, hosts: Mapping[bytes, int]) -> Entry | None:
        """The bare mention of a file of the workspace that the kernel knows; None for anything else."""
        host = hosts.get(name, 0)
        if not host:
            return None
        number = self._merge.numbers.of_host(directory.lowers[-1].dev, host)
        node = self._merge.inodes.lower_file(number, directory, name)
        if node is None or node.host_ino != host:
            return None
        return Entry(node.ino, _A_FILE, 1, _BRIEFLY, _BRIEFLY, False, True)

    def _entry(self, directory: Directory, name: bytes) -> Entry | None:
        if name == b".":
            return self._attributes.entry(directory)
        if name == b"..":
            return self._attributes.entry(directory.parent or directory)
        try:
            found = self._merge.look(directory, name)
        except OSError:
            # It changed under the listing, or may not be looked at; a lookup says why.
            return None
        return None if found is None else self._attributes.entry(*found)

    def sync(self, directory: Directory) -> None:
        if directory.upper and directory.gone is None:
            fd = self._merge.fds.upper(directory).open_for_listing()
            try:
                self._syncs.sync(fd)
            finally:
                os.close(fd)

    def release(self, handle: int) -> None:
        del self._open[handle]
