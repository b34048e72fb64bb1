"""Audit records: one line of the log each, with the name of the command, chained to the line before.

The kernel names a thread; people know processes. Only files of /proc are read that never wait for the
process: a process may hold its memory map while it waits for the daemon. An ended process has no name any
more, so names are looked up soon: before a denial is answered, right after a change is.

A record is one line of ASCII JSON. Its `prev` is the SHA-256 of the line before, so that a line that was
changed, removed or moved does not match the next one. Its `crc` covers its own line, because the last line
has no successor. Paths are bytes: those that are no UTF-8 appear as the surrogates of `surrogateescape`.

Losses are counted by reason until a gap record reports them. The recording and the writing thread both count,
hence the lock, which is only taken when records are lost.
"""

import errno
import hashlib
import json
import threading
import time
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from json.encoder import encode_basestring_ascii as quote
from typing import NamedTuple, Protocol

from sandboxfs.paths import LONGEST_PATH

_FRESH = 1.0
_MEMORABLE = 3.0
_CACHE_LIMIT = 4096


class Process(NamedTuple):
    """A process and the name of its command, of which the kernel keeps at most 15 characters."""

    pid: int
    command: str | None


def process_of(thread: int) -> Process | None:
    """Find the process of *thread*; None when the thread has ended or cannot be seen."""
    try:
        with open(f"/proc/{thread}/status", "rb") as status:  # noqa: PTH123 - Path costs as much as the read
            head = status.read(512)
        name, pid = _named(head), _leader(head)
        if pid != thread:
            # Threads may have names of their own.
            with open(f"/proc/{pid}/comm", "rb") as comm:  # noqa: PTH123
                name = comm.read().removesuffix(b"\n")
    except (OSError, ValueError):
        return None
    return Process(pid, name.decode("utf-8", "surrogateescape"))


def _named(status: bytes) -> bytes:
    start = status.index(b"Name:\t") + 6
    # The kernel writes a newline and a backslash in the name as \n and \\.
    escaped = status[start : status.index(b"\n", start)]
    return escaped.replace(b"\\n", b"\n").replace(b"\\\\", b"\\")


def _leader(status: bytes) -> int:
    start = status.index(b"\nTgid:\t") + 7
    return int(status[start : status.index(b"\n", start)])


class CommandNames:
    """Cache of processes by thread. A name is read again after a second: ids are reused, programs exec."""

    def __init__(self) -> None:
        self._seen: dict[int, tuple[float, Process]] = {}

    def of(self, thread: int) -> Process:
        """Find the process of *thread*, even if the thread has ended since a look not long ago."""
        now = time.monotonic()
        known = self._seen.get(thread)
        if known is not None and now - known[0] < _FRESH:
            return known[1]
        found = process_of(thread)
        if found is not None:
            if len(self._seen) >= _CACHE_LIMIT:
                self._seen.clear()
            self._seen[thread] = (now, found)
            return found
        if known is not None and now - known[0] < _MEMORABLE:
            return known[1]
        return Process(thread, None)


_CRC_LENGTH = len(b',"crc":"00000000"}')
# How many recurring parts of records are remembered.
_REMEMBERED = 1000


class RuleLike(Protocol):
    """The rule behind a decision: `str` gives its text, *source* the place where the rule was written."""

    @property
    def source(self) -> object: ...


Decided = tuple[int, int, int, str, str, bytes, bytes | None, str, bool, RuleLike | None, int, str | None]
"""One decision: time in ns, pid and uid of the caller, operation, access, path, second path, the mode,
whether the operation was allowed, the rule, the errno, the name of the command.

A plain tuple is made in a third of the time of a named one."""


class AuditEvent(NamedTuple):
    """One event in the life of a sandbox or of the log itself."""

    time_ns: int
    event: str
    details: Mapping[str, object]


def genesis(name: str) -> str:
    """Return the `prev` of the first record of the sandbox called *name*."""
    return hashlib.sha256(b"0" * 64 + name.encode()).hexdigest()


def digest(line: bytes) -> str:
    """Return the `prev` of the record after *line*, which is given without its newline.

    The same digest stands for a path that is not written as a whole.
    """
    return hashlib.sha256(line).hexdigest()


def timestamp(time_ns: int) -> str:
    """Write a time of the epoch in RFC 3339, UTC, to the microsecond; such texts sort as the times do."""
    seconds, rest = divmod(time_ns, 1_000_000_000)
    return f"{_second(seconds)}.{rest // 1000:06d}Z"


@lru_cache(maxsize=8)
def _second(seconds: int) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds))


class Chain(NamedTuple):
    """The end of a chain: the number of the last record, and the `prev` of the next one."""

    seq: int
    prev: str

    def seal(self, records: Iterable[tuple[int, str]]) -> tuple[list[bytes], "Chain"]:
        """Write records, each given as its time and its own members; return their lines and the new end.

        One loop with few calls: sealing, too, competes with the thread that answers the kernel.
        """
        lines = []
        seq, prev = self
        second, written = -1, ""
        for time_ns, members in records:
            seq += 1
            seconds, rest = divmod(time_ns, 1_000_000_000)
            if seconds != second:
                second, written = seconds, _second(seconds)
            text = f'{{"time":"{written}.{rest // 1000:06d}Z","seq":{seq},{members},"prev":"{prev}"'
            covered = text.encode("ascii")
            line = b'%s,"crc":"%08x"}' % (covered, zlib.crc32(covered))
            prev = hashlib.sha256(line).hexdigest()
            lines.append(line)
        return lines, Chain(seq, prev)


_Recurring = tuple[Process, int, str, str, str, bool, int, int]
"""The parts of a decision that recur; the rule by its identity, because hashing a rule costs more than
writing it."""


class Wording:
    """Writes the members of a record that describe a decision.

    By hand, and recurring parts only once, in a fifth of the time of json.dumps: the writer competes with the
    thread that answers the kernel.
    """

    def __init__(self) -> None:
        self._known: dict[_Recurring, tuple[str, str, RuleLike | None]] = {}

    def decided(self, decided: Decided, process: Process) -> str:
        """Write the members for *decided*, a decision about an operation of *process*."""
        _, _, uid, op, access, path, to, decision, allowed, rule, error, _ = decided
        recurring = process, uid, op, access, decision, allowed, id(rule), error
        known = self._known.get(recurring)
        if known is None:
            if len(self._known) >= _REMEMBERED:
                self._known.clear()
            asked, answered = _asked(process, uid, op, access), _answered(decision, allowed, rule, error)
            # The rule is kept, so that no other rule gets its identity.
            known = self._known[recurring] = asked, answered, rule
        quoted = _path("path", path)
        if to is None:
            return f"{known[0]}{quoted},{known[1]}"
        return f"{known[0]}{quoted},{_path('to', to)},{known[1]}"


def _path(member: str, path: bytes) -> str:
    """Write a path; of a very long one only the beginning, or a few would rotate all else out of the log."""
    text = quote(path[:LONGEST_PATH].decode("utf-8", "surrogateescape"))
    if len(path) <= LONGEST_PATH:
        return f'"{member}":{text}'
    return f'"{member}":{text},"{member}_sha256":"{digest(path)}"'


def _asked(process: Process, uid: int, op: str, access: str) -> str:
    pid, command = process
    program = "null" if command is None else quote(command)
    return f'"pid":{pid},"command":{program},"uid":{uid},"op":{quote(op)},"access":{quote(access)},'


def _answered(decision: str, allowed: bool, rule: RuleLike | None, error: int) -> str:
    said = f'"decision":{quote(decision)},"allowed":{"true" if allowed else "false"}'
    return f'{said},{_rule(rule)},"errno":{_errno(error)}'


def happened_members(happened: AuditEvent) -> str:
    """Write the members of a record that describe the event *happened*."""
    written = json.dumps({"event": happened.event, **happened.details}, default=str, separators=(",", ":"))
    return written[1:-1]


def _rule(rule: RuleLike | None) -> str:
    if rule is None:
        return '"rule":null,"source":null'
    return f'"rule":{quote(str(rule))},"source":{quote(str(rule.source))}'


def _errno(number: int) -> str:
    return f'"{errno.errorcode.get(number, number)}"' if number else "null"


def parse_line(line: bytes) -> dict[str, object] | None:
    """Parse a line; None unless the line is an object with a time, a number and a `prev`.

    Not by `codec`: there are millions of lines, of many kinds, and each is shown with all its members.
    """
    try:
        found: object = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(found, dict):
        return None
    record: dict[str, object] = found
    kinds = (("time", str), ("seq", int), ("prev", str))
    return record if all(isinstance(record.get(key), kind) for key, kind in kinds) else None


def undamaged(line: bytes) -> bool:
    """Say whether *line* is as it was written, by its own `crc`."""
    covered, ending = line[:-_CRC_LENGTH], line[-_CRC_LENGTH:]
    return ending == b',"crc":"%08x"}' % zlib.crc32(covered)


@dataclass(frozen=True)
class _Loss:
    count: int
    first_ns: int
    last_ns: int

    def __add__(self, other: "_Loss") -> "_Loss":
        return _Loss(
            self.count + other.count, min(self.first_ns, other.first_ns), max(self.last_ns, other.last_ns)
        )


class Gaps:
    """The losses that no gap record has reported yet."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._losses: dict[str, _Loss] = {}
        self._taken: dict[str, _Loss] = {}

    @property
    def pending(self) -> bool:
        return bool(self._losses)

    def add(self, reason: str, count: int, first_ns: int, last_ns: int) -> None:
        """Count *count* records from the time between *first_ns* and *last_ns* as lost."""
        self._merge({reason: _Loss(count, first_ns, last_ns)})

    def take(self) -> list[AuditEvent]:
        """Return a gap record for each reason, and start the counts again from zero."""
        if not self._losses:
            self._taken = {}
            return []
        with self._lock:
            self._taken, self._losses = self._losses, {}
        return [
            AuditEvent(
                time.time_ns(),
                "gap",
                {
                    "lost": loss.count,
                    "reason": reason,
                    "first": timestamp(loss.first_ns),
                    "last": timestamp(loss.last_ns),
                },
            )
            for reason, loss in self._taken.items()
        ]

    def put_back(self) -> None:
        """Count the losses taken last again: their gap records could not be stored."""
        taken, self._taken = self._taken, {}
        self._merge(taken)

    def _merge(self, losses: dict[str, _Loss]) -> None:
        with self._lock:
            for reason, loss in losses.items():
                known = self._losses.get(reason)
                self._losses[reason] = loss if known is None else known + loss
