"""Reading the audit log of a sandbox: the records that were asked for, and whether the log is whole."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import chain
from pathlib import Path

from sandboxfs.service.events import CallerContext, Events
from sandboxfs.service.select import select
from sandboxfs.state.audit_file import AUDIT_NAME, seq_of
from sandboxfs.state.audit_reader import (
    ChainVerdict,
    LogLine,
    RecordFilter,
    check_operation,
    follow_lines,
    matches,
    older_records,
    parse_since,
    read_lines,
    verify,
)
from sandboxfs.state.audit_record import parse_line
from sandboxfs.state.locations import Locations
from sandboxfs.state.lock import holder
from sandboxfs.state.store import Store

_LOOKS = 3


@dataclass(frozen=True)
class LogQuery:
    """Which records are wanted; None and false stand for all.

    *path* is a pattern, *since* a length of time before now or a moment. *asks* stands for questions to a
    person, the answers, and what was granted.
    """

    denied: bool = False
    path: str | None = None
    since: str | None = None
    op: str | None = None
    pid: int | None = None
    asks: bool = False

    def checked(self) -> RecordFilter:
        """Return what is wanted; `UsageError` where something makes no sense."""
        since = None if self.since is None else parse_since(self.since, datetime.now(UTC))
        if self.path is not None:
            matches(self.path, "")
        if self.op is not None:
            check_operation(self.op)
        return RecordFilter(self.denied, self.path, since, self.op, self.pid, asks=self.asks)


@dataclass(frozen=True)
class LogRecord:
    """One record of the log: its line as it was written, and what it says."""

    line: bytes
    fields: dict[str, object]


@dataclass(frozen=True)
class LogEnding:
    """What is to be said at the end of a log.

    So many lines were *damaged*, and so many *gaps* lie in what was asked for. *unmounted* says whether the
    sandbox was unmounted at the end of what was read.
    """

    damaged: int
    gaps: int
    unmounted: bool


def read_log(
    query: LogQuery,
    name: str | None,
    caller: CallerContext,
    events: Events,
    show: Callable[[LogRecord], None],
    *,
    follow: bool = False,
) -> LogEnding:
    """Hand every record that *query* wants to *show*, oldest first.

    With *follow* this goes on until the sandbox is unmounted, nobody serves it, or the caller cancels.
    """
    # What makes no sense is told before anything is read.
    wanted = query.checked()
    log = _Log.of(name, caller, events)
    wanted = replace(wanted, root=str(log.workspace))
    older = older_records(log.path, _first_seq(log.path))
    end = _End(log, events)
    lines = chain(older, follow_lines(log.path, end.reached) if follow else read_lines(log.path))
    damaged, gaps = _hand_on(lines, wanted, end.saw, show)
    return LogEnding(damaged, gaps, end.unmounted)


@dataclass(frozen=True)
class VerifiedLog:
    """Whether the log of the sandbox called *name* is whole."""

    name: str
    verdict: ChainVerdict

    def as_json(self) -> dict[str, object]:
        return {"name": self.name} | self.verdict.as_json()


def verify_log(name: str | None, caller: CallerContext, events: Events) -> VerifiedLog:
    """Prove that no record of the log was changed, removed or moved, or name the first broken one."""
    log = _Log.of(name, caller, events)
    verdict = verify(log.path, log.name)
    for _ in range(_LOOKS - 1):
        if verdict.broken is None or not log.is_served():
            break
        # A daemon that lives may have been in the middle of a line.
        verdict = verify(log.path, log.name)
    return VerifiedLog(log.name, verdict)


@dataclass(frozen=True)
class _Log:
    """The log at *path* of a sandbox, and the *lock* of whoever serves that."""

    name: str
    workspace: Path
    path: Path
    lock: Path

    @classmethod
    def of(cls, name: str | None, caller: CallerContext, events: Events) -> "_Log":
        store = Store(Locations.from_environment(caller.environment))
        chosen = select(store, name, caller, events, changing=False)
        places = store.places(chosen.name)
        return cls(chosen.name, chosen.workspace, places.home / AUDIT_NAME, places.lock)

    def is_served(self) -> bool:
        return holder(self.lock) is not None


class _End:
    """Whether more is to come: not after the sandbox said so, and not when nobody holds it."""

    def __init__(self, log: _Log, events: Events) -> None:
        self._log = log
        self._events = events
        self.unmounted = False

    def saw(self, record: dict[str, object]) -> None:
        event = record.get("event")
        if event in ("mounted", "unmounted"):
            self.unmounted = event == "unmounted"

    def reached(self) -> bool:
        return self.unmounted or self._events.cancelled() or not self._log.is_served()


def _first_seq(path: Path) -> int | None:
    """The number of the first record that the log itself still has."""
    return next((seq for line in read_lines(path) if (seq := seq_of(line.text)) is not None), None)


def _hand_on(
    lines: Iterator[LogLine],
    wanted: RecordFilter,
    saw: Callable[[dict[str, object]], None],
    show: Callable[[LogRecord], None],
) -> tuple[int, int]:
    """Show what is *wanted*; return how many lines are damaged, and how many gaps were not shown."""
    damaged = gaps = 0
    for line in lines:
        record = parse_line(line.text)
        if record is None or not line.whole:
            damaged += 1
            continue
        saw(record)
        if wanted.wants(record):
            show(LogRecord(line.text, record))
        elif record.get("event") == "gap" and (wanted.since is None or str(record["time"]) >= wanted.since):
            gaps += 1
    return damaged, gaps
