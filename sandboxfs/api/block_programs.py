"""Programs of a block: each is started in the view, read to its end, and ended with the block."""

import io
import os
import subprocess
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from sandboxfs.api.arguments import Words, can_be_passed_on, check_kind, failures, text_of, texts_of
from sandboxfs.errors import DaemonLost, TimedOut, UsageError
from sandboxfs.runs.open_run import OpenRun, ProgramRequest
from sandboxfs.runs.running_program import Program, Stream, start_program, streams_of


class BlockPrograms:
    """The programs that run in one block. Any thread may start one."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._programs: set[Program] = set()

    def start(
        self,
        session: OpenRun,
        command: Sequence[Words],
        cwd: Words | None,
        env: Mapping[str, str] | None,
        streams: tuple[Stream, Stream, Stream],
        warn: Callable[[str], None],
        *,
        terminal: bool,
    ) -> Program:
        """Start *command* in *cwd*, else in the workspace; *env* are variables it gets besides."""
        if isinstance(command, str | bytes) or not command:
            raise UsageError(f"expected a program and its arguments, found {command!r}")
        words = texts_of("command", command)
        if env is not None:
            check_kind("env", env, Mapping)
        request = ProgramRequest(
            words,
            session.view.record.workspace if cwd is None else _directory(session, cwd),
            _given(env or {}),
        )
        _check_served(session)
        with failures("run the program"):
            program = start_program(session, request, streams_of(*streams), warn, terminal=terminal)
        with self._lock:
            self._programs = {one for one in self._programs if not one.has_ended} | {program}
        return program

    def completed(
        self, program: Program, data: bytes | None, timeout: float | None
    ) -> "subprocess.CompletedProcess[str]":
        """Give *program* its input, and return how it ended; after *timeout* seconds it is ended."""
        try:
            with failures("run the program"):
                return _communicated(program, data, timeout)
        finally:
            program.close()
            with self._lock:
                self._programs.discard(program)

    def end(self) -> None:
        """End all that still run."""
        with self._lock:
            running = tuple(self._programs)
        for program in running:
            program.end()

    def leave_to_parent(self) -> None:
        """Know of none, after a fork: they are the parent's to end, and another thread may hold the lock."""
        self._lock, self._programs = threading.Lock(), set()


def _communicated(
    program: Program, data: bytes | None, timeout: float | None
) -> "subprocess.CompletedProcess[str]":
    try:
        output = program.communicate(data, timeout)
    except TimedOut as error:
        program.kill()
        raise _timed_out(error, program.communicate()) from error
    except BaseException:
        program.kill()
        raise
    written = tuple(None if one is None else _decoded(one) for one in output)
    return subprocess.CompletedProcess(list(program.command), program.wait(), *written)


def _timed_out(error: TimedOut, output: tuple[bytes | None, bytes | None]) -> TimedOut:
    written = zip(("stdout", "stderr"), output, strict=True)
    timeout = error.details["timeout"]
    return TimedOut(
        f"the program was ended after {timeout:g} seconds",
        details={"timeout": timeout} | {name: _decoded(data) for name, data in written if data is not None},
    )


def _decoded(data: bytes) -> str:
    """Read *data* as `subprocess` reads text, bytes that are none kept as they are."""
    return io.TextIOWrapper(io.BytesIO(data), errors="surrogateescape").read()


def encoded(text: str) -> bytes:
    """Return *text* as `subprocess` writes it to a program."""
    written = io.BytesIO()
    with failures("run the program"), io.TextIOWrapper(written, errors="surrogateescape") as stream:
        stream.write(text)
        stream.flush()
        return written.getvalue()


def _check_served(session: OpenRun) -> None:
    """Raise `DaemonLost` where a view of *session* is gone: its rules hold nowhere else."""
    for view in session.views:
        if not view.is_served:
            raise DaemonLost(
                f"sandbox '{view.record.name}' is not served any more: its daemon died, or it was unmounted",
                hint="its changes are kept; begin another block",
                details={"name": view.record.name},
            )


def _directory(session: OpenRun, given: Words) -> Path:
    """Where a program is to start, which it must be able to see."""
    text = text_of("cwd", given)
    with failures("use cwd"):
        path = Path(os.path.realpath(text))
        seen = session.place(path) is not None and path.is_dir()
    if not seen:
        raise UsageError(f"cwd: {os.fspath(given)!r} is no directory of the workspace")
    return path


def _given(variables: Mapping[str, str]) -> tuple[tuple[str, str | None], ...]:
    """Check the variables that a program gets besides those of the sandbox."""
    for name, value in variables.items():
        texts = isinstance(name, str) and isinstance(value, str | None)
        if not texts or not name or "=" in name or not can_be_passed_on(f"{name}{value}"):
            raise UsageError(f"env: bad variable {name!r}")
    return tuple(variables.items())
