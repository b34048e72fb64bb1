"""Which other sandboxes are mounted inside the workspace?

Two sandboxes whose mountpoints lie in each other's workspace could wait for each other without end. So each
daemon watches the mount table and seals the others' mountpoints as they appear.
"""

import os
import select
from collections.abc import Callable, Iterable
from pathlib import Path

import trio

from sandboxfs.control.mounts import MountTable


def foreign_mountpoints(workspace: Path, own: Path) -> list[Path]:
    """The mountpoints of other sandboxes inside the workspace."""
    table = MountTable.read()
    return [mount.mountpoint for mount in table.below(workspace) if mount.ours and mount.mountpoint != own]


async def watch_mounts(workspace: Path, own: Path, seal: Callable[[Iterable[Path]], None]) -> None:
    """Call *seal* with the foreign mountpoints now and whenever the mount table has changed."""
    table = os.open("/proc/self/mountinfo", os.O_RDONLY | os.O_CLOEXEC)
    # The table always counts as readable; only its own epoll tells a change apart from that.
    with select.epoll(1) as changes:
        changes.register(table, select.EPOLLPRI | select.EPOLLET)
        try:
            while True:
                seal(foreign_mountpoints(workspace, own))
                await trio.lowlevel.wait_readable(changes)
                changes.poll(0)
        finally:
            os.close(table)
