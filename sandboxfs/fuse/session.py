"""One mount: made, served and taken down.

pyfuse3 keeps its session in module globals, so a process serves one mount in its life.
"""

import errno
import logging
import os
from collections.abc import Callable
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

import pyfuse3
import trio

from sandboxfs.errors import MountFailed
from sandboxfs.fuse.express import Express, Owed
from sandboxfs.fuse.operations import Operations
from sandboxfs.fuse.passage import Passage
from sandboxfs.fuse.telling import Telling
from sandboxfs.fuse.waiting import TASKS, Waiting, can_be_installed
from sandboxfs.overlay.filesystem import Filesystem

if TYPE_CHECKING:
    from collections.abc import Iterator

log = logging.getLogger(__name__)


class _Nothing(list[object]):
    """What a filesystem owes that leaves nothing undone."""

    def settle(self) -> None:
        """Never asked."""


NOTHING = _Nothing()
"""Nothing is owed."""

# As many as pyfuse3 takes by itself.
_STOCK_TASKS = 99


class _Served(Operations):
    """Tells when the kernel has answered the mount."""

    def __init__(self, filesystem: Filesystem, waiting: Waiting, ready: Callable[[], None]) -> None:
        super().__init__(filesystem, waiting.beside)
        self._ready = ready

    def init(self) -> None:
        self._ready()


async def serve(
    filesystem: Filesystem,
    mountpoint: str,
    telling: Telling,
    *,
    read_only: bool,
    allow_other: bool,
    ready: Callable[[], None],
    defer: Callable[[], Owed] = lambda: NOTHING,
    every_listing: bool = False,
) -> None:
    """Serve *filesystem* at *mountpoint* until it is unmounted or this task is cancelled, which unmounts it.

    Meanwhile the kernel can be told things by *telling*. *ready* is called once the view can be used. *defer*
    has the filesystem leave undone what nobody needs to wait for, and gives what is owed after an answer.
    *every_listing* of a directory is asked for, and none remembered by the kernel.
    MountFailed when it cannot be mounted.
    """
    options = {"default_permissions", "fsname=sandboxfs", "subtype=sandboxfs"}
    if read_only:
        options.add("ro")
    if allow_other:
        options.add("allow_other")
    waiting = Waiting()
    try:
        pyfuse3.init(_Served(filesystem, waiting, ready), mountpoint, options)
    except RuntimeError as error:
        raise MountFailed(
            f"cannot mount at '{mountpoint}': {error}", hint="run 'sandboxfs doctor' to find out why"
        ) from error
    try:
        if can_be_installed():
            await _serve_quickly(filesystem, waiting, telling, defer(), every_listing=every_listing)
        else:
            with _told_by(telling, _device()):
                await pyfuse3.main(max_tasks=_STOCK_TASKS)
    finally:
        log.info("unmounting %s", os.fsdecode(mountpoint))
        # Lazily where it is busy: a process that sits in the view must not keep the daemon alive.
        pyfuse3.close(unmount=True)


async def _serve_quickly(
    filesystem: Filesystem,
    waiting: Waiting,
    telling: Telling,
    owed: Owed,
    *,
    every_listing: bool,
) -> None:
    passage = Passage(_device())
    try:
        with _told_by(telling, passage.device):
            async with trio.open_nursery() as nursery:
                spawn = waiting.spawning(nursery.start_soon)
                express = Express(
                    filesystem,
                    passage.device,
                    waiting.beside,
                    spawn,
                    telling,
                    owed,
                    every_listing=every_listing,
                )
                waiting.install(passage, express.answer, express.settle)
                try:
                    await pyfuse3.main(max_tasks=TASKS)
                finally:
                    express.close()
                    express.settle()
                nursery.cancel_scope.cancel()
    finally:
        passage.close()


@contextmanager
def _told_by(telling: Telling, device: int) -> "Iterator[None]":
    telling.begin(device)
    try:
        yield
    finally:
        telling.end()


def _device() -> int:
    """The descriptor of /dev/fuse that pyfuse3 uses."""
    for fd in map(int, os.listdir("/proc/self/fd")):
        with suppress(OSError):
            if os.readlink(f"/proc/self/fd/{fd}") == "/dev/fuse":
                return fd
    raise OSError(errno.ENODEV, os.strerror(errno.ENODEV))
