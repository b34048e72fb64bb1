"""Supervisor: forks the process that starts a program; signals, job control and status until its end.

The other half of the starter: the supervisor forks the process that becomes the starter (`enter`), carries
signals to the program and its stops and end back, lends the terminal, and carries bytes where the program may
not have a descriptor itself. When the terminal goes away, or SIGTERM comes, and the program does not end, it
ends everything. When it is killed at any moment, the starter finds its channel closed and ends everything.

Job control: a job-control shell gives the terminal to one process group at a time. The command lends the
terminal to the program's group and takes it back, so that keys, signals and full-screen modes reach the
program as they would without us.
"""

import os
import select
import signal
import socket
import termios
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from types import FrameType
from typing import NoReturn, Protocol

from sandboxfs.confine.enter import entrance
from sandboxfs.confine.init import InitOrders
from sandboxfs.confine.program_values import ConfinedProgram, ProgramEnd
from sandboxfs.confine.stdio import StreamRelays

# What stops every process of a job when it comes from the terminal.
_FOR_THE_JOB = (signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU)


class ControllingTerminal:
    """The controlling terminal of this process, if it has one."""

    def __init__(self) -> None:
        self._modes: list[int | list[bytes | int]] | None = None
        self.lent = False
        try:
            self.descriptor = os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC)
        except OSError:
            self.descriptor = -1
        if self.is_ours:
            with suppress(termios.error):
                self._modes = termios.tcgetattr(self.descriptor)

    @property
    def exists(self) -> bool:
        return self.descriptor >= 0

    @property
    def is_ours(self) -> bool:
        """Say whether our process group is the one in the foreground."""
        if not self.exists:
            return False
        try:
            return os.tcgetpgrp(self.descriptor) == os.getpgrp()
        except OSError:
            return False

    @property
    def is_gone(self) -> bool:
        """Say whether there was a terminal and it has been closed."""
        poll = select.poll()
        if self.exists:
            poll.register(self.descriptor, 0)
        return bool(poll.poll(0))

    def take_back(self, *, mend: bool) -> None:
        """Take a terminal that was lent back; *mend* its modes when the program had no chance to."""
        if not self.lent:
            return
        self.lent = False
        with _unmoved_by(signal.SIGTTOU), suppress(OSError, termios.error):
            os.tcsetpgrp(self.descriptor, os.getpgrp())
            if mend and self._modes is not None:
                termios.tcsetattr(self.descriptor, termios.TCSADRAIN, self._modes)

    def stop_too(self, number: int) -> None:
        """Stop as the program was stopped by signal *number*; return when somebody continues us.

        Never by SIGSTOP, which would also stop a command that no shell waits for.
        """
        self.lent = False
        job = number in _FOR_THE_JOB
        number = number if job else signal.SIGTSTP
        before = signal.signal(number, signal.SIG_DFL)
        if job:
            os.killpg(0, number)
        else:
            os.kill(os.getpid(), number)
        signal.signal(number, before)

    def close(self) -> None:
        if self.exists:
            os.close(self.descriptor)
            self.descriptor = -1


@contextmanager
def _unmoved_by(number: signal.Signals) -> Iterator[None]:
    before = signal.signal(number, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(number, before)


FORWARDED = (
    signal.SIGHUP,
    signal.SIGINT,
    signal.SIGQUIT,
    signal.SIGTERM,
    signal.SIGUSR1,
    signal.SIGUSR2,
    signal.SIGTSTP,
)
_NOTED = (signal.SIGCHLD, signal.SIGCONT)
# So many seconds has a program to end after its terminal was closed, or after SIGTERM.
_GRACE = {signal.SIGHUP: 5.0, signal.SIGTERM: 10.0}


def ignored_signals() -> list[int]:
    """The signals that this process was started with ignoring, and that a program must ignore as well."""
    return [number for number in FORWARDED if signal.getsignal(number) is signal.SIG_IGN]


class WorkBeside(Protocol):
    """What a caller does beside a program that runs, whenever one of its descriptors is readable."""

    def begin(self, process: int, poll: select.poll) -> None:
        """The *process* that becomes the starter has begun; register descriptors."""

    def attend(self, descriptor: int, poll: select.poll) -> bool:
        """Do what there is to do, if it is one of those; return whether the program may go on."""


class NothingBeside:
    """Nothing is done beside the program."""

    def begin(self, process: int, poll: select.poll) -> None:
        """Nothing is registered."""

    def attend(self, descriptor: int, poll: select.poll) -> bool:
        return True


class Supervisor:
    """Runs one program. Forks and handles signals: for a process with one thread, its main one."""

    def __init__(self, program: ConfinedProgram, beside: WorkBeside | None = None) -> None:
        self._program = program
        self._beside = beside or NothingBeside()
        self._terminal = ControllingTerminal()
        self._relays = StreamRelays() if program.relayed else None
        self._become = entrance(program)
        self._received = b""
        self._outcome = ProgramEnd()
        # When the program must have ended, once its terminal is gone or it was told to, and by which signal.
        self._deadline: float | None = None
        self._told = signal.SIGHUP

    def run(self, meanwhile: Callable[[], object] | None = None) -> ProgramEnd:
        """Run the program to its end; *meanwhile* is called once, while it starts."""
        ours, theirs = socket.socketpair()
        self._channel = ours.detach()
        lend = self._terminal.is_ours
        orders = self._orders(lend=lend)
        before = {number: signal.getsignal(number) for number in (*FORWARDED, *_NOTED)}
        child = os.fork()
        if child == 0:
            self._start(theirs.detach(), orders)
        theirs.close()
        with suppress(OSError):
            os.setpgid(child, child)
        self._terminal.lent = lend
        if self._relays is not None:
            self._relays.started()
        try:
            self._attend(child, meanwhile)
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
            self._terminal.take_back(mend=self._outcome.status != 0)
            self._terminal.close()
        return self._outcome

    def _orders(self, *, lend: bool) -> InitOrders:
        return InitOrders(
            list(map(os.fsencode, self._program.command)),
            {os.fsencode(name): os.fsencode(value) for name, value in self._program.environment.items()},
            os.fsencode(self._program.directory),
            terminal=self._terminal.exists,
            foreground=lend,
            ignored=ignored_signals(),
        )

    def _start(self, theirs: int, orders: InitOrders) -> NoReturn:
        """In the child: become the starter, never come back."""
        try:
            os.close(self._channel)
            with suppress(OSError):
                os.setpgid(0, 0)
            if self._relays is not None:
                self._relays.hand_over()
            self._become(theirs, orders)
        except BaseException as error:
            with suppress(OSError):
                os.write(theirs, b"failed 0 confine " + str(error).encode(errors="replace") + b"\n")
        finally:
            os._exit(125)

    def _attend(self, child: int, meanwhile: Callable[[], object] | None) -> None:
        waking, wakened = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        ignored = ignored_signals()
        signal.set_wakeup_fd(wakened, warn_on_full_buffer=False)
        for number in (*FORWARDED, *_NOTED):
            if number not in ignored:
                signal.signal(number, _nothing)
        poll = select.poll()
        for descriptor in (self._channel, waking, *self._program.watched):
            poll.register(descriptor, select.POLLIN)
        if self._relays is not None:
            self._relays.register(poll)
        if self._terminal.exists and signal.SIGHUP not in ignored:
            # For nothing but its being closed, which is always told.
            poll.register(self._terminal.descriptor, 0)
        self._beside.begin(child, poll)
        try:
            if meanwhile is not None:
                meanwhile()
            while not self._end_overdue() and self._turn(poll, waking):
                pass
            os.waitpid(child, 0)
            if self._relays is not None and not self._relays.finish():
                self._outcome = replace(self._outcome, held=True)
        finally:
            signal.set_wakeup_fd(-1)
            for descriptor in (waking, wakened):
                os.close(descriptor)

    def _turn(self, poll: select.poll, waking: int) -> bool:
        """Attend to what is ready; False when the starter has gone, or is to go."""
        return all(self._attend_to(descriptor, poll, waking) for descriptor, _ in poll.poll(self._remaining))

    def _attend_to(self, descriptor: int, poll: select.poll, waking: int) -> bool:
        if descriptor == self._channel:
            if not self._listen():
                os.close(self._channel)
                return False
        elif descriptor == waking:
            for number in os.read(waking, 4096):
                self._pass_on(number)
        elif descriptor in self._program.watched or not self._beside.attend(descriptor, poll):
            return self._lose()
        elif descriptor == self._terminal.descriptor:
            poll.unregister(descriptor)
            if self._terminal.lent:
                # Its signal went to those who had the terminal: to us, had we not lent it.
                self._pass_on(signal.SIGHUP)
        elif self._relays is not None:
            self._relays.attend(descriptor, poll)
        return True

    def _end_overdue(self) -> bool:
        """End a program that has had its time to end by itself; False when it may go on."""
        if self._deadline is None or time.monotonic() < self._deadline:
            return False
        self._outcome = ProgramEnd(status=self._told)
        os.close(self._channel)
        return True

    @property
    def _remaining(self) -> float | None:
        """How many milliseconds there are to wait, None for as long as it takes."""
        return None if self._deadline is None else max(0.0, self._deadline - time.monotonic()) * 1000

    def _pass_on(self, number: int) -> None:
        if number == signal.SIGHUP:
            if self._deadline is not None:
                # It has been told.
                return
            if self._terminal.is_gone:
                self._expect_end(signal.SIGHUP)
        elif number == signal.SIGTERM and self._deadline is None:
            self._expect_end(signal.SIGTERM)
        if number in FORWARDED:
            self._say(b"signal %d" % number)
        elif number == signal.SIGCONT:
            # A shell brought the job back, into the foreground or not.
            self._terminal.lent = self._terminal.is_ours
            self._say(b"continue %d" % self._terminal.lent)

    def _expect_end(self, told: signal.Signals) -> None:
        self._told = told
        self._deadline = time.monotonic() + _GRACE[told]

    def _lose(self) -> bool:
        """Somebody says that the program must not go on: the starter ends all when left alone."""
        self._outcome = ProgramEnd(lost=True)
        os.close(self._channel)
        return False

    def _listen(self) -> bool:
        try:
            chunk = os.read(self._channel, 65536)
        except ConnectionResetError:
            chunk = b""
        if not chunk:
            return False
        *lines, self._received = (self._received + chunk).split(b"\n")
        for line in lines:
            self._hear(line)
        return True

    def _hear(self, line: bytes) -> None:
        word, _, rest = line.partition(b" ")
        if word == b"stopped":
            if not self._terminal.exists:
                # Without job control only the program stops, until somebody continues it.
                return
            self._terminal.stop_too(int(rest))
            self._terminal.lent = self._terminal.is_ours
            self._say(b"continue %d" % self._terminal.lent)
        elif word == b"ended":
            offline = self._outcome.offline
            self._outcome = ProgramEnd(status=int(rest), had_terminal=self._terminal.lent, offline=offline)
        elif word == b"offline":
            self._outcome = ProgramEnd(offline=True)
        elif word == b"failed":
            error, _, more = rest.partition(b" ")
            stage, _, detail = more.partition(b" ")
            self._outcome = ProgramEnd(
                stage=stage.decode(), error=int(error), detail=detail.decode(errors="replace")
            )

    def _say(self, line: bytes) -> None:
        with suppress(OSError):
            os.write(self._channel, line + b"\n")


def _nothing(number: int, frame: FrameType | None) -> None:
    """The wakeup descriptor tells of it."""
