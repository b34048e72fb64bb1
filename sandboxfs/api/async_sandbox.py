"""The Python API for asyncio: the same blocks and programs, whose cancellation ends the program.

    async with AsyncSandbox(Sandbox("~/projects/app")) as sandbox:
        done = await sandbox.run(["make", "test"])

Each call is made in a thread of its own, so that as many programs run at once as are wanted. A call that
reads or changes the sandbox is completed before its cancellation is told: none is left half done.
"""

import asyncio
import subprocess
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import IO, TypeVar

from sandboxfs.api.arguments import Words
from sandboxfs.api.question_feed import Answer, AnswerWord, QuestionFeed, QuestionHandler, note_failure
from sandboxfs.api.sandbox import DEVNULL, PIPE, ConflictWord, Sandbox
from sandboxfs.runs.run import Change
from sandboxfs.runs.run_views import Denied
from sandboxfs.runs.running_program import Program, Stream
from sandboxfs.service.questions import QuestionEvent, ShownGrant, WaitingQuestion

_T = TypeVar("_T")

AsyncOnQuestion = Callable[[WaitingQuestion], Awaitable[Answer | AnswerWord | None]]
"""Is awaited with each question in the caller's loop; None leaves the question to others."""


class AsyncProgram:
    """A confined program, as `asyncio.subprocess.Process` has one."""

    def __init__(
        self,
        program: Program,
        stdin: asyncio.StreamWriter | None,
        stdout: asyncio.StreamReader | None,
        stderr: asyncio.StreamReader | None,
    ) -> None:
        """Watch *program*; programs are started by `AsyncSandbox.popen`."""
        self._program = program
        self.stdin = stdin
        self.stdout = stdout
        self.stderr = stderr

    @property
    def returncode(self) -> int | None:
        """The program's status, 128 and its number for a signal; None while it runs."""
        return self._program.returncode

    async def wait(self) -> int:
        """Wait until the program and all that it started have ended; cancelled, end the program."""
        return await _ending(self._program, self._program.wait)

    def send_signal(self, number: int) -> None:
        """Send the program a signal, as `Program.send_signal` does."""
        self._program.send_signal(number)

    def terminate(self) -> None:
        """Send the program SIGTERM."""
        self._program.terminate()

    def kill(self) -> None:
        """End the program with all that it started, whatever it does against it."""
        self._program.kill()


class AsyncQuestionFeed:
    """The questions of a sandbox as they come and go, as `QuestionFeed` gives them: `async for`."""

    def __init__(self, feed: QuestionFeed) -> None:
        """Feeds are made by `AsyncSandbox.follow`."""
        self._feed = feed
        self._changed = asyncio.Event()

    async def __aenter__(self) -> "AsyncQuestionFeed":
        loop = asyncio.get_running_loop()

        def tell() -> None:
            # The loop may have ended before the feed.
            with suppress(RuntimeError):
                loop.call_soon_threadsafe(self._changed.set)

        self._feed.when_changed = tell
        entering = _called(self._feed.__enter__)
        try:
            await asyncio.shield(entering)
        except asyncio.CancelledError:
            await _settled(entering)
            await _whole(self._feed.close)
            raise
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await _whole(self._feed.close)

    def __aiter__(self) -> AsyncIterator[QuestionEvent]:
        return self

    async def __anext__(self) -> QuestionEvent:
        while True:
            # First: what comes from now on sets it again.
            self._changed.clear()
            event = self._feed.take()
            if event is not None:
                return event
            if self._feed.ended:
                raise StopAsyncIteration
            await self._changed.wait()

    async def answer(self, question: WaitingQuestion | int, answer: Answer | AnswerWord) -> ShownGrant | None:
        """Answer a question, as `Sandbox.answer` does."""
        return await _whole(lambda: self._feed.answer(question, answer))


class AsyncSandbox:
    """A sandbox of one workspace, as `Sandbox` is, for programs that use asyncio."""

    def __init__(self, sandbox: Sandbox) -> None:
        """Use *sandbox*, whose own block must not be entered: `AsyncSandbox(Sandbox("~/projects/app"))`."""
        self._sandbox = sandbox

    async def __aenter__(self) -> "AsyncSandbox":
        entering = _called(self._sandbox.__enter__)
        try:
            await asyncio.shield(entering)
        except asyncio.CancelledError:
            await _settled(entering)
            await _whole(self._sandbox.close)
            raise
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await _whole(self._sandbox.close)

    @property
    def name(self) -> str:
        """What the sandbox is called, for the verbs of the command line."""
        return self._sandbox.name

    @property
    def view(self) -> Path:
        """Where the view can be looked at from outside."""
        return self._sandbox.view

    @property
    def warnings(self) -> tuple[str, ...]:
        """Say what about the policy or the confinement may not be meant as it is."""
        return self._sandbox.warnings

    async def run(
        self,
        command: Sequence[Words],
        *,
        cwd: Words | None = None,
        env: Mapping[str, str] | None = None,
        input: bytes | None = None,  # noqa: A002 - as in subprocess
        capture_output: bool = False,
        check: bool = False,
        on_question: AsyncOnQuestion | None = None,
    ) -> "subprocess.CompletedProcess[bytes]":
        """Run *command* as `Sandbox.run` does, with bytes; cancelled, end it with all that it started.

        For a time limit, surround it with `asyncio.timeout`. *on_question* is a coroutine function.
        """
        pipe = PIPE if capture_output else None
        stdin = DEVNULL if input is None else PIPE
        async with self._asking(on_question):
            program = await self._started(command, cwd, env, stdin, pipe, pipe)
            try:
                output = await _ending(program, lambda: program.communicate(input))
                done = subprocess.CompletedProcess(list(program.command), program.wait(), *output)
            finally:
                program.close()
        if check:
            done.check_returncode()
        return done

    async def popen(
        self,
        command: Sequence[Words],
        *,
        cwd: Words | None = None,
        env: Mapping[str, str] | None = None,
        stdin: Stream = DEVNULL,
        stdout: Stream = None,
        stderr: Stream = None,
        on_question: AsyncOnQuestion | None = None,
    ) -> AsyncProgram:
        """Start *command* as `Sandbox.popen` does; pipes are streams of asyncio.

        *on_question* is a coroutine function; what it raises is logged.
        """
        handler = None if on_question is None else await self._handler(_InLoop(on_question))
        try:
            program = await self._started(command, cwd, env, stdin, stdout, stderr)
        except BaseException:
            if handler is not None:
                await _whole(handler.end)
            raise
        if handler is not None:
            handler.end_with(program)
        return AsyncProgram(
            program,
            None if program.stdin is None else await _writer(program.stdin),
            None if program.stdout is None else await _reader(program.stdout),
            None if program.stderr is None else await _reader(program.stderr),
        )

    async def _started(
        self,
        command: Sequence[Words],
        cwd: Words | None,
        env: Mapping[str, str] | None,
        stdin: Stream,
        stdout: Stream,
        stderr: Stream,
    ) -> Program:
        def start() -> Program:
            return self._sandbox.popen(command, cwd=cwd, env=env, stdin=stdin, stdout=stdout, stderr=stderr)

        starting = _called(start)
        try:
            return await asyncio.shield(starting)
        except asyncio.CancelledError:
            await _settled(starting)
            if not starting.cancelled() and starting.exception() is None:
                program = starting.result()
                program.kill()
                await _whole(program.close)
            raise

    async def _handler(self, asking: "_InLoop") -> QuestionHandler:
        starting = _called(lambda: QuestionHandler(self._sandbox.follow(), asking.call))
        try:
            return await asyncio.shield(starting)
        except asyncio.CancelledError:
            await _settled(starting)
            if not starting.cancelled() and starting.exception() is None:
                await _whole(starting.result().end)
            raise

    @asynccontextmanager
    async def _asking(self, on_question: AsyncOnQuestion | None) -> AsyncIterator[None]:
        """Have *on_question* answer, and raise in the end what it raised."""
        if on_question is None:
            yield
            return
        asking = _InLoop(on_question)
        handler = await self._handler(asking)
        try:
            yield
        except BaseException as error:
            asking.cancel()
            note_failure(error, await _whole(handler.end))
            raise
        asking.cancel()
        failure = await _whole(handler.end)
        if failure is not None:
            raise failure

    async def changes(self) -> tuple[Change, ...]:
        """Return what the sandbox has changed, sorted by path."""
        return await _whole(self._sandbox.changes)

    async def denials(self) -> tuple[Denied, ...]:
        """Return what rules have refused since the block began."""
        return await _whole(self._sandbox.denials)

    async def held(self) -> tuple[Change, ...]:
        """Return the changes that wait for an approval, as `Sandbox.held` does."""
        return await _whole(self._sandbox.held)

    async def commit(
        self,
        *paths: Words,
        on_conflict: ConflictWord = "fail",
        ignored: bool = False,
        approve: bool = False,
    ) -> None:
        """Apply changes to the workspace, as `Sandbox.commit` does."""
        await _whole(
            lambda: self._sandbox.commit(*paths, on_conflict=on_conflict, ignored=ignored, approve=approve)
        )

    async def approve(self, *paths: Words) -> None:
        """Let commits take held changes, as `Sandbox.approve` does."""
        await _whole(lambda: self._sandbox.approve(*paths))

    async def reject(self, *paths: Words) -> None:
        """Drop held changes, as `Sandbox.reject` does."""
        await _whole(lambda: self._sandbox.reject(*paths))

    async def discard(self, *paths: Words) -> None:
        """Drop changes, as `Sandbox.discard` does."""
        await _whole(lambda: self._sandbox.discard(*paths))

    async def undo(self) -> None:
        """Take the last commit or discard back."""
        await _whole(self._sandbox.undo)

    async def questions(self) -> tuple[WaitingQuestion, ...]:
        """Return the questions that wait for a person, the oldest first."""
        return await _whole(self._sandbox.questions)

    def follow(self) -> AsyncQuestionFeed:
        """Return the questions as they come and go, as `Sandbox.follow` does, for `async with`."""
        return AsyncQuestionFeed(self._sandbox.follow())

    async def answer(self, question: WaitingQuestion | int, answer: Answer | AnswerWord) -> ShownGrant | None:
        """Answer a question, as `Sandbox.answer` does."""
        return await _whole(lambda: self._sandbox.answer(question, answer))

    async def grants(self) -> tuple[ShownGrant, ...]:
        """Return what was allowed or refused by answers, as `Sandbox.grants` does."""
        return await _whole(self._sandbox.grants)

    async def revoke(self, grant: ShownGrant | int | None = None) -> tuple[ShownGrant, ...]:
        """Take grants back, as `Sandbox.revoke` does."""
        return await _whole(lambda: self._sandbox.revoke(grant))


class _InLoop:
    """Awaits a coroutine function in a loop, on behalf of another thread."""

    def __init__(self, on_question: AsyncOnQuestion) -> None:
        self._on_question = on_question
        self._loop = asyncio.get_running_loop()
        self._task: asyncio.Task[Answer | AnswerWord | None] | None = None

    def call(self, question: WaitingQuestion) -> Answer | AnswerWord | None:
        return asyncio.run_coroutine_threadsafe(self._awaited(question), self._loop).result()

    async def _awaited(self, question: WaitingQuestion) -> Answer | AnswerWord | None:
        self._task = asyncio.ensure_future(self._on_question(question))
        try:
            return await self._task
        except asyncio.CancelledError:
            return None
        finally:
            self._task = None

    def cancel(self) -> None:
        """End the coroutine that still thinks about a question: nobody waits for its answer."""
        if self._task is not None:
            self._task.cancel()


def _called(function: Callable[[], _T]) -> "asyncio.Future[_T]":
    """Call *function* in a thread of its own: a pool has a limit, and programs may run for long."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[_T] = loop.create_future()

    def finish(result: _T | None, error: BaseException | None) -> None:
        if future.cancelled():
            return
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(result)  # type: ignore[arg-type]

    def call() -> None:
        result, failure = None, None
        try:
            result = function()
        except BaseException as error:
            failure = error
        loop.call_soon_threadsafe(finish, result, failure)

    threading.Thread(target=call, name="sandboxfs").start()
    return future


async def _settled(future: "asyncio.Future[_T]") -> None:
    """Wait until *future* is done, however often the waiting is cancelled; what it gives is not asked for."""
    while not future.done():
        try:
            await asyncio.wait([future])
        except asyncio.CancelledError:
            continue
    # Looked at, so that nobody complains that it was not.
    if not future.cancelled():
        future.exception()


async def _whole(function: Callable[[], _T]) -> _T:
    """Call *function* to its end; a cancellation is told afterwards."""
    future = _called(function)
    try:
        return await asyncio.shield(future)
    except asyncio.CancelledError:
        await _settled(future)
        raise


async def _ending(program: Program, function: Callable[[], _T]) -> _T:
    """Call *function*, which waits for *program*; cancelled, end the program first."""
    future = _called(function)
    try:
        return await asyncio.shield(future)
    except asyncio.CancelledError:
        program.kill()
        await _settled(future)
        raise


async def _reader(pipe: IO[bytes]) -> asyncio.StreamReader:
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), pipe)
    return reader


async def _writer(pipe: IO[bytes]) -> asyncio.StreamWriter:
    loop = asyncio.get_running_loop()
    # The protocol of a reader also knows how to wait until a pipe takes more.
    protocol_of = asyncio.StreamReaderProtocol(asyncio.StreamReader())
    transport, protocol = await loop.connect_write_pipe(lambda: protocol_of, pipe)
    return asyncio.StreamWriter(transport, protocol, None, loop)
