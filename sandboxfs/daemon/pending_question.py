"""Pending question: what is asked, its clock, whoever waits for it, and how it ends.

The clock of a question stands still for a while at each sign of a person who reads it.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple, Protocol

from sandboxfs.daemon.program_lookup import ProgramSeen
from sandboxfs.overlay.asking import Asked
from sandboxfs.overlay.filesystem import Caller
from sandboxfs.policy.grants import Attempt, Extent, Recipient, Wish, directory_of
from sandboxfs.policy.model import Access, Rule

# Seconds for which the clock of a question stands still altogether, and after each sign of a person.
READING, ATTENTION = 600.0, 60.0


class Outcome(StrEnum):
    """How a question ended."""

    ALLOWED = "allowed"
    DENIED = "denied"
    TIMEOUT = "timeout"
    WITHDRAWN = "withdrawn"
    ENDED = "ended"


class Answerer(NamedTuple):
    """The process that answered."""

    pid: int
    command: str | None


class GivenAnswer(NamedTuple):
    """What a person says to a question."""

    allows: bool
    extent: Extent = Extent.ONCE
    target: str = ""
    during: float | None = None
    recipient: Recipient = Recipient()
    reason: str | None = None
    by: Answerer | None = None


class QuestionKey(NamedTuple):
    """What makes two questions equal. *content* is the digest of a new program."""

    rule: Rule
    access: Access | Wish
    directory: str
    exe: str | None
    content: str | None

    @classmethod
    def of(cls, attempt: Attempt, exe: str | None) -> "QuestionKey":
        return cls(attempt.rule, attempt.access, directory_of(attempt.path), exe, attempt.content)


class QuestionVerdict(NamedTuple):
    """What an answer means to the requests of its question: a refusal to all, or the shown file."""

    allows: bool
    question: "PendingQuestion"
    grant: int | None
    why: str

    def applies(self, asked: Asked, attempts: list[Attempt]) -> bool:
        """Tell whether an answer is about what a request is for now: the file may have got another name."""
        shown, attempt = self.question.attempt, attempts[0]
        if (attempt.rule, attempt.access, attempt.content) != (shown.rule, shown.access, shown.content):
            return False
        same_file = asked.ino == self.question.ino and shown.path in [one.path for one in attempts]
        return same_file or not self.allows


class QuestionWait(Protocol):
    """Whoever waits for a question, since when it *began* to."""

    began: float

    def over(self, verdict: QuestionVerdict | None) -> None:
        """The question is over."""


@dataclass(eq=False)
class PendingQuestion:
    """One question. *paths* are those that its requests are for, the first is shown.

    Of a wish, *note* is what the program says about it, and *problem* why it cannot be granted, if so.
    """

    number: int
    attempt: Attempt
    ino: int
    key: QuestionKey
    line: list[ProgramSeen]
    asked_at: float
    deadline: float
    paths: list[str]
    waits: list[QuestionWait] = field(default_factory=list)
    note: str | None = None
    problem: str | None = None
    reading_until: float | None = None
    # Since when no request waits, because all are being decided again.
    idle_since: float | None = None
    # When the clock was stopped, and for how many seconds altogether it may still be.
    _stopped: float = 0.0
    _patience: float = READING

    def read(self, now: float) -> None:
        """Stop the clock for a while, which each sign of a person begins anew."""
        self.unread(now)
        if self._patience > 0:
            self._stopped = now
            self.reading_until = now + min(ATTENTION, self._patience)

    def unread(self, now: float) -> None:
        """Have the clock go on, from now or from when the person was last known to read."""
        if self.reading_until is not None:
            stood = min(now, self.reading_until) - self._stopped
            self.reading_until = None
            self._patience -= stood
            self.deadline += stood

    def ends_at(self) -> float:
        """The moment at which the time is up, if no person gives a sign any more."""
        return self.deadline + (0.0 if self.reading_until is None else self.reading_until - self._stopped)

    def as_event(self) -> dict[str, object]:
        """Describe the question for the record of what was asked and answered."""
        program = self.line[0] if self.line else None
        return {
            "question": self.number,
            "access": self.attempt.access.value,
            "path": self.attempt.path,
            "rule": str(self.attempt.rule),
            **({} if self.note is None else {"note": self.note}),
            "program": None if program is None else program.exe or program.command,
            "program_pid": None if program is None else program.pid,
        }


@dataclass(eq=False)
class ClosedQuestion:
    """A question that is over."""

    question: PendingQuestion
    outcome: Outcome
    by: Answerer | None
    reason: str | None
    at: float


class AnsweredCaller(NamedTuple):
    """The caller of a request that is made again after it waited."""

    uid: int
    gid: int
    pid: int
    waited: "PendingOpen"


@dataclass(eq=False)
class PendingOpen:
    """One request that waits. Implements `Wait` for the server."""

    question: PendingQuestion
    asked: Asked
    began: float
    plain: Caller
    given_up: Callable[["PendingOpen"], None]
    verdict: QuestionVerdict | None = None
    _tell: Callable[[], None] | None = None

    @property
    def caller(self) -> Caller:
        return AnsweredCaller(self.plain.uid, self.plain.gid, self.plain.pid, self)

    def when_over(self, tell: Callable[[], None]) -> None:
        self._tell = tell

    def give_up(self) -> None:
        self._tell = None
        self.given_up(self)

    def over(self, verdict: QuestionVerdict | None) -> None:
        """Have the request made again; without a verdict it is decided as if it had not waited."""
        self.verdict = verdict
        tell, self._tell = self._tell, None
        if tell is not None:
            tell()


def over_as_json(closed: ClosedQuestion) -> dict[str, object]:
    """Describe the end of a question, as the event `over`."""
    by = closed.by
    return {
        "event": "over",
        "id": closed.question.number,
        "outcome": closed.outcome.value,
        "by": None if by is None else {"pid": by.pid, "command": by.command},
        "reason": closed.reason,
    }
