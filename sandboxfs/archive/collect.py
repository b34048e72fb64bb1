"""Collecting an archive: every entry of the upper, and of the baseline.

A file is read again until it did not change during the read. A file that only grows is taken with its first
size; a file that otherwise changes every time has no steady content. A file that its owner may not read is
unlocked for a moment.

A lower file with several names is copied up under the name that was written to. The index leads its other
names to the copy, by an inode number that means nothing on another machine. The collector finds those names
by walking the workspace as the view shows it, so that an archive can list all of them as names of one file.
Each name comes with the directories above it and with baseline entries, as if the file had been copied up
under every name.

Programs may be writing during the collection. The collector lists the upper, reads its files, and lists the
upper again. If the two listings differ, an object may have moved from a directory still to be read into one
already read, so the collection starts again. A file that never stands still is refused or, on request, copied
in the state it happens to have.
"""

import errno
import os
import stat
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from typing import BinaryIO, TypeVar

from sandboxfs.archive.format import DIGEST_SIZE, ArchiveEntry, EntryType, travels
from sandboxfs.archive.tar import CHUNK
from sandboxfs.errors import SandboxBusy, UsageError
from sandboxfs.hostfs.directory import HostDir, unlocked
from sandboxfs.hostfs.identity import fingerprint
from sandboxfs.hostfs.tree import Unreadable
from sandboxfs.paths import joined, parted, quoted
from sandboxfs.review import change
from sandboxfs.review.change import Version
from sandboxfs.review.compare import assumed, is_as_seen
from sandboxfs.upper import marks
from sandboxfs.upper.baseline import Baseline, BaselineEntry
from sandboxfs.upper.sandbox_layers import Layers
from sandboxfs.upper.walk import MergedView, UpperDirectory, UpperMap, map_upper

T = TypeVar("T")

_ATTEMPTS = 3

Progress = Callable[[int], None]
"""Called with each number of bytes that was processed."""


def chunks(fd: int, size: int) -> Iterator[bytes]:
    """Yield the first *size* bytes of a file, or fewer when the file has become shorter."""
    at = 0
    while at < size and (chunk := os.pread(fd, min(CHUNK, size - at), at)):
        yield chunk
        at += len(chunk)


def digest(fd: int, size: int, progress: Progress) -> bytes | None:
    """Return the digest of the first *size* bytes; None when there are fewer."""
    found = blake2b(digest_size=DIGEST_SIZE)
    at = 0
    for chunk in chunks(fd, size):
        found.update(chunk)
        at += len(chunk)
        progress(len(chunk))
    return found.digest() if at == size else None


def steady(fd: int, progress: Progress) -> tuple[int, bytes] | None:
    """Return the size and the digest of a file's content at one moment; None when it never stands still."""
    for _ in range(_ATTEMPTS):
        before = os.fstat(fd)
        found = digest(fd, before.st_size, progress)
        stood = fingerprint(before) == fingerprint(os.fstat(fd))
        # A second equal digest means that a program has only appended bytes.
        if found is not None and (stood or found == digest(fd, before.st_size, progress)):
            return before.st_size, found
    return None


def attributes(directory: HostDir, name: bytes, status: os.stat_result) -> tuple[tuple[bytes, bytes], ...]:
    """Return the extended attributes that go into an archive."""

    def read() -> tuple[tuple[bytes, bytes], ...]:
        names = sorted(filter(travels, directory.listxattr(name)))
        return tuple((attribute, directory.getxattr(name, attribute)) for attribute in names)

    def read_unlocked() -> tuple[tuple[bytes, bytes], ...]:
        try:
            return read()
        except PermissionError:
            if stat.S_ISLNK(status.st_mode):
                raise
            return unlocked(directory.path_of(name), status.st_mode, read)

    try:
        return allowed(directory, read_unlocked)
    except OSError as error:
        if error.errno in (errno.ENOTSUP, errno.ENODATA, errno.EPERM, errno.EACCES):
            return ()
        raise


def allowed(directory: HostDir, action: Callable[[], T]) -> T:
    """Do *action* in an upper directory that a program may have locked."""
    try:
        return action()
    except PermissionError:
        return unlocked(directory.own_path(), directory.own_stat().st_mode, action)


Pair = tuple[ArchiveEntry, BaselineEntry]
"""The upper entry that a copy-up would make, and the baseline entry that would go with it."""


@dataclass(frozen=True)
class OtherName:
    """One more name of a file; *way* are the directories above the name that the upper does not have."""

    path: bytes
    baseline_entry: BaselineEntry
    way: list[Pair]


def other_names(view: MergedView, missing: Mapping[int, int]) -> Iterator[OtherName]:
    """Find the names that the upper lacks; *missing* has the number of such names by inode number."""
    if not missing:
        return
    wanted = {
        (baseline_entry.dev, baseline_entry.ino): baseline_entry
        for baseline_entry in view.layers.baseline.below(b"")
        if baseline_entry.number in missing
    }
    numbers = {ino for _, ino in wanted}
    left = sum(missing[baseline_entry.number] for baseline_entry in wanted.values())
    made: set[bytes] = set()
    for shown in view.below(b"") if left else ():
        if shown.ino not in numbers or shown.upper is not None or shown.lower_path is None:
            continue
        status = view.layers.workspace.stat(shown.lower_path)
        baseline_entry = None if status is None else wanted.get((status.st_dev, status.st_ino))
        if baseline_entry is not None:
            way = _way(view, parted(shown.path)[0], parted(shown.lower_path)[0], made)
            yield OtherName(shown.path, replace(baseline_entry, path=shown.lower_path), way)
            left -= 1
            if not left:
                return


def _way(view: MergedView, path: bytes, lower: bytes, made: set[bytes]) -> list[Pair]:
    """Return copies of the directories down to *path* that the upper does not have, outermost first."""
    way: list[Pair] = []
    while view.upper.get(path) is None and path not in made:
        status = view.layers.workspace.stat(lower)
        if status is None:
            break
        made.add(path)
        way.append((_copy(path, status), assumed(Version.of(status), lower)))
        path, lower = parted(path)[0], parted(lower)[0]
    return way[::-1]


def _copy(path: bytes, status: os.stat_result) -> ArchiveEntry:
    return ArchiveEntry(
        path,
        EntryType.DIRECTORY,
        mode=stat.S_IMODE(status.st_mode),
        uid=status.st_uid,
        gid=status.st_gid,
        mtime_ns=status.st_mtime_ns,
        number=status.st_ino,
    )


_CALM = "wait until the programs in the view are done, or unmount it"
_TYPES = {
    stat.S_IFREG: EntryType.FILE,
    stat.S_IFDIR: EntryType.DIRECTORY,
    stat.S_IFLNK: EntryType.SYMLINK,
    stat.S_IFIFO: EntryType.FIFO,
    stat.S_IFSOCK: EntryType.SOCKET,
}


@dataclass
class Collected:
    """The content of an archive, without the contents of files.

    *left_out* are devices: an archive has a whiteout in their place. *indexed* are files that only the index
    has, with their names there. *spooled* are copies of files that would not stand still.
    """

    entries: list[ArchiveEntry] = field(default_factory=list)
    baseline_entries: dict[bytes, BaselineEntry] = field(default_factory=dict)
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
    """The treatment of files that never stand still: with *allowed*, they are copied in the state they have.

    *known* are files already seen to change.
    """

    allowed: bool = False
    known: set[bytes] = field(default_factory=set)


def collect_archive(layers: Layers, changing: Changing, progress: Progress = lambda _: None) -> Collected:
    """Collect all entries of the upper and the baseline."""
    upper = map_upper(layers)
    for _ in range(_ATTEMPTS):
        collector = _Collector(layers, upper, changing, progress)
        found = collector.collect(layers.read_baseline())
        again = map_upper(layers)
        if _shape(again) == _shape(upper):
            return found
        found.close()
        upper = again
    raise SandboxBusy("files come and go in the sandbox all the time", hint=_CALM)


def _shape(upper: UpperMap) -> dict[bytes, dict[bytes, tuple[int, int] | None]]:
    """Return the names and types of all entries, without their content."""
    return {
        directory.path: {
            name: None if status is None else (status.st_ino, stat.S_IFMT(status.st_mode))
            for name, status in directory.entries.items()
        }
        for directory in upper
    }


class _Collector:
    """One attempt at a collection."""

    def __init__(self, layers: Layers, upper: UpperMap, changing: Changing, progress: Progress) -> None:
        self._layers = layers
        self._upper = upper
        self._changing = changing
        self._progress = progress
        self._found = Collected()
        # The first name of each file, by its inode number on the host.
        self._first: dict[int, bytes] = {}

    def collect(self, baseline: Baseline) -> Collected:
        try:
            for directory in self._upper:
                if directory.cut:
                    raise UsageError(
                        f"cannot export {quoted(directory.path)}: it {change.TOO_DEEP}",
                        hint="discard it first",
                    )
                self._directory(directory)
            self._baseline_entries(baseline)
            self._other_names()
        except BaseException:
            self._found.close()
            raise
        return self._found

    def _directory(self, directory: UpperDirectory) -> None:
        with suppress(FileNotFoundError):
            # An entry gone by now is missing in the second listing too, or the collection starts again.
            parent, name = parted(directory.path) if directory.path else (b"", b"")
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
                path = joined(directory.path, inner)
                if status is None:
                    self._found.entries.append(ArchiveEntry(path, EntryType.WHITEOUT))
                elif not stat.S_ISDIR(status.st_mode):
                    with suppress(FileNotFoundError):
                        self._other(path, status)

    def _other(self, path: bytes, status: os.stat_result) -> None:
        """Collect one entry that is no directory."""
        if stat.S_IFMT(status.st_mode) not in _TYPES:
            self._found.left_out.append(path)
            self._found.entries.append(ArchiveEntry(path, EntryType.WHITEOUT))
            return
        first = self._first.setdefault(status.st_ino, path)
        if first != path:
            self._found.entries.append(ArchiveEntry(path, EntryType.LINK, target=first))
            return
        parent, name = parted(path)
        here = self._layers.upper.directory(parent)
        entry = self._bare(path, status, here, name)
        if entry.type is EntryType.FILE:
            entry = self._file(entry, here, name)
        else:
            entry = replace(entry, number=self._layers.numbers.number(status.st_ino))
            if entry.type is EntryType.SYMLINK:
                entry = replace(entry, target=allowed(here, lambda: here.readlink(name)))
        self._found.entries.append(entry)

    def _file(self, entry: ArchiveEntry, directory: HostDir, name: bytes) -> ArchiveEntry:
        record = allowed(directory, lambda: marks.read_record(directory, name))
        size, found = self._content(entry.path)
        return replace(entry, number=record.ino, size=size, digest=found)

    def _bare(self, path: bytes, status: os.stat_result, directory: HostDir, name: bytes) -> ArchiveEntry:
        return ArchiveEntry(
            path,
            _TYPES[stat.S_IFMT(status.st_mode)],
            mode=stat.S_IMODE(status.st_mode),
            uid=status.st_uid,
            gid=status.st_gid,
            mtime_ns=status.st_mtime_ns,
            xattrs=attributes(directory, name, status),
        )

    def _content(self, path: bytes) -> tuple[int, bytes]:
        """Return the size and the digest of a file's content."""
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

    def _baseline_entries(self, baseline: Baseline) -> None:
        root = baseline.get(b"")
        for baseline_entry in (*([] if root is None else [root]), *baseline.below(b"")):
            self._found.baseline_entries[baseline_entry.path] = self._told_apart(baseline_entry)

    def _told_apart(self, baseline_entry: BaselineEntry) -> BaselineEntry:
        """Give a baseline entry without a digest one, if the workspace still has the object.

        Device and inode numbers identify nothing where the archive is read.
        """
        if baseline_entry.digest is not None or not stat.S_ISREG(baseline_entry.mode):
            return baseline_entry
        try:
            fd = self._layers.workspace.open(baseline_entry.path)
        except Unreadable:
            return baseline_entry
        try:
            found = digest(fd, baseline_entry.size, self._progress) if _is(fd, baseline_entry) else None
            return replace(baseline_entry, digest=found) if _is(fd, baseline_entry) else baseline_entry
        finally:
            os.close(fd)

    # The index

    def _other_names(self) -> None:
        """List the names of files that lead to the upper through the index only."""
        indexed = {record.ino: (name, status, record) for name, status, record in self._index()}
        missing = {
            # One of the file's names on the host is the one in the index.
            number: record.nlink - (status.st_nlink - 1)
            for number, (_, status, record) in indexed.items()
            if record.nlink > status.st_nlink - 1
        }
        for other in other_names(MergedView(self._layers, self._upper), missing):
            for entry, baseline_entry in other.way:
                self._found.entries.append(entry)
                self._found.baseline_entries[baseline_entry.path] = baseline_entry
            # Any other baseline entry there is of an older change, which a commit or discard has ended.
            self._found.baseline_entries[other.baseline_entry.path] = other.baseline_entry
            name, status, _ = indexed[other.baseline_entry.number]
            first = self._first.setdefault(status.st_ino, other.path)
            if first != other.path:
                self._found.entries.append(ArchiveEntry(other.path, EntryType.LINK, target=first))
                continue
            # The sandbox has removed the name under which the file was copied up.
            self._found.indexed[other.path] = name
            here = self._layers.index.directory(b"")
            self._found.entries.append(self._file(self._bare(other.path, status, here, name), here, name))

    def _index(self) -> Iterator[tuple[bytes, os.stat_result, marks.InodeRecord]]:
        """Yield the files in the index."""
        index = self._layers.index
        for entry in list(index.entries(b"")):
            name = os.fsencode(entry.name)
            status = index.stat(name)
            if status is not None and stat.S_ISREG(status.st_mode):
                yield name, status, marks.read_record(index.directory(b""), name)


def still_changing(path: bytes) -> SandboxBusy:
    """Return the error for a file that programs write to all the time."""
    return SandboxBusy(
        f"{quoted(path)} is still changing",
        hint=f"{_CALM}; --allow-changing takes it as it happens to be",
        details={"path": path.decode("utf-8", "surrogateescape")},
    )


def _is(fd: int, baseline_entry: BaselineEntry) -> bool:
    return is_as_seen(Version.of(os.fstat(fd)), baseline_entry)
