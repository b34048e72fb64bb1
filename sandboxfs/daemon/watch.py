"""What is mounted inside the workspace, other sandboxes above all?

Two sandboxes whose mountpoints lie in each other's workspace could wait for each other without end. So each
daemon watches the mount table and seals the others' mountpoints as they appear. Whatever else is mounted
there hides names of the workspace without a word.
"""

import os
import select
from collections.abc import Callable, Iterable
from pathlib import Path

import trio

from sandboxfs.control.mounts import Mount, mounts_below


def foreign_mountpoints(workspace: Path, own: Path) -> list[Path]:
    """The mountpoints of other sandboxes inside the workspace."""
    return [mount.mountpoint for mount in _mounts(workspace, own) if mount.ours]


def _mounts(workspace: Path, own: Path) -> list[Mount]:
    return [mount for mount in mounts_below(workspace) if mount.mountpoint != own]


async def watch_mounts(
    workspace: Path, own: Path, seal: Callable[[Iterable[Path]], None], moved: Callable[[], None]
) -> None:
    """Call *seal* with the foreign mountpoints now and whenever others are mounted in the workspace.

    Call *moved* when anything else has been mounted there, or unmounted.
    """
    before: list[Mount] | None = None
    table = os.open("/proc/self/mountinfo", os.O_RDONLY | os.O_CLOEXEC)
    # The table always counts as readable; only its own epoll tells a change apart from that.
    with select.epoll(1) as changes:
        changes.register(table, select.EPOLLPRI | select.EPOLLET)
        try:
            while True:
                mounts = _mounts(workspace, own)
                # Elsewhere much may be mounted, and often.
                if mounts != before:
                    seal([mount.mountpoint for mount in mounts if mount.ours])
                    if before is not None:
                        moved()
                before = mounts
                await trio.lowlevel.wait_readable(changes)
                changes.poll(0)
        finally:
            os.close(table)
