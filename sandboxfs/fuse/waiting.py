"""How does the daemon wait for the next request?

pyfuse3's own way goes through trio for each request: a lock, a turn of the scheduler, an epoll. And while it
sleeps, the processor does too; waking that up, above all in a virtual machine, takes longer than an answer.
So this one takes its place. While programs are busy, the next request comes within microseconds of the last
answer: look for it without sleeping for a moment, then sleep on the device alone for a little longer, and
only then go back to trio, where an idle mount costs nothing.

Looking without sleeping takes a processor. It is given up for a while when it was of no use, or when others
wanted that processor; with a single one it is never done. Other tasks get their turn every few milliseconds.

One task at a time waits. It stays the one as long as it answers at once; a handler that has to wait for
something does so `beside`, and another task takes over.

The kernel says that there is a request, and pyfuse3 reads it with all of the process: no other thread can run
meanwhile. But when the program that made the request is killed, the kernel takes it back, and the read would
wait for the next one, which may never come. So while requests are read a timer runs, whose signal interrupts
the read; on that pyfuse3 asks again whether there is anything.
"""

import inspect
import logging
import os
import select
import signal
import time
from collections.abc import Callable
from functools import partial
from threading import Lock
from types import FrameType

import pyfuse3
import trio

from sandboxfs.fuse.completing import abridged, greeted, offered, remembered
from sandboxfs.fuse.detour import Detour
from sandboxfs.overlay.filesystem import Listing

log = logging.getLogger(__name__)

TASKS = 48
"""How many requests can be under way at once, all but one of them waiting for something."""

# Seconds to look for the next request without sleeping, and milliseconds to sleep on the device alone.
_LOOKING = 200e-6
_SLEEPING = 2
# Seconds after which other tasks get a turn, however many requests come.
_TURN = 10e-3
# Seconds after which a read that found nothing is interrupted: long enough that a signal is rare, short
# enough that nobody notices the pause.
_PATIENCE = 0.1
_GONE = select.POLLERR | select.POLLHUP | select.POLLNVAL
# Milliseconds to wait for the kernel's greeting.
_GREETING = 1000
# Looking so many times in vain is enough; then it rests for so many requests.
_IN_VAIN = 4
_REST = 64
# Seconds between two looks at whether the processor is wanted elsewhere, and the share of them that this
# thread may have had to wait for one.
_INTERVAL = 0.05
_CROWDED = 0.1


class Waiting:
    """Waits for requests to one mount; one for all tasks that do."""

    def __init__(self, telling: Lock, *, processors: int | None = None) -> None:
        """Whoever tells the kernel something that it did not ask for has to hold *telling*."""
        self._telling = telling
        processors = len(os.sched_getaffinity(0)) if processors is None else processors
        self._device = -1
        self._detour: Detour | None = None
        # The first request is the kernel's greeting; when the next is waited for, it has been answered.
        self._greets = False
        self._poll = select.poll()
        # For the signal, which may come while the other is in use.
        self._glance = select.poll()
        self._others = trio.lowlevel.ParkingLot()
        self._taken = False
        # How many are doing something else, whose end only trio tells.
        self._beside = 0
        self._over = False
        self._timed = False
        self._turn = 0.0
        self._looks = processors > 1
        self._vain = 0
        self._rest = 0
        self._crowd = _Crowd()

    def install(self, device: int) -> int:
        """Take the place of pyfuse3's own waiting on *device*; for the main thread, before serving.

        Returns the number of tasks to serve with. Should pyfuse3 have changed, all stays as it was.
        """
        if not inspect.iscoroutinefunction(getattr(pyfuse3, _WAIT, None)):
            log.warning("this pyfuse3 waits in another way; requests are served more slowly")
            return _STOCK_TASKS
        self.watch(device)
        self._greet(Detour(device, self._telling))
        setattr(pyfuse3, _WAIT, self.wait)
        return TASKS

    def watch(self, device: int) -> None:
        """Wait for requests on this descriptor."""
        self._device = device
        self._poll.register(device, select.POLLIN)
        self._glance.register(device, select.POLLIN)
        signal.signal(signal.SIGALRM, self._interrupted)

    async def wait(self) -> bool:
        """Wait for a request; False when there will be none any more."""
        if self._timed and not self._taken and not self._over:
            # While programs are busy it is there already, and no other task can come in between.
            if self._detour is not None and self._detour.taken:
                self._detour.leave()
            if time.perf_counter() < self._turn and (found := self._poll.poll(0)) and not found[0][1] & _GONE:
                return True
        while self._taken and not self._over:
            await self._others.park()
        if self._over:
            return False
        self._taken = True
        try:
            if self._detour is not None and self._detour.taken and not self._greets:
                self._detour.leave()
            self._greets = False
            now = time.perf_counter()
            if now >= self._turn:
                self._turn = now + _TURN
                await trio.lowlevel.checkpoint()
            if not self._soon(now):
                await self._in_trio()
            return True
        finally:
            self._taken = False

    async def beside(self, work: Callable[[], object]) -> object:
        """Do *work* in another thread, while another task waits for requests."""
        self._others.unpark()
        self._beside += 1
        try:
            # Who unmounts does not wait for it.
            return await trio.to_thread.run_sync(work, abandon_on_cancel=True)
        finally:
            self._beside -= 1

    def stop(self) -> None:
        """Interrupt no more reads, and complete no more answers."""
        self._set_timer(0)
        if self._detour is not None:
            self._detour.close()
            self._detour = None

    def remember(self, listing: Listing) -> None:
        """Let the kernel remember the listing of the directory whose opening is about to be answered."""
        if self._detour is not None and listing is not Listing.ASKED_FOR:
            self._detour.take(partial(remembered, listing=listing))

    def abridge(self) -> bool:
        """Have what is only mentioned come without attributes in the listing about to be answered.

        Whether that can be done; otherwise nothing may be only mentioned.
        """
        return self._detour is not None and self._detour.is_wide and self._detour.take(abridged)

    def _greet(self, detour: Detour) -> None:
        """Have libfuse find the kernel's greeting, and its answer completed."""
        self._detour = detour
        # The kernel asks when it mounts: a mount that is there has asked.
        if self._poll.poll(_GREETING):
            request = detour.receive()
            detour.take(partial(greeted, offers=offered(request)), request)
            self._greets = True

    def _soon(self, now: float) -> bool:
        """Wait for a request that comes soon, sleeping as little as helps."""
        poll = self._poll.poll
        if found := poll(0):
            return self._found(found)
        if self._beside:
            return False
        if self._rest > 0:
            self._rest -= 1
        elif self._looks:
            if self._crowd.wants_it(now):
                self._rest = _REST
            elif found := self._look(now + _LOOKING):
                return self._found(found)
        found = poll(_SLEEPING)
        return bool(found) and self._found(found)

    def _look(self, until: float) -> list[tuple[int, int]]:
        poll, clock = self._poll.poll, time.perf_counter
        while clock() < until:
            if found := poll(0):
                self._vain = 0
                return found
        self._vain += 1
        if self._vain >= _IN_VAIN:
            self._vain = 0
            self._rest = _REST
        return []

    def _found(self, found: list[tuple[int, int]]) -> bool:
        if found[0][1] & _GONE:
            # Unmounted: this task finds out by reading, the others have to be told.
            self._over = True
            self._others.unpark_all()
        elif not self._timed:
            self._set_timer(_PATIENCE)
        return True

    async def _in_trio(self) -> None:
        self._set_timer(0)
        while True:
            await trio.lowlevel.wait_readable(self._device)
            if found := self._poll.poll(0):
                self._turn = time.perf_counter() + _TURN
                self._found(found)
                return

    def _interrupted(self, number: int, frame: FrameType | None) -> None:
        """A read is interrupted by the signal itself; but whoever read may have ended instead.

        That is how a task finds out that the mount is gone when it was told of a request just before. The
        others would wait for it for ever.
        """
        if self._taken or not self._others:
            return
        if any(events & _GONE for _, events in self._glance.poll(0)):
            self._over = True
            trio.lowlevel.current_trio_token().run_sync_soon(self._others.unpark_all)

    def _set_timer(self, seconds: float) -> None:
        self._timed = seconds > 0
        signal.setitimer(signal.ITIMER_REAL, seconds, seconds)


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
_STOCK_TASKS = 99
