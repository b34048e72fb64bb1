"""Audit log files: rotation, the head that is kept apart from them, and the copies of denials and events.

The newest records are in `audit.jsonl`, older ones in `audit.jsonl.1`, `.2` and so on. An append is there
whole or not at all, and part of a line that a crash left is cut off. Every failure is an OSError for the
caller to count; the next attempt starts from the files as they are then.

By its head, a log is recognised that was cut off, emptied, removed or replaced. The head is replaced as a
whole after each batch of records, and before old files are dropped: after a crash the head may be behind the
log by one batch at the new end, and never names records that the log does not have.

A program could rotate its own past out of the log by writing enough to the sandbox. So every denial is also
kept in `audit.denials.jsonl`, and every event in `audit.events.jsonl`. A copy is the record as in the log,
wrapped in a number and a chain of the file's own.

A program could rotate its first denials out of the copies by causing very many. So the first file of copies
stays for good, and files in the middle are dropped; the head has the numbers of the dropped copies.
"""

import errno
import json
import os
import re
import stat
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import NamedTuple

from sandboxfs.codec import OPTIONAL, SPARSE, decode, encode
from sandboxfs.state.audit_record import digest, genesis, parse_line

_VERSION = 1


@dataclass(frozen=True)
class Dropped:
    """The records dropped in the middle: those *after* one record, with its *hash*, and before *next*."""

    after: int
    hash: str
    next: int


@dataclass(frozen=True)
class Link:
    """The extent of one chain: the numbers of the *first* and *last* record kept, the *hash* of the last."""

    first: int
    last: int
    hash: str
    dropped: Dropped | None = field(default=None, metadata=SPARSE)


@dataclass(frozen=True)
class AuditHead:
    """The extent of the *log* and of its *copies* by file name; *policy* is the digest at the last mount."""

    log: Link
    copies: Mapping[str, Link] = field(default_factory=dict)
    policy: str | None = field(default=None, metadata=OPTIONAL)


def head_path(path: Path) -> Path:
    """Return the path of the head of the log at *path*."""
    return path.with_suffix(".head")


def read_head(path: Path) -> AuditHead | None:
    """Return the head of the log at *path*; None when no readable head is there."""
    try:
        found: object = json.loads(head_path(path).read_bytes())
        known = isinstance(found, dict) and found.get("version") == _VERSION
        return decode(AuditHead, found, lenient=True) if known else None
    except (OSError, ValueError, RecursionError):
        return None


def write_head(path: Path, head: AuditHead) -> None:
    """Replace the head of the log at *path*; after an OSError the old head is there."""
    place = head_path(path)
    message = {"version": _VERSION} | encode(head)
    data = json.dumps(message, separators=(",", ":")).encode() + b"\n"
    made = place.with_name(place.name + ".new")
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(made, flags, 0o600)
    try:
        while data:
            data = data[os.write(descriptor, data) :]
    except OSError:
        with suppress(OSError):
            made.unlink()
        raise
    finally:
        os.close(descriptor)
    made.replace(place)


AUDIT_NAME = "audit.jsonl"
_FLAGS = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_WINDOW = 1 << 16


@dataclass(frozen=True)
class Tail:
    """The last whole lines of a log, oldest first, and the length of the partial line after them."""

    lines: list[bytes]
    torn: int


def kept_files(path: Path) -> list[Path]:
    """Return the existing files of the log at *path*, newest first."""
    pattern = re.compile(re.escape(path.name) + r"\.([1-9][0-9]{0,5})")
    numbered = []
    with suppress(FileNotFoundError, NotADirectoryError):
        for entry in path.parent.iterdir():
            if matched := pattern.fullmatch(entry.name):
                numbered.append((int(matched[1]), entry))
    current = [path] if os.path.lexists(path) else []
    return current + [entry for _, entry in sorted(numbered)]


class AuditFile:
    """The files of one log, written by one thread of one process."""

    def __init__(self, path: Path, size_limit: int, keep: int, *, keep_first: bool = False) -> None:
        """Write to *path*, keeping at most *keep* files of about *size_limit* bytes, *path* included.

        With *keep_first* the oldest file stays for good and the second oldest goes; that takes three files.
        """
        self._path = path
        self._size_limit = size_limit
        self._keep = max(keep, 3) if keep_first else keep
        self._keep_first = keep_first
        self._descriptor: int | None = None
        # The length of the whole lines in the file, and whether a failed append left bytes after them.
        self._whole = 0
        self._littered = False

    def open(self) -> Tail:
        """Open the file, made when missing, cut a partial line off, and return the end of the log."""
        descriptor = os.open(self._path, _FLAGS, 0o600)
        try:
            found = os.fstat(descriptor)
            if not stat.S_ISREG(found.st_mode):
                raise OSError(errno.EINVAL, "not a regular file", str(self._path))
            lines, whole = _last_lines(descriptor, found.st_size)
            if whole != found.st_size:
                os.ftruncate(descriptor, whole)
        except OSError:
            os.close(descriptor)
            raise
        self._descriptor, self._whole = descriptor, whole
        return Tail(lines or self._older_lines(), found.st_size - whole)

    def check(self) -> str | None:
        """Prepare for an append; return a description of another program's change to the file, if any."""
        if self._descriptor is None:
            self.open()
            return None
        if not self._in_place(self._descriptor):
            self.close()
            self.open()
            return "the log file was removed or replaced"
        if self._littered:
            os.ftruncate(self._descriptor, self._whole)
            self._littered = False
        size, expected = os.fstat(self._descriptor).st_size, self._whole
        if size == expected:
            return None
        self.close()
        self.open()
        return f"the log file was {'shortened' if size < expected else 'written to'} by another program"

    @property
    def full(self) -> bool:
        return self._whole >= self._size_limit

    def kept_by_rotation(self) -> list[Path]:
        """The files that `rotate` would keep, by their present names, oldest first."""
        return self._sort_out(kept_files(self._path))[0][::-1]

    def dropped_by_rotation(self) -> list[Path]:
        """The files that `rotate` would drop, oldest first."""
        return self._sort_out(kept_files(self._path))[1][::-1]

    def _sort_out(self, files: list[Path]) -> tuple[list[Path], list[Path]]:
        """Split *files* into those that a rotation keeps and those that it drops."""
        if len(files) < self._keep:
            return files, []
        if self._keep_first:
            return [*files[: self._keep - 2], files[-1]], files[self._keep - 2 : -1]
        return files[: self._keep - 1], files[self._keep - 1 :]

    def rotate(self) -> None:
        """Rename the file to number 1 and each older file one number up, after dropping the surplus ones."""
        kept, dropped = self._sort_out(kept_files(self._path))
        for path in reversed(dropped):
            path.unlink()
        for number, path in reversed(list(enumerate(kept, 1))):
            path.rename(self._path.with_name(f"{self._path.name}.{number}"))
        self.close()
        self.open()

    def append(self, data: bytes) -> None:
        """Write *data*, whole lines, or nothing; `check` must have been called before."""
        if self._descriptor is None:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF), str(self._path))
        written = 0
        try:
            while written < len(data):
                written += os.write(self._descriptor, data[written:] if written else data)
        except OSError:
            try:
                os.ftruncate(self._descriptor, self._whole)
            except OSError:
                self._littered = True
            raise
        self._whole += len(data)

    def close(self, *, sync: bool = False) -> None:
        """Close the file, with *sync* after an fsync."""
        if self._descriptor is not None:
            descriptor, self._descriptor = self._descriptor, None
            try:
                if sync:
                    os.fsync(descriptor)
            finally:
                os.close(descriptor)

    def _in_place(self, descriptor: int) -> bool:
        try:
            return os.path.samestat(self._path.lstat(), os.fstat(descriptor))
        except FileNotFoundError:
            return False

    def _older_lines(self) -> list[bytes]:
        for path in kept_files(self._path)[1:]:
            lines = last_lines(path)
            if lines:
                return lines
        return []


def last_lines(path: Path) -> list[bytes]:
    """Return the last whole lines of the file at *path*, at least one if there is any."""
    with path.open("rb") as stream:
        return _last_lines(stream.fileno(), os.fstat(stream.fileno()).st_size)[0]


def _last_lines(descriptor: int, size: int) -> tuple[list[bytes], int]:
    """Return the last whole lines, at least one if there is any, and the offset after them."""
    window = _WINDOW
    while True:
        start = max(0, size - window)
        data = os.pread(descriptor, size - start, start)
        last = data.rfind(b"\n")
        first = 0 if start == 0 else data.find(b"\n") + 1
        if start == 0 or 0 < first <= last:
            break
        window *= 8
    return data[first : last + 1].split(b"\n")[:-1], start + last + 1


_COPY = re.compile(rb'\{"copy":([0-9]{1,18}),"prev":"([0-9a-f]{64})","record":(\{.*\})\}', re.DOTALL)
_SEQ = re.compile(rb'\{"time":"[^"]*","seq":([0-9]{1,18}),')


def copies_paths(path: Path) -> tuple[Path, Path]:
    """Return the paths of the copies of denials and of events in the log at *path*."""
    return path.with_suffix(".denials.jsonl"), path.with_suffix(".events.jsonl")


def first_copy(path: Path, name: str) -> str:
    """Return the `prev` of the very first copy in the file at *path* of the sandbox called *name*."""
    return genesis(f"{name}/{path.name}")


def seq_of(record: bytes) -> int | None:
    """Return the number of *record*; None when the line is no record."""
    found = _SEQ.match(record)
    return None if found is None else int(found[1])


def unwrapped(line: bytes) -> tuple[int, str, bytes] | None:
    """Return the number, the `prev` and the record of a copy; None when *line* is no copy."""
    found = _COPY.fullmatch(line)
    return None if found is None else (int(found[1]), found[2].decode(), found[3])


class Lost(NamedTuple):
    """The number of dropped copies, and the times of the first and the last of them."""

    number: int
    first_ns: int
    last_ns: int


class AuditCopies:
    """One file of copies, written by the log's own thread."""

    def __init__(self, path: Path, name: str, size_limit: int, keep: int) -> None:
        self.name = path.name
        self._path = path
        self._sandbox = name
        self._file = AuditFile(path, size_limit, keep, keep_first=True)
        self._link: Link | None = None
        # Records that are not yet written.
        self._waiting: list[bytes] = []

    @property
    def link(self) -> Link | None:
        """The extent of the copies; None before `resume`."""
        return self._link

    def resume(self, known: Link | None) -> None:
        """Go on after the last copy. Where the head *known* is further, the chain shows a gap."""
        if self._link is not None:
            return
        link = known or Link(1, 0, first_copy(self._path, self._sandbox))
        tail = self._file.open().lines
        last = unwrapped(tail[-1]) if tail else None
        if last is not None and last[0] >= link.last:
            link = replace(link, last=last[0], hash=digest(tail[-1]))
        self._link = link

    def hold(self, records: list[bytes]) -> None:
        """Hold *records* for `write`, which keeps them for later when it fails."""
        self._waiting += records

    def make_room(self) -> bool:
        """Say whether the file must be rotated first; the link then already tells which copies that drops."""
        if not self._waiting or self._link is None:
            return False
        self._file.check()
        if not self._file.full:
            return False
        if self._file.dropped_by_rotation():
            oldest, following, *_ = self._file.kept_by_rotation()
            last = _last_copy(oldest)
            first = _first_copy(following)
            dropped = self._link.dropped or (last and Dropped(last.number, digest(last.line), 0))
            if dropped:
                further = self._link.last + 1 if first is None else first.number
                self._link = replace(self._link, dropped=replace(dropped, next=further))
        return True

    def rotate(self) -> "Lost | None":
        """Rotate the file; return the copies that the rotation dropped, if any."""
        ends = [
            (first, last)
            for path in self._file.dropped_by_rotation()
            if (first := _first_copy(path)) is not None and (last := _last_copy(path)) is not None
        ]
        self._file.rotate()
        if not ends:
            return None
        number = sum(last.number - first.number + 1 for first, last in ends)
        return Lost(number, _time_of(ends[0][0].record), _time_of(ends[-1][1].record))

    def write(self) -> None:
        """Append the held records; after an OSError they are still held."""
        if not self._waiting or self._link is None:
            return
        number, prev, lines = self._link.last, self._link.hash, []
        for record in self._waiting:
            number += 1
            lines.append(b'{"copy":%d,"prev":"%s","record":%s}' % (number, prev.encode(), record))
            prev = digest(lines[-1])
        self._file.check()
        self._file.append(b"".join(line + b"\n" for line in lines))
        self._link, self._waiting = replace(self._link, last=number, hash=prev), []

    def give_up_beyond(self, most: int) -> int:
        """Forget the newest held records beyond *most*; return how many."""
        lost = max(0, len(self._waiting) - most)
        del self._waiting[most:]
        return lost

    def close(self, *, sync: bool = False) -> None:
        self._file.close(sync=sync)


class _Copy(NamedTuple):
    number: int
    line: bytes
    record: bytes


def _first_copy(path: Path) -> _Copy | None:
    with path.open("rb") as stream:
        return _copy(stream.readline().rstrip(b"\n"))


def _last_copy(path: Path) -> _Copy | None:
    lines = last_lines(path)
    return _copy(lines[-1]) if lines else None


def _copy(line: bytes) -> _Copy | None:
    found = unwrapped(line)
    return None if found is None else _Copy(found[0], line, found[2])


def last_copied(path: Path) -> bytes | None:
    """Return the newest record of the log at *path* that has a copy."""
    found = [
        copy.record
        for copies in copies_paths(path)
        for file in kept_files(copies)[:2]
        if (copy := _last_copy(file)) is not None
    ]
    return max(found, key=lambda record: seq_of(record) or 0, default=None)


def _time_of(record: bytes) -> int:
    """The time of *record*, in nanoseconds; of a damaged record, the present time."""
    found = parse_line(record)
    try:
        return int(datetime.fromisoformat(str(found and found["time"])).timestamp() * 1_000_000) * 1000
    except ValueError:
        return time.time_ns()
