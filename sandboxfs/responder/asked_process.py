"""Asked processes: one child for each question that a command, or a webhook, is asked.

The child leads a process group of its own, which is killed when its question is over, when it says too much,
and when it has ended: what it leaves behind in the group goes too. It is killed as well when the responder
ends, however that ends. What it writes is bounded: the answer by its size, complaints by what is kept of
them.

The child is forked, not spawned, because a webhook is ended like a command, and Python takes long to start.
The responder has one thread.
"""

import os
import select
import signal
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import NoReturn

from sandboxfs.confine.kernel_calls import end_with_parent
from sandboxfs.responder.answer_object import ANSWER_SIZE, NoAnswer

# Bytes of complaints that are kept.
_COMPLAINTS = 500
_CHUNK = 64 * 1024
# Python ignores these; a program expects them to end it.
_IGNORED_BY_PYTHON = signal.SIGPIPE, signal.SIGXFSZ


class AskedProcess:
    """A process that is asked one question: its *answer* so far, and what it complained of."""

    def __init__(self, pid: int, answer: int, complaints: int, problem: int) -> None:
        self.pid = pid
        self.ended = os.pidfd_open(pid)
        self.answer, self.complaints = answer, complaints
        self._problem = problem
        self._said = bytearray()
        self._complained = bytearray()

    def read_answer(self) -> bool:
        """Take what has arrived of the answer; whether more may come. `NoAnswer` for too much."""
        chunk = _read(self.answer)
        self._said += chunk or b""
        if len(self._said) > ANSWER_SIZE:
            raise NoAnswer(f"wrote more than {ANSWER_SIZE >> 10} KiB")
        return chunk != b""

    def read_complaints(self) -> bool:
        """Take what has arrived of complaints, and keep the beginning; whether more may come."""
        chunk = _read(self.complaints)
        self._complained += (chunk or b"")[: _COMPLAINTS - len(self._complained)]
        return chunk != b""

    def result(self) -> bytes:
        """Return the answer of a process that has ended; `NoAnswer` where that was no success."""
        # Looked at, not waited for: until `kill`, its number must be nobody else's.
        found = os.waitid(os.P_PIDFD, self.ended, os.WEXITED | os.WNOWAIT)
        problem = os.pread(self._problem, 1000, 0)
        if problem:
            raise NoAnswer(problem.decode())
        if found is not None and found.si_code != os.CLD_EXITED:
            raise NoAnswer(f"was ended by signal {found.si_status}")
        if found is None or found.si_status:
            raise NoAnswer(f"ended with status {found.si_status if found else 1}")
        while self.read_answer():
            # What it has left behind may keep the pipe open for ever.
            if not _has_more(self.answer):
                break
        return bytes(self._said)

    def complained(self) -> str:
        """Return the beginning of what it complained of."""
        with suppress(OSError):
            self.read_complaints()
        return self._complained.decode(errors="replace")

    def kill(self) -> None:
        """Kill the group, whatever of it is left, and let go of everything but the process itself."""
        # Nobody has waited for the leader, so its number is that of the group still.
        for kill in (os.killpg, os.kill):
            with suppress(ProcessLookupError):
                kill(self.pid, signal.SIGKILL)
        for descriptor in (self.answer, self.complaints, self.ended, self._problem):
            os.close(descriptor)


def ask_process(question: bytes, work: Callable[[], object]) -> AskedProcess:
    """Have a child do *work*, with *question* as its standard input.

    *work* writes the answer to standard output, or never returns; its `NoAnswer` is the process's own.
    """
    made: list[int] = []
    try:
        given = os.memfd_create("sandboxfs-question")
        made.append(given)
        problem = os.memfd_create("sandboxfs-problem")
        made.append(problem)
        answer, answer_end = os.pipe()
        made += [answer, answer_end]
        complaints, complaints_end = os.pipe()
        made += [complaints, complaints_end]
        while question:
            question = question[os.write(given, question) :]
        os.lseek(given, 0, os.SEEK_SET)
        responder = os.getpid()
        pid = os.fork()
    except BaseException:
        for descriptor in made:
            os.close(descriptor)
        raise
    if not pid:
        _be_asked(responder, (given, answer_end, complaints_end), problem, work)
    for descriptor in (given, answer_end, complaints_end):
        os.close(descriptor)
    for descriptor in (answer, complaints):
        os.set_blocking(descriptor, False)
    return AskedProcess(pid, answer, complaints, problem)


def _be_asked(
    responder: int, streams: tuple[int, int, int], problem: int, work: Callable[[], object]
) -> NoReturn:
    """Do *work* in the child, and end."""
    status = 1
    try:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        for number in _IGNORED_BY_PYTHON:
            signal.signal(number, signal.SIG_DFL)
        os.setsid()
        end_with_parent(responder)
        for standard, descriptor in enumerate(streams):
            os.dup2(descriptor, standard)
        # Connections and locks of the responder are not the child's.
        os.closerange(3, problem)
        os.closerange(problem + 1, 1 << 20)
        work()
        status = 0
    except NoAnswer as error:
        os.pwrite(problem, str(error).encode(), 0)
        if error.__cause__ is not None:
            # For the log: the sentence is for the program in the view, and tells less.
            os.write(2, str(error.__cause__).encode(errors="replace")[:_COMPLAINTS])
    except BaseException as error:
        os.pwrite(problem, f"failed: {type(error).__name__}".encode(), 0)
    finally:
        os._exit(status)


def run_command(command: tuple[str, ...], environment: Mapping[str, str]) -> NoReturn:
    """Turn the child into the program *command*: its path, then its words.

    It runs in `/`, as the responder does: many programs obey what lies in their directory, and a project's
    files must not answer.
    """
    program, *words = command
    try:
        os.execve(program, words, environment)  # noqa: S606 - no shell is wanted
    except OSError as error:
        raise NoAnswer(f"cannot be started: {error.strerror}") from error


def write_answer(answer: bytes) -> None:
    """Write the answer to the standard output of the child."""
    while answer:
        answer = answer[os.write(1, answer) :]


def _read(descriptor: int) -> bytes | None:
    """Return what has arrived; None where nothing has, empty at the end."""
    try:
        return os.read(descriptor, _CHUNK)
    except BlockingIOError:
        return None


def _has_more(descriptor: int) -> bool:
    return bool(select.select([descriptor], [], [], 0)[0])
