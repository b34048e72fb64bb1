"""What happened in this session? Counters, the newest denials, and whoever is told of them.

Every decision comes through here, on the way of the operation it decided; the audit log only queues it.
"""

import os
import time
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass

from sandboxfs.overlay.filesystem import Caller
from sandboxfs.policy.model import Access, Decision, Rule
from sandboxfs.state.audit import AuditLog, Level
from sandboxfs.state.audit_commands import process_of

KEPT_DENIALS = 100


@dataclass(frozen=True)
class Denial:
    """One refused access."""

    time: float
    pid: int
    command: str | None
    op: str
    access: Access
    path: bytes
    decision: Decision
    error: int

    def sentence(self) -> str:
        """The line that explains it, as on stderr and in `why`."""
        return self.decision.denial(self.access, os.fsdecode(self.path))


class SessionJournal:
    """Records decisions. Implements the guard's `Journal`."""

    def __init__(self, audit: AuditLog, level: Level) -> None:
        self.reads = level is Level.ALL
        self.counters: Counter[str] = Counter(reads=0, writes=0, denials=0)
        # By identity: hashing a rule costs more than the rest of a record. It is kept with its count, so
        # that its identity is not given to another one.
        self._hits: dict[int, tuple[Rule, list[int]]] = {}
        self.denials: deque[Denial] = deque(maxlen=KEPT_DENIALS)
        self.told: list[Callable[[Denial], None]] = []
        self._audit = audit

    def hits(self) -> dict[Rule, int]:
        """How many decisions each rule has given that gave any."""
        counts: dict[Rule, int] = {}
        for rule, count in self._hits.values():
            counts[rule] = counts.get(rule, 0) + count[0]
        return counts

    def count_read(self, decision: Decision) -> None:
        self._hit(decision.rule)
        self.counters["reads"] += 1

    def _hit(self, rule: Rule) -> None:
        hit = self._hits.get(id(rule))
        if hit is None:
            self._hits[id(rule)] = rule, [1]
        else:
            hit[1][0] += 1

    def record(
        self,
        op: str,
        access: Access,
        path: bytes,
        to: bytes | None,
        decision: Decision,
        caller: Caller,
        error: int,
    ) -> None:
        rule = decision.rule
        hit = self._hits.get(id(rule))
        if hit is None:
            self._hit(rule)
        else:
            hit[1][0] += 1
        command = None
        if error:
            self.counters["denials"] += 1
            # Asked at once: a program that was refused often ends.
            process = process_of(caller.pid)
            command = None if process is None else process.command
            pid = caller.pid if process is None else process.pid
            denial = Denial(time.time(), pid, command, op, access, path, decision, error)
            self.denials.append(denial)
            for tell in self.told:
                tell(denial)
        elif access is Access.READ or access is Access.EXECUTE:
            self.counters["reads"] += 1
        else:
            self.counters["writes"] += 1
        self._audit.record(
            op,
            # What `value` gives, in a fifth of the time.
            access._value_,
            path,
            decision.mode._value_,
            rule,
            not error,
            caller.pid,
            caller.uid,
            error,
            to,
            command,
        )
