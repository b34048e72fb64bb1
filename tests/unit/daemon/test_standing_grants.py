"""Does an answer that stays decide for those who were meant, as long as was meant, and for nothing else?"""

import pytest

from sandboxfs.daemon.pending_question import GivenAnswer, PendingOpen
from sandboxfs.daemon.standing_grants import MOST_GRANTS
from sandboxfs.errors import UsageError
from sandboxfs.overlay.asking import Verdict
from sandboxfs.policy.grants import Audience, Extent, ProcessMark, Recipient
from tests.unit.daemon.test_questions import DECISION, READ, Session


@pytest.fixture
def session() -> Session:
    return Session()


def test_an_answer_for_once_allows_what_waits_and_nothing_after(session: Session) -> None:
    assert isinstance(session.open(), PendingOpen)
    session.answer(True)
    (verdict,) = session.resumed()
    assert isinstance(verdict, Verdict)
    assert verdict.allows
    assert verdict.grant is not None
    session.queue.opened(verdict.grant)
    assert isinstance(session.open(), PendingOpen)
    assert session.queue.stands(verdict.grant, DECISION, READ)
    session.queue.closed(verdict.grant)
    assert not session.queue.stands(verdict.grant, DECISION, READ)


def test_grants_are_for_those_who_were_meant_and_end_with_them(session: Session) -> None:
    session.processes.exes[8] = "/usr/bin/less"
    session.open(thread=7)
    root = ProcessMark(7, 7)
    session.queue.answer(
        session.question().number,
        GivenAnswer(True, Extent.PATH, "a/.env", recipient=Recipient(Audience.TREE, root=root)),
    )
    assert [one.allows for one in session.resumed() if isinstance(one, Verdict)] == [True]
    assert isinstance(session.open(thread=8), PendingOpen)
    session.processes.alive = False
    session.queue.tick()
    assert session.queue.grants.in_force() == []
    assert session.withdrawn != []


def test_a_grant_runs_out_and_can_be_taken_back(session: Session) -> None:
    session.open()
    session.queue.answer(session.question().number, GivenAnswer(True, Extent.PATH, "a/.env", during=30))
    (verdict,) = session.resumed()
    assert isinstance(verdict, Verdict)
    assert verdict.grant is not None
    session.queue.opened(verdict.grant)
    session.now = 30
    assert isinstance(session.open(), PendingOpen)
    session.queue.tick()
    assert session.withdrawn == [{verdict.grant}]
    number = session.answer(True, Extent.DIRECTORY, "a")
    assert number is not None
    session.queue.grants.revoke({number})
    assert session.withdrawn[-1] == {number}
    with pytest.raises(UsageError, match="no grant"):
        session.queue.grants.revoke({number})


def test_no_content_comes_under_a_name_that_was_granted_or_is_asked_about(session: Session) -> None:
    assert session.queue.keeps_apart(b"a/.env2", b"b/.env")
    session.open("a/.env")
    assert not session.queue.keeps_apart(b"a/.env2", b"a/.env")
    assert not session.queue.keeps_apart(b"b/.env", b"a/.env2")
    assert session.queue.keeps_apart(b"a/.env", b"a/.env2")
    session.answer(True, Extent.PATH)
    list(session.resumed())
    assert not session.queue.keeps_apart(b"a/.env2", b"a/.env")
    assert session.queue.keeps_apart(b"b/.env", b"a/.env2")


def test_an_answer_by_pattern_is_about_what_was_shown(session: Session) -> None:
    session.open()
    with pytest.raises(UsageError, match="does not match"):
        session.answer(True, Extent.GLOB, "b/**")
    session.answer(True, Extent.GLOB, "a/**")
    assert [one.allows for one in session.resumed() if isinstance(one, Verdict)] == [True]


def test_no_more_grants_than_a_person_can_look_through_are_given(session: Session) -> None:
    session.open()
    attempt = session.question().attempt
    for _ in range(MOST_GRANTS):
        session.queue.grants.add(attempt, GivenAnswer(True, Extent.PATH, "a/.env"), 1, None)
    with pytest.raises(UsageError, match="grants already"):
        session.answer(True)
    # The question waits on, and can be refused.
    session.answer(False)
    assert len(session.queue.grants.in_force()) == MOST_GRANTS
