"""Questions: what waits for a person, and the answers that stay.

The guard asks `Questions.permit` about each access that a rule asks about. A grant may decide; otherwise the
request is postponed and waits for a question. Equal questions, about the same rule, access, directory and
program, are one, so that a program that asks a thousand times shows as one line. The queue is bounded in
every direction, and what does not fit is refused.

A question is over with the first answer, when its time is up, when nobody who could answer is connected any
more, or when all requests have been given up. Each request is then made again, and decided afresh: what the
person allowed must be what is opened, whatever the program renamed meanwhile. An answer for `once` or `path`
is about the path that was shown; requests for other paths ask again.

Nothing here waits, reads a file or knows a thread: the clock is given, and so is what is known of processes.
"""

import os
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cache
from typing import NamedTuple, Protocol

from sandboxfs.control.request_limit import SHARE
from sandboxfs.errors import UsageError
from sandboxfs.overlay.asking import Asked, Verdict
from sandboxfs.overlay.filesystem import Caller, Postponed
from sandboxfs.paths import quoted
from sandboxfs.policy.grants import (
    Asker,
    Attempt,
    Extent,
    Grant,
    KeptGrant,
    ProcessMark,
    Recipient,
    Wish,
    directory_of,
    is_in,
)
from sandboxfs.policy.model import Access, Decision, Policy, Rule

# Questions at once, of which each program has a share; requests that wait, and paths shown of one question.
MOST_QUESTIONS, MOST_OF_ONE_PROGRAM = 64, 16
MOST_WAITING = 1024
_PATHS = 100
MOST_GRANTS = 1000
# Questions that are over and can still be looked at.
_REMEMBERED = 200
# Seconds for which the clock of a question stands still altogether, and after each sign of a person.
READING, ATTENTION = 600.0, 60.0
# Seconds for which a question without requests, and a grant for once that opened nothing, are kept.
_LINGERING = 0.2


class Outcome(StrEnum):
    """How a question ended."""

    ALLOWED = "allowed"
    DENIED = "denied"
    TIMEOUT = "timeout"
    WITHDRAWN = "withdrawn"
    ENDED = "ended"


class ProgramSeen(NamedTuple):
    """A process as it is shown to a person."""

    pid: int
    started: int
    exe: str | None
    command: str


class Processes(Protocol):
    """What is known of processes."""

    def exe(self, thread: int) -> str | None:
        """The executable of the process of a thread."""

    def line(self, thread: int) -> list[ProgramSeen]:
        """The process of a thread and its parents, the nearest first."""

    def marks(self, thread: int) -> tuple[ProcessMark, ...]:
        """The same, as marks."""

    def lives(self, mark: ProcessMark) -> bool:
        """Tell whether a process is still there."""


class Record(Protocol):
    """Where questions, answers and grants are recorded."""

    def event(self, event: str, **details: object) -> None: ...


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


class QuestionWait(Protocol):
    """Whoever waits for a question, since when it *began* to."""

    began: float

    def over(self, verdict: "_Outcome | None") -> None:
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

    queue: "Questions"
    question: PendingQuestion
    asked: Asked
    began: float
    plain: Caller
    verdict: "_Outcome | None" = None
    _tell: Callable[[], None] | None = None

    @property
    def caller(self) -> Caller:
        return AnsweredCaller(self.plain.uid, self.plain.gid, self.plain.pid, self)

    def when_over(self, tell: Callable[[], None]) -> None:
        self._tell = tell

    def give_up(self) -> None:
        self._tell = None
        self.queue.given_up(self)

    def over(self, verdict: "_Outcome | None") -> None:
        """Have the request made again; without a verdict it is decided as if it had not waited."""
        self.verdict = verdict
        tell, self._tell = self._tell, None
        if tell is not None:
            tell()


class _Outcome(NamedTuple):
    """What an answer means to the requests of its question: a refusal to all, or the shown file."""

    allows: bool
    question: PendingQuestion
    grant: int | None
    why: str


@dataclass(eq=False)
class StandingGrant:
    """A grant with what is counted of it, and as it is *kept* in the user's configuration, if it is.

    *question* is None for one that was kept in an earlier session.
    """

    grant: Grant
    question: int | None
    since: float
    hits: int = 0
    open: int = 0
    kept: KeptGrant | None = None


class Questions:
    """The queue of one session. Implements `Person` for the guard."""

    def __init__(
        self,
        processes: Processes,
        record: Record,
        root: str,
        clock: Callable[[], float],
        *,
        timeout: float,
        kernel_limit: float | None = None,
    ) -> None:
        """A question waits *timeout* seconds; no request waits as long as *kernel_limit*."""
        self._processes = processes
        self._record = record
        self._root = root
        self._clock = clock
        self._longest = None if kernel_limit is None else kernel_limit * SHARE
        self._timeout = timeout if self._longest is None else min(timeout, self._longest)
        self._open: dict[int, PendingQuestion] = {}
        self._by_key: dict[QuestionKey, PendingQuestion] = {}
        self._grants: dict[int, StandingGrant] = {}
        self._serial = 0
        self._closed = False
        self._waiting = 0
        self.followers = 0
        self.over: OrderedDict[int, ClosedQuestion] = OrderedDict()
        # Refused without a question, because nobody could be asked.
        self.unasked: OrderedDict[Attempt, ClosedQuestion] = OrderedDict()
        # Told of questions that begin and end; called when there is something for the clock to end, and with
        # the numbers of grants that are gone.
        self.told: list[Callable[[PendingQuestion, ClosedQuestion | None], None]] = []
        self.begun: Callable[[], None] = lambda: None
        self.withdrawn: Callable[[set[int]], None] = lambda grants: None
        # Called with the path, the access and the reason of a refusal, before it is recorded.
        self.explain: Callable[[bytes, Access, str, int | None], None] = lambda *about: None

    # For the guard

    def permit(self, asked: Asked, caller: Caller) -> Verdict:
        attempts = [self._attempt(asked, path) for path in asked.paths]
        waited = caller.waited if isinstance(caller, AnsweredCaller) else None
        if waited is not None and waited.verdict is not None:
            outcome = waited.verdict
            if _applies(outcome, asked, attempts):
                return self._told(asked, outcome.allows, outcome.grant, outcome.why, waited.question.number)
        found = [self._granted(attempt, caller.pid) for attempt in attempts]
        refusing = next((one for one in found if one is not None and not one.grant.allows), None)
        if refusing is not None:
            refusing.hits += 1
            why = refusing.grant.reason or "refused by an answer that stays"
            return self._told(asked, False, refusing.grant.number, why, refusing.question)
        if found and None not in found and found[0] is not None:
            found[0].hits += 1
            return Verdict(True, found[0].grant.number)
        unanswered = attempts[found.index(None)]
        objection = self.objection() or self._fullness(_key(unanswered, self._processes.exe(caller.pid)))
        if objection is not None:
            number = self._note_refusal(asked, attempts[0], objection)
            return self._told(asked, False, None, objection, number)
        raise Postponed(self._enqueue(asked, unanswered, caller, waited))

    def opened(self, grant: int) -> None:
        if grant in self._grants:
            self._grants[grant].open += 1

    def closed(self, grant: int) -> None:
        standing = self._grants.get(grant)
        if standing is not None:
            standing.open -= 1
            if standing.open <= 0 and standing.grant.extent is Extent.ONCE:
                del self._grants[grant]

    def stands(self, grant: int, decision: Decision, access: Access) -> bool:
        standing = self._grants.get(grant)
        return (
            standing is not None
            and standing.grant.allows
            and standing.grant.access is access
            and standing.grant.rule.identity == decision.rule_for(access).identity
        )

    @property
    def has_spoken(self) -> bool:
        return bool(self._grants or self._open)

    def keeps_apart(self, old: bytes, new: bytes) -> bool:
        before, after = os.fsdecode(old), os.fsdecode(new)
        for standing in self._grants.values():
            grant = standing.grant
            if isinstance(grant.access, Wish):
                continue
            one, other = (Attempt(grant.access, grant.rule, path, self._root) for path in (before, after))
            if grant.allows and grant.names(other) and not grant.names(one):
                return False
        for question in self._open.values():
            if isinstance(question.attempt.access, Wish):
                continue
            shown, directory = question.attempt.path, directory_of(question.attempt.path)
            if before != shown == after or (is_in(after, directory) and not is_in(before, directory)):
                return False
        return True

    def _attempt(self, asked: Asked, path: bytes) -> Attempt:
        rule = asked.decision.rule_for(asked.access)
        return Attempt(asked.access, rule, os.fsdecode(path), self._root, asked.content)

    def _granted(self, attempt: Attempt, thread: int) -> StandingGrant | None:
        """Return the newest grant that decides about an attempt."""

        @cache
        def asker() -> Asker:
            return Asker(self._processes.exe(thread), self._processes.marks(thread))

        now = self._clock()
        for standing in reversed(self._grants.values()):
            until = standing.grant.until
            if (until is None or now < until) and standing.grant.covers(attempt, asker):
                return standing
        return None

    def objection(self) -> str | None:
        """Say why nobody can be asked anything, if so."""
        if self._closed:
            return "the session ends"
        if not self.followers:
            return "nobody is connected who could be asked"
        if self._waiting >= MOST_WAITING:
            return "too many requests wait for a person"
        return None

    def _told(self, asked: Asked, allows: bool, grant: int | None, why: str, question: int | None) -> Verdict:
        if not allows:
            self.explain(asked.paths[0], asked.access, why, question)
        return Verdict(allows, grant)

    def _note_refusal(self, asked: Asked, attempt: Attempt, why: str) -> int:
        """Remember a question that nobody was asked, so that the program can look it up."""
        now = self._clock()
        known = self.unasked.pop(attempt, None)
        if known is None:
            key = _key(attempt, None)
            number = self.next_number()
            question = PendingQuestion(number, attempt, asked.ino, key, [], now, now, [attempt.path])
        else:
            question = known.question
        self.unasked[attempt] = ClosedQuestion(question, Outcome.WITHDRAWN, None, why, now)
        while len(self.unasked) > _REMEMBERED:
            self.unasked.popitem(last=False)
        return question.number

    def next_number(self) -> int:
        """Return a number that no question and no grant has."""
        self._serial += 1
        return self._serial

    def _enqueue(
        self, asked: Asked, attempt: Attempt, caller: Caller, waited: PendingOpen | None
    ) -> PendingOpen:
        exe = self._processes.exe(caller.pid)
        key = _key(attempt, exe)
        now = self._clock()
        began = now if waited is None else waited.began
        question = self._by_key.get(key)
        if question is None:
            line, number = self._processes.line(caller.pid), self.next_number()
            question = PendingQuestion(number, attempt, asked.ino, key, line, *self._times(), [attempt.path])
            self._ask(question)
        question.idle_since = None
        if attempt.path not in question.paths and len(question.paths) < _PATHS:
            question.paths.append(attempt.path)
        if self._longest is not None:
            question.deadline = min(question.deadline, began + self._longest)
        plain = caller if waited is None else waited.plain
        wait = PendingOpen(self, question, asked, began, plain)
        question.waits.append(wait)
        self._waiting += 1
        return wait

    def line(self, thread: int) -> list[ProgramSeen]:
        """Return the process of a thread and its parents, the nearest first."""
        return self._processes.line(thread)

    def propose(
        self,
        attempt: Attempt,
        number: int,
        line: list[ProgramSeen],
        wait: QuestionWait,
        note: str | None,
        problem: str | None,
    ) -> str | None:
        """Ask for a wish of the program of *line*, by the *number* that the program knows.

        *wait* is told when `over` has the question. An equal question is joined. The result is why nobody can
        be asked, if so.
        """
        exe = line[0].exe if line else None
        key = QuestionKey(attempt.rule, attempt.access, attempt.path, exe, None)
        objection = self.objection() or self._fullness(key)
        if objection is not None:
            return objection
        question = self._by_key.get(key)
        if question is None:
            question = PendingQuestion(number, attempt, 0, key, line, *self._times(), [attempt.path])
            question.note, question.problem = note, problem
            self._ask(question)
        question.waits.append(wait)
        self._waiting += 1
        return None

    def refuses(self, attempt: Attempt) -> StandingGrant | None:
        """Return the answer that stays and refuses an *attempt* to anybody, if there is one."""
        standing = self._granted(attempt, 0)
        return standing if standing is not None and not standing.grant.allows else None

    def _times(self) -> tuple[float, float]:
        """The moment at which a question begins, and that at which it ends."""
        now = self._clock()
        return now, now + self._timeout

    def _ask(self, question: PendingQuestion) -> None:
        self._make_room(question.key)
        self._open[question.number] = self._by_key[question.key] = question
        self._record.event("asked", **self._about(question))
        self.begun()
        for tell in self.told:
            tell(question, None)

    def _fullness(self, key: QuestionKey) -> str | None:
        """Say why there is no room for a further question, if so.

        What was asked first stays: no program takes the question that a person reads away by asking on.
        """
        if key in self._by_key:
            return None
        counts = self._shares()
        if counts[key.exe] >= MOST_OF_ONE_PROGRAM:
            return "too many questions of this program wait"
        if len(self._open) >= MOST_QUESTIONS and max(counts.values()) <= counts[key.exe] + 1:
            return "too many questions wait"
        return None

    def _shares(self) -> Counter[str | None]:
        return Counter(question.key.exe for question in self._open.values())

    def _make_room(self, key: QuestionKey) -> None:
        """Refuse the newest question of the program that has the most, where there is no room."""
        counts = self._shares()
        if counts[key.exe] >= MOST_OF_ONE_PROGRAM or len(self._open) >= MOST_QUESTIONS:
            greedy, _ = counts.most_common(1)[0]
            newest = [question for question in self._open.values() if question.key.exe == greedy][-1]
            self._refuse(newest, "too many questions wait")

    # For persons

    def asked(self) -> list[PendingQuestion]:
        """Return the questions that wait, the oldest first."""
        return list(self._open.values())

    def ended(self) -> list[ClosedQuestion]:
        """Return the questions that are over and remembered, those included that nobody was asked."""
        return [*self.over.values(), *self.unasked.values()]

    def find(self, number: int) -> PendingQuestion:
        """Return a question that waits; `UsageError` for one that is over, which tells how."""
        question = self._open.get(number)
        if question is not None:
            return question
        closed = self.over.get(number)
        if closed is None:
            raise UsageError(f"there is no question {number}")
        by = f" by '{closed.by.command}' ({closed.by.pid})" if closed.by is not None else ""
        raise UsageError(
            f"question {number} is over: {closed.outcome.value}{by}", details={"over": over_as_json(closed)}
        )

    def keep_before(self, kept: Iterable[KeptGrant], policy: Policy) -> None:
        """Begin with what was kept in earlier sessions."""
        for one in kept:
            grant = one.in_force(self.next_number(), policy)
            self._grants[grant.number] = StandingGrant(grant, None, self._clock(), kept=one)

    def preview(self, number: int, answer: GivenAnswer) -> Grant:
        """Return the grant that an answer would leave, with an invented number; raise where it is refused."""
        question = self.find(number)
        _check_extent(answer, question)
        self._limit_grants()
        return self._made(0, question, answer)

    def answer(self, number: int, answer: GivenAnswer, kept: KeptGrant | None = None) -> StandingGrant | None:
        """Decide a question; return the grant that stays. The first answer counts."""
        question = self.find(number)
        _check_extent(answer, question)
        if answer.allows or answer.extent is not Extent.ONCE:
            self._limit_grants()
            standing = self._grant(question, answer)
            standing.kept = kept
        else:
            standing = None
        outcome = Outcome.ALLOWED if answer.allows else Outcome.DENIED
        self._record.event(
            "answered",
            **self._about(question),
            decision="allow" if answer.allows else "deny",
            extent=answer.extent.value,
            target=answer.target,
            seconds=round(self._clock() - question.asked_at, 3),
            grant=None if standing is None else standing.grant.number,
            kept=None if kept is None else str(kept.source),
            reason=answer.reason,
            pid=None if answer.by is None else answer.by.pid,
            command=None if answer.by is None else answer.by.command,
        )
        why = answer.reason or ("allowed by a person" if answer.allows else "refused by a person")
        number_of = None if standing is None else standing.grant.number
        verdict = None
        if not answer.allows or answer.extent is Extent.ONCE:
            verdict = _Outcome(answer.allows, question, number_of, why)
        # Otherwise each request looks for the grant, which may be for other paths or programs than its own.
        self._end(question, outcome, verdict, answer.by, answer.reason)
        return standing

    def _grant(self, question: PendingQuestion, answer: GivenAnswer) -> StandingGrant:
        grant = self._made(self.next_number(), question, answer)
        standing = self._grants[grant.number] = StandingGrant(grant, question.number, self._clock())
        self.begun()
        return standing

    def _made(self, number: int, question: PendingQuestion, answer: GivenAnswer) -> Grant:
        return Grant(
            number,
            answer.allows,
            question.attempt.access,
            question.attempt.rule,
            answer.extent,
            answer.target,
            answer.recipient,
            None if answer.during is None else self._clock() + answer.during,
            answer.reason,
        )

    def grant_wish(self, attempt: Attempt) -> StandingGrant:
        """Let a wish stand that a person has without having been asked."""
        self._limit_grants()
        grant = Grant(
            self.next_number(), True, attempt.access, attempt.rule, Extent.PATH, attempt.path, Recipient()
        )
        standing = self._grants[grant.number] = StandingGrant(grant, None, self._clock())
        self.begun()
        return standing

    def drop(self, number: int) -> None:
        """Forget a grant that nothing came of."""
        self._grants.pop(number, None)

    def _limit_grants(self) -> None:
        if sum(standing.question is not None for standing in self._grants.values()) >= MOST_GRANTS:
            raise UsageError(
                f"there are {MOST_GRANTS} grants already", hint="take some back: sandboxfs revoke ID"
            )

    def grants(self) -> list[StandingGrant]:
        return list(self._grants.values())

    def revoke(self, numbers: set[int]) -> list[StandingGrant]:
        """Take grants back; the files that they opened are decided again by `withdrawn`."""
        unknown = numbers - self._grants.keys()
        if unknown:
            raise UsageError(f"there is no grant {min(unknown)}")
        gone = [self._grants.pop(number) for number in sorted(numbers)]
        for standing in gone:
            self._record.event("revoked", **_grant_event(standing))
        if numbers:
            self.withdrawn(numbers)
        return gone

    def follow(self) -> None:
        """Somebody is connected who can be asked."""
        self.followers += 1

    def unfollow(self) -> None:
        """Somebody who could be asked has gone: without any, all that waits is refused."""
        self.followers -= 1
        if not self.followers:
            for question in self.asked():
                self._refuse(question, "nobody is connected who could be asked", Outcome.WITHDRAWN)

    # Events

    def given_up(self, wait: PendingOpen) -> None:
        """A request waits no more: its program was interrupted or ended."""
        self._leave(wait, wait.question)

    def give_up_wish(self, wait: QuestionWait) -> None:
        """Nobody waits for a wish any more."""
        for question in self.asked():
            self._leave(wait, question)

    def _leave(self, wait: QuestionWait, question: PendingQuestion) -> None:
        if wait in question.waits:
            question.waits.remove(wait)
            self._waiting -= 1
            if not question.waits and question.number in self._open:
                self._end(question, Outcome.WITHDRAWN, None, None, "nobody waits for it any more")

    def recheck(self) -> None:
        """Decide everything again that waits: the policy is another one. Equal questions go on."""
        for question in self.asked():
            if isinstance(question.attempt.access, Wish):
                continue
            waits, question.waits = question.waits, []
            self._waiting -= len(waits)
            question.idle_since = self._clock()
            for wait in waits:
                wait.over(None)

    def tick(self) -> None:
        """End what is over by the clock."""
        now = self._clock()
        for question in self.asked():
            if question.idle_since is not None and now - question.idle_since > _LINGERING:
                self._end(question, Outcome.WITHDRAWN, None, None, "nothing asks for it any more")
            elif now >= self._latest(question):
                self._refuse(question, "nobody answered in time", Outcome.TIMEOUT)
        gone = {number for number, standing in self._grants.items() if self._is_over(standing, now)}
        for number in gone:
            self._record.event("grant over", **_grant_event(self._grants.pop(number)))
        if gone:
            self.withdrawn(gone)

    def _latest(self, question: PendingQuestion) -> float:
        """The moment until which a question may wait."""
        latest = question.ends_at()
        if self._longest is not None and question.waits:
            latest = min(latest, min(wait.began for wait in question.waits) + self._longest)
        return latest

    def remaining(self, question: PendingQuestion) -> float | None:
        """Return the seconds that a question has left; None while a person reads it."""
        now = self._clock()
        if question.reading_until is not None and now < question.reading_until:
            return None
        return max(0.0, self._latest(question) - now)

    def seconds_left(self, grant: Grant) -> float | None:
        """Return the seconds that a grant has left; None for one that lasts as long as the session."""
        return None if grant.until is None else max(0.0, grant.until - self._clock())

    def _is_over(self, standing: StandingGrant, now: float) -> bool:
        grant = standing.grant
        if grant.until is not None and now >= grant.until:
            return True
        if grant.extent is Extent.ONCE:
            return standing.open <= 0 and now - standing.since > 5 * _LINGERING
        root = grant.recipient.root
        return root is not None and not self._processes.lives(root)

    @property
    def needs_ticks(self) -> bool:
        """Whether anything is to be ended by the clock."""
        return bool(self._open) or any(_ends_by_itself(one.grant) for one in self._grants.values())

    def end(self) -> None:
        """Refuse everything that waits, and whatever will be asked: the session ends."""
        self._closed = True
        for question in self.asked():
            self._refuse(question, "the session ends", Outcome.ENDED)

    def _refuse(self, question: PendingQuestion, why: str, outcome: Outcome = Outcome.WITHDRAWN) -> None:
        if outcome is not Outcome.ENDED:
            self._record.event("unanswered", **self._about(question), outcome=outcome.value, reason=why)
        verdict = _Outcome(False, question, None, why)
        self._end(question, outcome, verdict, None, why)

    def _end(
        self,
        question: PendingQuestion,
        outcome: Outcome,
        verdict: _Outcome | None,
        by: Answerer | None,
        reason: str | None,
    ) -> None:
        self._open.pop(question.number, None)
        self._by_key.pop(question.key, None)
        closed = ClosedQuestion(question, outcome, by, reason, self._clock())
        self._remember(closed)
        waits, question.waits = question.waits, []
        self._waiting -= len(waits)
        for tell in self.told:
            tell(question, closed)
        for wait in waits:
            wait.over(verdict)

    def _remember(self, closed: ClosedQuestion) -> None:
        self.over[closed.question.number] = closed
        while len(self.over) > _REMEMBERED:
            self.over.popitem(last=False)

    def _about(self, question: PendingQuestion) -> dict[str, object]:
        attempt = question.attempt
        program = question.line[0] if question.line else None
        return {
            "question": question.number,
            "access": attempt.access.value,
            "path": attempt.path,
            "rule": str(attempt.rule),
            **({} if question.note is None else {"note": question.note}),
            "program": None if program is None else program.exe or program.command,
            "program_pid": None if program is None else program.pid,
        }


def _ends_by_itself(grant: Grant) -> bool:
    return grant.until is not None or grant.extent is Extent.ONCE or grant.recipient.root is not None


def _applies(outcome: _Outcome, asked: Asked, attempts: list[Attempt]) -> bool:
    """Tell whether an answer is about what a request is for now: the file may have got another name."""
    shown, attempt = outcome.question.attempt, attempts[0]
    if (attempt.rule, attempt.access, attempt.content) != (shown.rule, shown.access, shown.content):
        return False
    same_file = asked.ino == outcome.question.ino and shown.path in [one.path for one in attempts]
    return same_file or not outcome.allows


def _key(attempt: Attempt, exe: str | None) -> QuestionKey:
    return QuestionKey(attempt.rule, attempt.access, directory_of(attempt.path), exe, attempt.content)


def _check_extent(answer: GivenAnswer, question: PendingQuestion) -> None:
    """Refuse an answer that is not about what was shown."""
    attempt = question.attempt
    if answer.extent is Extent.GLOB:
        probe = Grant(0, True, attempt.access, attempt.rule, Extent.GLOB, answer.target)
        if not probe.names(attempt):
            raise UsageError(f"pattern {quoted(answer.target)} does not match {quoted(attempt.path)}")


def _grant_event(standing: StandingGrant) -> dict[str, object]:
    grant = standing.grant
    return {
        "grant": grant.number,
        "access": grant.access.value,
        "extent": grant.extent.value,
        "target": grant.target,
        "rule": str(grant.rule),
        "hits": standing.hits,
    }


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
