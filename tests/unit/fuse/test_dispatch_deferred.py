"""Is everybody else answered while one request waits for the disk?"""

import errno
import os
import struct
from collections.abc import Awaitable, Callable
from contextlib import closing
from itertools import count
from pathlib import Path

import pytest
import trio
import trio.testing

from sandboxfs.fuse.connection import NOTHING
from sandboxfs.fuse.dispatch import Dispatcher
from sandboxfs.fuse.notify import Notifier
from sandboxfs.fuse.protocol import Opcode
from sandboxfs.overlay.copy_up import LARGE
from sandboxfs.overlay.filesystem import ROOT_INODE, AnonymousCaller
from sandboxfs.overlay.overlay import Overlay, OverlayPaths
from tests.support.claims import fails_with
from tests.unit.fuse.kernel import HUNG, Kernel, OpenOut, Reply, opened_of, reply_of, request

ME = AnonymousCaller(os.getuid(), os.getgid(), os.getpid())
CONTENT = os.urandom(LARGE + 1)


class Bench:
    """An overlay whose work beside is done when the test says so, and requests to it."""

    def __init__(self, place: Path, nursery: trio.Nursery) -> None:
        paths = [place / name for name in ("lower", "upper", "work", "index")]
        self.lower, self.upper, self.work, self.index = paths
        self.overlay = Overlay(OverlayPaths([self.lower], self.upper, self.work, self.index))
        self.overlay.beside.allowed = True
        self.kernel = Kernel()
        self.nursery = nursery
        self.dispatcher = Dispatcher(
            self.overlay, self.kernel.number, self.beside, nursery.start_soon, Notifier(), NOTHING
        )
        self.begun: list[Callable[[], object]] = []
        self.may_go_on = trio.Event()
        self.done = 0
        self.after: Callable[[], None] = lambda: None
        self._serial = count(1)
        self._replies: dict[int, Reply] = {}

    async def beside(self, work: Callable[[], object]) -> object:
        self.begun.append(work)
        await self.may_go_on.wait()
        self.done += 1
        result = await trio.to_thread.run_sync(work)
        self.after()
        return result

    def start_thread(self, work: Callable[[], object], _: object) -> None:
        """Take the place of a thread that answers."""
        self.nursery.start_soon(self.beside, work)

    def ino(self, name: bytes) -> int:
        entry = self.overlay.lookup(ROOT_INODE, name, ME)
        assert entry is not None
        return entry.ino

    async def ask(self, opcode: int, body: bytes, ino: int = ROOT_INODE) -> bytes:
        """What the answer says, when it comes; OSError when it is a refusal."""
        unique = next(self._serial)
        self.dispatcher.answer(memoryview(request(opcode, body, ino=ino, unique=unique)))
        while unique not in self._replies:
            for told in self.kernel.all_told():
                reply = reply_of(told)
                self._replies[reply.unique] = reply
            await trio.sleep(0.001)
        reply = self._replies[unique]
        if reply.error:
            raise OSError(-reply.error, os.strerror(-reply.error))
        return reply.body

    async def open(self, name: bytes, flags: int) -> OpenOut:
        return opened_of(await self.ask(Opcode.OPEN, struct.pack("=II", flags, 0), self.ino(name)))

    async def read(self, handle: int, offset: int, size: int) -> bytes:
        return await self.ask(Opcode.READ, struct.pack("=QQIIQII", handle, offset, size, 0, 0, 0, 0))

    def close(self) -> None:
        self.overlay.close()
        self.kernel.close()
        assert os.listdir(self.work) == []


Main = Callable[[Bench], Awaitable[None]]
Run = Callable[[Main], None]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    for name in ("lower", "upper", "work", "index"):
        (tmp_path / name).mkdir()
    (tmp_path / "lower" / "large").write_bytes(CONTENT)
    (tmp_path / "lower" / "small").write_text("small")

    async def with_bench(main: Main) -> None:
        with trio.fail_after(HUNG):
            async with trio.open_nursery() as nursery:
                with closing(Bench(tmp_path, nursery)) as bench:
                    monkeypatch.setattr(trio.lowlevel, "start_thread_soon", bench.start_thread)
                    await main(bench)

    return lambda main: trio.run(with_bench, main)


def test_a_large_file_is_copied_beside_and_appears_whole(run: Run) -> None:
    async def main(bench: Bench) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(bench.open, b"large", os.O_RDWR)
            await trio.testing.wait_all_tasks_blocked()
            assert len(bench.begun) == 1
            assert os.listdir(bench.upper) == []
            await bench.open(b"small", os.O_RDWR)
            assert os.listdir(bench.upper) == ["small"]
            bench.may_go_on.set()
        assert (bench.upper / "large").read_bytes() == CONTENT

    run(main)


def test_two_who_want_the_same_copy_wait_for_one(run: Run) -> None:
    async def main(bench: Bench) -> None:
        async with trio.open_nursery() as nursery:
            for _ in range(2):
                nursery.start_soon(bench.open, b"large", os.O_RDWR)
                await trio.testing.wait_all_tasks_blocked()
            # The first copies, the second waits for that.
            bench.may_go_on.set()
        assert bench.done == 2
        assert (bench.upper / "large").read_bytes() == CONTENT

    run(main)


def test_a_file_that_the_host_changes_meanwhile_is_copied_as_it_is_in_the_end(run: Run) -> None:
    new = os.urandom(LARGE + 5)

    async def main(bench: Bench) -> None:
        def change() -> None:
            bench.after = lambda: None
            (bench.lower / "large").write_bytes(new)

        bench.after = change
        bench.may_go_on.set()
        await bench.open(b"large", os.O_RDWR)
        assert bench.done == 2
        assert (bench.upper / "large").read_bytes() == new

    run(main)


def test_a_copy_that_fails_fails_the_request_and_leaves_nothing(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(source: int, target: int, length: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("sandboxfs.hostfs.copy.copy_data", full)

    async def main(bench: Bench) -> None:
        bench.may_go_on.set()
        with fails_with(errno.ENOSPC):
            await bench.open(b"large", os.O_RDWR)
        assert os.listdir(bench.upper) == []

    run(main)


def test_a_copy_that_nobody_takes_is_removed(run: Run) -> None:
    async def main(bench: Bench) -> None:
        async def refused() -> None:
            with fails_with(errno.ESTALE):
                await bench.open(b"large", os.O_RDWR)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(refused)
            await trio.testing.wait_all_tasks_blocked()
            (bench.lower / "large").unlink()
            bench.may_go_on.set()
        assert os.listdir(bench.work) == []

    run(main)


def test_syncing_is_done_beside(run: Run) -> None:
    async def main(bench: Bench) -> None:
        opened = await bench.open(b"small", os.O_RDWR)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(bench.ask, Opcode.FSYNC, struct.pack("=QII", opened.handle, 0, 0))
            await trio.testing.wait_all_tasks_blocked()
            assert len(bench.begun) == 1
            # Others are answered meanwhile.
            await bench.ask(Opcode.GETATTR, bytes(16))
            bench.may_go_on.set()
        assert bench.done == 1

    run(main)


def test_what_is_not_in_memory_is_read_beside(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def cold(fd: int, buffers: list[memoryview], offset: int, flags: int) -> int:
        raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))

    async def main(bench: Bench) -> None:
        bench.may_go_on.set()
        opened = await bench.open(b"large", os.O_RDONLY)
        monkeypatch.setattr(os, "preadv", cold)
        assert await bench.read(opened.handle, 5, 100_000) == CONTENT[5:100_005]
        assert bench.done == 1

    run(main)


def test_a_file_of_which_only_the_first_part_is_in_memory_is_read_whole(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    def partly(fd: int, buffers: list[memoryview], offset: int, flags: int) -> int:
        data = os.pread(fd, 4096, offset)
        buffers[0][: len(data)] = data
        return len(data)

    async def main(bench: Bench) -> None:
        bench.may_go_on.set()
        opened = await bench.open(b"large", os.O_RDONLY)
        monkeypatch.setattr(os, "preadv", partly)
        end = len(CONTENT)
        assert await bench.read(opened.handle, 0, 8192) == CONTENT[:8192]
        assert await bench.read(opened.handle, end - 100, 8192) == CONTENT[-100:]
        assert await bench.read(opened.handle, end, 8192) == b""
        assert bench.done == 1

    run(main)
