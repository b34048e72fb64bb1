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
from collections.abc import Mapping
from functools import lru_cache
from json.encoder import encode_basestring_ascii as quote
from typing import NamedTuple, Protocol, TypeVar

_CRC_LENGTH = len(b',"crc":"00000000"}')
# So many recurring parts of records are remembered.
_REMEMBERED = 1000

K = TypeVar("K")
V = TypeVar("V")


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

    def seal(self, time_ns: int, members: str) -> tuple[bytes, "Chain"]:
        """Write the record with *members* as its own part; return its line and where the log stands then."""
        seq = self.seq + 1
        text = f'{{"time":"{timestamp(time_ns)}","seq":{seq},{members},"prev":"{self.prev}"'
        covered = text.encode("ascii")
        line = b'%s,"crc":"%08x"}' % (covered, zlib.crc32(covered))
        return line, Chain(seq, digest(line))


class Wording:
    """Writes the part of a record that tells of a decision.

    By hand, and what recurs only once, because this competes with the thread that answers the kernel: it
    takes a fifth of the time of json.dumps.
    """

    def __init__(self) -> None:
        self._asked: dict[tuple[int, str | None, int, str, str], str] = {}
        # By the rule's identity: hashing one costs more than writing it. It is kept, so that its identity
        # is not given to another.
        self._answered: dict[tuple[str, bool, int, int], tuple[RuleLike | None, str]] = {}

    def decided(self, decided: Decided, pid: int, command: str | None) -> str:
        """Tell of *decided*, made by *command* in the process *pid*."""
        _, _, uid, op, access, path, to, decision, allowed, rule, error, _ = decided
        who = pid, command, uid, op, access
        asked = self._asked.get(who)
        if asked is None:
            asked = _kept(self._asked, who, _asked(*who))
        how = decision, allowed, id(rule), error
        answered = self._answered.get(how)
        if answered is None:
            answered = _kept(self._answered, how, (rule, _answered(decision, allowed, rule, error)))
        second = "" if to is None else f'"to":{_path(to)},'
        return f"{asked}{_path(path)},{second}{answered[1]}"


def _kept(known: dict[K, V], key: K, value: V) -> V:
    if len(known) >= _REMEMBERED:
        known.clear()
    known[key] = value
    return value


def _asked(pid: int, command: str | None, uid: int, op: str, access: str) -> str:
    program = "null" if command is None else quote(command)
    return f'"pid":{pid},"command":{program},"uid":{uid},"op":{quote(op)},"access":{quote(access)},"path":'


def _answered(decision: str, allowed: bool, rule: RuleLike | None, error: int) -> str:
    said = f'"decision":{quote(decision)},"allowed":{"true" if allowed else "false"}'
    return f'{said},{_rule(rule)},"errno":{_errno(error)}'


def happened_members(happened: Happened) -> str:
    """Write the part of a record that tells of *happened*."""
    written = json.dumps({"event": happened.event, **happened.details}, default=str, separators=(",", ":"))
    return written[1:-1]


def _path(path: bytes) -> str:
    return quote(path.decode("utf-8", "surrogateescape"))


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
