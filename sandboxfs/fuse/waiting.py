"""How does the daemon wait for the next request?

pyfuse3's own way goes through trio for each request: a lock, a turn of the scheduler, an epoll. And while it
sleeps, the processor does too; waking that up, above all in a virtual machine, takes longer than an answer.
So this one takes its place. While programs are busy, the next request comes within microseconds of the last
answer: look for it without sleeping for a moment, then sleep on the device alone for a little longer, and
only then go back to trio, where an idle mount costs nothing.

Looking without sleeping takes a processor. It is given up for a while when it was of no use, or when others
wanted that processor; with a single one it is never done. Other tasks get their turn every few milliseconds.

Most requests are answered right here, by whoever `install` is given (see `express`). The others are put where
pyfuse3 finds them (see `passage`): only for those does waiting end. One task at a time waits; a handler of
pyfuse3 that has to wait for something does so `beside`, and another task takes over.
"""

import errno
import inspect
import logging
import os
import select
import time
from collections.abc import Awaitable, Callable
from enum import Enum, auto

import pyfuse3
import trio

from sandboxfs.fuse.greeting import LARGEST_WRITE
from sandboxfs.fuse.passage import Passage

log = logging.getLogger(__name__)

TASKS = 48
"""How many requests pyfuse3 can have under way at once, all but one of them waiting for something."""

Spawn = Callable[[Callable[[], Awaitable[object]]], object]
"""Starts a task."""
Answer = Callable[[memoryview], bool]
"""Answers a request; whether that could be done without pyfuse3. The bytes are good until it returns."""

# The kernel hands out nothing to whoever has less room than for the largest write that it was allowed, and
# what comes before the data.
_ROOM = LARGEST_WRITE + (1 << 16)
# Seconds to look for the next request without sleeping, and milliseconds to sleep on the device alone.
_LOOKING = 200e-6
_SLEEPING = 2
# Seconds after which other tasks get a turn, however many requests come.
_TURN = 10e-3
# The same, while a task may be waiting for the end of what is done beside.
_SHORT_TURN = 0.5e-3
# Looking so many times in vain is enough; then it rests for so many requests.
_IN_VAIN = 4
_REST = 64
# Seconds between two looks at whether the processor is wanted elsewhere, and the share of them that this
# thread may have had to wait for one.
_INTERVAL = 0.05
_CROWDED = 0.1


class _Then(Enum):
    """Why no more requests are answered for now."""

    NOTHING_THERE = auto()
    TURN_OF_OTHERS = auto()
    PASSED_ON = auto()
    UNMOUNTED = auto()


class Waiting:
    """Waits for requests to one mount; one for all tasks that do."""

    def __init__(self, *, processors: int | None = None) -> None:
        processors = len(os.sched_getaffinity(0)) if processors is None else processors
        self._passage: Passage | None = None
        self._answer: Answer = lambda _: False
        self._afterwards: Callable[[], None] = lambda: None
        self._request = memoryview(bytearray(_ROOM))
        self._poll = select.poll()
        self._others = trio.lowlevel.ParkingLot()
        self._taken = False
        # How many are doing something else, whose end only trio tells.
        self._beside = 0
        self._over = False
        self._turn = 0.0
        self._looks = processors > 1
        self._vain = 0
        self._rest = 0
        self._crowd = _Crowd()

    def install(self, passage: Passage, answer: Answer, afterwards: Callable[[], None]) -> None:
        """Take the place of pyfuse3's own waiting; see `can_be_installed`."""
        self.watch(passage, answer, afterwards)
        setattr(pyfuse3, _WAIT, self.wait)

    def watch(self, passage: Passage, answer: Answer, afterwards: Callable[[], None] = lambda: None) -> None:
        """Wait for requests that come through *passage*, of which *answer* answers what it can.

        *afterwards* is called when pyfuse3 has answered one.
        """
        self._passage = passage
        self._answer = answer
        self._afterwards = afterwards
        self._poll.register(passage.device, select.POLLIN)

    async def wait(self) -> bool:
        """Answer requests until there is one for pyfuse3; False when there will be none any more."""
        if self._passage is not None:
            self._passage.bring_back()
            self._afterwards()
        while self._taken and not self._over:
            await self._others.park()
        self._taken = True
        try:
            while not self._over and self._passage is not None:
                if time.perf_counter() >= self._turn:
                    await self._let_others()
                then = self._serve(self._passage)
                if then is _Then.PASSED_ON:
                    return True
                if then is _Then.NOTHING_THERE:
                    await trio.lowlevel.wait_readable(self._passage.device)
                    self._begin_turn()
                elif then is _Then.UNMOUNTED:
                    self._over = True
            return False
        finally:
            self._taken = False
            if self._over:
                self._others.unpark_all()

    def spawning(self, spawn: Spawn) -> Spawn:
        """The same as *spawn*, but that what it starts gets its turn at once."""

        def start(task: Callable[[], Awaitable[object]]) -> None:
            spawn(task)
            self._turn = 0.0

        return start

    async def beside(self, work: Callable[[], object]) -> object:
        """Do *work* in another thread, while another task waits for requests."""
        self._others.unpark()
        self._beside += 1
        try:
            # Who unmounts does not wait for it.
            return await trio.to_thread.run_sync(work, abandon_on_cancel=True)
        finally:
            self._beside -= 1

    async def _let_others(self) -> None:
        # Tasks that are ready run in any order, so twice: one that was just started has run then.
        await trio.lowlevel.checkpoint()
        await trio.lowlevel.checkpoint()
        self._begin_turn()

    def _begin_turn(self) -> None:
        self._turn = time.perf_counter() + (_SHORT_TURN if self._beside else _TURN)

    def _serve(self, passage: Passage) -> _Then:
        """Answer requests as long as they come soon and nobody else has waited long."""
        device, answer, room, clock = passage.device, self._answer, self._request, time.perf_counter
        read, buffers = os.readv, [room]
        while True:
            try:
                size = read(device, buffers)
            except OSError as error:
                size = self._receive(device, buffers, error)
            if size <= 0:
                return _Then.UNMOUNTED if size == 0 else _Then.NOTHING_THERE
            request = room[:size]
            if not answer(request) and passage.pass_on(request):
                return _Then.PASSED_ON
            if clock() >= self._turn:
                return _Then.TURN_OF_OTHERS

    def _receive(self, device: int, buffers: list[memoryview], error: OSError) -> int:
        """Take the next request, if it comes soon, and sleep as little as helps; its size.

        There was none at first, and *error* says why. 0 when there will be none any more, less when there is
        none for now.
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
            elif not _is_taken_back(error):
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
        """Until when to look for the next request without sleeping; 0 for not at all."""
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
        """Sleep on the device for a moment; whether there may be a request. *looked*: so far in vain."""
        if looked:
            self._vain += 1
            if self._vain >= _IN_VAIN:
                self._vain = 0
                self._rest = _REST
        return not self._beside and bool(self._poll.poll(_SLEEPING))


class _Crowd:
    """Tells whether others want the processor that we have, by how long this thread had to wait for one."""

    def __init__(self) -> None:
        self._next = 0.0
        self._waited = 0
        self._wanted = False
        try:
            self._fd = os.open("/proc/thread-self/schedstat", os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            # A kernel that does not tell.
            self._fd = -1

    def wants_it(self, now: float) -> bool:
        if now < self._next or self._fd < 0:
            return self._wanted
        passed, self._next = now - self._next + _INTERVAL, now + _INTERVAL
        waited = int(os.pread(self._fd, 100, 0).split()[1])
        self._wanted = waited - self._waited > passed * 1e9 * _CROWDED
        self._waited = waited
        return self._wanted


# pyfuse3's loop looks it up among its module's names for each request.
_WAIT = "_wait_fuse_readable"


def _is_taken_back(error: OSError) -> bool:
    """Whether there was no request in the end, because its caller is gone. False: the mount is gone."""
    if error.errno in (errno.ENOENT, errno.EINTR):
        return True
    if error.errno in (errno.ENODEV, errno.ECONNABORTED):
        return False
    raise error


def can_be_installed() -> bool:
    """Whether this pyfuse3 waits in the way that is known here. Otherwise it serves by itself."""
    if inspect.iscoroutinefunction(getattr(pyfuse3, _WAIT, None)):
        return True
    log.warning("this pyfuse3 waits in another way; requests are served more slowly")
    return False
