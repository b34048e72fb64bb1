"""What goes into an archive? Everything in the upper, and every sighting of the baseline.

Programs may be writing meanwhile. The upper is listed, its files are read, and it is listed again: two
listings that differ mean that something may have moved from where it was yet to be looked for to where it was
looked for already, so all is done again. A file that never stands still is refused, or, if that is wanted,
copied as it happens to be.
"""

import os
import stat
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import BinaryIO

from sandboxfs.changes.archive_entry import Entry, Type
from sandboxfs.changes.archive_links import other_names
from sandboxfs.changes.archive_reading import Progress, allowed, attributes, chunks, digest, steady
from sandboxfs.changes.finding import Side
from sandboxfs.changes.layers import Layers
from sandboxfs.changes.sides import is_as_seen
from sandboxfs.changes.tree import Unreadable, join, split
from sandboxfs.changes.uppers import UpperDirectory, UpperMap, map_upper
from sandboxfs.changes.view import View
from sandboxfs.errors import SandboxBusy, UsageError
from sandboxfs.layers import marks
from sandboxfs.layers.baseline import Baseline, Sighting
from sandboxfs.layers.hostdir import HostDir
from sandboxfs.paths import quoted

_ATTEMPTS = 3
_CALM = "wait until the programs in the view are done, or unmount it"
_TYPES = {
    stat.S_IFREG: Type.FILE,
    stat.S_IFDIR: Type.DIRECTORY,
    stat.S_IFLNK: Type.SYMLINK,
    stat.S_IFIFO: Type.FIFO,
    stat.S_IFSOCK: Type.SOCKET,
}


@dataclass
class Collected:
    """All that an archive holds, contents of files left aside.

    *left_out* are devices: an archive has a whiteout in their place. *indexed* are files that only the index
    has, and the name there. *spooled* are files that would not stand still, as they were.
    """

    entries: list[Entry] = field(default_factory=list)
    sightings: dict[bytes, Sighting] = field(default_factory=dict)
    left_out: list[bytes] = field(default_factory=list)
    indexed: dict[bytes, bytes] = field(default_factory=dict)
    spooled: dict[bytes, BinaryIO] = field(default_factory=dict)

    def open(self, layers: Layers, path: bytes) -> int:
        """Open the content of the file at *path* for reading."""
        if path in self.spooled:
            return os.dup(self.spooled[path].fileno())
        tree, at = (layers.index, self.indexed[path]) if path in self.indexed else (layers.upper, path)
        try:
            return tree.open(at)
        except Unreadable as error:
            if isinstance(error.__cause__, FileNotFoundError):
                raise error.__cause__ from error
            raise UsageError(f"cannot read {quoted(path)} in the sandbox: {error}") from error

    def close(self) -> None:
        for file in self.spooled.values():
            file.close()


@dataclass
class Changing:
    """What becomes of files that never stand still: *allowed*, they are taken as they happen to be.

    *known* are those that were seen to change already.
    """

    allowed: bool = False
    known: set[bytes] = field(default_factory=set)


def collect(layers: Layers, changing: Changing, progress: Progress = lambda _: None) -> Collected:
    """Look at everything."""
    upper = map_upper(layers.upper)
    for _ in range(_ATTEMPTS):
        collector = _Collector(layers, upper, changing, progress)
        found = collector.collect(layers.read_baseline())
        again = map_upper(layers.upper)
        if _shape(again) == _shape(upper):
            return found
        found.close()
        upper = again
    raise SandboxBusy("files come and go in the sandbox all the time", hint=_CALM)


def _shape(upper: UpperMap) -> dict[bytes, dict[bytes, tuple[int, int] | None]]:
    """What is where, whatever it holds."""
    return {
        directory.path: {
            name: None if status is None else (status.st_ino, stat.S_IFMT(status.st_mode))
            for name, status in directory.entries.items()
        }
        for directory in upper
    }


class _Collector:
    """One attempt."""

    def __init__(self, layers: Layers, upper: UpperMap, changing: Changing, progress: Progress) -> None:
        self._layers = layers
        self._upper = upper
        self._changing = changing
        self._progress = progress
        self._found = Collected()
        # The first name of each file, by its host number.
        self._first: dict[int, bytes] = {}

    def collect(self, baseline: Baseline) -> Collected:
        try:
            for directory in self._upper:
                self._directory(directory)
            self._sightings(baseline)
            self._other_names()
        except BaseException:
            self._found.close()
            raise
        return self._found

    def _directory(self, directory: UpperDirectory) -> None:
        with suppress(FileNotFoundError):
            # What is gone meanwhile is missing in the second listing too, or everything is done again.
            parent, name = split(directory.path) if directory.path else (b"", b"")
            here = self._layers.upper.directory(parent)
            self._found.entries.append(
                replace(
                    self._bare(directory.path, directory.status, here, name),
                    number=allowed(here, lambda: marks.read_directory(here, name)).ino,
                    opaque=directory.opaque,
                    redirect=directory.redirect,
                )
            )
            for inner, status in directory.entries.items():
                path = join(directory.path, inner)
                if status is None:
                    self._found.entries.append(Entry(path, Type.WHITEOUT))
                elif not stat.S_ISDIR(status.st_mode):
                    with suppress(FileNotFoundError):
                        self._other(path, status)

    def _other(self, path: bytes, status: os.stat_result) -> None:
        """Take one entry that is no directory."""
        if stat.S_IFMT(status.st_mode) not in _TYPES:
            self._found.left_out.append(path)
            self._found.entries.append(Entry(path, Type.WHITEOUT))
            return
        first = self._first.setdefault(status.st_ino, path)
        if first != path:
            self._found.entries.append(Entry(path, Type.LINK, target=first))
            return
        parent, name = split(path)
        here = self._layers.upper.directory(parent)
        entry = self._bare(path, status, here, name)
        if entry.type is Type.FILE:
            entry = self._file(entry, here, name)
        else:
            entry = replace(entry, number=self._layers.numbers.number(status.st_ino))
            if entry.type is Type.SYMLINK:
                entry = replace(entry, target=allowed(here, lambda: here.readlink(name)))
        self._found.entries.append(entry)

    def _file(self, entry: Entry, directory: HostDir, name: bytes) -> Entry:
        record = allowed(directory, lambda: marks.read_record(directory, name))
        size, found = self._content(entry.path)
        return replace(entry, number=record.ino, size=size, digest=found)

    def _bare(self, path: bytes, status: os.stat_result, directory: HostDir, name: bytes) -> Entry:
        return Entry(
            path,
            _TYPES[stat.S_IFMT(status.st_mode)],
            mode=stat.S_IMODE(status.st_mode),
            uid=status.st_uid,
            gid=status.st_gid,
            mtime_ns=status.st_mtime_ns,
            xattrs=attributes(directory, name, status),
        )

    def _content(self, path: bytes) -> tuple[int, bytes]:
        """The size and the digest of a file's content."""
        fd = self._found.open(self._layers, path)
        try:
            if self._changing.allowed and path in self._changing.known:
                return self._spool(path, fd)
            found = steady(fd, self._progress)
            if found is None and self._changing.allowed:
                return self._spool(path, fd)
        finally:
            os.close(fd)
        if found is None:
            raise still_changing(path)
        return found

    def _spool(self, path: bytes, fd: int) -> tuple[int, bytes]:
        file = tempfile.TemporaryFile()  # noqa: SIM115 - lives until the archive is written
        self._found.spooled[path] = file
        for chunk in chunks(fd, os.fstat(fd).st_size):
            file.write(chunk)
        file.flush()
        size = os.fstat(file.fileno()).st_size
        return size, digest(file.fileno(), size, self._progress) or b""

    # The baseline

    def _sightings(self, baseline: Baseline) -> None:
        root = baseline.get(b"")
        for sighting in (*([] if root is None else [root]), *baseline.below(b"")):
            self._found.sightings[sighting.path] = self._told_apart(sighting)

    def _told_apart(self, sighting: Sighting) -> Sighting:
        """Give a sighting without a digest one, if the workspace still has what was seen.

        Where the archive goes, device and inode numbers tell nothing.
        """
        if sighting.digest is not None or not stat.S_ISREG(sighting.mode):
            return sighting
        try:
            fd = self._layers.workspace.open(sighting.path)
        except Unreadable:
            return sighting
        try:
            found = digest(fd, sighting.size, self._progress) if _is(fd, sighting) else None
            return replace(sighting, digest=found) if _is(fd, sighting) else sighting
        finally:
            os.close(fd)

    # The index

    def _other_names(self) -> None:
        """List the names of files that lead to the upper through the index only."""
        indexed = {record.ino: (name, status, record) for name, status, record in self._index()}
        missing = {
            # One of its names on the host is the one in the index.
            number: record.nlink - (status.st_nlink - 1)
            for number, (_, status, record) in indexed.items()
            if record.nlink > status.st_nlink - 1
        }
        for other in other_names(View(self._layers, self._upper), missing):
            for entry, sighting in other.way:
                self._found.entries.append(entry)
                self._found.sightings[sighting.path] = sighting
            # Whatever else was noted there is of something that is settled.
            self._found.sightings[other.sighting.path] = other.sighting
            name, status, _ = indexed[other.sighting.number]
            first = self._first.setdefault(status.st_ino, other.path)
            if first != other.path:
                self._found.entries.append(Entry(other.path, Type.LINK, target=first))
                continue
            # The sandbox has removed the name under which the file was copied up.
            self._found.indexed[other.path] = name
            here = self._layers.index.directory(b"")
            self._found.entries.append(self._file(self._bare(other.path, status, here, name), here, name))

    def _index(self) -> Iterator[tuple[bytes, os.stat_result, marks.Record]]:
        """The files in the index."""
        index = self._layers.index
        for entry in list(index.entries(b"")):
            name = os.fsencode(entry.name)
            status = index.stat(name)
            if status is not None and stat.S_ISREG(status.st_mode):
                yield name, status, marks.read_record(index.directory(b""), name)


def still_changing(path: bytes) -> SandboxBusy:
    """The complaint about a file that is written to all the time."""
    return SandboxBusy(
        f"{quoted(path)} is still changing",
        hint=f"{_CALM}; --allow-changing takes it as it happens to be",
        details={"path": path.decode("utf-8", "surrogateescape")},
    )


def _is(fd: int, sighting: Sighting) -> bool:
    return is_as_seen(Side.of(os.fstat(fd)), sighting)
