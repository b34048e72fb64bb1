"""What was asked of the sandbox, and what was it told?

`AuditLog.record` is called for every operation, by the thread that answers the kernel: it appends a tuple to
a queue and does nothing else. A thread of the log's own names processes, writes JSON, chains and stores. It
never raises into the caller: what could not be kept is counted and told in a gap record as soon as possible.
"""

import threading
import time
from collections import deque
from enum import StrEnum
from pathlib import Path

from sandboxfs.state.audit_file import AuditFile
from sandboxfs.state.audit_gaps import Gaps
from sandboxfs.state.audit_record import Happened, RuleLike
from sandboxfs.state.audit_writer import Queued, Writer

SIZE_LIMIT = 16 << 20
KEEP = 4
QUEUE_LIMIT = 100_000

# Long enough to gather, short enough that a reader who follows the log does not notice.
_GATHER = 0.05
_RETRY = 1.0
_ACQUAINTANCE = 1.0
# A slice is what is written without letting the serving thread run, about 2 microseconds a record: each time
# that the interpreter changes hands takes as long as several records. After one the other has its turn.
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
        """Continue the log at *path* of the sandbox called *name*, or begin it. Touches no file here."""
        self._accesses = _ACCESSES[level]
        self._queue: deque[Queued] = deque()
        self._queue_limit = queue_limit
        self._gaps = Gaps()
        # Threads whose names the writer has looked up, or is told to.
        self._met: set[int] = set()
        self._met_since = 0.0
        self._strangers: deque[int] = deque()
        self._wake = threading.Event()
        self._parked = True
        self._hurried = False
        self._closing = False
        self._writer = Writer(AuditFile(path, size_limit, keep), name, self._gaps)
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
        """Record that *op* on *path* was decided so, if the level wants it. Does no more than queue it.

        *error* is the errno that the caller was answered with, 0 for none; *to* is the second path of a
        rename or link; *command* is best given where the process may end at once, as after a denial.
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
        """Record something that happened to the sandbox: `mounted`, `unmounted`, `policy changed`."""
        self._queue.append(Happened(time.time_ns(), event, details))
        self._wake.set()

    def flush(self, timeout: float = 5.0) -> bool:
        """Wait until everything recorded so far is in the file, or was counted as lost; say whether it is."""
        done = threading.Event()
        self._queue.append(done)
        self._hurried = True
        self._wake.set()
        return done.wait(timeout)

    def close(self, timeout: float = 10.0) -> None:
        """Write what is queued and end; nothing is recorded afterwards."""
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
        # Only now: whoever queued something before saw a log that was awake, and did not wake it.
        if not self._queue and not self._closing:
            self._wake.wait(_RETRY if self._gaps.pending else None)
        self._parked = False

    def _gather(self) -> None:
        """Let records come together; meanwhile only look who is asking, before they are gone."""
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
        """Write what is queued by now. What comes meanwhile is gathered first, unless it is the end."""
        queue = self._queue
        left = len(queue)
        while left or self._gaps.pending:
            size = min(left, _SLICE)
            written = self._writer.write([queue.popleft() for _ in range(size)])
            left = len(queue) if self._closing else left - size
            if not left and not written:
                return
            if left and not self._closing:
                # Otherwise the serving thread waits for the interpreter until we are through.
                time.sleep(_PAUSE)
