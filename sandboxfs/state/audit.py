"""Audit log: queueing and writing the decisions and events of a sandbox.

`AuditLog.record` is called for every operation, by the thread that answers the kernel, and only appends a
tuple to a queue. The log's own thread looks up command names, writes JSON, chains records and stores them.

A batch is stored whole or counted as lost, and the chain moves on only with stored records, so that the chain
can be verified whatever happened in between. No error reaches the caller: one error boundary counts lost
records, and a gap record reports them as soon as possible.
"""

import errno
import logging
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from enum import StrEnum
from pathlib import Path

from sandboxfs.state.audit_file import (
    AuditCopies,
    AuditFile,
    AuditHead,
    Link,
    Tail,
    copies_paths,
    kept_files,
    last_copied,
    read_head,
    seq_of,
    write_head,
)
from sandboxfs.state.audit_record import (
    AuditEvent,
    Chain,
    CommandNames,
    Decided,
    Gaps,
    Process,
    RuleLike,
    Wording,
    digest,
    genesis,
    happened_members,
    parse_line,
)

log = logging.getLogger(__name__)

# The last event of a log that misses nothing, or whose missing records are reported.
_ENDINGS = ("unmounted", "gap")

# How many copies may wait for free disk space.
_WAITING_COPIES = 10_000

# A threading.Event is set when all items queued before it are stored or counted as lost.
Queued = Decided | AuditEvent | threading.Event


class AuditWriter:
    """The consumer of the queue: stores batches of records in the log, its copies and its head."""

    def __init__(self, path: Path, name: str, gaps: Gaps, *, size_limit: int, keep: int) -> None:
        self.commands = CommandNames()
        self._path = path
        self._file = AuditFile(path, size_limit, keep)
        self._denials, self._events = (
            AuditCopies(copies, name, size_limit, keep) for copies in copies_paths(path)
        )
        self._head = AuditHead(Link(1, 0, genesis(name)))
        self._headed = False
        self._postponing = False
        self._name = name
        self._gaps = gaps
        self._wording = Wording()
        self._chain: Chain | None = None
        # Records that come first in the next append that succeeds.
        self._notes: list[AuditEvent] = []
        self._failing = False

    def write(self, batch: list[Queued]) -> bool:
        """Store *batch*, gaps first; False when *batch* could not be stored and was counted as lost."""
        entries: list[Decided | AuditEvent] = []
        waiting: list[threading.Event] = []
        for item in batch:
            if isinstance(item, threading.Event):
                waiting.append(item)
            else:
                entries.append(item)
        try:
            self._store([*self._gaps.take(), *entries])
        except Exception as error:
            self._gaps.put_back()
            self._give_up(error, entries)
            return False
        finally:
            for event in waiting:
                event.set()
        if self._failing:
            self._failing = False
            log.info("the audit log can be written again")
        return True

    def close(self) -> None:
        for one in (self._file, self._denials, self._events):
            try:
                one.close(sync=True)
            except OSError as error:
                log.warning("cannot close the audit log: %s", error)

    def _store(self, entries: list[Decided | AuditEvent]) -> None:
        if not entries:
            return
        if self._chain is None:
            self._chain = self._begin()
        surprise = self._file.check()
        if surprise is not None:
            self._notes.append(_gap(surprise))
        if self._file.full:
            self._rotate()
        entries = [*self._notes, *entries]
        lines, chain = self._chain.seal(self._worded(entries))
        self._file.append(b"\n".join([*lines, b""]))
        self._chain, self._notes = chain, []
        self._head = replace(self._head, log=replace(self._head.log, last=chain.seq, hash=chain.prev))
        try:
            self._keep(entries, lines)
            write_head(self._path, self._head)
            self._postponing = False
        except OSError as error:
            # The log has the records, so none is lost; the next batch writes the copies and the head.
            self._postpone(error)

    def _begin(self) -> Chain:
        """Return the chain as the log's last lines and its head have it."""
        head = read_head(self._path)
        self._headed = head is not None
        tail = self._file.open()
        known = _copied_to(self._path) if head is None else head.log
        chain, self._notes = _resume(tail, self._name, known)
        if head is None and known is not None:
            self._notes.append(_gap("the head of the log is missing"))
        oldest = kept_files(self._path)[-1:]
        self._head = head or AuditHead(Link(_first_seq(oldest) or 1, chain.seq, chain.prev))
        return chain

    def _rotate(self) -> None:
        first = _first_seq(self._file.kept_by_rotation()) or self._head.log.last + 1
        self._head = replace(self._head, log=replace(self._head.log, first=first))
        # The head first: after a crash in between, the oldest records must not seem removed by somebody. On a
        # full disk there is room for the head only after the rotation.
        with suppress(OSError):
            write_head(self._path, self._head)
        self._file.rotate()
        # First in its file: so a reader can tell that the records before were rotated, not cut off.
        self._notes.insert(0, AuditEvent(time.time_ns(), "rotated", {}))

    def _keep(self, entries: list[Decided | AuditEvent], lines: list[bytes]) -> None:
        """Copy the denials and the events of a batch to files of their own, which no other records rotate."""
        denials, events = list[bytes](), list[bytes]()
        for entry, line in zip(entries, lines, strict=True):
            if not isinstance(entry, AuditEvent):
                if not entry[8]:
                    denials.append(line)
            elif entry.event != "rotated":
                events.append(line)
                if entry.event == "mounted":
                    self._head = replace(self._head, policy=str(entry.details.get("policy")))
        for kept, records in ((self._denials, denials), (self._events, events)):
            kept.hold(records)
        if not self._headed:
            # Before the first copy: copies without a head are the sign that the head was removed.
            write_head(self._path, self._head)
            self._headed = True
        for kept in (self._denials, self._events):
            self._write_copies(kept)

    def _write_copies(self, kept: AuditCopies) -> None:
        kept.resume(self._head.copies.get(kept.name))
        if kept.make_room():
            self._note_link(kept)
            with suppress(OSError):
                write_head(self._path, self._head)
            lost = kept.rotate()
            if lost is not None:
                self._gaps.add(f"{kept.name}: only the first and the latest are kept", *lost)
        kept.write()
        self._note_link(kept)

    def _note_link(self, kept: AuditCopies) -> None:
        if kept.link is not None:
            self._head = replace(self._head, copies={**self._head.copies, kept.name: kept.link})

    def _postpone(self, error: OSError) -> None:
        for kept in (self._denials, self._events):
            lost = kept.give_up_beyond(_WAITING_COPIES)
            if lost:
                self._gaps.add("copies cannot be written", lost, time.time_ns(), time.time_ns())
        if not self._postponing:
            log.warning("the copies or the head of the audit log cannot be written: %s", error)
        self._postponing = True

    def _worded(self, entries: list[Decided | AuditEvent]) -> Iterator[tuple[int, str]]:
        """Yield the time of each record, and the members of its own."""
        decided, processes = self._wording.decided, dict[int, Process]()
        for entry in entries:
            if isinstance(entry, AuditEvent):
                yield entry.time_ns, happened_members(entry)
                continue
            pid, command = entry[1], entry[-1]
            process = processes.get(pid) if command is None else Process(pid, command)
            if process is None:
                # Looked up once a batch: a change of name within a batch could not be seen anyway.
                process = processes[pid] = self.commands.of(pid)
            yield entry[0], decided(entry, process)

    def _give_up(self, error: Exception, lost: list[Decided | AuditEvent]) -> None:
        """Count the records *lost*; the log goes on, whatever *error* is."""
        if not self._failing:
            self._failing = True
            if isinstance(error, OSError):
                log.warning("the audit log cannot be written: %s", error)
            else:
                log.error("bug in the audit log; records are lost", exc_info=error)
        if lost:
            number = error.errno if isinstance(error, OSError) else None
            reason = f"cannot write: {errno.errorcode.get(number or 0, type(error).__name__)}"
            self._gaps.add(reason, len(lost), lost[0][0], lost[-1][0])


def _first_seq(files: list[Path]) -> int | None:
    """The number of the first record in the first of *files*; None when there is no file or no record."""
    if not files:
        return None
    with files[0].open("rb") as stream:
        return seq_of(stream.readline())


def _copied_to(path: Path) -> Link | None:
    """The least extent of the log at *path* by its newest copy, for a log without a head."""
    record = last_copied(path)
    seq = None if record is None else seq_of(record)
    return None if record is None or seq is None else Link(1, seq, digest(record))


def _resume(tail: Tail, name: str, known: Link | None) -> tuple[Chain, list[AuditEvent]]:
    """Return the chain after a log with this *tail*, and gap records about the log's end.

    Where the head *known* has a later or another last record, the chain goes on from the head: no number is
    used twice, and verification shows where records are missing.
    """
    chain, notes = _after(tail, name)
    if known is None or known.last == 0:
        return chain, notes
    at_head = [line for line in tail.lines if seq_of(line) == known.last]
    if chain.seq < known.last:
        missing = known.last - chain.seq
        return Chain(known.last, known.hash), [
            *notes,
            _gap("records at the end are missing", missing=missing),
        ]
    if at_head and digest(at_head[-1]) != known.hash:
        return Chain(chain.seq, known.hash), [*notes, _gap("the log was replaced by another one")]
    return chain, notes


def _after(tail: Tail, name: str) -> tuple[Chain, list[AuditEvent]]:
    """Return the chain and the gap records by the log's last lines alone."""
    if not tail.lines:
        notes = [_gap("a crash left part of a record", cut=tail.torn)] if tail.torn else []
        return Chain(0, genesis(name)), notes
    prev = digest(tail.lines[-1])
    last = parse_line(tail.lines[-1])
    seq = 0
    for distance, line in enumerate(reversed(tail.lines)):
        if (found := parse_line(line)) is not None and isinstance(found["seq"], int):
            seq = found["seq"] + distance
            break
    if tail.torn:
        return Chain(seq, prev), [_gap("a crash left part of a record", cut=tail.torn)]
    if last is None:
        return Chain(seq, prev), [_gap("the last record is damaged")]
    if last.get("event") not in _ENDINGS:
        return Chain(seq, prev), [_gap("the daemon ended without closing the log")]
    return Chain(seq, prev), []


def _gap(reason: str, **details: object) -> AuditEvent:
    """Make a gap record for a gap of unknown size."""
    return AuditEvent(time.time_ns(), "gap", {"lost": None, "reason": reason, **details})


SIZE_LIMIT = 16 << 20
KEEP = 4
QUEUE_LIMIT = 100_000

# In seconds. Gathering is short enough that a reader who follows the log does not notice.
_GATHER = 0.05
_RETRY = 1.0
_ACQUAINTANCE = 1.0
# A slice is the number of records written without a pause, about 2 microseconds each: a change of thread in
# the interpreter takes as long as several records. After a slice the serving thread has its turn.
_SLICE, _PAUSE = 500, 0.004


class Level(StrEnum):
    """How much is recorded; each level includes the one before it."""

    DENIALS = "denials"
    WRITES = "writes"
    ALL = "all"


_ACCESSES = {
    Level.DENIALS: frozenset[str](),
    Level.WRITES: frozenset({"write", "delete"}),
    Level.ALL: frozenset({"read", "write", "delete", "execute"}),
}


class AuditLog:
    """The audit log of one sandbox, whose lock the process holds."""

    def __init__(
        self,
        path: Path,
        name: str,
        *,
        level: Level = Level.WRITES,
        size_limit: int = SIZE_LIMIT,
        keep: int = KEEP,
        queue_limit: int = QUEUE_LIMIT,
    ) -> None:
        """Continue or begin the log at *path* of the sandbox called *name*. Touches no file here."""
        self._accesses = _ACCESSES[level]
        self._queue: deque[Queued] = deque()
        self._queue_limit = queue_limit
        self._gaps = Gaps()
        # Threads whose names the writer has looked up, or will look up.
        self._met: set[int] = set()
        self._met_since = 0.0
        self._strangers: deque[int] = deque()
        self._wake = threading.Event()
        self._parked = True
        self._hurried = False
        self._closing = False
        self._writer = AuditWriter(path, name, self._gaps, size_limit=size_limit, keep=keep)
        self._thread = threading.Thread(target=self._run, name="audit", daemon=True)
        self._thread.start()

    def set_level(self, level: Level) -> None:
        """Record as *level* says from now on."""
        self._accesses = _ACCESSES[level]

    def record(
        self,
        op: str,
        access: str,
        path: bytes,
        decision: str,
        rule: RuleLike | None,
        allowed: bool,
        pid: int,
        uid: int,
        error: int = 0,
        to: bytes | None = None,
        command: str | None = None,
    ) -> None:
        """Queue a record of the decision about *op* on *path*, if the level wants one. Does nothing else.

        *error* is the errno of the answer, 0 for none; *to* is the second path of a rename or link; *command*
        is best given where the process may end at once, as after a denial.
        """
        if allowed and access not in self._accesses:
            return
        now = time.time_ns()
        if len(self._queue) >= self._queue_limit:
            self._lose(now)
            return
        self._queue.append((now, pid, uid, op, access, path, to, decision, allowed, rule, error, command))
        if self._parked or pid not in self._met:
            self._rouse(pid)

    def event(self, event: str, **details: object) -> None:
        """Record an event of the sandbox: `mounted`, `unmounted`, `policy changed`."""
        self._queue.append(AuditEvent(time.time_ns(), event, details))
        self._wake.set()

    def flush(self, timeout: float = 5.0) -> bool:
        """Wait until all records so far are stored or counted as lost; False when *timeout* came first."""
        done = threading.Event()
        self._queue.append(done)
        self._hurried = True
        self._wake.set()
        return done.wait(timeout)

    def close(self, timeout: float = 10.0) -> None:
        """Write the queue and end; nothing is recorded afterwards."""
        self._queue_limit = -1
        self._closing = True
        self._wake.set()
        self._thread.join(timeout)

    def _rouse(self, pid: int) -> None:
        if pid not in self._met:
            self._met.add(pid)
            self._strangers.append(pid)
        self._wake.set()

    def _lose(self, now: int) -> None:
        if not self._closing:
            self._gaps.add("more was recorded than could be written", 1, now, now)

    def _run(self) -> None:
        while not self._closing:
            self._park()
            self._gather()
            self._drain()
        self._drain()
        self._writer.close()

    def _park(self) -> None:
        """Wait until there is something to do."""
        self._parked = True
        # Checked after `_parked` is set: a record queued before saw an active writer and did not wake it.
        if not self._queue and not self._closing:
            self._wake.wait(_RETRY if self._gaps.pending else None)
        self._parked = False

    def _gather(self) -> None:
        """Let records gather; meanwhile only look up command names, before the processes end."""
        now = time.monotonic()
        deadline = now + _GATHER
        if now - self._met_since > _ACQUAINTANCE:
            self._met_since = now
            self._met.clear()
        while True:
            self._wake.clear()
            while self._strangers:
                self._writer.commands.of(self._strangers.popleft())
            remaining = deadline - time.monotonic()
            hurried = self._hurried or self._closing
            if remaining <= 0 or hurried or not self._wake.wait(remaining):
                self._hurried = False
                return

    def _drain(self) -> None:
        """Write the records queued by now. Later ones are gathered first, unless the log is closing."""
        queue = self._queue
        left = len(queue)
        while left or self._gaps.pending:
            size = min(left, _SLICE)
            written = self._writer.write([queue.popleft() for _ in range(size)])
            left = len(queue) if self._closing else left - size
            if not left and not written:
                return
            if left and not self._closing:
                # Otherwise the serving thread waits for the interpreter until the whole queue is written.
                time.sleep(_PAUSE)
