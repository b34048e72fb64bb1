"""The FUSE connection of one mount: made, served and taken down.

pyfuse3 keeps its session in module globals, so a process serves one mount in its life.

pyfuse3 mounts and unmounts, and libfuse agrees with the kernel in INIT on the features of both. Every other
request is read and answered by sandboxfs, on a descriptor of its own. libfuse knows the device by one
descriptor number and reads from nothing else, so a socket (`Pyfuse3Bridge`) takes that number for as long as
INIT takes. Then the device is back at its number, where libfuse needs it to unmount, and pyfuse3 reads
nothing any more.

Only the public names of pyfuse3 are used. Each start verifies that libfuse reads and writes whole messages at
the number of its device. Where libfuse does not, the start fails: nothing else could serve the mount.
"""

import logging
import os
import socket
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress

import pyfuse3
import trio

from sandboxfs.errors import MountFailed
from sandboxfs.fuse.dispatch import AfterReply, Dispatcher
from sandboxfs.fuse.notify import Notifier
from sandboxfs.fuse.protocol import Greeting
from sandboxfs.fuse.request_loop import RequestLoop, is_taken_back
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
