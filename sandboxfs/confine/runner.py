"""The runner process: one confined program on behalf of a process that neither forks nor handles signals.

`start_runner` starts the process for callers with threads of their own: nothing on the caller's side forks,
handles a signal, or depends on the current directory. Each method of `RunningProgram` may be called from any
thread.

The runner (`main`) has the program's own standard streams. It reads its orders, a `ConfinedProgram`, and
supervises as the command line does. It ends the program when the channel says so or closes, and when the
process that started it ends, however that ends: a fork of that process may keep the channel open. The last
thing it does is to report on the channel how the program ended. Only the runner imports the supervisor.
"""

import json
import os
import pickle
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import IO

from sandboxfs.confine.program_values import ConfinedProgram, ProgramEnd
from sandboxfs.errors import DaemonLost, MountFailed, SandboxError, error_from_json

# No environment variable and no installed package changes what a runner imports.
_BOOT = "import sys; sys.path.insert(0, sys.argv.pop(1)); from sandboxfs.confine.runner import main; main()"
_PACKAGES = Path(__file__).resolve().parents[2]
_REPORT_LIMIT = 1 << 16


@dataclass(frozen=True)
class StandardStreams:
    """The standard streams of a program, as `subprocess` takes them; None is the caller's own."""

    stdin: int | IO[bytes] | IO[str] | None = None
    stdout: int | IO[bytes] | IO[str] | None = None
    stderr: int | IO[bytes] | IO[str] | None = None


class RunningProgram:
    """A program in a runner process of its own."""

    def __init__(self, process: "subprocess.Popen[bytes]", channel: socket.socket) -> None:
        self.process = process
        self._channel = channel
        self._lock = threading.Lock()
        self._end: ProgramEnd | SandboxError | None = None
        self._killed = False

    @property
    def killed(self) -> bool:
        """Whether `kill` was called while the program ran."""
        return self._killed

    def poll(self) -> ProgramEnd | None:
        """Return how the program ended; None while it runs."""
        return None if self.process.poll() is None else self._reported()

    def wait(self, timeout: float | None = None) -> ProgramEnd:
        """Wait until the program and all that it started have ended.

        Raises `subprocess.TimeoutExpired` when that takes longer than *timeout* seconds.
        """
        self.process.wait(timeout)
        return self._reported()

    def close(self) -> None:
        """Wait for the end, however it came."""
        with suppress(SandboxError):
            self.wait()

    def send_signal(self, number: int) -> None:
        """Send a signal to the program; one that sandboxfs does not pass on is refused by `ValueError`."""
        from sandboxfs.confine.supervisor import FORWARDED

        if number not in FORWARDED:
            raise ValueError(f"signal {number} is not passed on to a confined program")
        self.process.send_signal(number)

    def kill(self) -> None:
        """End the program with all that it started, whatever it does; `wait` returns when all has ended."""
        with self._lock:
            if self._end is None and self.process.poll() is None:
                self._killed = True
                with suppress(OSError):
                    self._channel.shutdown(socket.SHUT_WR)

    def _reported(self) -> ProgramEnd:
        with self._lock:
            if self._end is None:
                self._end = _report(self._channel)
                self._channel.close()
        if isinstance(self._end, SandboxError):
            raise self._end
        return self._end


def start_runner(
    program: ConfinedProgram,
    streams: StandardStreams,
    *,
    terminal: bool,
    environment: Mapping[str, str] | None = None,
) -> RunningProgram:
    """Start *program* in a runner process; without *terminal* it cannot reach the caller's terminal.

    *environment* is the runner's own, not that of the program.
    """
    ours, theirs = socket.socketpair()
    watched = os.pidfd_open(os.getpid())
    orders = os.memfd_create("sandboxfs-program")
    try:
        with theirs, open(orders, "wb", closefd=False) as text:
            pickle.dump(replace(program, watched=(*program.watched, watched)), text)
            text.flush()
            os.lseek(orders, 0, os.SEEK_SET)
            numbers = [str(theirs.fileno()), str(orders)]
            process = subprocess.Popen(
                [sys.executable, "-I", "-S", "-c", _BOOT, str(_PACKAGES), *numbers],
                stdin=streams.stdin,
                stdout=streams.stdout,
                stderr=streams.stderr,
                cwd="/",
                env=environment,
                pass_fds=[theirs.fileno(), orders, watched, *program.held, *program.watched],
                start_new_session=not terminal,
            )
    except BaseException:
        ours.close()
        raise
    finally:
        os.close(watched)
        os.close(orders)
    return RunningProgram(process, ours)


def _report(channel: socket.socket) -> ProgramEnd | SandboxError:
    """What a runner that has ended said of its program."""
    try:
        said = json.loads(channel.recv(_REPORT_LIMIT, socket.MSG_DONTWAIT))
    except (OSError, ValueError):
        return DaemonLost("the process that ran the program died; the program was ended")
    return error_from_json(said["error"]) if "error" in said else ProgramEnd(**said["end"])


def main() -> None:
    """Run one program; the arguments are the descriptors of the channel and of the orders."""
    from sandboxfs.confine.supervisor import Supervisor

    channel, orders = int(sys.argv[1]), int(sys.argv[2])
    with open(orders, "rb") as text:
        # Between a process and its child, over a file that no other process can reach.
        program: ConfinedProgram = pickle.load(text)  # noqa: S301
    program = replace(program, watched=(*program.watched, channel))
    end = None
    try:
        end = Supervisor(program).run()
        report: dict[str, object] = {"end": asdict(end)}
    except SandboxError as error:
        report = {"error": error.as_json()}
    except OSError as error:
        report = {"error": MountFailed(f"cannot confine the program: {error}").as_json()}
    if end is not None and end.stage == "start":
        # As a shell does, which has no other way to tell either.
        with suppress(OSError):
            print(f"sandboxfs: {end.problem(program.command[0])}", file=sys.stderr, flush=True)
    # The caller may have been killed: nobody is left to be told.
    with suppress(BrokenPipeError):
        os.write(channel, json.dumps(report).encode())
    if end is not None:
        _press_again(end)


def _press_again(end: ProgramEnd) -> None:
    """Pass a key on to the job: the program had the terminal to itself when it was pressed."""
    if end.by_key is not None:
        signal.signal(end.by_key, signal.SIG_IGN)
        os.killpg(0, end.by_key)
