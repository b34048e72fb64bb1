"""Who watches the view is found, and what was done while nobody looked is repeated after the next look."""

import os
from collections.abc import Iterable
from pathlib import Path

import pytest
import trio

from sandboxfs.daemon.event_replay import EventReplay, ReplayDir, watched_inodes
from sandboxfs.hostfs.directory import HostDir
from sandboxfs.hostfs.inotify import Inotify
from sandboxfs.overlay.host_changes import HostEvent
from sandboxfs.overlay.overlay import Overlay, OverlayPaths

WATCHED, OTHER = 17, 18
DEED = HostEvent(parent=WATCHED, name=b"file", path=b"dir/file", ino=23, written=False, removed=False)


def test_a_watched_directory_is_found_by_its_device_and_number(tmp_path: Path) -> None:
    status = tmp_path.stat()
    device = os.major(status.st_dev) << 20 | os.minor(status.st_dev)
    events = Inotify()
    try:
        assert status.st_ino not in watched_inodes(device)
        with HostDir.at(tmp_path) as directory:
            events.add(directory)
        assert status.st_ino in watched_inodes(device)
        assert status.st_ino not in watched_inodes(device + 1)
    finally:
        events.close()


class Heard(EventReplay):
    """Echoes that only note what would be done; who watches is set by the test."""

    def __init__(self, view: ReplayDir) -> None:
        super().__init__(view, Path("/nowhere"))
        self.watchers: set[int] = set()
        self.done: list[tuple[str, bytes]] = []
        self.hears = trio.Event()

    def _look(self) -> tuple[set[int], float]:
        return self.watchers, 0.01

    async def _have_done(self, commands: Iterable[tuple[str, bytes]], patience: float) -> None:
        self.done += commands
        self.hears.set()

    async def _ready(self) -> None:
        """No process is needed."""


@pytest.fixture
def view(tmp_path: Path) -> ReplayDir:
    parts = [tmp_path / name for name in ("workspace", "upper", "work", "index")]
    for part in parts:
        part.mkdir()
    return ReplayDir(Overlay(OverlayPaths(parts[:1], *parts[1:])), {})


def test_only_what_somebody_watches_is_repeated(view: ReplayDir) -> None:
    async def play() -> None:
        echoes = Heard(view)
        echoes._watched = {WATCHED}
        echoes._looked = True
        async with trio.open_nursery() as nursery:
            nursery.start_soon(echoes.run)
            echoes.changes([HostEvent(OTHER, b"x", b"other/x", 24, written=True, removed=False)])
            echoes.changes([DEED])
            await echoes.hears.wait()
            nursery.cancel_scope.cancel()
        assert echoes.done == [("touch", b"dir/file")]

    trio.run(play)


def test_what_was_done_when_nobody_looked_is_repeated_when_somebody_did(view: ReplayDir) -> None:
    async def play() -> None:
        echoes = Heard(view)
        await echoes.look()
        # Too soon to look again, and somebody has begun to watch.
        echoes.watchers = {WATCHED}
        await echoes.look()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(echoes.run)
            echoes.changes([DEED])
            assert echoes.done == []
            with trio.fail_after(30):
                await echoes.hears.wait()
            nursery.cancel_scope.cancel()
        assert echoes.done == [("touch", b"dir/file")]

    trio.run(play)
