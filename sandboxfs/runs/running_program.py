"""Running programs: each started in an open run, for callers that have other things to do meanwhile.

Its runner process is watched from here: every method may be called from any thread.
"""

import signal
import subprocess
from types import TracebackType
from typing import IO

from sandboxfs.confine.runner import RunningProgram, StandardStreams
from sandboxfs.errors import SandboxError, TimedOut, UsageError
from sandboxfs.runs.open_run import OpenRun, ProgramRequest, Tell
from sandboxfs.runs.run import ProgramResult, program_result

Stream = int | IO[bytes] | IO[str] | None
"""A standard stream as `subprocess` takes it: None is the caller's own."""

_KILLED = ProgramResult(128 + signal.SIGKILL)


class Program:
    """A confined program, as `subprocess.Popen` has one: streams of bytes, a return code, signals."""

    def __init__(self, session: OpenRun, command: tuple[str, ...], running: RunningProgram) -> None:
        """Watch *running*, which runs *command*; programs are started by `Sandbox.popen`."""
        self.command = command
        self._session = session
        self._running = running

    @property
    def stdin(self) -> IO[bytes] | None:
        """The pipe to the program's standard input, where one was asked for."""
        return self._running.process.stdin

    @property
    def stdout(self) -> IO[bytes] | None:
        """The pipe from the program's standard output, where one was asked for."""
        return self._running.process.stdout

    @property
    def stderr(self) -> IO[bytes] | None:
        """The pipe from the program's standard error, where one was asked for."""
        return self._running.process.stderr

    @property
    def has_ended(self) -> bool:
        """Whether the program has ended, however."""
        return self._running.process.poll() is not None

    @property
    def returncode(self) -> int | None:
        """The program's status, 128 and its number for a signal; None while it runs."""
        return self.poll()

    def poll(self) -> int | None:
        """Return the program's status if it has ended."""
        return None if self._running.process.poll() is None else self.result().returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait until the program and all that it started have ended, and return its status.

        `TimedOut` after *timeout* seconds: the program goes on then. `DaemonLost` when its view was lost.
        """
        return self.result(timeout).returncode

    def result(self, timeout: float | None = None) -> ProgramResult:
        """Wait as `wait` does, and return also what kept the program from being started, if so."""
        try:
            end = self._running.wait(timeout)
        except subprocess.TimeoutExpired as error:
            raise _late(timeout) from error
        if end.lost and self._running.killed:
            return _KILLED
        return program_result(self._session, end, self.command)

    def communicate(
        self,
        input: bytes | None = None,  # noqa: A002 - as in subprocess
        timeout: float | None = None,
    ) -> tuple[bytes | None, bytes | None]:
        """Write *input*, read both outputs to their end, and wait for the program; None for what is no pipe.

        `TimedOut` after *timeout* seconds: the program goes on then, and nothing that it wrote is lost to the
        next call.
        """
        try:
            return self._running.process.communicate(input, timeout)
        except subprocess.TimeoutExpired as error:
            raise _late(timeout) from error

    def send_signal(self, number: int) -> None:
        """Send the program a signal: SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2 or SIGTSTP.

        A program that has not ended 10 seconds after SIGTERM is ended, with all that it started.
        """
        try:
            self._running.send_signal(number)
        except ValueError as error:
            raise UsageError(str(error), hint="use kill() to end the program") from error

    def terminate(self) -> None:
        """Send the program SIGTERM."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """End the program with all that it started, whatever it does against it."""
        self._running.kill()

    def end(self) -> None:
        """Kill the program and wait until all of it has ended; what it wrote can still be read."""
        self.kill()
        self._running.close()

    def __enter__(self) -> "Program":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Close the pipes and wait for the program; end it first where the block failed."""
        if kind is not None:
            self.kill()
        self.close()

    def close(self) -> None:
        """Close the pipes and wait until the program has ended."""
        for stream in (self.stdin, self.stdout, self.stderr):
            if stream is not None:
                try:
                    stream.close()
                except BrokenPipeError:
                    # The program does not read what was still to be written.
                    continue
        self._running.close()


def start_program(
    session: OpenRun, request: ProgramRequest, streams: StandardStreams, tell: Tell, *, terminal: bool
) -> Program:
    """Start a program in *session*; with *terminal* it may use the terminal of the calling process."""
    return Program(session, request.command, session.start(request, streams, tell, terminal=terminal))


def streams_of(stdin: Stream, stdout: Stream, stderr: Stream) -> StandardStreams:
    """The standard streams of a program, as `subprocess` takes them; None is the caller's own."""
    return StandardStreams(stdin, stdout, stderr)


def _late(timeout: float | None) -> SandboxError:
    # `subprocess` tells what was left of the time in some cases.
    return TimedOut(f"the program has not ended after {timeout:g} seconds", details={"timeout": timeout})
