"""The FUSE connection of one mount: made, served by the request loop, and taken down.

pyfuse3 keeps its session in module globals, so a process serves one mount in its life.

pyfuse3 mounts and unmounts, and libfuse agrees with the kernel in INIT on the features of both. Every other
request is read and answered by sandboxfs, on a descriptor of its own. libfuse knows the device by one
descriptor number and reads from nothing else, so a socket (`Pyfuse3Bridge`) takes that number for as long as
INIT takes. Then the device is back at its number, where libfuse needs it to unmount, and pyfuse3 reads
nothing any more.

Only the public names of pyfuse3 are used. Each start verifies that libfuse reads and writes whole messages at
the number of its device. Where libfuse does not, the start fails: nothing else could serve the mount.

The request loop polls the device for the next request. Waiting through trio costs a turn of the scheduler and
an epoll for each request. While the daemon sleeps, the processor sleeps too; waking the processor, above all
in a virtual machine, takes longer than an answer. While programs are busy, the next request comes within
microseconds of the last answer. So the loop polls the device for a moment without sleeping, then sleeps on
the device alone for a little longer, and only then goes back to trio, where an idle mount costs nothing.

Polling without sleeping takes a processor. The loop stops polling for a while when polling was of no use, or
when other threads wanted the processor; with a single processor the loop never polls. Other tasks get their
turn every few milliseconds.
"""

import errno
import logging
import os
import select
import socket
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import closing, contextmanager, suppress
from enum import Enum, auto

import pyfuse3
import trio

from sandboxfs.errors import MountFailed
from sandboxfs.fuse.dispatch import AfterReply, Dispatcher, Spawn
from sandboxfs.fuse.notify import Notifier
from sandboxfs.fuse.protocol import LARGEST_WRITE, Greeting
from sandboxfs.overlay.filesystem import ANYBODY, ROOT_INODE, Filesystem

REQUIREMENT = "pyfuse3>=3.5,<3.6"
"""The versions that are known to work."""

# Seconds for INIT, which the kernel sends as soon as it has mounted: a later answer never comes.
_PATIENCE = 10.0
# No INIT and no answer to it is larger. The kernel refuses a read with less room than 8 KiB.
_ROOM = 1 << 16


class SessionOperations(pyfuse3.Operations):
    """The handlers of a session in which libfuse sees nothing but INIT."""

    # Otherwise the kernel could ask for `..` of a directory by its inode, past the decision about the path.
    supports_dot_lookup = False
    enable_writeback_cache = False

    def __init__(self, ready: Callable[[], None], *, access_lists: bool) -> None:
        super().__init__()
        self.enable_acl = access_lists
        self._ready = ready

    def init(self) -> None:
        # `pyfuse3.main` returns when INIT is answered.
        pyfuse3.terminate()
        self._ready()


class Pyfuse3Bridge:
    """The socket pair to libfuse, in place of the device that libfuse has open at *number*."""

    def __init__(self, number: int) -> None:
        self._number = number
        self._device = os.dup(number)
        self._ours, self._theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._ours.setblocking(False)
        os.dup2(self._theirs.fileno(), number, inheritable=False)

    def send(self, request: bytes) -> None:
        """Send libfuse a request."""
        self._ours.send(request)

    def receive(self) -> bytes | None:
        """The answer of libfuse, if libfuse has written one."""
        with suppress(BlockingIOError):
            return self._ours.recv(_ROOM)
        return None

    def close(self) -> None:
        """Put the device back at its number."""
        os.dup2(self._device, self._number, inheritable=False)
        os.close(self._device)
        self._ours.close()
        self._theirs.close()


async def answer_init(device: int, number: int) -> None:
    """Pass INIT, the first request on *device*, to libfuse, which has the device open at *number*.

    MountFailed where this pyfuse3 does not answer INIT.
    """
    answer: bytes | None = None
    with trio.move_on_after(_PATIENCE):
        request = await _first_request(device)
        if not request:
            # Unmounted already.
            return
        answer = await _libfuse_answer(number, request)
    if answer is None:
        raise unfit_pyfuse3("does not answer the first request of the kernel")
    # Where the mount is gone, the request loop notices.
    with suppress(OSError):
        os.write(device, Greeting.of(request).completed(answer))


async def _first_request(device: int) -> bytes:
    """The first request on a device; empty where no request will come any more."""
    while True:
        try:
            return os.read(device, _ROOM)
        except BlockingIOError:
            await trio.lowlevel.wait_readable(device)
        except OSError as error:
            if not is_taken_back(error):
                return b""


async def _libfuse_answer(number: int, request: bytes) -> bytes | None:
    with closing(Pyfuse3Bridge(number)) as bridge:
        bridge.send(request)
        try:
            await pyfuse3.main(max_tasks=1)
        except Exception as error:
            raise unfit_pyfuse3("cannot read the first request of the kernel") from error
        return bridge.receive()


def unfit_pyfuse3(fault: str) -> MountFailed:
    """The failure to mount with a pyfuse3, or a libfuse below it, that behaves differently."""
    return MountFailed(
        f"pyfuse3 {pyfuse3.__version__} {fault}; sandboxfs works with {REQUIREMENT}",
        hint=f"pip install '{REQUIREMENT}'",
    )


Answer = Callable[[memoryview], object]
"""Answers a request, now or later. The bytes of the request are valid until the call returns."""

# The kernel refuses a read with less room than for the largest write that INIT allowed and the headers
# before its data.
_REQUEST_ROOM = LARGEST_WRITE + (1 << 16)
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
        self._request = memoryview(bytearray(_REQUEST_ROOM))
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


log = logging.getLogger(__name__)


class _Nothing(list[object]):
    """The `AfterReply` of a filesystem that leaves no work for after an answer."""

    def settle(self) -> None:
        """Never called: the list is always empty."""


NOTHING = _Nothing()
"""No work is left for after an answer."""


async def serve(
    filesystem: Filesystem,
    mountpoint: str,
    notifier: Notifier,
    *,
    read_only: bool,
    allow_other: bool,
    ready: Callable[[], None],
    defer: Callable[[], AfterReply] = lambda: NOTHING,
    every_listing: bool = False,
) -> None:
    """Serve *filesystem* at *mountpoint* until it is unmounted or this task is cancelled, which unmounts it.

    *notifier* reaches the kernel while the mount is served. *ready* is called once the view can be used.
    *defer* makes the filesystem leave work that no caller needs to wait for, and gives that work, to be done
    after an answer. With *every_listing* the kernel asks for every listing and caches none.
    MountFailed when the filesystem cannot be mounted.
    """
    options = {"default_permissions", "fsname=sandboxfs", "subtype=sandboxfs"}
    if read_only:
        options.add("ro")
    if allow_other:
        options.add("allow_other")
    try:
        operations = SessionOperations(ready, access_lists=allow_other or _need_access_lists(filesystem))
        pyfuse3.init(operations, mountpoint, options)
    except RuntimeError as error:
        raise MountFailed(
            f"cannot mount at '{mountpoint}': {error}", hint="run 'sandboxfs doctor' to find out why"
        ) from error
    try:
        await _serve_session(filesystem, notifier, defer(), every_listing=every_listing)
    finally:
        log.info("unmounting %s", os.fsdecode(mountpoint))
        # Lazily where the mount is busy: a process that works in the view must not keep the daemon alive.
        pyfuse3.close(unmount=True)


def _need_access_lists(filesystem: Filesystem) -> bool:
    """Whether the kernel has to check access lists although only this user can use the mount.

    With access lists enabled, the kernel asks for those of the root inode at each step through it, unless the
    caller owns it: the root inode is made before INIT enables access lists, and its own are never cached. The
    kernel checks no lists for the root user.
    """
    return os.geteuid() != 0 or filesystem.getattr(ROOT_INODE, ANYBODY).stat.st_uid == 0


async def _serve_session(
    filesystem: Filesystem, notifier: Notifier, after_reply: AfterReply, *, every_listing: bool
) -> None:
    number = _libfuse_device()
    loop = RequestLoop()
    with _own_device(number) as device, _notifications(notifier, device):
        await answer_init(device, number)
        async with trio.open_nursery() as nursery:
            dispatcher = Dispatcher(
                filesystem,
                device,
                loop.beside,
                loop.spawning(nursery.start_soon),
                notifier,
                after_reply,
                every_listing=every_listing,
            )
            try:
                await loop.serve(device, dispatcher.answer)
            finally:
                dispatcher.close()
                dispatcher.settle()
            nursery.cancel_scope.cancel()


@contextmanager
def _own_device(number: int) -> Iterator[int]:
    """A non-blocking descriptor of its own for the device.

    The kernel may take an announced request back before it is read, when its caller was killed.
    """
    device = os.dup(number)
    os.set_blocking(device, False)
    try:
        yield device
    finally:
        os.close(device)


@contextmanager
def _notifications(notifier: Notifier, device: int) -> Iterator[None]:
    notifier.begin(device)
    try:
        yield
    finally:
        notifier.end()


def _libfuse_device() -> int:
    """The descriptor of /dev/fuse that libfuse uses."""
    for fd in map(int, os.listdir("/proc/self/fd")):
        with suppress(OSError):
            if os.readlink(f"/proc/self/fd/{fd}") == "/dev/fuse":
                return fd
    raise unfit_pyfuse3("does not have /dev/fuse open")
