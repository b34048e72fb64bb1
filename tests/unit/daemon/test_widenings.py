"""Does a request for a directory become one question, and what is granted be shown by every run?"""

import json
from collections.abc import AsyncGenerator, Awaitable, Callable
from pathlib import Path
from typing import cast

import pytest
import trio
import trio.testing

from sandboxfs.control.control_socket import Request
from sandboxfs.daemon.control_peers import Peer
from sandboxfs.daemon.pending_question import GivenAnswer, Outcome
from sandboxfs.daemon.questions import Questions
from sandboxfs.daemon.widenings import MOST_RUNS, PostponedAnswer, Widenings
from sandboxfs.errors import SandboxBusy, UsageError
from sandboxfs.overlay.filesystem import AnonymousCaller, Postponed
from sandboxfs.policy.grants import Extent
from tests.unit.daemon.test_questions import Recorded, Running

CALLER = AnonymousCaller(1, 1, 7)
SOMEBODY = Peer(1, 0, 0)
Events = AsyncGenerator[dict[str, object], None]
Answer = dict[str, object]


class Session:
    """The widenings of a session that somebody follows; `runs` are connected."""

    def __init__(self, tmp_path: Path) -> None:
        self.recorded = Recorded()
        self.workspace = tmp_path / "workspace"
        self.library = tmp_path / "library"
        for path in (self.workspace, self.library):
            path.mkdir()
        self.processes = Running()
        self.queue = Questions(
            self.processes, self.recorded, str(self.workspace), trio.current_time, timeout=60
        )
        self.queue.follow()
        self.widenings = Widenings(self.queue, self.recorded, self.workspace)
        self.queue.grants.withdrawn = self.widenings.withdrawn
        self.runs: list[Run] = []

    def submit(
        self, path: Path | str | None = None, mode: str = "rw", caller: AnonymousCaller = CALLER
    ) -> Answer:
        line = json.dumps({"path": str(path or self.library), "mode": mode, "reason": "because"})
        return cast(Answer, json.loads(self.widenings.submit(line.encode(), caller)))

    def report(self, number: object) -> Answer:
        text = self.widenings.report(cast(int, number))
        assert text is not None
        return cast(Answer, json.loads(text))

    def answer(self, allows: bool, extent: Extent = Extent.PATH) -> None:
        (question,) = self.queue.asked()
        self.queue.answer(question.number, GivenAnswer(allows, extent, question.attempt.path, reason="so"))

    def wait(self, number: object) -> PostponedAnswer:
        with pytest.raises(Postponed) as postponed:
            self.widenings.answer(cast(int, number), CALLER)
        wait = postponed.value.wait
        assert isinstance(wait, PostponedAnswer)
        return wait

    def play(self, scenario: Callable[[], Awaitable[None]], *, asking: bool = True) -> None:
        """Play a scenario, while requests are *asking* a person."""

        async def main() -> None:
            async with trio.open_nursery() as nursery:
                if asking:
                    nursery.start_soon(self.widenings.run)
                try:
                    with trio.fail_after(30):
                        await scenario()
                finally:
                    for run in self.runs:
                        await run.events.aclose()
                    nursery.cancel_scope.cancel()

        trio.run(main)

    async def until(self, number: object, state: str) -> Answer:
        """Wait until a request has come to a state."""
        while self.report(number)["state"] != state:
            await trio.testing.wait_all_tasks_blocked(0.005)
        return self.report(number)

    async def until_asked(self) -> None:
        while not self.queue.asked():
            await trio.testing.wait_all_tasks_blocked(0.005)

    async def run(self, obstacle: str | None = None) -> "Run":
        request = Request(1, "widenings", {"obstacle": obstacle})
        run = Run(self.widenings, cast(Events, self.widenings.follow(request, SOMEBODY)))
        await run.begin()
        self.runs.append(run)
        return run


class Run:
    """A run that follows."""

    def __init__(self, widenings: Widenings, events: Events) -> None:
        self._widenings = widenings
        self.events = events
        self.number: object = 0

    async def begin(self) -> None:
        first = await anext(self.events)
        assert first["event"] == "begin"
        self.number = first["run"]

    async def does(self, kind: str, problem: str | None = None) -> Answer:
        """Wait for something to do, and say how it went."""
        event = await anext(self.events)
        assert event["event"] == kind
        self.say(event["id"], problem)
        return event

    def say(self, number: object, problem: str | None = None) -> None:
        about = {"run": self.number, "id": number, "problem": problem}
        self._widenings.widened(Request(1, "widened", about), SOMEBODY)


@pytest.fixture
def session(tmp_path: Path) -> Session:
    return Session(tmp_path)


def test_what_is_granted_is_shown_by_every_run_one_after_the_other(session: Session) -> None:
    async def main() -> None:
        first, second = await session.run(), await session.run()
        number = session.submit()["id"]
        over: list[bool] = []
        session.wait(number).when_over(lambda: over.append(True))
        await session.until_asked()
        (question,) = session.queue.asked()
        assert (question.number, question.note) == (number, "because")
        session.answer(True)
        assert session.report(number)["state"] == "allowed"
        told = await first.does("widen")
        assert (told["path"], told["mode"]) == (str(session.library), "rw")
        assert over == []
        await second.does("widen")
        await session.until(number, "granted")
        assert over == [True]
        # The same again needs nobody.
        again = session.submit()["id"]
        await session.until(again, "granted")
        (standing,) = session.queue.grants.in_force()
        session.queue.grants.revoke({standing.grant.number})
        async with trio.open_nursery() as nursery:
            nursery.start_soon(first.does, "narrow")
            nursery.start_soon(second.does, "narrow")
            await session.widenings.settled()
        assert session.report(number)["state"] == "revoked"

    session.play(main)
    assert session.recorded == ["asked", "answered", "widened", "revoked", "narrowed"]


def test_what_no_run_could_show_is_told_and_no_grant_is_left(session: Session) -> None:
    async def main() -> None:
        run = await session.run()
        number = session.submit()["id"]
        await session.until_asked()
        session.answer(True)
        await run.does("widen", "it is in the way")
        assert (await session.until(number, "failed"))["reason"] == "it is in the way"
        assert session.queue.grants.in_force() == []

    session.play(main)


def test_a_run_that_ends_is_not_waited_for(session: Session) -> None:
    async def main() -> None:
        run = await session.run()
        number = session.submit()["id"]
        await session.until_asked()
        session.answer(True)
        await anext(run.events)
        await run.events.aclose()
        assert (await session.until(number, "failed"))["reason"] == "the run has ended"

    session.play(main)


@pytest.mark.parametrize(("extent", "asked"), [(Extent.ONCE, 1), (Extent.PATH, 0)])
def test_a_refusal_for_once_is_for_once(session: Session, extent: Extent, asked: int) -> None:
    async def main() -> None:
        await session.run()
        number = session.submit()["id"]
        await session.until_asked()
        session.answer(False, extent)
        assert session.report(number)["state"] == "denied"
        assert session.report(number)["reason"] == "so"
        again = session.submit()["id"]
        if asked:
            await session.until_asked()
        else:
            await session.until(again, "denied")

    session.play(main)


def test_equal_requests_are_one_and_the_number_of_others_is_bounded(session: Session) -> None:
    async def main() -> None:
        await session.run()
        assert len({session.submit()["id"] for _ in range(10)}) == 1
        assert session.submit(mode="ro")["id"] != session.submit()["id"]
        # Nothing looks at them: they stay undecided, until there are too many.
        for number in range(14):
            session.submit(f"/srv/{number}")
        with pytest.raises(BlockingIOError):
            session.submit("/srv/more")
        for thread in range(100, 116):
            session.processes.exes[thread] = f"/bin/{thread}"
            session.submit(f"/srv/{thread}", caller=AnonymousCaller(1, 1, thread))
        with pytest.raises(BlockingIOError):
            session.submit("/srv/another", caller=AnonymousCaller(1, 1, 8))
        assert len(session.widenings.numbers()) == 32

    session.play(main, asking=False)


def test_what_is_over_is_forgotten_in_the_end(session: Session) -> None:
    async def main() -> None:
        await session.run()
        for number in range(1000):
            session.submit(session.workspace / str(number))
        assert len(session.widenings.numbers()) <= 201

    session.play(main, asking=False)


def test_with_nobody_to_ask_or_nothing_to_show_it_to_it_is_refused_at_once(session: Session) -> None:
    async def main() -> None:
        assert "in a plain mount" in str(session.submit()["reason"])
        await session.run("the program is confined with Landlock")
        told = session.submit()
        assert told["state"] == "failed"
        option = f"to have it in the next run: --allow '{session.library}:rw'"
        assert told["reason"] == f"the program is confined with Landlock; {option}"
        await session.run()
        session.queue.unfollow()
        assert session.submit()["state"] == "withdrawn"
        # A program that asks all the time pushes nothing out of the log.
        assert session.recorded == []

    session.play(main, asking=False)


def test_a_wait_that_is_given_up_is_forgotten(session: Session) -> None:
    async def main() -> None:
        await session.run()
        number = session.submit()["id"]
        wait = session.wait(number)
        assert wait.caller == CALLER
        other = session.wait(number)
        wait.give_up()
        assert session.report(number)["state"] == "waiting"
        other.give_up()
        assert wait.request.waits == []
        assert session.report(number)["state"] == "withdrawn"
        with pytest.raises(OSError, match="Stale"):
            session.widenings.answer(12345, CALLER)

    session.play(main, asking=False)


def test_what_nobody_waits_for_any_more_is_not_asked_any_more(session: Session) -> None:
    async def main() -> None:
        await session.run()
        number = session.submit()["id"]
        await session.until_asked()
        session.wait(number).give_up()
        assert session.queue.asked() == []
        assert session.report(number)["state"] == "withdrawn"
        # Where nobody has waited, somebody may come and look.
        number = session.submit()["id"]
        await session.until_asked()
        await trio.testing.wait_all_tasks_blocked(0.05)
        assert len(session.queue.asked()) == 1

    session.play(main)


def test_a_person_shows_a_directory_without_a_question(session: Session) -> None:
    async def main() -> None:
        about = {"path": str(session.library), "mode": "ro"}
        request = Request(1, "widen", about)
        with pytest.raises(UsageError, match="cannot be shown now"):
            await session.widenings.widen(request, SOMEBODY)
        run = await session.run()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(run.does, "widen")
            answer = await session.widenings.widen(request, SOMEBODY)
        assert answer == {"grant": session.queue.grants.in_force()[0].grant.number, **about}
        # A second time there is nothing to do.
        assert await session.widenings.widen(request, SOMEBODY) == answer
        for wrong in ({"path": "relative"}, {"path": "/srv/.."}, {"path": "/srv", "mode": "hide"}):
            with pytest.raises(UsageError, match="absolute path"):
                await session.widenings.widen(Request(1, "widen", wrong), SOMEBODY)

    session.play(main)


def test_only_what_was_told_is_answered_and_only_so_many_runs_follow(session: Session) -> None:
    async def main() -> None:
        run = await session.run()
        with pytest.raises(UsageError):
            run.say(99)
        for _ in range(MOST_RUNS - 1):
            await session.run()
        with pytest.raises(SandboxBusy):
            await session.run()

    session.play(main, asking=False)


def test_the_question_of_a_request_waits_through_a_change_of_the_policy(session: Session) -> None:
    async def main() -> None:
        await session.run()
        number = session.submit()["id"]
        await session.until_asked()
        session.queue.recheck()
        session.queue.tick()
        assert [question.number for question in session.queue.asked()] == [number]
        session.queue.end()
        assert session.report(number)["state"] == Outcome.ENDED.value

    session.play(main)
