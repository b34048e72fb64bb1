"""What the host does reaches the kernel: soon, gathered, and without an end when it never stops."""

import os
import threading
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest
import trio
import trio.testing

from sandboxfs.daemon.host_follower import HostFollower
from sandboxfs.overlay.filesystem import ROOT_INODE
from sandboxfs.overlay.host_changes import Invalidation
from sandboxfs.overlay.overlay import Overlay, OverlayPaths

PATIENCE = 30


class Kernel:
    """Stands in for the kernel: hears what is outdated."""

    def __init__(self, place: Path) -> None:
        self.lower = place / "workspace"
        parts = [place / name for name in ("upper", "work", "index")]
        for part in (self.lower, *parts):
            part.mkdir()
        self.fs = Overlay(OverlayPaths([self.lower], *parts), watches=10)
        self.fs.lookup(ROOT_INODE, b"anything")
        self.follower = HostFollower(self.fs.noticing(), self._decide_anew, self.refresh)
        self.told: list[Invalidation] = []
        self.threads: set[threading.Thread] = set()
        self.decided = 0
        self.hears = trio.Event()

    def _decide_anew(self) -> None:
        self.decided += 1

    def refresh(self, outdated: Invalidation) -> None:
        self.told.append(outdated)
        self.threads.add(threading.current_thread())
        trio.from_thread.run_sync(self.hears.set)

    async def heard(self, name: bytes) -> None:
        """Wait until a name is outdated."""
        while not any((ROOT_INODE, name) in told.removed | told.expired for told in self.told):
            await self.hears.wait()
            self.hears = trio.Event()

    def follow(self, play: Callable[[], Awaitable[None]]) -> None:
        """Follow while *play* lasts."""

        async def main() -> None:
            with trio.fail_after(PATIENCE):
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self.follower.run)
                    await play()
                    await self.follower.finish()

        trio.run(main)


@pytest.fixture
def kernel(tmp_path: Path) -> Iterator[Kernel]:
    umask = os.umask(0)
    made = Kernel(tmp_path)
    yield made
    made.fs.close()
    os.umask(umask)


def test_what_the_host_does_is_told_from_another_thread(kernel: Kernel) -> None:
    async def play() -> None:
        (kernel.lower / "new").touch()
        await kernel.heard(b"new")

    kernel.follow(play)
    assert threading.main_thread() not in kernel.threads


def test_what_happens_in_one_moment_is_told_at_once(kernel: Kernel) -> None:
    async def play() -> None:
        for number in range(50):
            (kernel.lower / f"{number}").touch()
        await kernel.heard(b"49")

    kernel.follow(play)
    assert len(kernel.told) == 1


def test_what_never_stops_is_told_all_the_same(kernel: Kernel) -> None:
    async def play() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(never_stops)
            await kernel.heard(b"first")
            nursery.cancel_scope.cancel()

    async def never_stops() -> None:
        (kernel.lower / "first").touch()
        while True:
            (kernel.lower / "file").write_text("again")
            await trio.sleep(0.005)

    kernel.follow(play)


def test_the_policy_is_asked_again_when_names_changed_and_only_then(kernel: Kernel) -> None:
    (kernel.lower / "file").touch()
    entry = kernel.fs.lookup(ROOT_INODE, b"file")
    assert entry is not None

    async def play() -> None:
        await kernel.heard(b"file")
        decided = kernel.decided
        assert decided > 0
        (kernel.lower / "file").write_text("changed")
        while not any(told.inodes == {entry.ino} for told in kernel.told):
            await kernel.hears.wait()
            kernel.hears = trio.Event()
        assert kernel.decided == decided

    kernel.follow(play)


def test_what_comes_without_an_event_is_told_too(kernel: Kernel) -> None:
    async def play() -> None:
        await trio.lowlevel.checkpoint()
        kernel.fs.suspect_all()
        await kernel.heard(b"anything")

    kernel.follow(play)


def test_finishing_waits_for_the_thread_that_tells(kernel: Kernel) -> None:
    done = []

    async def play() -> None:
        entered, leave = threading.Event(), threading.Event()

        def slow(outdated: Invalidation) -> None:
            entered.set()
            leave.wait(PATIENCE)
            done.append(True)

        kernel.follower._refresh = slow
        (kernel.lower / "new").touch()
        await trio.to_thread.run_sync(entered.wait)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(kernel.follower.finish)
            await trio.testing.wait_all_tasks_blocked()
            leave.set()
        assert done == [True]

    kernel.follow(play)


def test_a_view_without_watches_is_followed_by_doing_nothing(tmp_path: Path) -> None:
    for name in ("workspace", "upper", "work", "index"):
        (tmp_path / name).mkdir()
    umask = os.umask(0)
    paths = OverlayPaths([tmp_path / "workspace"], *(tmp_path / n for n in ("upper", "work", "index")))
    overlay = Overlay(paths)
    follower = HostFollower(overlay.noticing(), lambda: None, lambda outdated: None)
    trio.run(follower.run)
    overlay.close()
    os.umask(umask)
