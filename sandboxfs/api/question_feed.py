"""Question feed: the questions of a sandbox as they come and go, for a Python program that answers them.

    with sandbox.follow() as feed:
        for event in feed:
            if isinstance(event, WaitingQuestion):
                feed.answer(event, Answer("allow", "path", during="30m"))

The program counts as somebody who can be asked from the beginning of the block to its end, however the block
or the process ends. A thread takes what the daemon tells, so that a program which thinks for long is not let
go by the daemon; a question that is over before the program has seen it is not told at all, so that no
number of questions fills the memory.

`QuestionHandler` calls a function with each question, in a thread of its own.
"""

import logging
import os
import select
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, suppress
from dataclasses import dataclass
from types import TracebackType
from typing import Literal

from sandboxfs.api.arguments import check_kind, failures
from sandboxfs.errors import SandboxError, UsageError
from sandboxfs.runs.running_program import Program
from sandboxfs.service.questions import (
    AnswerTerms,
    FollowedQuestions,
    QuestionEvent,
    ShownGrant,
    WaitingQuestion,
    over_of,
)

log = logging.getLogger("sandboxfs")

AnswerWord = Literal["allow", "deny"]
_DECISIONS = ("allow", "deny")
# Seconds for which the end of a program waits for a function that still thinks about a question.
_PATIENCE = 1.0


@dataclass(frozen=True)
class _Decided:
    decision: AnswerWord


# The base that has the decision comes last: a dataclass has the fields of its last base first.
@dataclass(frozen=True)
class Answer(AnswerTerms, _Decided):
    """An answer to a question: "allow" or "deny", for which paths, for how long, for whom, and why.

    *extent* is `once`, `path`, `directory`, `content` (of a new program), or a pattern as in rules. *during*
    is `session`, or a time as `90s`, `30m` or `2h`. With *program* it is for the executable that asks only;
    with *tree* for the process that asks and its children, or for one of its parents, by its number. The
    program that asks can read the *reason*.
    """

    def __post_init__(self) -> None:
        if self.decision not in _DECISIONS:
            raise UsageError(f"expected {' or '.join(_DECISIONS)}, found {self.decision!r}")
        check_kind("extent", self.extent, str)
        check_kind("during", self.during, str)
        check_kind("program", self.program, bool)
        check_kind("tree", self.tree, int)
        if self.reason is not None:
            check_kind("reason", self.reason, str)
        self.checked()


OnQuestion = Callable[[WaitingQuestion], Answer | AnswerWord | None]
"""Is called with each question; None leaves the question to others."""
Respond = Callable[[int, Answer], ShownGrant | None]
Follow = Callable[[], AbstractContextManager[FollowedQuestions]]


def answer_of(given: Answer | AnswerWord) -> Answer:
    """Return the answer that a caller gave, perhaps as one word."""
    return given if isinstance(given, Answer) else Answer(given)


def number_of(question: WaitingQuestion | int) -> int:
    """Return the number of a question, or of what a caller gave as one."""
    number = question.id if isinstance(question, WaitingQuestion) else question
    if not isinstance(number, int) or isinstance(number, bool):
        raise UsageError(f"question: expected a question or its number, found {type(number).__name__}")
    return number


def note_failure(error: BaseException, failure: BaseException | None) -> None:
    """Add to *error*, which goes before it, that a function which was to answer questions failed as well."""
    if failure is not None:
        error.add_note(f"on_question failed besides: {type(failure).__name__}: {failure}")


class QuestionFeed:
    """The questions of a sandbox while its block lasts: an iterator over those that begin and that end.

    Iterating waits for the next event, and ends when the session ends, or when `close` is called from another
    thread. Any thread may answer.
    """

    def __init__(self, follow: Follow, respond: Respond) -> None:
        """Feeds are made by `Sandbox.follow`."""
        self._follow = follow
        self._respond = respond
        self._open = ExitStack()
        self._wake = -1
        self._followed: FollowedQuestions | None = None
        self._thread: threading.Thread | None = None
        self._changed = threading.Condition()
        self._events: dict[int, QuestionEvent] = {}
        self._told: set[int] = set()
        self._ended = True
        self._failure: BaseException | None = None
        # Called, in the thread of the feed, when there is something to take.
        self.when_changed: Callable[[], None] = lambda: None

    def __enter__(self) -> "QuestionFeed":
        if self._followed is not None:
            raise UsageError("the questions are followed already: a feed has one block")
        with failures("follow the questions"), ExitStack() as stack:
            self._wake = os.eventfd(0, os.EFD_CLOEXEC)
            stack.callback(os.close, self._wake)
            self._followed = stack.enter_context(self._follow())
            self._ended = False
            self._thread = threading.Thread(
                target=self._read, args=(self._followed,), name="sandboxfs-questions", daemon=True
            )
            self._thread.start()
            self._open = stack.pop_all()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Be nobody who can be asked any more. May be called twice, and from any thread."""
        with self._changed:
            opened, self._open = self._open, ExitStack()
            thread, self._thread = self._thread, None
        if thread is not None:
            os.eventfd_write(self._wake, 1)
            thread.join()
        opened.close()

    def leave_to_parent(self) -> None:
        """Have a process that was forked from this one not count as somebody who can be asked."""
        # Another thread may have held the lock.
        self._changed = threading.Condition()
        self._thread, self._ended = None, True
        self._open.close()

    def answer(self, question: WaitingQuestion | int, answer: Answer | AnswerWord) -> ShownGrant | None:
        """Answer a question, as `Sandbox.answer` does."""
        return self._respond(number_of(question), answer_of(answer))

    def __iter__(self) -> Iterator[QuestionEvent]:
        return self

    def __next__(self) -> QuestionEvent:
        with self._changed:
            while True:
                event = self.take()
                if event is not None:
                    return event
                if self.ended:
                    raise StopIteration
                self._changed.wait()

    def take(self) -> QuestionEvent | None:
        """Return the next event without waiting; None where there is none now."""
        with self._changed:
            for number in self._events:
                event = self._events.pop(number)
                if isinstance(event, WaitingQuestion):
                    self._told.add(number)
                return event
        return None

    @property
    def ended(self) -> bool:
        """Whether nothing more will come; raises what ended the feed before its time."""
        if self._followed is None:
            raise UsageError("the questions are not followed: use the feed in its 'with' block")
        if self._ended and self._failure is not None:
            raise self._failure
        return self._ended

    def _read(self, followed: FollowedQuestions) -> None:
        try:
            with failures("follow the questions"):
                self._take_all(followed)
        except SandboxError as error:
            self._failure = error
        finally:
            with self._changed:
                self._ended = True
                self._changed.notify_all()
            self.when_changed()

    def _take_all(self, followed: FollowedQuestions) -> None:
        waiting = select.poll()
        waiting.register(followed, select.POLLIN)
        waiting.register(self._wake, select.POLLIN)
        self._arrived(iter(followed.begun))
        while not followed.ended:
            if any(descriptor == self._wake for descriptor, _ in waiting.poll()):
                return
            self._arrived(followed.arrived())
        followed.session.check_ended()

    def _arrived(self, events: Iterator[QuestionEvent]) -> None:
        with self._changed:
            for event in events:
                if isinstance(event, WaitingQuestion):
                    self._events.setdefault(event.id, event)
                elif event.id in self._told:
                    self._told.discard(event.id)
                    self._events[event.id] = event
                else:
                    self._events.pop(event.id, None)
            self._changed.notify_all()
        self.when_changed()


class QuestionHandler:
    """Calls a function with each question of a feed, in a thread of its own, until `end`."""

    def __init__(self, feed: QuestionFeed, on_question: OnQuestion) -> None:
        """Follow *feed*, whose block is entered here, and have *on_question* answer."""
        if not callable(on_question):
            raise UsageError(f"on_question: expected a function, found {type(on_question).__name__}")
        self._feed = feed
        self._on_question = on_question
        self._lock = threading.Lock()
        self._failure: BaseException | None = None
        self._has_ended = False
        feed.__enter__()
        self._thread = threading.Thread(target=self._run, name="sandboxfs-on-question", daemon=True)
        self._thread.start()

    def end(self) -> BaseException | None:
        """Ask no more, and return what the function raised first; what it raises from now on is logged.

        A function that is still at a question is waited for a moment only: nobody waits for its answer.
        """
        self._feed.close()
        self._thread.join(_PATIENCE)
        with self._lock:
            self._has_ended = True
            return self._failure

    def end_with(self, program: Program) -> None:
        """End when *program* has ended; what the function raised is logged."""

        def wait() -> None:
            with suppress(SandboxError):
                program.wait()
            failure = self.end()
            if failure is not None:
                self._failed(failure)

        threading.Thread(target=wait, name="sandboxfs-program", daemon=True).start()

    def _run(self) -> None:
        try:
            for event in self._feed:
                if isinstance(event, WaitingQuestion):
                    self._ask(event)
        except SandboxError as error:
            # The feed broke down: from now on nobody is asked.
            self._failed(error)

    def _ask(self, question: WaitingQuestion) -> None:
        try:
            given = self._on_question(question)
            if given is not None:
                self._feed.answer(question, given)
        except Exception as error:
            if not (isinstance(error, UsageError) and over_of(error) is not None):
                self._failed(error)

    def _failed(self, error: BaseException) -> None:
        with self._lock:
            if self._failure is None and not self._has_ended:
                self._failure = error
                return
        log.error("on_question failed", exc_info=error)
