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
from typing import NamedTuple, Protocol

_CRC_LENGTH = len(b',"crc":"00000000"}')


class RuleLike(Protocol):
    """What gave a decision: its text is what `str` says, and it knows where it was written."""

    @property
    def source(self) -> object: ...


class Decided(NamedTuple):
    """One decision, as it is queued. The order is that of `AuditLog.record`'s own tuple."""

    time_ns: int
    pid: int
    uid: int
    op: str
    access: str
    path: bytes
    to: bytes | None
    decision: str
    allowed: bool
    rule: RuleLike | None
    error: int
    command: str | None


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


def decided_members(decided: Decided, pid: int, command: str | None) -> str:
    """Write the part of a record that tells of *decided*, made by *command* in the process *pid*."""
    to = "" if decided.to is None else f'"to":{_path(decided.to)},'
    # By hand, because it is a third of the cost of json.dumps and this competes with the serving thread.
    return (
        f'"pid":{pid},"command":{_text(command)},"uid":{decided.uid},'
        f'"op":{quote(decided.op)},"access":{quote(decided.access)},"path":{_path(decided.path)},{to}'
        f'"decision":{quote(decided.decision)},"allowed":{"true" if decided.allowed else "false"},'
        f'{_rule(decided.rule)},"errno":{_errno(decided.error)}'
    )


def happened_members(happened: Happened) -> str:
    """Write the part of a record that tells of *happened*."""
    written = json.dumps({"event": happened.event, **happened.details}, default=str, separators=(",", ":"))
    return written[1:-1]


def _path(path: bytes) -> str:
    return quote(path.decode("utf-8", "surrogateescape"))


def _text(text: str | None) -> str:
    return "null" if text is None else quote(text)


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
