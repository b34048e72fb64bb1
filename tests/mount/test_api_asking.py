"""Questions from Python: followed, answered, granted, and handled while a program runs."""

import asyncio
import json
import logging
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from sandboxfs import (
    Answer,
    AsyncSandbox,
    DaemonLost,
    OverQuestion,
    QuestionFeed,
    Sandbox,
    TimedOut,
    UsageError,
    WaitingQuestion,
)
from sandboxfs.api.sandbox import PIPE
from tests.support import runs
from tests.support.asked import soon
from tests.support.tree import Tree, build

pytestmark = pytest.mark.any_user

RULES = ["**/.env*=ask"]


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    files: Tree = {
        ".env": "SECRET=1\n",
        ".env.local": "SECRET=2\n",
        "config/.env": "SECRET=3\n",
        "plain": "plain\n",
    }
    return build(tmp_path / "workspace", files)


def asking(workspace: Path) -> Sandbox:
    return Sandbox(workspace, rules=RULES, ephemeral=True)


def test_a_feed_tells_of_questions_and_of_their_end_and_answers_leave_grants(workspace: Path) -> None:
    with asking(workspace) as sandbox:
        with sandbox.follow() as feed, sandbox.popen(["cat", ".env"], stdout=PIPE) as program:
            question = next(feed)
            assert isinstance(question, WaitingQuestion)
            assert (question.path, question.access, str(question.rule)) == (".env", "read", "**/.env* = ask")
            assert question.program.command == "cat"
            assert [one.id for one in sandbox.questions()] == [question.id]
            grant = feed.answer(question, Answer("allow", "path", during="30m"))
            assert grant is not None
            over = next(feed)
            assert isinstance(over, OverQuestion)
            assert (over.id, over.outcome) == (question.id, "allowed")
            assert over.by is not None
            assert over.by.pid == os.getpid()
            assert program.communicate() == (b"SECRET=1\n", None)
            with pytest.raises(UsageError) as late:
                sandbox.answer(question.id, "deny")
            assert isinstance(late.value.details["over"], dict)
        (kept,) = sandbox.grants()
        assert (kept.id, kept.extent, kept.path) == (grant.id, "path", ".env")
        assert sandbox.run(["cat", ".env"], capture_output=True).stdout == "SECRET=1\n"
        assert [one.id for one in sandbox.revoke(grant)] == [grant.id]
        assert sandbox.grants() == sandbox.revoke() == ()
        assert sandbox.run(["cat", ".env"], capture_output=True).returncode == 1


def test_whoever_follows_counts_as_somebody_exactly_for_the_block(workspace: Path) -> None:
    with asking(workspace) as sandbox:
        feed = sandbox.follow()
        with pytest.raises(UsageError, match="in its 'with' block"):
            next(feed)
        assert sandbox.run(["cat", ".env"], capture_output=True).returncode == 1
        with feed, sandbox.popen(["cat", ".env"], stderr=PIPE) as program:
            assert isinstance(next(feed), WaitingQuestion)
            assert program.poll() is None
            feed.close()
            assert program.wait() == 1
        assert list(feed) == []
        assert sandbox.run(["cat", ".env"], capture_output=True).returncode == 1


def test_the_end_of_the_block_of_the_sandbox_ends_its_feeds(workspace: Path) -> None:
    with asking(workspace) as sandbox:
        feed = sandbox.follow().__enter__()
        told: list[object] = []
        thread = threading.Thread(target=lambda: told.append(list(feed)))
        thread.start()
    thread.join(runs.PATIENCE)
    assert told == [[]]


def test_a_lost_daemon_is_an_error_of_the_feed(workspace: Path) -> None:
    with asking(workspace) as sandbox, sandbox.follow() as feed:
        os.kill(_daemon(sandbox), signal.SIGKILL)
        with pytest.raises(DaemonLost):
            next(feed)


def _daemon(sandbox: Sandbox) -> int:
    status = subprocess.check_output(
        [sys.executable, "-m", "sandboxfs", "list", "--json"], text=True, timeout=runs.PATIENCE
    )
    (pid,) = [one["pid"] for one in json.loads(status)["sandboxes"] if one["name"] == sandbox.name]
    return int(pid)


def test_a_function_answers_while_a_program_runs(workspace: Path) -> None:
    asked: list[tuple[str, bool]] = []

    def on_question(question: WaitingQuestion) -> Answer | None:
        asked.append((question.path, threading.current_thread() is threading.main_thread()))
        match question.path:
            case ".env":
                return Answer("allow")
            case ".env.local":
                return Answer("deny", reason="use config.example")
            case _:
                return Answer("allow", "directory")

    with asking(workspace) as sandbox:
        script = "cat .env; cat .env.local; cat config/.env config/.env"
        done = sandbox.run(["sh", "-c", script], capture_output=True, on_question=on_question)
        assert done.stdout == "SECRET=1\nSECRET=3\nSECRET=3\n"
        assert asked == [(".env", False), (".env.local", False), ("config/.env", False)]
        assert "use config.example" in (sandbox.view / ".sandboxfs/denials").read_text()
        (denied,) = sandbox.denials()
        assert (denied.path, denied.reason) == (".env.local", "use config.example")
        assert denied.sentence.endswith(": 'use config.example'")
        # Nobody is connected any more.
        assert sandbox.run(["cat", ".env"], capture_output=True).returncode == 1


class Failing:
    """A function that raises for every question."""

    def __init__(self) -> None:
        self.asked = threading.Event()

    def __call__(self, question: WaitingQuestion) -> None:
        self.asked.set()
        raise LookupError(question.path)

    def allow_afterwards(self, feed: QuestionFeed) -> None:
        """Allow the first question of *feed*; an answer that came earlier would leave nothing to ask here."""
        question = _first(feed)
        assert self.asked.wait(runs.PATIENCE)
        feed.answer(question, "allow")


def test_what_a_function_raises_answers_nothing_and_is_raised_in_the_end(workspace: Path) -> None:
    failing = Failing()
    with asking(workspace) as sandbox:
        with sandbox.follow() as feed:
            thread = threading.Thread(target=failing.allow_afterwards, args=(feed,))
            thread.start()
            with pytest.raises(LookupError, match=r"\.env"):
                sandbox.run(["sh", "-c", "cat .env > copy"], on_question=failing)
            thread.join()
        assert (sandbox.view / "copy").read_text() == "SECRET=1\n"


def _first(feed: object) -> WaitingQuestion:
    question = next(feed)  # type: ignore[call-overload]
    assert isinstance(question, WaitingQuestion)
    return question


def test_what_a_function_leaves_alone_others_answer(workspace: Path) -> None:
    with asking(workspace) as sandbox, sandbox.follow() as feed:
        program = sandbox.popen(["cat", ".env"], stdout=PIPE, on_question=lambda question: None)
        feed.answer(_first(feed), "allow")
        assert program.communicate()[0] == b"SECRET=1\n"


def test_the_function_of_a_started_program_ends_with_it_and_its_failure_is_logged(
    workspace: Path, caplog: pytest.LogCaptureFixture
) -> None:
    failing = Failing()
    with asking(workspace) as sandbox:
        with sandbox.follow() as feed:
            program = sandbox.popen(["cat", ".env"], stdout=PIPE, on_question=failing)
            failing.allow_afterwards(feed)
            assert program.communicate()[0] == b"SECRET=1\n"
        soon(lambda: "on_question failed" in caplog.text)
        assert caplog.records[-1].levelno == logging.ERROR
        assert sandbox.run(["cat", ".env"], capture_output=True).returncode == 1


def test_a_function_that_never_answers_does_not_keep_a_program_from_its_time_limit(workspace: Path) -> None:
    forever = threading.Event()

    def think(question: WaitingQuestion) -> None:
        forever.wait()

    with asking(workspace) as sandbox:
        with pytest.raises(TimedOut):
            sandbox.run(["cat", ".env"], timeout=1, on_question=think)
        forever.set()

        def fail(question: WaitingQuestion) -> None:
            raise LookupError(question.path)

        with pytest.raises(TimedOut) as late:
            sandbox.run(["cat", ".env"], timeout=4, on_question=fail)
        assert late.value.__notes__ == ["on_question failed besides: LookupError: .env"]


@pytest.mark.parametrize(
    "terms",
    [
        {"decision": "perhaps"},
        {"decision": "allow", "during": "soon"},
        {"decision": "allow", "extent": 3},
        {"decision": "deny", "reason": b"no"},
        {"decision": "allow", "program": 1},
    ],
)
def test_an_answer_that_makes_no_sense_is_refused(terms: dict[str, object]) -> None:
    with pytest.raises(UsageError):
        Answer(**terms)  # type: ignore[arg-type]


def test_questions_outside_a_block_and_wrong_arguments_are_usage_errors(workspace: Path) -> None:
    sandbox = asking(workspace)
    for call in (sandbox.questions, sandbox.follow, sandbox.grants, sandbox.revoke, sandbox.held):
        with pytest.raises(UsageError, match="not open"):
            call()
    with sandbox:
        for wrong in (
            lambda: sandbox.answer(1, "allow"),
            lambda: sandbox.answer("1", "allow"),  # type: ignore[arg-type]
            lambda: sandbox.answer(1, "perhaps"),  # type: ignore[arg-type]
            lambda: sandbox.revoke(7),
            lambda: sandbox.revoke("7"),  # type: ignore[arg-type]
            lambda: sandbox.run(["true"], on_question="ask"),  # type: ignore[arg-type]
        ):
            with pytest.raises(UsageError):
                wrong()


FOLLOWER = """
import os, sys, time
from sandboxfs import Sandbox
with Sandbox.open(sys.argv[1]) as sandbox, sandbox.follow() as feed:
    # A process that was forked does not count as somebody who can be asked.
    if os.fork() == 0:
        time.sleep(1000)
    print("follows", flush=True)
    for event in feed:
        print(event.path, flush=True)
"""


@contextmanager
def another_follower(sandbox: Sandbox) -> Iterator["subprocess.Popen[str]"]:
    """Another process that follows the questions of *sandbox*, with a process that was forked from it."""
    command = [sys.executable, "-c", FOLLOWER, sandbox.name]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "follows\n"
            yield process
        finally:
            os.killpg(process.pid, signal.SIGKILL)


def test_when_the_only_follower_is_killed_what_waits_is_refused_at_once(workspace: Path) -> None:
    with (
        asking(workspace) as sandbox,
        another_follower(sandbox) as follower,
        sandbox.popen(["cat", ".env"], stderr=PIPE) as program,
    ):
        assert follower.stdout is not None
        assert follower.stdout.readline() == ".env\n"
        follower.kill()
        assert program.wait(runs.PATIENCE) == 1
        assert sandbox.questions() == ()


def test_when_one_of_two_followers_is_killed_the_question_goes_on(workspace: Path) -> None:
    with (
        asking(workspace) as sandbox,
        another_follower(sandbox) as follower,
        sandbox.follow() as feed,
        sandbox.popen(["cat", ".env"], stdout=PIPE) as program,
    ):
        question = _first(feed)
        assert follower.stdout is not None
        assert follower.stdout.readline() == ".env\n"
        follower.kill()
        follower.wait()
        assert [one.id for one in sandbox.questions()] == [question.id]
        feed.answer(question, "allow")
        assert program.communicate()[0] == b"SECRET=1\n"


def test_held_changes_are_listed_approved_and_rejected(workspace: Path) -> None:
    with Sandbox(workspace, rules=["config=hold", ".env=ask"], ephemeral=True) as sandbox:
        sandbox.run(["sh", "-c", "echo x > config/.env; echo x > config/new; echo x >> .env; echo x > free"])
        assert {change.path for change in sandbox.held()} == {"config/.env", "config/new", ".env"}
        sandbox.approve("config/new")
        sandbox.reject("config/.env")
        assert {change.path for change in sandbox.held()} == {".env"}
        sandbox.commit()
        assert (workspace / "config/new").read_text() == "x\n"
        assert (workspace / "config/.env").read_text() == "SECRET=3\n"
        assert (workspace / ".env").read_text() == "SECRET=1\n"


def test_with_asyncio_questions_are_followed_and_answered(workspace: Path) -> None:
    async def use() -> None:
        async with AsyncSandbox(asking(workspace)) as sandbox:
            async with sandbox.follow() as feed:
                running = asyncio.create_task(sandbox.run(["cat", ".env"], capture_output=True))
                async for event in feed:
                    if isinstance(event, OverQuestion):
                        break
                    assert [one.id for one in await sandbox.questions()] == [event.id]
                    await feed.answer(event, Answer("allow", "path"))
                assert (await running).stdout == b"SECRET=1\n"
            assert len(await sandbox.grants()) == 1
            assert len(await sandbox.revoke()) == 1
            assert await sandbox.held() == ()

            async def answer(question: WaitingQuestion) -> Answer | None:
                await asyncio.sleep(0)
                return Answer("allow") if question.path == ".env" else None

            done = await sandbox.run(["cat", ".env"], capture_output=True, on_question=answer)
            assert done.stdout == b"SECRET=1\n"
            program = await sandbox.popen(["cat", ".env"], stdout=PIPE, on_question=answer)
            assert program.stdout is not None
            assert await program.stdout.read() == b"SECRET=1\n"
            assert await program.wait() == 0

    asyncio.run(use())


def test_with_asyncio_a_cancelled_wait_for_questions_ends_the_connection(workspace: Path) -> None:
    async def use() -> None:
        async with AsyncSandbox(asking(workspace)) as sandbox:
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.3), sandbox.follow() as feed:
                    await anext(feed)
            assert (await sandbox.run(["cat", ".env"], capture_output=True)).returncode == 1

            async def think(question: WaitingQuestion) -> None:
                await asyncio.Event().wait()

            with pytest.raises(TimeoutError):
                async with asyncio.timeout(1):
                    await sandbox.run(["cat", ".env"], on_question=think)

            async def fail(question: WaitingQuestion) -> Answer | None:
                await sandbox.answer(question, "deny")
                raise LookupError(question.path)

            with pytest.raises(LookupError, match=r"\.env"):
                await sandbox.run(["cat", ".env"], capture_output=True, on_question=fail)

    asyncio.run(use())
