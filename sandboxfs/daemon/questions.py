"""Questions: the queue of what waits for a person, and what an answer does to it.

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
from collections.abc import Callable

from sandboxfs.control.request_limit import SHARE
from sandboxfs.daemon.pending_question import (
    AnsweredCaller,
    Answerer,
    ClosedQuestion,
    GivenAnswer,
    Outcome,
    PendingOpen,
    PendingQuestion,
    QuestionKey,
    QuestionVerdict,
    QuestionWait,
    over_as_json,
)
from sandboxfs.daemon.program_lookup import Processes, ProgramSeen
from sandboxfs.daemon.standing_grants import Record, StandingGrant, StandingGrants
from sandboxfs.errors import UsageError
from sandboxfs.overlay.asking import Asked, Verdict
from sandboxfs.overlay.filesystem import Caller, Postponed
from sandboxfs.policy.grants import Attempt, Extent, KeptGrant, Wish, directory_of, is_in
from sandboxfs.policy.model import Access, Decision

# Questions at once, of which each program has a share; requests that wait, and paths shown of one question.
MOST_QUESTIONS, MOST_OF_ONE_PROGRAM = 64, 16
MOST_WAITING = 1024
_PATHS = 100
# Questions that are over and can still be looked at.
_REMEMBERED = 200
# Seconds for which a question without requests is kept.
_LINGERING = 0.2


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
        self.grants = StandingGrants(processes, record, root, clock, self.next_number)
        self._serial = 0
        self._closed = False
        self.followers = 0
        self.over: OrderedDict[int, ClosedQuestion] = OrderedDict()
        # Refused without a question, because nobody could be asked.
        self.unasked: OrderedDict[Attempt, ClosedQuestion] = OrderedDict()
        # Told of questions that begin and end; called when there is something for the clock to end.
        self.told: list[Callable[[PendingQuestion, ClosedQuestion | None], None]] = []
        self.begun: Callable[[], None] = lambda: None
        # Called with the path, the access and the reason of a refusal, before it is recorded.
        self.explain: Callable[[bytes, Access, str, int | None], None] = lambda *about: None

    # For the guard

    def permit(self, asked: Asked, caller: Caller) -> Verdict:
        attempts = [self._attempt(asked, path) for path in asked.paths]
        waited = caller.waited if isinstance(caller, AnsweredCaller) else None
        if waited is not None and waited.verdict is not None:
            outcome = waited.verdict
            if outcome.applies(asked, attempts):
                return self._told(asked, outcome.allows, outcome.grant, outcome.why, waited.question.number)
        found = [self.grants.deciding(attempt, caller.pid) for attempt in attempts]
        refusing = next((one for one in found if one is not None and not one.grant.allows), None)
        if refusing is not None:
            refusing.hits += 1
            why = refusing.grant.reason or "refused by an answer that stays"
            return self._told(asked, False, refusing.grant.number, why, refusing.question)
        if found and None not in found and found[0] is not None:
            found[0].hits += 1
            return Verdict(True, found[0].grant.number)
        unanswered = attempts[found.index(None)]
        objection = self.objection() or self._fullness(
            QuestionKey.of(unanswered, self._processes.exe(caller.pid))
        )
        if objection is not None:
            number = self._note_refusal(asked, attempts[0], objection)
            return self._told(asked, False, None, objection, number)
        raise Postponed(self._enqueue(asked, unanswered, caller, waited))

    def opened(self, grant: int) -> None:
        self.grants.opened(grant)

    def closed(self, grant: int) -> None:
        self.grants.closed(grant)

    def stands(self, grant: int, decision: Decision, access: Access) -> bool:
        return self.grants.stands(grant, decision, access)

    @property
    def has_spoken(self) -> bool:
        return self.grants.exist or bool(self._open)

    def keeps_apart(self, old: bytes, new: bytes) -> bool:
        before, after = os.fsdecode(old), os.fsdecode(new)
        for question in self._open.values():
            if isinstance(question.attempt.access, Wish):
                continue
            shown, directory = question.attempt.path, directory_of(question.attempt.path)
            if before != shown == after or (is_in(after, directory) and not is_in(before, directory)):
                return False
        return self.grants.keep_apart(before, after)

    def _attempt(self, asked: Asked, path: bytes) -> Attempt:
        rule = asked.decision.rule_for(asked.access)
        return Attempt(asked.access, rule, os.fsdecode(path), self._root, asked.content)

    def objection(self) -> str | None:
        """Say why nobody can be asked anything, if so."""
        if self._closed:
            return "the session ends"
        if not self.followers:
            return "nobody is connected who could be asked"
        if sum(len(question.waits) for question in self._open.values()) >= MOST_WAITING:
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
            key = QuestionKey.of(attempt, None)
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
        key = QuestionKey.of(attempt, exe)
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
        wait = PendingOpen(question, asked, began, plain, self._given_up)
        question.waits.append(wait)
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
        return None

    def _times(self) -> tuple[float, float]:
        """The moment at which a question begins, and that at which it ends."""
        now = self._clock()
        return now, now + self._timeout

    def _ask(self, question: PendingQuestion) -> None:
        self._make_room(question.key)
        self._open[question.number] = self._by_key[question.key] = question
        self._record.event("asked", **question.as_event())
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

    def answer(self, number: int, answer: GivenAnswer, kept: KeptGrant | None = None) -> StandingGrant | None:
        """Decide a question; return the grant that stays. The first answer counts."""
        question = self.find(number)
        standing = None
        if answer.allows or answer.extent is not Extent.ONCE:
            standing = self.grants.add(question.attempt, answer, number, kept)
            self.begun()
        outcome = Outcome.ALLOWED if answer.allows else Outcome.DENIED
        self._record.event(
            "answered",
            **question.as_event(),
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
            verdict = QuestionVerdict(answer.allows, question, number_of, why)
        # Otherwise each request looks for the grant, which may be for other paths or programs than its own.
        self._end(question, outcome, verdict, answer.by, answer.reason)
        return standing

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

    def _given_up(self, wait: PendingOpen) -> None:
        """A request waits no more: its program was interrupted or ended."""
        self._leave(wait, wait.question)

    def give_up_wish(self, wait: QuestionWait) -> None:
        """Nobody waits for a wish any more."""
        for question in self.asked():
            self._leave(wait, question)

    def _leave(self, wait: QuestionWait, question: PendingQuestion) -> None:
        if wait in question.waits:
            question.waits.remove(wait)
            if not question.waits and question.number in self._open:
                self._end(question, Outcome.WITHDRAWN, None, None, "nobody waits for it any more")

    def recheck(self) -> None:
        """Decide everything again that waits: the policy is another one. Equal questions go on."""
        for question in self.asked():
            if isinstance(question.attempt.access, Wish):
                continue
            waits, question.waits = question.waits, []
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
        self.grants.tick()

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

    @property
    def needs_ticks(self) -> bool:
        """Whether anything is to be ended by the clock."""
        return bool(self._open) or self.grants.need_ticks

    def end(self) -> None:
        """Refuse everything that waits, and whatever will be asked: the session ends."""
        self._closed = True
        for question in self.asked():
            self._refuse(question, "the session ends", Outcome.ENDED)

    def _refuse(self, question: PendingQuestion, why: str, outcome: Outcome = Outcome.WITHDRAWN) -> None:
        if outcome is not Outcome.ENDED:
            self._record.event("unanswered", **question.as_event(), outcome=outcome.value, reason=why)
        verdict = QuestionVerdict(False, question, None, why)
        self._end(question, outcome, verdict, None, why)

    def _end(
        self,
        question: PendingQuestion,
        outcome: Outcome,
        verdict: QuestionVerdict | None,
        by: Answerer | None,
        reason: str | None,
    ) -> None:
        self._open.pop(question.number, None)
        self._by_key.pop(question.key, None)
        closed = ClosedQuestion(question, outcome, by, reason, self._clock())
        self.over[question.number] = closed
        while len(self.over) > _REMEMBERED:
            self.over.popitem(last=False)
        waits, question.waits = question.waits, []
        for tell in self.told:
            tell(question, closed)
        for wait in waits:
            wait.over(verdict)
