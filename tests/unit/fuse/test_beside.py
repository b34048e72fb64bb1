"""Is everybody else answered while one request waits for the disk?"""

import errno
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pyfuse3
import pytest
import trio
import trio.testing

from sandboxfs.fuse.operations import Operations
from sandboxfs.overlay.ahead import LARGE
from sandboxfs.overlay.filesystem import ROOT_INODE, Somebody
from sandboxfs.overlay.overlay import Overlay, OverlayPaths

ME = Somebody(os.getuid(), os.getgid(), os.getpid())
CONTENT = os.urandom(LARGE + 1)


class Bench:
    """An overlay whose work beside is done when the test says so."""

    def __init__(self, place: Path) -> None:
        paths = [place / name for name in ("lower", "upper", "work", "index")]
        for path in paths:
            path.mkdir()
        self.lower, self.upper, self.work, self.index = paths
        (self.lower / "large").write_bytes(CONTENT)
        (self.lower / "small").write_text("small")
        self.overlay = Overlay(OverlayPaths([self.lower], self.upper, self.work, self.index))
        self.overlay.beside.allowed = True
        self.operations = Operations(self.overlay, self.beside)
        self.begun: list[Callable[[], object]] = []
        self.may_go_on = trio.Event()
        self.done = 0
        self.after: Callable[[], None] = lambda: None

    async def beside(self, work: Callable[[], object]) -> object:
        self.begun.append(work)
        await self.may_go_on.wait()
        self.done += 1
        result = await trio.to_thread.run_sync(work)
        self.after()
        return result

    def ino(self, name: bytes) -> int:
        entry = self.overlay.lookup(ROOT_INODE, name, ME)
        assert entry is not None
        return entry.ino

    async def open(self, name: bytes, flags: int) -> pyfuse3.FileInfo:
        context = pyfuse3.RequestContext.__new__(pyfuse3.RequestContext)
        return await self.operations.open(pyfuse3.InodeT(self.ino(name)), flags, context)


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    made = Bench(tmp_path)
    yield made
    made.overlay.close()
    assert os.listdir(made.work) == []


def test_a_large_file_is_copied_beside_and_appears_whole(bench: Bench) -> None:
    async def main() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(bench.open, b"large", os.O_RDWR)
            await trio.testing.wait_all_tasks_blocked()
            assert len(bench.begun) == 1
            assert os.listdir(bench.upper) == []
            await bench.open(b"small", os.O_RDWR)
            assert os.listdir(bench.upper) == ["small"]
            bench.may_go_on.set()

    trio.run(main)
    assert (bench.upper / "large").read_bytes() == CONTENT


def test_two_who_want_the_same_copy_wait_for_one(bench: Bench) -> None:
    async def main() -> None:
        async with trio.open_nursery() as nursery:
            for _ in range(2):
                nursery.start_soon(bench.open, b"large", os.O_RDWR)
                await trio.testing.wait_all_tasks_blocked()
            # The first copies, the second waits for that.
            bench.may_go_on.set()

    trio.run(main)
    assert bench.done == 2
    assert (bench.upper / "large").read_bytes() == CONTENT


def test_a_file_that_the_host_changes_meanwhile_is_copied_as_it_is_in_the_end(bench: Bench) -> None:
    new = os.urandom(LARGE + 5)

    def change() -> None:
        bench.after = lambda: None
        (bench.lower / "large").write_bytes(new)

    bench.after = change
    bench.may_go_on.set()
    trio.run(bench.open, b"large", os.O_RDWR)
    assert bench.done == 2
    assert (bench.upper / "large").read_bytes() == new


def test_a_copy_that_fails_fails_the_request_and_leaves_nothing(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(source: int, target: int, length: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("sandboxfs.layers.copying.copy_data", full)
    bench.may_go_on.set()

    async def main() -> None:
        with pytest.raises(pyfuse3.FUSEError) as raised:
            await bench.open(b"large", os.O_RDWR)
        assert raised.value.errno == errno.ENOSPC

    trio.run(main)
    assert os.listdir(bench.upper) == []


def test_a_copy_that_nobody_takes_is_removed(bench: Bench) -> None:
    async def main() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(refused)
            await trio.testing.wait_all_tasks_blocked()
            (bench.lower / "large").unlink()
            bench.may_go_on.set()

    async def refused() -> None:
        with pytest.raises(pyfuse3.FUSEError) as raised:
            await bench.open(b"large", os.O_RDWR)
        assert raised.value.errno == errno.ESTALE

    trio.run(main)
    assert os.listdir(bench.work) == []


def test_syncing_is_done_beside(bench: Bench) -> None:
    async def main() -> None:
        opened = await bench.open(b"small", os.O_RDWR)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(bench.operations.fsync, opened.fh, False)
            await trio.testing.wait_all_tasks_blocked()
            assert len(bench.begun) == 1
            bench.may_go_on.set()

    trio.run(main)
    assert bench.done == 1


def test_what_is_not_in_memory_is_read_beside(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    def cold(fd: int, buffers: list[memoryview], offset: int, flags: int) -> int:
        raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))

    bench.may_go_on.set()

    async def main() -> None:
        opened = await bench.open(b"large", os.O_RDONLY)
        monkeypatch.setattr(os, "preadv", cold)
        found = await bench.operations.read(opened.fh, 5, 100_000)
        assert bytes(found) == CONTENT[5:100_005]

    trio.run(main)
    assert bench.done == 1


def test_a_file_of_which_only_the_first_part_is_in_memory_is_read_whole(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    def partly(fd: int, buffers: list[memoryview], offset: int, flags: int) -> int:
        data = os.pread(fd, 4096, offset)
        buffers[0][: len(data)] = data
        return len(data)

    bench.may_go_on.set()

    async def main() -> None:
        opened = await bench.open(b"large", os.O_RDONLY)
        monkeypatch.setattr(os, "preadv", partly)
        end = len(CONTENT)
        assert bytes(await bench.operations.read(opened.fh, 0, 8192)) == CONTENT[:8192]
        assert bytes(await bench.operations.read(opened.fh, end - 100, 8192)) == CONTENT[-100:]
        assert bytes(await bench.operations.read(opened.fh, end, 8192)) == b""

    trio.run(main)
    assert bench.done == 1
