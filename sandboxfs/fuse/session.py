"""One mount: made, served and taken down.

pyfuse3 keeps its session in module globals, so a process serves one mount in its life.
"""

import errno
import logging
import os
import re
import struct
from collections.abc import Callable
from contextlib import suppress
from functools import cache, partial
from threading import Lock

import pyfuse3
from pyfuse3 import InodeT

from sandboxfs.errors import MountFailed
from sandboxfs.fuse.operations import Operations
from sandboxfs.fuse.waiting import Waiting
from sandboxfs.overlay.decisions import Shown
from sandboxfs.overlay.filesystem import Filesystem
from sandboxfs.overlay.renewal import Outdated

log = logging.getLogger(__name__)

# From linux/fuse.h: struct fuse_out_header and struct fuse_notify_inval_entry_out.
_HEADER = struct.Struct("=IiQ")
_INVAL_ENTRY = struct.Struct("=QII")
_NOTIFY_INVAL_ENTRY = 3
_EXPIRE_ONLY = 1

# Threads send messages while this thread serves; when it closes what they use, none may.
_telling = Lock()
_served: set[int] = set()
# Seconds to wait for a message that is being sent.
_LAST_WORDS = 2.0


class _Served(Operations):
    """Tells when the kernel has answered the mount."""

    def __init__(self, filesystem: Filesystem, waiting: Waiting, ready: Callable[[], None]) -> None:
        super().__init__(filesystem, waiting.beside, waiting.remember, waiting.abridge, _give)
        self._ready = ready

    def init(self) -> None:
        self._ready()


def invalidate(shown: list[Shown]) -> None:
    """Make the kernel forget names, attributes and pages. May wait: never called on the serving thread."""
    for ino, places in shown:
        _tell(partial(pyfuse3.invalidate_inode, InodeT(ino)))
        for parent, name in places:
            _tell(partial(pyfuse3.invalidate_entry, InodeT(parent), name))
    _forget_listings({parent for _, places in shown for parent, _ in places})


def refresh(outdated: Outdated) -> None:
    """Make the kernel ask again for what may have changed. May wait, as `invalidate` does.

    Names are only made to expire where that is enough: taking away the name of a directory would keep those
    who work in it from finding out where they are.
    """
    for ino in outdated.inodes:
        _tell(partial(pyfuse3.invalidate_inode, InodeT(ino)))
    for parent, name in outdated.removed:
        _tell(partial(pyfuse3.invalidate_entry, InodeT(parent), name))
    for parent, name in outdated.expired - outdated.removed:
        _tell(partial(_expire, parent, name))
    _forget_listings({parent for parent, _ in outdated.removed | outdated.expired} - outdated.inodes)


def _forget_listings(directories: set[int]) -> None:
    """Have directories read again by those who have them open; whoever opens them next is told so anyway."""
    for ino in directories:
        _tell(partial(pyfuse3.invalidate_inode, InodeT(ino)))


def _tell(message: Callable[[], None]) -> None:
    """Send the kernel a message, unless nothing is mounted, or is no longer: then it knows nothing."""
    with _telling:
        if _served:
            # ENOENT: the kernel does not have it.
            with suppress(OSError):
                message()


def _give(ino: int, content: bytes) -> bool:
    """Let the kernel have the content of a file that nobody has open yet; whether it has it then.

    On the serving thread: it waits for nobody, because nobody reads a file that is not open.
    """
    if not _stores_well() or not _telling.acquire(blocking=False):
        return False
    try:
        pyfuse3.notify_store(InodeT(ino), 0, content)
    except OSError:
        return False
    finally:
        _telling.release()
    return True


@cache
def _stores_well() -> bool:
    """Whether the kernel clears what follows a file's end in its last page: those before 6.11 may not."""
    numbers = re.match(r"(\d+)\.(\d+)", os.uname().release)
    return numbers is not None and (int(numbers[1]), int(numbers[2])) >= (6, 11)


def _expire(parent: int, name: bytes) -> None:
    os.write(_device(), expiry(parent, name))


def expiry(parent: int, name: bytes) -> bytes:
    """The message that makes a name expire, which pyfuse3 cannot send: see FUSE_NOTIFY_INVAL_ENTRY.

    A kernel older than 6.2 takes the name away instead.
    """
    body = _INVAL_ENTRY.pack(parent, len(name), _EXPIRE_ONLY) + name + b"\0"
    return _HEADER.pack(_HEADER.size + len(body), _NOTIFY_INVAL_ENTRY, 0) + body


@cache
def _device() -> int:
    """The descriptor of /dev/fuse that pyfuse3 uses; a process serves one mount in its life."""
    for fd in map(int, os.listdir("/proc/self/fd")):
        with suppress(OSError):
            if os.readlink(f"/proc/self/fd/{fd}") == "/dev/fuse":
                return fd
    raise OSError(errno.ENODEV, os.strerror(errno.ENODEV))


def _end_telling() -> None:
    # Who is still telling something holds it up for a moment only, unless the kernel waits for an answer.
    got = _telling.acquire(timeout=_LAST_WORDS)
    _served.clear()
    if got:
        _telling.release()


async def serve(
    filesystem: Filesystem,
    mountpoint: str,
    *,
    read_only: bool,
    allow_other: bool,
    ready: Callable[[], None],
) -> None:
    """Serve *filesystem* at *mountpoint* until it is unmounted or this task is cancelled, which unmounts it.

    *ready* is called once the view can be used. MountFailed when it cannot be mounted.
    """
    options = {"default_permissions", "fsname=sandboxfs", "subtype=sandboxfs"}
    if read_only:
        options.add("ro")
    if allow_other:
        options.add("allow_other")
    waiting = Waiting(_telling)
    try:
        pyfuse3.init(_Served(filesystem, waiting, ready), mountpoint, options)
    except RuntimeError as error:
        raise MountFailed(
            f"cannot mount at '{mountpoint}': {error}", hint="run 'sandboxfs doctor' to find out why"
        ) from error
    tasks = waiting.install(_device())
    _served.add(_device())
    try:
        await pyfuse3.main(max_tasks=tasks)
    finally:
        waiting.stop()
        _end_telling()
        log.info("unmounting %s", os.fsdecode(mountpoint))
        # Lazily where it is busy: a process that sits in the view must not keep the daemon alive.
        pyfuse3.close(unmount=True)
