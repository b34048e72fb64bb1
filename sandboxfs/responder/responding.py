"""Responding: which questions are put to the command and the webhook, when, and what their answers become.

A question is put to both at once where both are configured, and the first answer counts, a failure included:
what fails answers no. Few are asked at a time, and few in a second: a program that asks a thousand questions
makes nobody start a thousand commands. What is not asked in time is refused by the daemon.
"""

import logging
import os
import select
import time
from collections.abc import Callable

from sandboxfs.control.control_socket import DaemonBug
from sandboxfs.errors import DaemonLost, SandboxError, UsageError
from sandboxfs.paths import quoted
from sandboxfs.responder.answer_object import NoAnswer, ProgramAnswer, read_answer
from sandboxfs.responder.asked_process import AskedProcess
from sandboxfs.service.questions import (
    AnswerTerms,
    FollowedQuestions,
    OverQuestion,
    QuestionEvent,
    event_line,
    over_of,
)

MOST_AT_ONCE = 4
"""Processes of each kind at once."""
MOST_A_SECOND, MOST_IN_A_BURST = 10.0, 20.0
"""Processes of each kind that are started."""

log = logging.getLogger("sandboxfs.responder")


class Asking:
    """One way to ask, called *who* in reasons: the questions that wait for it, and those it works on."""

    def __init__(self, who: str, start: Callable[[bytes], AskedProcess], now: float) -> None:
        self.who = who
        self.start = start
        self.waiting: dict[int, bytes] = {}
        self.running: dict[int, AskedProcess] = {}
        self._allowance = MOST_IN_A_BURST
        self._at = now

    def pause(self, now: float) -> float | None:
        """Return the seconds until a process may be started; None when only an event allows one."""
        if not self.waiting or len(self.running) >= MOST_AT_ONCE:
            return None
        self._allowance = min(MOST_IN_A_BURST, self._allowance + (now - self._at) * MOST_A_SECOND)
        self._at = now
        return max(0.0, (1.0 - self._allowance) / MOST_A_SECOND)

    def spend(self) -> None:
        self._allowance -= 1.0


class Responding:
    """What is asked in one session, by *ways* to ask; *ended* is readable when the session is over."""

    def __init__(self, ways: list[Asking], ended: int) -> None:
        self._ways = ways
        self._ended = ended
        self._poll = select.poll()
        self._poll.register(ended, select.POLLIN)
        self._watched: dict[int, tuple[Asking, int, AskedProcess]] = {}
        self._known: set[int] = set()
        # Killed, and not gone yet: a program may be stuck where nothing ends it.
        self._dying: set[int] = set()
        self._over = False

    def close(self) -> None:
        """Kill everything that is asked."""
        for number in list(self._known):
            self._forget(number)

    def serve(self, followed: FollowedQuestions) -> None:
        """Answer questions until the session is over, or the connection ends."""
        self._poll.register(followed, select.POLLIN)
        try:
            for number in self._known - {event.id for event in followed.begun}:
                self._forget(number)
            for event in followed.begun:
                self._told(event)
            while not (followed.ended or self._over):
                pause = self._start(followed)
                for descriptor, _ in self._poll.poll(None if pause is None else pause * 1000):
                    self._happened(descriptor, followed)
                self._dying = {pid for pid in self._dying if not _is_gone(pid)}
        finally:
            self._poll.unregister(followed)

    def _happened(self, descriptor: int, followed: FollowedQuestions) -> None:
        if descriptor == self._ended:
            self._over = True
        elif descriptor == followed.fileno():
            for event in followed.arrived():
                self._told(event)
        elif descriptor in self._watched:
            # Otherwise it was ended by what happened before.
            self._moved(descriptor, *self._watched[descriptor], followed)

    def _told(self, event: QuestionEvent) -> None:
        if isinstance(event, OverQuestion):
            self._forget(event.id)
        elif event.id not in self._known:
            self._known.add(event.id)
            line = event_line(event).encode() + b"\n"
            for way in self._ways:
                way.waiting[event.id] = line

    def _start(self, followed: FollowedQuestions) -> float | None:
        """Ask what may be asked now; return after how many seconds to look again."""
        for way in self._ways:
            while way.pause(time.monotonic()) == 0.0:
                number, line = next(iter(way.waiting.items()))
                del way.waiting[number]
                way.spend()
                try:
                    process = way.start(line)
                except OSError as error:
                    log.warning("question %d: cannot start a process: %s", number, error.strerror)
                    self._give(number, f"{way.who} cannot be asked now", followed)
                    continue
                way.running[number] = process
                for descriptor in (process.ended, process.answer, process.complaints):
                    self._poll.register(descriptor, select.POLLIN)
                    self._watched[descriptor] = (way, number, process)
        pauses = [way.pause(time.monotonic()) for way in self._ways]
        return min((pause for pause in pauses if pause is not None), default=None)

    def _moved(
        self, descriptor: int, way: Asking, number: int, process: AskedProcess, followed: FollowedQuestions
    ) -> None:
        try:
            if descriptor == process.complaints:
                if not process.read_complaints():
                    self._unwatch(descriptor)
            elif descriptor == process.answer:
                if not process.read_answer():
                    self._unwatch(descriptor)
            else:
                self._give(number, read_answer(process.result()), followed, way.who)
        except NoAnswer as error:
            reason = f"{way.who} {error}"
            said = process.complained()
            log.warning("question %d: %s%s", number, reason, f": {quoted(said)}" if said else "")
            self._give(number, reason, followed)

    def _give(
        self, number: int, answer: ProgramAnswer | str, followed: FollowedQuestions, who: str = ""
    ) -> None:
        """Answer a question; a text is the reason of a denial."""
        self._forget(number)
        if isinstance(answer, str):
            answer = ProgramAnswer("deny", AnswerTerms(reason=answer))
            who = ""
        try:
            followed.session.answer(number, answer.decision, answer.terms)
        except (UsageError, DaemonBug) as error:
            if isinstance(error, UsageError) and over_of(error) is not None:
                # Somebody else was faster.
                return
            log.warning("question %d: the daemon refuses the answer: %s", number, error)
            if who:
                self._give(number, f"{who} gave an answer that does not fit the question", followed)
        except DaemonLost:
            # The connection that is followed ends, too.
            return
        except SandboxError as error:
            log.warning("question %d: cannot answer: %s", number, error.message)

    def _forget(self, number: int) -> None:
        """End whatever is asked about a question."""
        self._known.discard(number)
        for way in self._ways:
            way.waiting.pop(number, None)
            process = way.running.pop(number, None)
            if process is not None:
                for descriptor in (process.ended, process.answer, process.complaints):
                    self._unwatch(descriptor)
                process.kill()
                self._dying.add(process.pid)

    def _unwatch(self, descriptor: int) -> None:
        if self._watched.pop(descriptor, None) is not None:
            self._poll.unregister(descriptor)


def _is_gone(pid: int) -> bool:
    return os.waitpid(pid, os.WNOHANG)[0] == pid
