"""One mount: made, served and taken down.

pyfuse3 keeps its session in module globals, so a process serves one mount in its life.
"""

import logging
import os
from collections.abc import Callable
from contextlib import suppress

import pyfuse3
from pyfuse3 import InodeT

from sandboxfs.errors import MountFailed
from sandboxfs.fuse.operations import Operations
from sandboxfs.overlay.decisions import Shown
from sandboxfs.overlay.filesystem import Filesystem

log = logging.getLogger(__name__)


class _Served(Operations):
    """Tells when the kernel has answered the mount."""

    def __init__(self, filesystem: Filesystem, ready: Callable[[], None]) -> None:
        super().__init__(filesystem)
        self._ready = ready

    def init(self) -> None:
        self._ready()


def invalidate(shown: list[Shown]) -> None:
    """Make the kernel forget names, attributes and pages. May wait: never called on the serving thread."""
    for ino, places in shown:
        with suppress(OSError):
            pyfuse3.invalidate_inode(InodeT(ino))
        for parent, name in places:
            # ENOENT: the kernel does not have it.
            with suppress(OSError):
                pyfuse3.invalidate_entry(InodeT(parent), name)


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
    try:
        pyfuse3.init(_Served(filesystem, ready), mountpoint, options)
    except RuntimeError as error:
        raise MountFailed(
            f"cannot mount at '{mountpoint}': {error}", hint="run 'sandboxfs doctor' to find out why"
        ) from error
    try:
        await pyfuse3.main()
    finally:
        log.info("unmounting %s", os.fsdecode(mountpoint))
        # Lazily where it is busy: a process that sits in the view must not keep the daemon alive.
        pyfuse3.close(unmount=True)
