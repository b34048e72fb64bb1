"""How is one record of the audit log written, and how does each vouch for the one before it?

A record is one line of ASCII JSON. Its `prev` is the SHA-256 of the line before it, so that no line can be
changed, removed or moved without the next one telling; its `crc` covers its own line, because the last one
has no successor. Paths are bytes: those that are no UTF-8 appear as the surrogates of `surrogateescape`.
"""

import errno
import hashlib
import json
import time
import zlib
from collections.abc import Iterable, Mapping
from functools import lru_cache
from json.encoder import encode_basestring_ascii as quote
from typing import NamedTuple, Protocol

from sandboxfs.state.audit_commands import Process

_CRC_LENGTH = len(b',"crc":"00000000"}')
# So many recurring parts of records are remembered.
_REMEMBERED = 1000


class RuleLike(Protocol):
    """What gave a decision: its text is what `str` says, and it knows where it was written."""

    @property
    def source(self) -> object: ...


Decided = tuple[int, int, int, str, str, bytes, bytes | None, str, bool, RuleLike | None, int, str | None]
"""One decision: when (in ns), pid and uid of who asked, operation, access, path, second path, what was
decided, whether that allows it, the rule that said so, the error, the name of the program.

A plain tuple is made in a third of the time that one with names takes."""


class Happened(NamedTuple):
    """One event in the life of a sandbox or of the log itself."""

    time_ns: int
    event: str
    details: Mapping[str, object]


def genesis(name: str) -> str:
    """Return what the first record of the sandbox called *name* has as `prev`."""
    return hashlib.sha256(b"0" * 64 + name.encode()).hexdigest()


def digest(line: bytes) -> str:
    """Return what the record after *line*, given without its newline, has as `prev`."""
    return hashlib.sha256(line).hexdigest()


def timestamp(time_ns: int) -> str:
    """Write a time of the epoch in RFC 3339, UTC, to the microsecond; such texts sort as the times do."""
    seconds, rest = divmod(time_ns, 1_000_000_000)
    return f"{_second(seconds)}.{rest // 1000:06d}Z"


@lru_cache(maxsize=8)
def _second(seconds: int) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds))


class Chain(NamedTuple):
    """Where the log stands: the number of its last record, and what the next one says about it."""

    seq: int
    prev: str

    def seal(self, records: Iterable[tuple[int, str]]) -> tuple[list[bytes], "Chain"]:
        """Write records, each given as its time and its own part; their lines, and where the log stands then.

        One loop without calls of ours: this, too, competes with the thread that answers the kernel.
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
"""The parts of a decision that are the same for many; the rule by its identity, because hashing one costs
more than writing it."""


class Wording:
    """Writes the part of a record that tells of a decision.

    By hand, and what recurs only once, because this competes with the thread that answers the kernel: it
    takes a fifth of the time of json.dumps.
    """

    def __init__(self) -> None:
        self._known: dict[_Recurring, tuple[str, str, RuleLike | None]] = {}

    def decided(self, decided: Decided, process: Process) -> str:
        """Tell of *decided*, asked for by *process*."""
        _, _, uid, op, access, path, to, decision, allowed, rule, error, _ = decided
        recurring = process, uid, op, access, decision, allowed, id(rule), error
        known = self._known.get(recurring)
        if known is None:
            if len(self._known) >= _REMEMBERED:
                self._known.clear()
            asked, answered = _asked(process, uid, op, access), _answered(decision, allowed, rule, error)
            # The rule is kept, so that its identity is not given to another.
            known = self._known[recurring] = asked, answered, rule
        quoted = quote(path.decode("utf-8", "surrogateescape"))
        if to is None:
            return f"{known[0]}{quoted},{known[1]}"
        second = quote(to.decode("utf-8", "surrogateescape"))
        return f'{known[0]}{quoted},"to":{second},{known[1]}'


def _asked(process: Process, uid: int, op: str, access: str) -> str:
    pid, command = process
    program = "null" if command is None else quote(command)
    return f'"pid":{pid},"command":{program},"uid":{uid},"op":{quote(op)},"access":{quote(access)},"path":'


def _answered(decision: str, allowed: bool, rule: RuleLike | None, error: int) -> str:
    said = f'"decision":{quote(decision)},"allowed":{"true" if allowed else "false"}'
    return f'{said},{_rule(rule)},"errno":{_errno(error)}'


def happened_members(happened: Happened) -> str:
    """Write the part of a record that tells of *happened*."""
    written = json.dumps({"event": happened.event, **happened.details}, default=str, separators=(",", ":"))
    return written[1:-1]


def _rule(rule: RuleLike | None) -> str:
    if rule is None:
        return '"rule":null,"source":null'
    return f'"rule":{quote(str(rule))},"source":{quote(str(rule.source))}'


def _errno(number: int) -> str:
    return f'"{errno.errorcode.get(number, number)}"' if number else "null"


def parse_line(line: bytes) -> dict[str, object] | None:
    """Read a line; None unless it is an object with a time, a number and a `prev`."""
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
    """Say whether *line* is what was once written, by its own `crc`."""
    covered, ending = line[:-_CRC_LENGTH], line[-_CRC_LENGTH:]
    return ending == b',"crc":"%08x"}' % zlib.crc32(covered)
