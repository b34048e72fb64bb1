"""How do requests get to pyfuse3 when it does not read them itself?

A socket takes the place of the device under the number that pyfuse3 and libfuse know. What they are to answer
is put into it, and their answers are taken out of it for the kernel. The device itself is at hand under a
number of its own, for those who read requests and for all that the kernel is told besides.
"""

import errno
import logging
import os
import socket

from sandboxfs.fuse import wire
from sandboxfs.fuse.greeting import Greeting

log = logging.getLogger(__name__)

LARGEST = 1 << 17
"""No request and no answer that goes through may be larger. The largest are those about extended attributes,
of which each has 64 KiB at most."""


class Passage:
    """The way to pyfuse3, which has *number* open on the device."""

    def __init__(self, number: int) -> None:
        self._number = number
        self.device = os.dup(number)
        # Whoever is told of a request may find that it was taken back: its caller was killed.
        os.set_blocking(self.device, False)
        self._ours, self._theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._ours.setblocking(False)
        for end in (self._ours, self._theirs):
            end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 2 * LARGEST)
        os.dup2(self._theirs.fileno(), number, inheritable=False)
        self._greeting: Greeting | None = None

    def pass_on(self, request: memoryview) -> bool:
        """Let pyfuse3 find a request; whether it will. Otherwise it has been refused."""
        _, opcode, unique, *_ = wire.header_of(request)
        if opcode == wire.Opcode.INIT:
            self._greeting = Greeting.of(request)
        try:
            self._ours.send(request)
        except OSError as error:
            self._write(wire.refusal(unique, errno.E2BIG if error.errno == errno.EMSGSIZE else errno.EIO))
            return False
        return True

    def bring_back(self) -> None:
        """Let the kernel have what pyfuse3 has answered by now."""
        while True:
            try:
                answer = self._ours.recv(LARGEST)
            except BlockingIOError:
                return
            if not answer:
                return
            if self._greeting is not None:
                answer, self._greeting = self._greeting.completed(answer), None
            self._write(answer)

    def close(self) -> None:
        """Have the device back where pyfuse3 looks for it, for unmounting."""
        self.bring_back()
        os.dup2(self.device, self._number, inheritable=False)
        self._ours.close()
        self._theirs.close()
        os.close(self.device)

    def _write(self, answer: bytes) -> None:
        try:
            os.write(self.device, answer)
        except OSError as error:
            unsent(error)


def unsent(error: OSError) -> None:
    """Bear that the kernel does not take an answer.

    ENOENT: whoever asked was interrupted, and waits no more. ENODEV: unmounted, as whoever reads the next
    request finds out.
    """
    if error.errno not in (errno.ENOENT, errno.ENODEV):
        log.error("the kernel does not take an answer: %s", error.strerror)
