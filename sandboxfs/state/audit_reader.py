"""Audit log reading: order, selection, and verification of the chain of hashes.

All files of a log are read, oldest first. The reader tells files apart by identity and opens them again after
a rotation, so that a rotation neither hides nor repeats a file. Damaged lines are passed on as they are: the
caller decides about them.

Verification goes from the first record to the last. The `prev` of every line must match the line before, and
the records that the head (`audit_file`) names must be met on the way: so verification recognises a log that
was cut off at either end, emptied, removed or replaced. Verification cannot recognise that a writer with
access has rewritten all files, head included.
"""

import difflib
import heapq
import os
import re
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from pathlib import Path
from typing import BinaryIO

from sandboxfs.errors import UsageError
from sandboxfs.paths import quoted
from sandboxfs.policy.patterns import PathPattern, PatternError, covers_path, parse, within
from sandboxfs.state.audit_file import (
    AuditHead,
    Link,
    copies_paths,
    first_copy,
    head_path,
    kept_files,
    read_head,
    seq_of,
    unwrapped,
)
from sandboxfs.state.audit_record import digest, genesis, parse_line, undamaged

_POLL = 0.2


@dataclass(frozen=True)
class LogLine:
    """One line without its newline; *whole* is false for a partial line at the end of a file."""

    file: str
    number: int
    text: bytes
    whole: bool = True


class _OpenFile:
    """One file of the log, read on from the end of the last whole line."""

    def __init__(self, stream: BinaryIO, name: str) -> None:
        self.stream = stream
        self.name = name
        self.identity = _identity(os.fstat(stream.fileno()))
        self._number = 0

    def lines(self) -> Iterator[LogLine]:
        """Yield the whole lines not read before."""
        while True:
            start = self.stream.tell()
            text = self.stream.readline()
            if not text.endswith(b"\n"):
                # A partial line may be in the middle of a write, which a failure may still take back.
                self.stream.seek(start)
                return
            self._number += 1
            yield LogLine(self.name, self._number, text[:-1])

    def rest(self) -> Iterator[LogLine]:
        """Yield the partial line after the last whole line, if there is one."""
        text = self.stream.read()
        if text:
            yield LogLine(self.name, self._number + 1, text, whole=False)


def _identity(found: os.stat_result) -> tuple[int, int]:
    return found.st_dev, found.st_ino


def _open_newer(path: Path, than: tuple[int, int] | None) -> list[_OpenFile]:
    """Open the files newer than the one with the identity *than*, oldest first."""
    while True:
        before = _identities(path)
        opened = _open_once(path, than)
        if _identities(path) == before:
            return opened
        for one in opened:
            one.stream.close()


def _identities(path: Path) -> list[tuple[int, int]]:
    """The identities of the existing files, by which a rotation is noticed."""
    found = []
    for place in kept_files(path):
        with suppress(FileNotFoundError):
            found.append(_identity(place.stat()))
    return found


def _open_once(path: Path, than: tuple[int, int] | None) -> list[_OpenFile]:
    opened: list[_OpenFile] = []
    for place in kept_files(path):
        try:
            one = _OpenFile(place.open("rb"), place.name)
        except FileNotFoundError:
            continue
        if one.identity == than:
            one.stream.close()
            break
        if any(other.identity == one.identity for other in opened):
            one.stream.close()
        else:
            opened.append(one)
    return opened[::-1]


def read_lines(path: Path) -> Iterator[LogLine]:
    """Yield every line of the log at *path* as it is now, oldest first."""
    with ExitStack() as stack:
        files = _open_newer(path, None)
        for one in files:
            stack.enter_context(one.stream)
        for one in files:
            yield from one.lines()
            yield from one.rest()


def follow_lines(path: Path, ended: Callable[[], bool]) -> Iterator[LogLine]:
    """Yield every whole line of the log at *path*, and further ones as they come, until *ended* is true.

    *ended* is called when there is nothing more to read; lines written before *ended* was true still come.
    """
    # The last file stays open while the reader waits, so that no other file can get its identity.
    files: list[_OpenFile] = []
    ending = False
    try:
        while True:
            # Newer files are looked for first: once there are any, the last file gets no further lines.
            files += _open_newer(path, files[-1].identity if files else None)
            for one in files:
                yield from one.lines()
            for one in files[:-1]:
                one.stream.close()
            del files[:-1]
            if ending:
                return
            ending = ended()
            if not ending:
                # The standard library has no notification for a file that grows.
                time.sleep(_POLL)
    finally:
        for one in files:
            one.stream.close()


def older_records(path: Path, before: int | None) -> Iterator[LogLine]:
    """Yield the copied records of the log at *path* before the record with number *before*, oldest first."""
    both = (_older(copies, before) for copies in copies_paths(path))
    for _, line in heapq.merge(*both, key=lambda found: found[0]):
        yield line


def _older(path: Path, before: int | None) -> Iterator[tuple[int, LogLine]]:
    for line in read_lines(path):
        copy = unwrapped(line.text)
        seq = None if copy is None else seq_of(copy[2])
        if copy is None or seq is None or not line.whole:
            continue
        if before is not None and seq >= before:
            return
        yield seq, LogLine(line.file, line.number, copy[2])


# The values of a record's `op`.
OPERATIONS = (
    *("create", "getattr", "getxattr", "link", "listxattr", "lookup", "mkdir", "mknod", "open", "opendir"),
    *("read", "readdir", "readlink", "removexattr", "rename", "rmdir", "setattr", "setxattr", "symlink"),
    *("unlink", "write"),
)
_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}


ASKING = ("asked", "answered", "unanswered", "revoked", "grant over", "widened", "narrowed")
"""The events of questions to a person, and of what was granted."""


@dataclass(frozen=True)
class RecordFilter:
    """The conditions for a record to be shown; the default wants all.

    *since* is a time in the form of records; *root*, the workspace, gives absolute patterns a meaning.
    """

    denied: bool = False
    path: str | None = None
    since: str | None = None
    op: str | None = None
    pid: int | None = None
    root: str = "/"
    asks: bool = False

    def wants(self, record: dict[str, object]) -> bool:
        """Say whether *record* is wanted. A condition that only decisions can meet rules out all events."""
        return (
            (self.since is None or str(record.get("time")) >= self.since)
            and (not self.asks or record.get("event") in ASKING)
            and (not self.denied or record.get("allowed") is False)
            and (self.op is None or record.get("op") == self.op)
            and (self.pid is None or record.get("pid") == self.pid)
            and (self.path is None or self._on_path(self.path, record))
        )

    def _on_path(self, glob: str, record: dict[str, object]) -> bool:
        return any(isinstance(path, str) and matches(glob, path, self.root) for path in _paths(record))


def check_operation(name: str) -> None:
    """Refuse a *name* that no operation of a record has."""
    if name in OPERATIONS:
        return
    near = difflib.get_close_matches(name, OPERATIONS, n=1, cutoff=0.5)
    meant = f"; did you mean {quoted(near[0])}?" if near else ""
    raise UsageError(f"no such operation: {quoted(name)}{meant}", hint=f"there are {', '.join(OPERATIONS)}")


def _paths(record: dict[str, object]) -> tuple[object, object]:
    return record.get("path"), record.get("to")


def matches(glob: str, path: str, root: str = "/") -> bool:
    """Say whether *glob*, in the dialect of docs/policy.md, names *path* or a directory above it.

    *path* is relative to *root*. Raises `UsageError` when *glob* is no pattern.
    """
    names = [name for name in path.split("/") if name]
    # A record does not say whether its path was a directory: so patterns for directories match as well.
    return any(covers_path(pattern, names, is_dir=True) for pattern in _meaning(glob, root))


@lru_cache(maxsize=16)
def _meaning(glob: str, root: str) -> tuple[PathPattern, ...]:
    try:
        return within(parse(glob), root)
    except PatternError as error:
        raise UsageError(f"bad pattern {quoted(glob)}: {error}") from error


def parse_since(text: str, now: datetime) -> str:
    """Parse a length of time before *now*, such as `10m`, or a date and time; return the form of records."""
    if matched := re.fullmatch(r"(\d{1,9})([smhdw])", text):
        try:
            moment = now - timedelta(**{_UNITS[matched[2]]: int(matched[1])})
        except OverflowError:
            moment = datetime.min.replace(tzinfo=UTC)
    else:
        try:
            # A time without an offset is local time.
            moment = datetime.fromisoformat(text).astimezone(UTC)
        except (ValueError, OverflowError) as error:
            raise UsageError(
                f"bad time {quoted(text)}",
                hint="give a length of time such as 30s, 10m, 2h or 7d, or a time such as 2026-01-31T12:00",
            ) from error
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%f").rjust(26, "0") + "Z"


_LOOKS = 5


@dataclass(frozen=True)
class BrokenLine:
    """The first line that breaks the chain; *seq* is the number that belongs there, if known.

    Without a *line* the problem is with the file as a whole.
    """

    file: str
    line: int | None
    seq: int | None
    problem: str

    def __str__(self) -> str:
        line = "" if self.line is None else f":{self.line}"
        seq = "" if self.seq is None else f" (seq {self.seq})"
        return f"{self.file}{line}{seq}: {self.problem}"


@dataclass(frozen=True)
class ChainVerdict:
    """The extent of the valid chain: *records*, numbered from *first* to *last*; *head* sums them up.

    *copies* is the number of valid copies of denials and events; *headless*: there was no head.
    """

    records: int
    first: int | None
    last: int | None
    head: str
    broken: BrokenLine | None
    copies: int = 0
    headless: bool = False

    def as_json(self) -> dict[str, object]:
        broken = self.broken
        return {
            "whole": broken is None,
            "records": self.records,
            "first": self.first,
            "last": self.last,
            "head": self.head,
            "copies": self.copies,
            "headless": self.headless,
            "broken": None
            if broken is None
            else {"file": broken.file, "line": broken.line, "seq": broken.seq, "problem": broken.problem},
        }


def verify(path: Path, name: str) -> ChainVerdict:
    """Check the log at *path* of the sandbox called *name* over all files that are kept."""
    head = read_head(path)
    verdict = _verify(path, name, head)
    for _ in range(_LOOKS):
        now = read_head(path)
        if verdict.broken is None or now == head:
            break
        # A daemon that serves may have rotated files in between.
        head, verdict = now, _verify(path, name, now)
    return verdict


def _verify(path: Path, name: str, head: AuditHead | None) -> ChainVerdict:
    # The lines of the records that have copies, by number.
    copied: dict[int, bytes] = {}
    link = None if head is None else head.log
    found = _ChainCheck(path, genesis(name), link, _record_reader(copied)).check()
    broken, copies = found.broken, 0
    if broken is None and head is None and any(any(read_lines(place)) for place in copies_paths(path)):
        # The head is written before the first copy.
        broken = BrokenLine(head_path(path).name, None, None, "it is missing, or is no head")
    for place in copies_paths(path):
        if broken is None:
            link = None if head is None else head.copies.get(place.name)
            one = _ChainCheck(place, first_copy(place, name), link, _copy_reader(copied)).check()
            broken, copies = one.broken, copies + one.count
    return ChainVerdict(
        found.count, found.first, found.last, found.hash, broken, copies, headless=head is None
    )


@dataclass(frozen=True)
class _Read:
    """One line read: its number in the chain, its `prev`, or the *problem* with it."""

    number: int | None
    prev: str = ""
    problem: str | None = None
    begins_file: bool = False


Reader = Callable[[LogLine], _Read]


def _record_reader(copied: dict[int, bytes]) -> Reader:
    def read(line: LogLine) -> _Read:
        record = parse_line(line.text)
        seq = record["seq"] if record is not None else None
        if record is None or not isinstance(seq, int):
            return _Read(None, problem="not a record")
        if line.whole and not undamaged(line.text):
            return _Read(seq, problem="the record was changed")
        if record.get("allowed") is False or "event" in record:
            copied[seq] = line.text
        return _Read(seq, str(record["prev"]), begins_file=record.get("event") == "rotated")

    return read


def _copy_reader(copied: dict[int, bytes]) -> Reader:
    def read(line: LogLine) -> _Read:
        copy = unwrapped(line.text)
        record = None if copy is None else parse_line(copy[2])
        if copy is None or record is None:
            return _Read(None, problem="not a copy of a record")
        number, prev, text = copy
        seq = record["seq"]
        if not undamaged(text) or (isinstance(seq, int) and copied.get(seq, text) != text):
            return _Read(number, problem="the copy is not what was recorded")
        return _Read(number, prev, begins_file=line.number == 1)

    return read


class _ChainCheck:
    """One chain, followed through its files from the oldest line on."""

    def __init__(self, path: Path, genesis: str, link: Link | None, read: Reader) -> None:
        self._path = path
        self._link = link
        self._read = read
        self.count = 0
        self.first: int | None = None
        self.last: int | None = None
        self.hash = genesis
        self.broken: BrokenLine | None = None

    def check(self) -> "_ChainCheck":
        for line in read_lines(self._path):
            found = self._read(line)
            problem = self._problem(line, found)
            if problem is not None:
                expected = found.number if self.last is None else self.last + 1
                self.broken = BrokenLine(line.file, line.number, expected, problem)
                return self
            self.count, self.last, self.hash = self.count + 1, found.number, digest(line.text)
            self.first = found.number if self.first is None else self.first
        self.broken = next(self._missing(), None)
        return self

    def _problem(self, line: LogLine, found: _Read) -> str | None:
        """Return the problem with *line*, the next one of the chain; None when there is none."""
        if found.number is None:
            return found.problem if line.whole else "the last line is not whole"
        if not line.whole:
            return "the last line is not whole"
        return found.problem or self._out_of_place(found, found.number) or self._replaced(line, found.number)

    def _out_of_place(self, found: _Read, number: int) -> str | None:
        if self.last is None and number != 1:
            # Older files may have been dropped, but only whole ones.
            return None if found.begins_file else "the records before it are missing"
        expected = (self.last or 0) + 1
        if number > expected and self._was_dropped_before(number):
            # After dropped files the chain goes on at the beginning of a file.
            return None if found.begins_file else "the records before it are missing"
        if number > expected:
            missing = number - expected
            are = "s are" if missing > 1 else " is"
            return f"seq {number} is here instead: {missing} record{are} missing"
        if number < expected:
            return f"seq {number} is here instead: records are repeated or out of order"
        if found.prev != self.hash:
            return "it was not written after the record before it, one of the two was replaced"
        return None

    def _was_dropped_before(self, number: int) -> bool:
        """Whether the head says that the records between the last line and *number* were dropped."""
        dropped = None if self._link is None else self._link.dropped
        # After a crash fewer records may be dropped than the head says.
        return dropped is not None and self.last == dropped.after and number <= dropped.next

    def _replaced(self, line: LogLine, number: int) -> str | None:
        """Return the problem with a line whose digest differs from the head's; None when there is none."""
        link = self._link
        dropped = None if link is None else link.dropped
        hashes = {} if link is None else {link.last: link.hash}
        if dropped is not None:
            hashes[dropped.after] = dropped.hash
        if number in hashes and digest(line.text) != hashes[number]:
            return "it is not the record that was written: the log was replaced"
        return None

    def _missing(self) -> Iterator[BrokenLine]:
        """Yield the records that the head names and the files do not have."""
        link = self._link
        if link is None or link.last == 0:
            return
        if self.last is None or self.last < link.last:
            missing = link.last - (self.last or link.first - 1)
            are = "s at the end are" if missing > 1 else " at the end is"
            yield BrokenLine(self._path.name, None, (self.last or 0) + 1, f"{missing} record{are} missing")
        elif self.first is not None and self.first > link.first:
            problem = f"the records {link.first} to {self.first - 1} are missing"
            yield BrokenLine(self._path.name, None, link.first, problem)
