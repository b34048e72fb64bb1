"""How can an answer be completed with what pyfuse3 cannot put into it?

For one answer a socket takes the place of the device: libfuse writes into it, what is missing is added, the
kernel gets that, and the descriptor is the device again. A request can be put into the socket first, for
libfuse to find.
"""

import os
import socket
from collections.abc import Callable
from threading import Lock

LARGEST = 1 << 16
"""No request and no answer that takes the detour may be larger."""
# What the kernel counts beside the bytes of a message.
_OVERHEAD = 1 << 12


class Detour:
    """The way around one device, for one answer at a time.

    *telling* is held by whoever sends the kernel something that is no answer: that must not end up in the
    socket, and so it waits, or there is no detour.
    """

    def __init__(self, device: int, telling: Lock) -> None:
        self._device = device
        self._telling = telling
        self._kernel = os.dup(device)
        self._ours, self._theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._ours.setblocking(False)
        self._theirs.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 2 * LARGEST)
        self._complete: Callable[[bytes], bytes] | None = None
        granted = self._theirs.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF)
        self.is_wide = granted > LARGEST + _OVERHEAD
        """Whether the largest answer fits, which is for the system to grant; small ones always do."""

    @property
    def taken(self) -> bool:
        return self._complete is not None

    def receive(self) -> bytes:
        """Take the kernel's next request, instead of libfuse."""
        return os.read(self._kernel, LARGEST)

    def take(self, complete: Callable[[bytes], bytes], request: bytes | None = None) -> bool:
        """Have the next answer completed, unless the kernel is being told something just now."""
        if self.taken or not self._telling.acquire(blocking=False):
            return False
        self._complete = complete
        os.dup2(self._theirs.fileno(), self._device, inheritable=False)
        if request is not None:
            self._ours.send(request)
        return True

    def leave(self) -> None:
        """Pass the answer on, if there is one by now, and have the device back."""
        complete = self._complete
        if complete is None:
            return
        os.dup2(self._kernel, self._device, inheritable=False)
        self._complete = None
        self._telling.release()
        try:
            answer = self._ours.recv(LARGEST)
        except BlockingIOError:
            return
        try:
            os.write(self._kernel, complete(answer))
        except FileNotFoundError:
            # Whoever asked was interrupted, and waits no more.
            pass

    def close(self) -> None:
        self.leave()
        self._ours.close()
        self._theirs.close()
        os.close(self._kernel)
