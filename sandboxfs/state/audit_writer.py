"""How does what was queued become lines in the audit log's file?

Done by the log's own thread alone. A batch is stored whole or counted as lost, and the chain only moves on
with what was stored, so that it can be verified whatever happened in between. Nothing here raises: one error
boundary turns everything into a gap.
"""

import errno
import logging
import threading
import time
from collections.abc import Iterator

from sandboxfs.state.audit_commands import CommandNames, Process
from sandboxfs.state.audit_file import AuditFile, Tail
from sandboxfs.state.audit_gaps import Gaps
from sandboxfs.state.audit_record import (
    Chain,
    Decided,
    Happened,
    Wording,
    digest,
    genesis,
    happened_members,
    parse_line,
)

log = logging.getLogger(__name__)

# What a log ends with when nothing is missing, or what is missing has been told.
_ENDINGS = ("unmounted", "gap")

# An event is set when everything queued before it has been dealt with.
Queued = Decided | Happened | threading.Event


class Writer:
    """The far end of the queue."""

    def __init__(self, file: AuditFile, name: str, gaps: Gaps) -> None:
        self.commands = CommandNames()
        self._file = file
        self._name = name
        self._gaps = gaps
        self._wording = Wording()
        self._chain: Chain | None = None
        # What must come before anything else in the next append that succeeds.
        self._notes: list[Happened] = []
        self._failing = False

    def write(self, batch: list[Queued]) -> bool:
        """Store *batch*, gaps first; False when it could not be, and was counted as lost."""
        entries: list[Decided | Happened] = []
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
        try:
            self._file.sync()
            self._file.close()
        except OSError as error:
            log.warning("cannot close the audit log: %s", error)

    def _store(self, entries: list[Decided | Happened]) -> None:
        if not entries:
            return
        if self._chain is None:
            self._chain, self._notes = _resume(self._file.open(), self._name)
        surprise = self._file.check()
        if surprise is not None:
            self._notes.append(_gap(surprise))
        if self._file.full:
            self._file.rotate()
            # First in its file: so a reader can tell that what came before was put aside, not cut off.
            self._notes.insert(0, Happened(time.time_ns(), "rotated", {}))
        lines, chain = self._chain.seal(self._worded([*self._notes, *entries]))
        lines.append(b"")
        self._file.append(b"\n".join(lines))
        self._chain, self._notes = chain, []

    def _worded(self, entries: list[Decided | Happened]) -> Iterator[tuple[int, str]]:
        """Of each record its time and its own part."""
        decided, processes = self._wording.decided, dict[int, Process]()
        for entry in entries:
            if isinstance(entry, Happened):
                yield entry.time_ns, happened_members(entry)
                continue
            pid, command = entry[1], entry[-1]
            process = processes.get(pid) if command is None else Process(pid, command)
            if process is None:
                # Once for all: nobody changes its name in between that could be told.
                process = processes[pid] = self.commands.of(pid)
            yield entry[0], decided(entry, process)

    def _give_up(self, error: Exception, lost: list[Decided | Happened]) -> None:
        """Count *lost*; the log goes on, whatever *error* is."""
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


def _resume(tail: Tail, name: str) -> tuple[Chain, list[Happened]]:
    """Find where a log with this *tail* stands, and what must be said about how it ended."""
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


def _gap(reason: str, **details: object) -> Happened:
    """Tell of a gap whose size is not known."""
    return Happened(time.time_ns(), "gap", {"lost": None, "reason": reason, **details})
