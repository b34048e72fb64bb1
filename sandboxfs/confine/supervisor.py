"""How does the command stand by while the program runs?

The other half of the starter: it forks the process that becomes it, carries signals to the program and its
stops and end back, lends the terminal, and carries bytes where the program may not have a descriptor itself.
When the terminal goes away and the program does not, it ends everything.
When it is killed at any moment, the starter finds its channel closed and ends everything.
"""

import os
import select
import signal
import socket
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from types import FrameType
from typing import NoReturn

from sandboxfs.confine.relays import Relays
from sandboxfs.confine.starter import Orders
from sandboxfs.confine.terminal import Terminal

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
# So many seconds has a program to end after its terminal was closed.
_GRACE = 5.0


@dataclass(frozen=True)
class Outcome:
    """How a run ended: with the wait *status* of the program, or without its having run.

    *stage* and *error* say what failed: to `confine`, to `enter` the directory or to `start`; both are empty
    when the starter itself never spoke. *lost* when the program was ended because its view had died, *held*
    when something still had its output open after all of it had ended.
    """

    status: int | None = None
    stage: str = ""
    error: int = 0
    detail: str = ""
    lost: bool = False
    held: bool = False
    had_terminal: bool = False

    @property
    def signalled(self) -> int | None:
        """The signal that ended the program."""
        ended = self.status is not None and os.WIFSIGNALED(self.status)
        return os.WTERMSIG(self.status) if ended and self.status is not None else None


def ignored_signals() -> list[int]:
    """The signals that this process was started with ignoring, and that a program must ignore as well."""
    return [number for number in FORWARDED if signal.getsignal(number) is signal.SIG_IGN]


class Supervisor:
    """Runs one program. *become* turns a forked child into its starter; *watched* are the view's daemons."""

    def __init__(
        self,
        orders: Callable[[bool, bool], Orders],
        become: Callable[[int, Orders], NoReturn],
        watched: Iterable[int] = (),
        *,
        relayed: bool = True,
    ) -> None:
        """Prepare; *orders* is told whether there is a terminal and whether it is ours to lend.

        *become* gets the descriptor of the starter's end of the channel. *watched* are pidfds.
        """
        self._terminal = Terminal()
        self._relays = Relays() if relayed else None
        self._orders = orders
        self._become = become
        self._watched = list(watched)
        self._received = b""
        self._outcome = Outcome()
        # When the program must have ended, once its terminal is gone.
        self._deadline: float | None = None

    def run(self, meanwhile: Callable[[], object] | None = None) -> Outcome:
        """Run the program to its end; *meanwhile* is called once, while it starts."""
        ours, theirs = socket.socketpair()
        self._channel = ours.detach()
        lend = self._terminal.is_ours
        orders = self._orders(self._terminal.exists, lend)
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

    def _start(self, theirs: int, orders: Orders) -> NoReturn:
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
        for descriptor in (self._channel, waking, *self._watched):
            poll.register(descriptor, select.POLLIN)
        if self._relays is not None:
            self._relays.register(poll)
        if self._terminal.exists and signal.SIGHUP not in ignored:
            # For nothing but its being closed, which is always told.
            poll.register(self._terminal.descriptor, 0)
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
        for descriptor, _ in poll.poll(self._remaining):
            if descriptor == self._channel:
                if not self._listen():
                    os.close(self._channel)
                    return False
            elif descriptor == waking:
                for number in os.read(waking, 4096):
                    self._pass_on(number)
            elif descriptor in self._watched:
                self._lose()
                return False
            elif descriptor == self._terminal.descriptor:
                poll.unregister(descriptor)
                if self._terminal.lent:
                    # Its signal went to those who had the terminal: to us, had we not lent it.
                    self._pass_on(signal.SIGHUP)
            elif self._relays is not None:
                self._relays.attend(descriptor, poll)
        return True

    def _end_overdue(self) -> bool:
        """End a program that has had its time since its terminal went away; False when it may go on."""
        if self._deadline is None or time.monotonic() < self._deadline:
            return False
        self._outcome = Outcome(status=signal.SIGHUP)
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
                self._deadline = time.monotonic() + _GRACE
        if number in FORWARDED:
            self._say(b"signal %d" % number)
        elif number == signal.SIGCONT:
            # A shell brought the job back, into the foreground or not.
            self._terminal.lent = self._terminal.is_ours
            self._say(b"continue %d" % self._terminal.lent)

    def _lose(self) -> None:
        """The view has died. The starter ends everything when nobody listens."""
        self._outcome = Outcome(lost=True)
        os.close(self._channel)

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
            self._terminal.stop_too(int(rest))
            self._terminal.lent = self._terminal.is_ours
            self._say(b"continue %d" % self._terminal.lent)
        elif word == b"ended":
            self._outcome = Outcome(status=int(rest), had_terminal=self._terminal.lent)
        elif word == b"failed":
            error, _, more = rest.partition(b" ")
            stage, _, detail = more.partition(b" ")
            self._outcome = Outcome(
                stage=stage.decode(), error=int(error), detail=detail.decode(errors="replace")
            )

    def _say(self, line: bytes) -> None:
        with suppress(OSError):
            os.write(self._channel, line + b"\n")


def _nothing(number: int, frame: FrameType | None) -> None:
    """The wakeup descriptor tells of it."""
