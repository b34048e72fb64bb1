"""How is a directory listed while it changes?

Each open directory takes a snapshot of the names when it is read from the start; positions are places in
that snapshot, so nothing is skipped or repeated however the directory changes, and seekdir finds its place
again. Entries are looked at when they are delivered: one that has gone since is left out.
"""

import os
from collections.abc import Iterator
from itertools import count

from sandboxfs.overlay.attributes import Attributes
from sandboxfs.overlay.filesystem import Entry
from sandboxfs.overlay.merge import Merge
from sandboxfs.overlay.node import Directory


class Listings:
    """The open directories of one overlay."""

    def __init__(self, merge: Merge, attributes: Attributes) -> None:
        self._merge = merge
        self._attributes = attributes
        self._open: dict[int, tuple[Directory, list[bytes]]] = {}
        self._serial = count(1)

    def __len__(self) -> int:
        return len(self._open)

    def open(self, directory: Directory) -> int:
        handle = next(self._serial)
        self._open[handle] = directory, []
        return handle

    def read(self, handle: int, start: int) -> Iterator[tuple[bytes, Entry, int]]:
        directory, names = self._open[handle]
        if start == 0:
            names = [] if directory.gone is not None else [b".", b"..", *self._merge.names(directory)]
            self._open[handle] = directory, names
        for position in range(start, len(names)):
            name = names[position]
            entry = self._entry(directory, name)
            if entry is not None:
                yield name, entry, position + 1

    def _entry(self, directory: Directory, name: bytes) -> Entry | None:
        if name == b".":
            return self._attributes.entry(directory)
        if name == b"..":
            return self._attributes.entry(directory.parent or directory)
        try:
            found = self._merge.find(directory, name)
        except OSError:
            # It changed under the listing, or may not be looked at; a lookup says why.
            return None
        if found is None:
            return None
        node = self._merge.node_of(directory, name, found)
        return self._attributes.entry(node, found.stat)

    def sync(self, handle: int) -> None:
        directory, _ = self._open[handle]
        if directory.upper and directory.gone is None:
            fd = self._merge.fds.upper(directory).open_for_listing()
            try:
                os.fsync(fd)
            finally:
                os.close(fd)

    def release(self, handle: int) -> None:
        del self._open[handle]
