"""Is what waits for a person asked about once, answered once, and never allowed by accident?"""

from collections import Counter
from collections.abc import Iterator
from itertools import count

import pytest

from sandboxfs.daemon.pending_question import (
    ATTENTION,
    READING,
    ClosedQuestion,
    GivenAnswer,
    Outcome,
    PendingOpen,
    PendingQuestion,
)
from sandboxfs.daemon.program_lookup import ProgramSeen
from sandboxfs.daemon.questions import MOST_OF_ONE_PROGRAM, MOST_QUESTIONS, MOST_WAITING, Questions
from sandboxfs.errors import UsageError
from sandboxfs.overlay.asking import Asked, Verdict
from sandboxfs.overlay.filesystem import AnonymousCaller, Caller, Postponed
from sandboxfs.policy.grants import Extent, ProcessMark
from sandboxfs.policy.model import Access, Decision, Mode, Rule, RuleSource, SourceKind

RULE = Rule("**/.env*", Mode.ASK, RuleSource(SourceKind.COMMAND_LINE))
DECISION = Decision.by(RULE)
READ = Access.READ


class Running:
    """Processes that a test makes up: each thread is a process of its own, a child of process 1."""

    def __init__(self) -> None:
        self.exes: dict[int, str] = {}
        self.alive = True

    def exe(self, thread: int) -> str | None:
        return self.exes.get(thread, "/usr/bin/cat")

    def line(self, thread: int) -> list[ProgramSeen]:
        return [ProgramSeen(pid, pid, self.exe(pid), "cat") for pid in (thread, 1)]

    def marks(self, thread: int) -> tuple[ProcessMark, ...]:
        return ProcessMark(thread, thread), ProcessMark(1, 1)

    def lives(self, mark: ProcessMark) -> bool:
        return self.alive


class Recorded(list[str]):
    def event(self, event: str, **details: object) -> None:
        self.append(event)


class Session:
    """A queue with somebody connected, a clock, and a guard that asks."""

    def __init__(self, *, timeout: float = 60, kernel_limit: float | None = None) -> None:
        self.now = 0.0
        self.processes = Running()
        self.recorded = Recorded()
        self.withdrawn: list[set[int]] = []
        self.reasons: list[str] = []
        self.told: list[tuple[int, Outcome | None]] = []
        self.queue = Questions(
            self.processes,
            self.recorded,
            "/workspace",
            lambda: self.now,
            timeout=timeout,
            kernel_limit=kernel_limit,
        )
        self.queue.grants.withdrawn = self.withdrawn.append
        self.queue.explain = lambda path, access, why, question: self.reasons.append(why)
        self.queue.told.append(self._tell)
        self.queue.follow()
        self.again: list[PendingOpen] = []

    def _tell(self, question: PendingQuestion, closed: ClosedQuestion | None) -> None:
        self.told.append((question.number, None if closed is None else closed.outcome))

    def open(
        self, path: str = "a/.env", thread: int = 7, caller: Caller | None = None, content: str | None = None
    ) -> Verdict | PendingOpen:
        """Open a file whose inode is told by its path."""
        asked = Asked(READ, hash(path), (path.encode(),), DECISION, content)
        try:
            return self.queue.permit(asked, caller or AnonymousCaller(1, 1, thread))
        except Postponed as postponed:
            wait = postponed.wait
            assert isinstance(wait, PendingOpen)
            wait.when_over(lambda: self.again.append(wait))
            return wait

    def resumed(self) -> Iterator[Verdict | PendingOpen]:
        """Make every request again whose wait is over."""
        waits, self.again = self.again, []
        for wait in waits:
            yield self.open(wait.asked.paths[0].decode(), caller=wait.caller)

    def question(self) -> PendingQuestion:
        (question,) = self.queue.asked()
        return question

    def answer(self, allows: bool, extent: Extent = Extent.ONCE, target: str = "a/.env") -> int | None:
        standing = self.queue.answer(self.question().number, GivenAnswer(allows, extent, target))
        return None if standing is None else standing.grant.number


@pytest.fixture
def session() -> Session:
    return Session()


def test_equal_questions_are_one_and_the_shown_path_is_answered(session: Session) -> None:
    for number in range(100):
        session.open(f"a/.env{number}", thread=10 + number)
    question = session.question()
    assert (question.attempt.path, len(question.paths), len(question.waits)) == ("a/.env0", 100, 100)
    assert len(session.told) == 1
    session.queue.answer(question.number, GivenAnswer(True, Extent.PATH, "a/.env0"))
    outcomes = list(session.resumed())
    assert [one for one in outcomes if isinstance(one, Verdict)] == outcomes[:1]
    assert session.question().attempt.path == "a/.env1"


def test_a_refusal_is_for_all_that_waits(session: Session) -> None:
    session.open("a/.env1")
    session.open("a/.env2")
    session.answer(False)
    assert [one.allows for one in session.resumed() if isinstance(one, Verdict)] == [False, False]
    assert session.queue.grants.in_force() == []


def test_a_file_that_got_another_name_is_asked_about_again(session: Session) -> None:
    wait = session.open("a/.env")
    assert isinstance(wait, PendingOpen)
    session.answer(True)
    renamed = session.open("a/.env.renamed", caller=wait.caller)
    assert isinstance(renamed, PendingOpen)
    assert session.question().attempt.path == "a/.env.renamed"


def test_another_file_under_the_shown_name_is_asked_about_again(session: Session) -> None:
    wait = session.open("a/.env")
    assert isinstance(wait, PendingOpen)
    session.answer(True)
    asked = Asked(READ, 4711, (b"a/.env",), DECISION)
    with pytest.raises(Postponed):
        session.queue.permit(asked, wait.caller)


def test_the_first_answer_counts_and_a_late_one_is_told(session: Session) -> None:
    session.open()
    number = session.question().number
    session.answer(True)
    with pytest.raises(UsageError, match="is over: allowed") as refused:
        session.queue.answer(number, GivenAnswer(False))
    assert refused.value.details["over"]
    with pytest.raises(UsageError, match="there is no question"):
        session.queue.answer(4711, GivenAnswer(True))


def test_time_out_and_nobody_connected_refuse(session: Session) -> None:
    session.open()
    session.now = 59.9
    session.queue.tick()
    assert session.again == []
    session.now = 60
    session.queue.tick()
    assert [one.allows for one in session.resumed() if isinstance(one, Verdict)] == [False]
    session.open()
    session.queue.unfollow()
    assert [one.allows for one in session.resumed() if isinstance(one, Verdict)] == [False]
    assert session.open() == Verdict(False, None)
    assert session.queue.asked() == []
    assert session.reasons[-1] == "nobody is connected who could be asked"


def test_the_clock_stops_while_a_person_reads_but_not_for_ever(session: Session) -> None:
    session.open()
    session.now = 50
    session.question().read(session.now)
    assert session.queue.remaining(session.question()) is None
    session.now = 90
    session.queue.tick()
    session.question().unread(session.now)
    assert session.queue.remaining(session.question()) == 10
    # Each sign of a person begins a minute anew, and all minutes together are ten.
    for _ in range(100):
        session.question().read(session.now)
        if session.queue.remaining(session.question()) is not None:
            break
        session.now += ATTENTION / 3
        session.queue.tick()
    assert session.now == 50 + READING
    assert session.queue.remaining(session.question()) == 10
    session.now += 10
    session.queue.tick()
    assert session.queue.asked() == []


def test_the_clock_goes_on_when_a_person_gives_no_sign_any_more(session: Session) -> None:
    session.open()
    session.now = 50
    session.question().read(session.now)
    session.now += ATTENTION + 4
    session.queue.tick()
    assert session.queue.remaining(session.question()) == 6
    session.question().read(session.now)
    session.now += ATTENTION
    assert session.queue.remaining(session.question()) == 6
    session.now += 6
    session.queue.tick()
    assert session.queue.asked() == []


def test_no_request_waits_as_long_as_the_kernel_allows() -> None:
    session = Session(timeout=60, kernel_limit=50)
    wait = session.open()
    assert isinstance(wait, PendingOpen)
    assert session.queue.remaining(session.question()) == 40
    session.question().read(session.now)
    session.now = 30
    # Asked about again under another name: the request has waited for thirty seconds already.
    session.answer(True)
    session.open("a/.env2", caller=wait.caller)
    assert session.queue.remaining(session.question()) == 10
    # However long a person reads.
    session.question().read(session.now)
    session.now = 40
    session.queue.tick()
    assert session.queue.asked() == []


def test_what_is_given_up_leaves_the_queue(session: Session) -> None:
    one, other = session.open(thread=1), session.open(thread=2)
    assert isinstance(one, PendingOpen)
    assert isinstance(other, PendingOpen)
    one.give_up()
    assert len(session.question().waits) == 1
    other.give_up()
    assert session.queue.asked() == []
    assert session.told[-1][1] is Outcome.WITHDRAWN
    assert session.again == []


def test_a_changed_policy_has_everything_decided_again_and_equal_questions_go_on(session: Session) -> None:
    session.open("a/.env")
    session.open("b/.env")
    numbers = [question.number for question in session.queue.asked()]
    session.now = 10
    session.queue.recheck()
    first, _ = session.again
    session.open("a/.env", caller=first.caller)
    session.now = 11
    session.queue.tick()
    # The other rule does not ask any more.
    assert [question.number for question in session.queue.asked()] == numbers[:1]
    assert session.queue.remaining(session.question()) == 49
    assert session.told[-1] == (numbers[1], Outcome.WITHDRAWN)


def test_a_program_that_asks_on_takes_no_question_away_from_the_person(session: Session) -> None:
    session.open("first/.env")
    for number in range(10 * MOST_QUESTIONS):
        session.open(f"{number}/.env")
    asked = session.queue.asked()
    assert len(asked) == MOST_OF_ONE_PROGRAM
    assert asked[0].attempt.path == "first/.env"
    assert session.reasons[-1] == "too many questions of this program wait"
    # An equal one is that one, and other programs have their share.
    assert isinstance(session.open("first/.env", thread=8), PendingOpen)
    session.processes.exes[9] = "/bin/other"
    assert isinstance(session.open("other/.env", thread=9), PendingOpen)


def test_where_all_places_are_taken_the_program_that_has_the_most_loses_its_newest(session: Session) -> None:
    programs = MOST_QUESTIONS // MOST_OF_ONE_PROGRAM
    for program in range(programs):
        session.processes.exes[program] = f"/bin/{program}"
        for number in range(MOST_OF_ONE_PROGRAM):
            session.open(f"{number}/.env", thread=program)
    assert len(session.queue.asked()) == MOST_QUESTIONS
    session.processes.exes[99] = "/bin/modest"
    for number in range(10 * MOST_QUESTIONS):
        session.open(f"{number}/.env", thread=99)
    shares = Counter(question.key.exe for question in session.queue.asked())
    assert sum(shares.values()) == MOST_QUESTIONS
    assert max(shares.values()) - min(shares.values()) <= 1
    assert {question.attempt.path for question in session.queue.asked()} >= {"0/.env"}


def test_the_queue_is_bounded(session: Session) -> None:
    serial = count()
    for number in range(10 * MOST_QUESTIONS):
        session.open(f"{number}/.env", thread=next(serial))
    assert len(session.queue.asked()) == MOST_OF_ONE_PROGRAM
    for number in range(10 * MOST_QUESTIONS):
        session.processes.exes[number] = f"/bin/{number}"
        session.open("a/.env", thread=number)
    assert len(session.queue.asked()) == MOST_QUESTIONS
    for _ in range(2 * MOST_WAITING):
        session.open("a/.env", thread=0)
    assert sum(len(question.waits) for question in session.queue.asked()) == MOST_WAITING
    assert len(session.queue.over) <= 200
    session.queue.end()
    assert session.queue.asked() == []
    assert isinstance(session.open(), Verdict)


def test_many_refusals_with_nobody_there_are_remembered_within_bounds(session: Session) -> None:
    session.queue.unfollow()
    for number in range(5000):
        session.open(f"{number % 1000}/.env")
    assert len(session.queue.unasked) == 200
    assert len(session.queue.over) == 0


def test_questions_answers_and_grants_are_recorded(session: Session) -> None:
    session.open()
    number = session.answer(True, Extent.PATH)
    assert number is not None
    session.queue.grants.revoke({number})
    session.open()
    session.now = 100
    session.queue.tick()
    assert session.recorded == ["asked", "answered", "revoked", "asked", "unanswered"]
