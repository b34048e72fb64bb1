"""Host follower: the view follows what the host does to the workspace, and what is mounted inside it.

The overlay watches the directories that the kernel knows. After an event the follower gathers further events
for at most a tenth of a second. Then the kernel is made to ask again for its stale answers, and the policy
decides again where the workspace may have gained or lost names. The work is done in small parts, so that
programs hardly wait.

Two sandboxes whose mountpoints lie in each other's workspace could wait for each other without end. So each
daemon watches the mount table and seals other sandboxes' mountpoints as they appear. Any other mount in the
workspace hides names there, and inotify reports nothing of that.
"""

import os
import select
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import TypeVar

import trio

from sandboxfs.control.mount_table import Mount, mounts_below
from sandboxfs.daemon.event_replay import EventReplay
from sandboxfs.daemon.lasting_tasks import endure, in_a_thread
from sandboxfs.overlay.host_changes import HostChanges, Invalidation

# In seconds: the time without an event that ends gathering, and the longest time to gather.
_QUIET = 0.02
_LONGEST = 0.1
# How many names are compared in one go, which takes some milliseconds; how many messages one thread sends.
_AT_ONCE = 200
_MESSAGES = 500
# Seconds to wait at the end: a message waits while the kernel has requests that must be answered first.
_ENDING = 5.0

Refresh = Callable[[Invalidation], None]
T = TypeVar("T")


class HostFollower:
    """Keeps the kernel's cached answers about the workspace true, for one session."""

    def __init__(
        self,
        noticing: HostChanges,
        decide_anew: Callable[[], None],
        refresh: Refresh,
        echoes: EventReplay | None = None,
        lost: Callable[[], None] = lambda: None,
    ) -> None:
        """*refresh* makes the kernel ask again, and may wait; *decide_anew* drops cached policy decisions.

        *echoes* repeats events for programs that watch the view. *lost* is called when events may have been
        missed: then everything is to be compared.
        """
        self._noticing = noticing
        self._decide_anew = decide_anew
        self._refresh = refresh
        self._echoes = echoes
        self._lost = lost
        self._scope = trio.CancelScope()
        self._ended = trio.Event()

    async def run(self) -> None:
        try:
            if self._noticing.fd is not None:
                with self._scope:
                    async with trio.open_nursery() as nursery:
                        if self._echoes is not None:
                            nursery.start_soon(endure, "repeating what the host did", self._echoes.run)
                        await endure("following the workspace", partial(self._follow, self._noticing.fd))
        finally:
            self._ended.set()

    async def finish(self) -> None:
        """Stop following; to be awaited while the view is still served.

        Otherwise the thread that sends messages to the kernel might wait for a request that the daemon no
        longer answers.
        """
        self._scope.cancel()
        with trio.move_on_after(_ENDING):
            await self._ended.wait()

    async def _follow(self, events: int) -> None:
        with select.epoll(2) as anything, _Bell() as bell:
            anything.register(events, select.EPOLLIN)
            anything.register(bell.fd, select.EPOLLIN)
            self._noticing.tell(bell.ring)
            # Events may be waiting already.
            bell.ring()
            try:
                while True:
                    await trio.lowlevel.wait_readable(anything)
                    bell.silence()
                    async with trio.open_nursery() as nursery:
                        if self._noticing.gather() and self._echoes is not None:
                            nursery.start_soon(self._echoes.look)
                        await self._gather()
                    await self._catch_up()
            except Exception:
                # The gathered events may be lost.
                self._lost()
                raise
            finally:
                self._noticing.tell(None)

    async def _gather(self) -> None:
        """Take events until none comes for a moment, or the first has waited long enough."""
        latest = trio.current_time() + _LONGEST
        while trio.current_time() < latest:
            await trio.sleep(_QUIET)
            if not self._noticing.gather():
                break

    async def _catch_up(self) -> None:
        for noticed in self._noticing.noticed(_AT_ONCE):
            if noticed.names:
                # A rule may ask whether the workspace has a file.
                self._decide_anew()
            if self._echoes is not None:
                await self._echoes.removals(noticed.deeds)
            for part in _parts(noticed.outdated):
                # In a thread: the kernel may make the call wait for a request that this thread has to answer.
                await in_a_thread(self._refresh, part)
            if self._echoes is not None:
                self._echoes.changes(noticed.deeds)
            await trio.lowlevel.checkpoint()


class _Bell:
    """An eventfd: wakes the follower for events that the inotify queue does not hold."""

    def __init__(self) -> None:
        self.fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)

    def __enter__(self) -> "_Bell":
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self.fd)

    def ring(self) -> None:
        os.eventfd_write(self.fd, 1)

    def silence(self) -> None:
        try:
            os.eventfd_read(self.fd)
        except BlockingIOError:
            pass


def _parts(outdated: Invalidation) -> Iterator[Invalidation]:
    """*outdated* in parts of a bounded number of messages."""
    if len(outdated.inodes) + len(outdated.expired) + len(outdated.removed) <= _MESSAGES:
        yield outdated
        return
    for inodes in _chunks(outdated.inodes):
        yield Invalidation(inodes=inodes)
    for names in _chunks(outdated.removed):
        yield Invalidation(removed=names)
    for names in _chunks(outdated.expired - outdated.removed):
        yield Invalidation(expired=names)


def _chunks(all_of_them: set[T]) -> Iterator[set[T]]:
    waiting = list(all_of_them)
    return (set(waiting[start : start + _MESSAGES]) for start in range(0, len(waiting), _MESSAGES))


def foreign_mountpoints(workspace: Path, own: Path) -> list[Path]:
    """The mountpoints of other sandboxes inside the workspace."""
    return [mount.mountpoint for mount in mounts_below(workspace) if mount.ours and mount.mountpoint != own]


async def watch_mounts(
    workspace: Path, own: Path, seal: Callable[[Iterable[Path]], None], moved: Callable[[], None]
) -> None:
    """Call *seal* with the foreign mountpoints, at first and after every change of the mounts in *workspace*.

    Call *moved* after every change but the first look. The loop opens no further descriptor: mounts must be
    known even when descriptors are short.
    """
    before: list[Mount] | None = None
    table = os.open("/proc/self/mountinfo", os.O_RDONLY | os.O_CLOEXEC)
    try:
        # mountinfo always counts as readable; an epoll of its own, with EPOLLPRI, reports changes only.
        with select.epoll(1) as changes:
            changes.register(table, select.EPOLLPRI | select.EPOLLET)
            while True:
                mounts = [mount for mount in mounts_below(workspace, _read(table)) if mount.mountpoint != own]
                # Mounts outside the workspace may change often.
                if mounts != before:
                    seal([mount.mountpoint for mount in mounts if mount.ours])
                    if before is not None:
                        moved()
                before = mounts
                await trio.lowlevel.wait_readable(changes)
                changes.poll(0)
    finally:
        os.close(table)


def _read(table: int) -> bytes:
    os.lseek(table, 0, os.SEEK_SET)
    parts = []
    while part := os.read(table, 1 << 16):
        parts.append(part)
    return b"".join(parts)
