"""Request loop: polling the device for the next request.

Waiting through trio costs a turn of the scheduler and an epoll for each request. While the daemon sleeps, the
processor sleeps too; waking the processor, above all in a virtual machine, takes longer than an answer. While
programs are busy, the next request comes within microseconds of the last answer. So the loop polls the device
for a moment without sleeping, then sleeps on the device alone for a little longer, and only then goes back to
trio, where an idle mount costs nothing.

Polling without sleeping takes a processor. The loop stops polling for a while when polling was of no use, or
when other threads wanted the processor; with a single processor the loop never polls. Other tasks get their
turn every few milliseconds.
"""

import errno
import os
import select
import time
from collections.abc import Awaitable, Callable
from enum import Enum, auto

import trio

from sandboxfs.fuse.protocol import LARGEST_WRITE

Spawn = Callable[[Callable[[], Awaitable[object]]], object]
"""Starts a task."""
Answer = Callable[[memoryview], object]
"""Answers a request, now or later. The bytes of the request are valid until the call returns."""

# The kernel refuses a read with less room than for the largest write that INIT allowed and the headers
# before its data.
_ROOM = LARGEST_WRITE + (1 << 16)
# Seconds to poll for the next request without sleeping, and milliseconds to sleep on the device alone.
_LOOKING = 200e-6
_SLEEPING = 2
# Seconds after which other tasks get a turn, however many requests come.
_TURN = 10e-3
# The same, while a task waits for the end of work in another thread.
_SHORT_TURN = 0.5e-3
# After so many polls in vain, the loop polls for none of the next so many requests.
_IN_VAIN = 4
_REST = 64
# Seconds between two checks whether other threads want the processor, and the share of that time for which
# this thread may have waited for a processor.
_INTERVAL = 0.05
_CROWDED = 0.1


class _Then(Enum):
    """The reason why the loop stops answering requests for now."""

    NOTHING_THERE = auto()
    TURN_OF_OTHERS = auto()
    UNMOUNTED = auto()


class RequestLoop:
    """Waits for the requests to one mount."""

    def __init__(self, *, processors: int | None = None) -> None:
        processors = len(os.sched_getaffinity(0)) if processors is None else processors
        self._request = memoryview(bytearray(_ROOM))
        self._poll = select.poll()
        # The count of tasks that wait for work in another thread; only trio tells when that work ends.
        self._beside = 0
        self._turn = 0.0
        self._looks = processors > 1
        self._vain = 0
        self._rest = 0
        self._crowd = _Crowd()

    async def serve(self, device: int, answer: Answer) -> None:
        """Read *device*, which is non-blocking, and pass on each request until the mount is gone."""
        self._poll.register(device, select.POLLIN)
        while True:
            if time.perf_counter() >= self._turn:
                await self._let_others()
            then = self._serve(device, answer)
            if then is _Then.UNMOUNTED:
                return
            if then is _Then.NOTHING_THERE:
                await trio.lowlevel.wait_readable(device)
                self._begin_turn()

    def spawning(self, spawn: Spawn) -> Spawn:
        """*spawn*, with the started task getting its turn at once."""

        def start(task: Callable[[], Awaitable[object]]) -> None:
            spawn(task)
            self._turn = 0.0

        return start

    async def beside(self, work: Callable[[], object]) -> object:
        """Do *work* in another thread, while requests are answered."""
        self._beside += 1
        try:
            # Unmounting does not wait for the work.
            return await trio.to_thread.run_sync(work, abandon_on_cancel=True)
        finally:
            self._beside -= 1

    async def _let_others(self) -> None:
        # Ready tasks run in any order. After two checkpoints, a task that was just started has run.
        await trio.lowlevel.checkpoint()
        await trio.lowlevel.checkpoint()
        self._begin_turn()

    def _begin_turn(self) -> None:
        self._turn = time.perf_counter() + (_SHORT_TURN if self._beside else _TURN)

    def _serve(self, device: int, answer: Answer) -> _Then:
        """Answer requests as long as they come soon and no other task has waited long."""
        room, clock, read = self._request, time.perf_counter, os.readv
        buffers = [room]
        while True:
            try:
                size = read(device, buffers)
            except OSError as error:
                size = self._receive(device, buffers, error)
            if size <= 0:
                return _Then.UNMOUNTED if size == 0 else _Then.NOTHING_THERE
            answer(room[:size])
            if clock() >= self._turn:
                return _Then.TURN_OF_OTHERS

    def _receive(self, device: int, buffers: list[memoryview], error: OSError) -> int:
        """Take the next request, if it comes soon, and sleep as little as possible; its size.

        The first read failed with *error*. 0: no request will come any more. Below 0: no request for now.
        """
        read, clock = os.readv, time.perf_counter
        until: float | None = None
        while True:
            if isinstance(error, BlockingIOError):
                if until is None:
                    until = self._look_until()
                if clock() >= until:
                    if not self._sleep(looked=until > 0):
                        return -1
                    until = None
            elif not is_taken_back(error):
                return 0
            try:
                size = read(device, buffers)
            except OSError as another:
                error = another
            else:
                if until:
                    self._vain = 0
                return size

    def _look_until(self) -> float:
        """The time until which to poll for the next request without sleeping; 0 for not polling."""
        if self._beside or not self._looks:
            return 0.0
        if self._rest > 0:
            self._rest -= 1
            return 0.0
        now = time.perf_counter()
        if self._crowd.wants_it(now):
            self._rest = _REST
            return 0.0
        return now + _LOOKING

    def _sleep(self, *, looked: bool) -> bool:
        """Sleep on the device for a moment; whether there may be a request. *looked*: polled in vain."""
        if looked:
            self._vain += 1
            if self._vain >= _IN_VAIN:
                self._vain = 0
                self._rest = _REST
        return not self._beside and bool(self._poll.poll(_SLEEPING))


class _Crowd:
    """Whether other threads want this thread's processor, by the time it had to wait for one."""

    def __init__(self) -> None:
        self._next = 0.0
        self._waited = 0
        self._wanted = False
        try:
            self._fd = os.open("/proc/thread-self/schedstat", os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            # A kernel without scheduler statistics.
            self._fd = -1

    def wants_it(self, now: float) -> bool:
        if now < self._next or self._fd < 0:
            return self._wanted
        passed, self._next = now - self._next + _INTERVAL, now + _INTERVAL
        waited = int(os.pread(self._fd, 100, 0).split()[1])
        self._wanted = waited - self._waited > passed * 1e9 * _CROWDED
        self._waited = waited
        return self._wanted


def is_taken_back(error: OSError) -> bool:
    """Whether the kernel took the request back because its caller is gone. False: the mount is gone."""
    if error.errno in (errno.ENOENT, errno.EINTR):
        return True
    if error.errno in (errno.ENODEV, errno.ECONNABORTED):
        return False
    if error.errno in (errno.ENOMEM, errno.ENOBUFS):
        # Memory may be free a moment later.
        time.sleep(_SLEEPING / 1000)
        return True
    raise error
