"""How does the view follow what the host does to the workspace?

The overlay watches the directories that the kernel knows. When something happens there, what else happens
in the same moment is waited for, at most a tenth of a second; then the kernel is made to ask again for
whatever is outdated, and the policy is asked again where the workspace may have other names than before.
All of it is done in small parts, so that programs hardly wait.
"""

import os
import select
from collections.abc import Callable, Iterator
from typing import TypeVar

import trio

from sandboxfs.daemon.echoing import Echoes
from sandboxfs.overlay.noticing import Noticing
from sandboxfs.overlay.renewal import Outdated

# In seconds: how long nothing must happen, and how long is waited for that at most.
_QUIET = 0.02
_LONGEST = 0.1
# So many names are looked at in one go, which takes some milliseconds, and told to the kernel by one thread.
_AT_ONCE = 200
_MESSAGES = 500
# Telling the kernel may take as long as it has requests that must be answered first.
_ENDING = 5.0

Refresh = Callable[[Outdated], None]
T = TypeVar("T")


class Follower:
    """Keeps what the kernel knows of the workspace true, for one session."""

    def __init__(
        self,
        noticing: Noticing,
        decide_anew: Callable[[], None],
        refresh: Refresh,
        echoes: Echoes | None = None,
    ) -> None:
        """*refresh* makes the kernel ask again, and may wait; *decide_anew* forgets what a policy said.

        *echoes* are for those who watch the view.
        """
        self._noticing = noticing
        self._decide_anew = decide_anew
        self._refresh = refresh
        self._echoes = echoes
        self._scope = trio.CancelScope()
        self._ended = trio.Event()

    async def run(self) -> None:
        try:
            if self._noticing.fd is not None:
                with self._scope:
                    async with trio.open_nursery() as nursery:
                        if self._echoes is not None:
                            nursery.start_soon(self._echoes.run)
                        await self._follow(self._noticing.fd)
        finally:
            self._ended.set()

    async def finish(self) -> None:
        """Follow no longer; to be awaited while the view is still served.

        Otherwise the thread that tells the kernel might wait for a request that nobody answers any more.
        """
        self._scope.cancel()
        with trio.move_on_after(_ENDING):
            await self._ended.wait()

    async def _follow(self, events: int) -> None:
        with select.epoll(2) as anything, _Bell() as bell:
            anything.register(events, select.EPOLLIN)
            anything.register(bell.fd, select.EPOLLIN)
            self._noticing.tell(bell.ring)
            # Something may be waiting already.
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
            finally:
                self._noticing.tell(None)

    async def _gather(self) -> None:
        """Take events until none came for a moment, or the first has waited long enough."""
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
                # In a thread: the kernel may make it wait for a request that this one has to answer.
                await trio.to_thread.run_sync(self._refresh, part)
            if self._echoes is not None:
                self._echoes.changes(noticed.deeds)
            await trio.lowlevel.checkpoint()


class _Bell:
    """Something to wait for that is not in the queue of events."""

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


def _parts(outdated: Outdated) -> Iterator[Outdated]:
    """The same, some messages at a time."""
    if len(outdated.inodes) + len(outdated.expired) + len(outdated.removed) <= _MESSAGES:
        yield outdated
        return
    for inodes in _chunks(outdated.inodes):
        yield Outdated(inodes=inodes)
    for names in _chunks(outdated.removed):
        yield Outdated(removed=names)
    for names in _chunks(outdated.expired - outdated.removed):
        yield Outdated(expired=names)


def _chunks(all_of_them: set[T]) -> Iterator[set[T]]:
    waiting = list(all_of_them)
    return (set(waiting[start : start + _MESSAGES]) for start in range(0, len(waiting), _MESSAGES))
