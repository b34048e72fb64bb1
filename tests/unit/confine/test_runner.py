"""A runner process runs a program for a caller that neither forks nor handles signals."""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from sandboxfs.confine.program_values import ConfinedProgram
from sandboxfs.confine.runner import RunningProgram, StandardStreams, start_runner

PIPES = StandardStreams(subprocess.DEVNULL, subprocess.PIPE, subprocess.STDOUT)
PATIENCE = 60.0


def shell(script: str, watched: tuple[int, ...] = ()) -> ConfinedProgram:
    return ConfinedProgram(("/bin/sh", "-c", script), dict(os.environ), Path("/"), watched=watched)


@pytest.fixture
def started() -> Iterator[list[RunningProgram]]:
    """Programs that are ended when the test is."""
    programs: list[RunningProgram] = []
    yield programs
    for program in programs:
        program.kill()
        program.close()
        for stream in (program.process.stdin, program.process.stdout):
            if stream is not None:
                stream.close()


def start(program: ConfinedProgram, started: list[RunningProgram]) -> RunningProgram:
    started.append(start_runner(program, PIPES, terminal=False))
    return started[-1]


def line(program: RunningProgram) -> bytes:
    assert program.process.stdout is not None
    return program.process.stdout.readline()


def test_the_status_of_the_program_is_reported(started: list[RunningProgram]) -> None:
    program = start(shell("echo out; exit 7"), started)
    assert line(program) == b"out\n"
    end = program.wait(PATIENCE)
    assert end.status is not None
    assert os.waitstatus_to_exitcode(end.status) == 7
    assert program.poll() == end


def test_any_thread_starts_programs_and_several_run_at_once(started: list[RunningProgram]) -> None:
    handlers = {number: signal.getsignal(number) for number in signal.valid_signals()}

    def begin() -> None:
        start(shell("echo begun; exec sleep 1000"), started)

    threads = [threading.Thread(target=begin) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [line(program) for program in started] == [b"begun\n"] * 3
    assert [program.poll() for program in started] == [None] * 3
    assert {number: signal.getsignal(number) for number in signal.valid_signals()} == handlers


def test_killing_ends_a_program_that_ignores_signals(started: list[RunningProgram]) -> None:
    program = start(shell("trap '' TERM HUP INT; echo begun; while :; do sleep 1; done"), started)
    assert line(program) == b"begun\n"
    program.kill()
    assert program.wait(PATIENCE).lost
    assert program.killed
    # The end of the pipe: everything that had its other end is gone.
    assert line(program) == b""


def test_a_signal_reaches_the_program(started: list[RunningProgram]) -> None:
    program = start(shell("trap 'exit 3' USR1; echo begun; while :; do sleep 0.05; done"), started)
    assert line(program) == b"begun\n"
    program.send_signal(signal.SIGUSR1)
    assert program.wait(PATIENCE).status == 3 << 8
    with pytest.raises(ValueError, match="not passed on"):
        program.send_signal(signal.SIGSTOP)


def test_a_watched_descriptor_ends_the_program(started: list[RunningProgram]) -> None:
    waking, wakened = os.pipe()
    program = start(shell("echo begun; exec sleep 1000", watched=(waking,)), started)
    assert line(program) == b"begun\n"
    os.close(wakened)
    assert program.wait(PATIENCE).lost
    assert not program.killed
    os.close(waking)


def test_a_program_that_is_not_found_is_told_as_a_shell_tells_it(started: list[RunningProgram]) -> None:
    program = start(ConfinedProgram(("no-such-program",), dict(os.environ), Path("/")), started)
    assert line(program) == b"sandboxfs: cannot run 'no-such-program': not found\n"
    assert program.wait(PATIENCE).stage == "start"


EMBEDDER = """
import os, sys
from pathlib import Path
from sandboxfs.confine.program_values import ConfinedProgram
from sandboxfs.confine.runner import StandardStreams, start_runner
script = "trap '' TERM HUP INT; echo begun; while :; do sleep 1; done"
program = ConfinedProgram(("/bin/sh", "-c", script), dict(os.environ), Path("/"))
running = start_runner(program, StandardStreams(), terminal=False)
if os.fork() == 0:
    # Keeps the channel, but is not who wanted the program.
    os.close(1)
    sys.stdin.read()
    os._exit(0)
running.wait()
"""


def test_a_program_ends_with_the_caller_although_a_fork_of_it_lives_on() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", EMBEDDER], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as embedder:
        assert embedder.stdout is not None
        assert embedder.stdout.readline() == b"begun\n"
        embedder.kill()
        assert embedder.stdout.read() == b""
