"""Session journal: every decision recorded; denials counted and printed; reports for `.sandboxfs/`.

Every decision passes `SessionJournal.record` before its operation is answered; the audit log only queues it.

A denial is printed on one line. Repetitions are counted, and the count is printed before the next different
denial.

The reports are what a program in the view reads in `.sandboxfs/`: plain text for a program that got
"Permission denied". There are the policy in force, the denials with the command that would allow each, and
the changes of the sandbox.
"""

import hashlib
import os
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TextIO

from sandboxfs.overlay.filesystem import Caller
from sandboxfs.paths import quoted
from sandboxfs.policy.compiled import Ignored
from sandboxfs.policy.explain import Exists, decide, explain
from sandboxfs.policy.model import Access, Decision, Mode, Policy, Rule, RuleCondition
from sandboxfs.policy.sources import effective_toml
from sandboxfs.state.audit import AuditLog, Level
from sandboxfs.state.audit_record import process_of

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
    # Of what a rule asks about: the reason of the refusal, and the question.
    reason: str | None = None
    question: int | None = None

    def sentence(self) -> str:
        """The line that explains the denial, as on stderr and in `why`."""
        return self.decision.denial(self.access, os.fsdecode(self.path), self.reason)


def policy_digest(policy: Policy, fixed: Mapping[str, object]) -> str:
    """Return a digest that differs where the policy or one of the *fixed* settings differs."""
    lines = [f"{policy.mode.value} {policy.enabled}", repr(sorted(fixed.items())), *map(repr, policy.rules)]
    return hashlib.sha256("\n".join(lines).encode("utf-8", "surrogateescape")).hexdigest()


class Observer(Protocol):
    """Receives every decision while there are any observations."""

    def __len__(self) -> int: ...
    def saw(
        self,
        op: str,
        access: Access,
        path: bytes,
        to: bytes | None,
        decision: Decision,
        error: int,
        reason: str | None = None,
    ) -> None: ...


class SessionJournal:
    """Records decisions. Implements the guard's `Journal`."""

    def __init__(self, audit: AuditLog, level: Level, fixed: Mapping[str, object] | None = None) -> None:
        """Record in *audit*; *fixed* are the settings that decide beside the policy for the whole session."""
        self._fixed = fixed or {}
        self.reads = level is Level.ALL
        self.counters: Counter[str] = Counter(reads=0, writes=0, denials=0)
        # By identity: hashing a rule costs more than the rest of a record. The rule is kept with its count,
        # so that no other rule gets its identity.
        self._hits: dict[int, tuple[Rule, list[int]]] = {}
        self.denials: deque[Denial] = deque(maxlen=KEPT_DENIALS)
        self.told: list[Callable[[Denial], None]] = []
        self.observer: Observer | None = None
        self._audit = audit
        self._reasons: dict[tuple[bytes, Access], tuple[str, int | None]] = {}

    def explain(self, path: bytes, access: Access, reason: str, question: int | None) -> None:
        """Say why the next access of this kind to *path* is refused, where a rule asks about it."""
        self._reasons = {(path, access): (reason, question)}

    def hits(self) -> dict[Rule, int]:
        """The number of decisions of each rule that gave any."""
        counts: dict[Rule, int] = {}
        for rule, count in self._hits.values():
            counts[rule] = counts.get(rule, 0) + count[0]
        return counts

    def count_read(self, decision: Decision) -> None:
        self._hit(decision.reading)
        self.counters["reads"] += 1

    def _hit(self, rule: Rule) -> None:
        hit = self._hits.get(id(rule))
        if hit is None:
            self._hits[id(rule)] = rule, [1]
        else:
            hit[1][0] += 1

    def digest(self, policy: Policy) -> str:
        """Return the digest of *policy* and the fixed settings."""
        return policy_digest(policy, self._fixed)

    def policy_changed(
        self, change: str, policy: Policy, pid: int, uid: int, rule: Rule | None = None
    ) -> None:
        """Record that *policy* is in force from now on, at every level; process *pid* asked for *change*."""
        process = process_of(pid)
        self._audit.event(
            "policy changed",
            change=change,
            rule=None if rule is None else str(rule),
            mode=policy.mode.value,
            enabled=policy.enabled,
            rules=len(policy.rules),
            **self._fixed,
            policy=self.digest(policy),
            pid=pid,
            command=None if process is None else process.command,
            uid=uid,
        )

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
        rule = decision.rule_for(access)
        hit = self._hits.get(id(rule))
        if hit is None:
            self._hit(rule)
        else:
            hit[1][0] += 1
        command = reason = None
        if error:
            self.counters["denials"] += 1
            # Looked up at once: a program often ends after a denial.
            process = process_of(caller.pid)
            command = None if process is None else process.command
            pid = caller.pid if process is None else process.pid
            nothing = None, None
            reason, question = self._reasons.pop((path, access), nothing) if self._reasons else nothing
            denial = Denial(time.time(), pid, command, op, access, path, decision, error, reason, question)
            self.denials.append(denial)
            for tell in self.told:
                tell(denial)
        elif access is Access.READ or access is Access.EXECUTE:
            self.counters["reads"] += 1
        else:
            self.counters["writes"] += 1
        if self.observer:
            self.observer.saw(op, access, path, to, decision, error, reason)
        self._audit.record(
            op,
            # The same as `value`, in a fifth of the time.
            access._value_,
            path,
            rule.mode._value_,
            rule,
            not error,
            caller.pid,
            caller.uid,
            error,
            to,
            command,
        )


# Seconds after which a repeated denial is printed again.
_PATIENCE = 5.0


class DenialPrinter:
    """Writes denials to a stream, repeated ones folded."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._last = ""
        self._more = 0
        self._told = 0.0

    def __call__(self, denial: Denial) -> None:
        sentence = denial.sentence()
        now = time.monotonic()
        if sentence == self._last and now - self._told < _PATIENCE:
            self._more += 1
            return
        self.finish()
        self._last, self._told = sentence, now
        self._write(f"sandboxfs: {sentence}")

    def finish(self) -> None:
        """Print the count of repeated denials, if any is due."""
        if self._more:
            self._write(f"sandboxfs: {self._more} more of these")
            self._more = 0

    def _write(self, line: str) -> None:
        try:
            print(line, file=self._stream, flush=True)
        except (OSError, ValueError):
            # The terminal is gone; the log has every denial.
            pass


if TYPE_CHECKING:
    from sandboxfs.review.change import PathChange
    from sandboxfs.upper.sandbox_layers import LayerPaths

_LISTED = 10_000


def policy_report(policy: Policy, workspace: Path) -> bytes:
    """The policy in force."""
    return effective_toml(policy, str(workspace)).encode(errors="surrogateescape")


def denials_report(journal: SessionJournal, policy: Policy, workspace: Path, ignored: Ignored) -> bytes:
    """The newest denials, the last one first; *ignored* tells what git ignores."""
    lines = [
        line for denial in reversed(journal.denials) for line in _told(denial, policy, workspace, ignored)
    ]
    return "".join(f"{line}\n" for line in lines).encode(errors="surrogateescape")


def _told(denial: Denial, policy: Policy, workspace: Path, ignored: Ignored) -> Iterator[str]:
    when = datetime.fromtimestamp(denial.time, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
    yield f"{when} {denial.command or '?'} ({denial.pid}): {denial.sentence()}"
    try:
        hint = explain(
            policy,
            os.fsdecode(denial.path),
            denial.access,
            root=str(workspace),
            exists=_with_everything(ignored),
        ).hint()
    except ValueError:
        return
    if hint is not None:
        yield f"  hint: a person can allow it: {hint}"
    if denial.question is not None:
        yield f"  what became of the question: .sandboxfs/requests/{denial.question}"


def _with_everything(ignored: Ignored) -> Exists:
    """Count every entry as present in the workspace."""

    def exists(path: str, needs: RuleCondition) -> bool:
        return needs is not RuleCondition.IGNORED or ignored(
            os.fsencode(path.rstrip("/")), path.endswith("/")
        )

    return exists


def changes_report(paths: "LayerPaths", workspace: Path, policy: Policy, ignored: Ignored) -> bytes:
    """The changes of the sandbox, without those that the policy hides.

    A added, M modified, D deleted, R renamed, T of another type; an exclamation mark follows the letter of a
    change with a conflict.
    """
    # Imported here: few programs read the file, and every daemon would start later.
    from sandboxfs.review.scan import scan
    from sandboxfs.upper.sandbox_layers import open_layers

    def hides(path: bytes) -> bool:
        exists = _with_everything(ignored)
        return any(
            decide(policy, os.fsdecode(path), is_dir, root=str(workspace), exists=exists).mode is Mode.HIDE
            for is_dir in (False, True)
        )

    lines: list[str] = []
    with open_layers(paths) as layers:
        for finding in scan(layers):
            if hides(finding.path):
                continue
            if len(lines) == _LISTED:
                lines.append("…")
                break
            lines.append(_change(finding, hides))
    return "".join(f"{line}\n" for line in lines).encode(errors="surrogateescape")


def _change(finding: "PathChange", hides: Callable[[bytes], bool]) -> str:
    from sandboxfs.review.change import ChangeKind

    kind, source = finding.kind, finding.old_path
    if source is not None and hides(source):
        # The policy hides the old path from the program, so the rename shows as an addition.
        kind, source = ChangeKind.ADDED, None
    letter = "M" if kind is ChangeKind.MODE else kind.value[0].upper()
    names = [path for path in (source, finding.path) if path is not None]
    shown = " -> ".join(quoted(os.fsdecode(path) or ".") for path in names)
    return f"{letter}{'!' if finding.conflict is not None else ''} {shown}"
