"""A feed tells of questions in their order, forgets those that are over unseen, and ends with its block."""

import json
import os
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from sandboxfs.api.question_feed import Answer, QuestionFeed
from sandboxfs.errors import DaemonLost, UsageError
from sandboxfs.service.questions import (
    OverQuestion,
    QuestionEvent,
    ShownGrant,
    WaitingQuestion,
    question_events,
)
from tests.unit.service.test_questions import QUESTION


class FakeSession:
    """The session behind what is followed: it ends well, or with an error."""

    failure: DaemonLost | None = None

    def check_ended(self) -> None:
        if self.failure is not None:
            raise self.failure


class FakeFollowed:
    """Questions that a test tells of over a socket, one event a line."""

    def __init__(self, told: socket.socket) -> None:
        self.session = FakeSession()
        self.begun: list[QuestionEvent] = []
        self.ended = False
        self._told = told

    def fileno(self) -> int:
        return self._told.fileno()

    def arrived(self) -> Iterator[QuestionEvent]:
        lines = self._told.recv(1 << 18)
        self.ended = not lines
        for line in lines.splitlines():
            yield from question_events(json.loads(line))


class Following:
    """A feed, and the daemon's end of it."""

    def __init__(self) -> None:
        self.telling, told = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.followed = FakeFollowed(told)
        self.answered: list[tuple[int, Answer]] = []
        self.feed = QuestionFeed(self._follow, self._respond)  # type: ignore[arg-type]
        self._taken = threading.Semaphore(0)
        self.feed.when_changed = self._taken.release

    @contextmanager
    def _follow(self) -> Iterator[FakeFollowed]:
        with self.followed._told:
            yield self.followed

    def _respond(self, number: int, answer: Answer) -> ShownGrant | None:
        self.answered.append((number, answer))
        return None

    def tell(self, *events: dict[str, object]) -> None:
        """Tell of events at once, and wait until the feed has them."""
        self.telling.send("\n".join(map(json.dumps, events)).encode())
        assert self._taken.acquire(timeout=60)

    def begin(self) -> None:
        assert self._taken.acquire(timeout=60)


@pytest.fixture
def following() -> Iterator[Following]:
    made = Following()
    with made.telling, made.feed:
        made.begin()
        yield made


def asked(number: int) -> dict[str, object]:
    return {"event": "question", "question": QUESTION | {"id": number}}


def over(number: int) -> dict[str, object]:
    return {"event": "over", "id": number, "outcome": "withdrawn", "by": None, "reason": None}


def test_what_is_over_before_it_was_taken_is_not_told(following: Following) -> None:
    following.tell(asked(1), asked(2), over(1))
    first = following.feed.take()
    assert isinstance(first, WaitingQuestion)
    assert first.id == 2
    assert following.feed.take() is None
    following.tell(over(2), over(7))
    ended = following.feed.take()
    assert isinstance(ended, OverQuestion)
    assert ended.id == 2
    assert following.feed.take() is None


def test_any_number_of_questions_that_nobody_takes_is_kept_in_no_memory(following: Following) -> None:
    for number in range(500):
        following.tell(asked(number), over(number))
    assert following.feed.take() is None
    assert following.feed._events == {}
    assert following.feed._told == set()


def test_iterating_ends_with_the_session_or_with_what_ended_it(following: Following) -> None:
    following.tell(asked(1))
    following.followed.session.failure = DaemonLost("the daemon died")
    following.telling.close()
    assert isinstance(next(following.feed), WaitingQuestion)
    with pytest.raises(DaemonLost, match="died"):
        next(following.feed)


def test_closing_ends_the_iteration_of_another_thread(following: Following) -> None:
    told: list[list[QuestionEvent]] = []
    thread = threading.Thread(target=lambda: told.append(list(following.feed)))
    thread.start()
    following.feed.close()
    thread.join(60)
    assert told == [[]]
    following.feed.close()
    with pytest.raises(UsageError, match="one block"):
        following.feed.__enter__()


def test_no_descriptor_is_left_by_a_feed_that_could_not_be_opened() -> None:
    def fail() -> None:
        raise DaemonLost("nobody serves")

    before = os.listdir("/proc/self/fd")
    feed = QuestionFeed(fail, lambda number, answer: None)  # type: ignore[arg-type]
    with pytest.raises(DaemonLost):
        feed.__enter__()
    assert len(os.listdir("/proc/self/fd")) == len(before)
    with pytest.raises(UsageError, match="in its 'with' block"):
        next(feed)


def test_an_answer_has_its_decision_first_and_the_terms_behind_it() -> None:
    given = Answer("deny", "path", during="30m", reason="use config.example")
    assert (given.decision, given.extent, given.during) == ("deny", "path", "30m")
    assert given.arguments() == {
        "for": "path",
        "during": "30m",
        "program": False,
        "tree": False,
        "reason": "use config.example",
    }
