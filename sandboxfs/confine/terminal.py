"""Who has the terminal?

A job-control shell gives it to one process group at a time. The command lends it to the program's group and
takes it back, so that keys, signals and full-screen modes reach the program as they would without us.
"""

import os
import select
import signal
import termios
from collections.abc import Iterator
from contextlib import contextmanager, suppress

# What stops every process of a job when it comes from the terminal.
_FOR_THE_JOB = (signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU)


class Terminal:
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
        """Stop as the program was stopped by signal *number*; return when somebody continues us."""
        self.lent = False
        if number in _FOR_THE_JOB:
            before = signal.signal(number, signal.SIG_DFL)
            os.killpg(0, number)
            signal.signal(number, before)
        else:
            os.kill(os.getpid(), signal.SIGSTOP)

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
