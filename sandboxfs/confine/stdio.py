"""Standard streams of a confined program: inherited descriptors, and relays before host files.

Standard input, output and error only. A program can open what a descriptor leads to once more, for writing,
through /proc; so pipes, terminals and sockets are handed on, and everything else that they lead to is read
and written here, on the other side of a pipe. What a program leaves unread of a file that is its input is
left for whoever reads it next, as it would be without the pipe.
"""

import fcntl
import os
import select
import stat
import struct
import termios
import time
from contextlib import suppress
from dataclasses import dataclass

from sandboxfs.errors import UsageError

_CHUNK = 1 << 18
# So many seconds may pass until all that wrote to a pipe are seen to have ended.
_PATIENCE = 3.0
_NAMES = ("standard input", "standard output", "standard error")
# null, zero, full, random and urandom
_HARMLESS_DEVICES = {(1, 3), (1, 5), (1, 7), (1, 8), (1, 9)}


def is_safe(descriptor: int) -> bool:
    """Say whether a program may have *descriptor* itself."""
    status = os.fstat(descriptor)
    if stat.S_ISFIFO(status.st_mode) or stat.S_ISSOCK(status.st_mode):
        return True
    device = os.major(status.st_rdev), os.minor(status.st_rdev)
    return stat.S_ISCHR(status.st_mode) and (device in _HARMLESS_DEVICES or os.isatty(descriptor))


@dataclass
class _Relay:
    """Bytes on their way from *source* to *target*; one of the two is our end of a pipe."""

    source: int
    target: int
    inwards: bool
    pending: bytes = b""
    # How many bytes were read from the source.
    carried: int = 0


@dataclass(frozen=True)
class _Input:
    """A file that a program reads through *relay*: where it began, and a copy of the program's *end*.

    The copy keeps what nobody has read in the pipe.
    """

    relay: _Relay
    begin: int
    end: int


class StreamRelays:
    """The standard descriptors of a program, and the traffic between them and ours."""

    def __init__(self) -> None:
        self._relays: list[_Relay] = []
        self._given: list[int] = []
        self._input: _Input | None = None
        shared: dict[tuple[int, int], int] = {}
        for descriptor in range(3):
            self._given.append(self._arrange(descriptor, shared))

    def hand_over(self) -> None:
        """In the process that becomes the program's starter: have what the program gets as 0, 1 and 2."""
        for number, descriptor in enumerate(self._given):
            os.dup2(descriptor, number)
            os.close(descriptor)
        for relay in self._relays:
            # The other end of a pipe: while it is open here too, the program would never see an end.
            os.close(relay.target if relay.inwards else relay.source)
        if self._input is not None:
            os.close(self._input.end)

    def _arrange(self, descriptor: int, shared: dict[tuple[int, int], int]) -> int:
        try:
            status = os.fstat(descriptor)
        except OSError:
            # Closed: the next file that the program opens must not become its standard output.
            return os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
        if is_safe(descriptor):
            return os.dup(descriptor)
        if stat.S_ISDIR(status.st_mode):
            raise UsageError(f"{_NAMES[descriptor]} is a directory")
        if descriptor == 0:
            theirs, ours = os.pipe2(os.O_CLOEXEC)
            os.set_blocking(ours, False)
            relay = _Relay(descriptor, ours, inwards=True)
            self._relays.append(relay)
            if stat.S_ISREG(status.st_mode):
                self._input = _Input(relay, os.lseek(descriptor, 0, os.SEEK_CUR), os.dup(theirs))
            return theirs
        # Both to the same file: through one pipe, which keeps the order.
        known = shared.get((status.st_dev, status.st_ino))
        if known is not None:
            return os.dup(known)
        ours, theirs = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(ours, False)
        self._relays.append(_Relay(ours, descriptor, inwards=False))
        shared[status.st_dev, status.st_ino] = theirs
        return theirs

    def started(self) -> None:
        """The program has its descriptors: close our copies, so that ends are noticed."""
        for descriptor in self._given:
            os.close(descriptor)
        self._given.clear()

    def register(self, poll: select.poll) -> None:
        for relay in self._relays:
            if relay.inwards:
                poll.register(relay.target, select.POLLOUT)
            else:
                poll.register(relay.source, select.POLLIN)

    def attend(self, descriptor: int, poll: select.poll) -> bool:
        """Carry on where *descriptor* is ready; False when it is none of ours."""
        for relay in self._relays:
            if descriptor == (relay.target if relay.inwards else relay.source):
                if not (self._feed(relay) if relay.inwards else self._drain(relay)):
                    poll.unregister(descriptor)
                    os.close(descriptor)
                    self._relays.remove(relay)
                return True
        return False

    def finish(self) -> bool:
        """Carry what the program had written when it ended, stop feeding it, and give back what it left.

        False when something kept its output open all the same, which is not waited for.
        """
        whole = True
        deadline = time.monotonic() + _PATIENCE
        for relay in self._relays:
            if relay.inwards:
                os.close(relay.target)
            else:
                whole = self._drain_rest(relay, deadline) and whole
                os.close(relay.source)
        self._relays.clear()
        if self._input is not None:
            self._give_back(self._input)
        return whole

    def _give_back(self, given: _Input) -> None:
        """Put the file that was the program's input to where the program has read it."""
        relay, reached = given.relay, given.begin + given.relay.carried
        left = min(relay.carried, len(relay.pending) + _waiting(given.end))
        os.close(given.end)
        # Not when somebody else has read on, or written, meanwhile.
        if os.lseek(relay.source, 0, os.SEEK_CUR) == reached:
            os.lseek(relay.source, reached - left, os.SEEK_SET)

    def _drain_rest(self, relay: _Relay, deadline: float) -> bool:
        """Carry everything that is there, and what comes until *deadline*; False when there was no end."""
        left = _waiting(relay.source)
        poll = select.poll()
        poll.register(relay.source, select.POLLIN)
        while left > 0 or time.monotonic() < deadline:
            before = relay.carried
            if not poll.poll(max(0.0, deadline - time.monotonic()) * 1000):
                return False
            if not self._drain(relay):
                return True
            left -= relay.carried - before
        return False

    def _feed(self, relay: _Relay) -> bool:
        if not relay.pending:
            try:
                relay.pending = os.read(relay.source, _CHUNK)
            except OSError:
                return False
            if not relay.pending:
                return False
            relay.carried += len(relay.pending)
        try:
            relay.pending = relay.pending[os.write(relay.target, relay.pending) :]
        except BlockingIOError:
            pass
        except OSError:
            # The program reads no more.
            return False
        return True

    def _drain(self, relay: _Relay) -> bool:
        try:
            chunk = os.read(relay.source, _CHUNK)
        except BlockingIOError:
            # The program can open its output for reading, and take back what it wrote.
            return True
        if not chunk:
            return False
        relay.carried += len(chunk)
        # The file may be on a full disk; the program hears of it as of a pipe that nobody reads.
        with suppress(OSError):
            while chunk:
                chunk = chunk[os.write(relay.target, chunk) :]
            return True
        return False


def _waiting(pipe: int) -> int:
    """How many bytes are in a *pipe*."""
    return int(struct.unpack("i", fcntl.ioctl(pipe, termios.FIONREAD, bytes(4)))[0])
