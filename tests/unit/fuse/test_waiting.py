"""Is every request found, by one task at a time, without keeping other tasks from their work?

A pipe stands for the device: bytes in it are requests, closing its other end unmounts.
"""

import os
import resource
import select
import signal
from collections.abc import Iterator
from threading import Lock
from typing import Protocol

import pytest
import trio
import trio.testing

from sandboxfs.fuse.waiting import Waiting
from tests.support.claims import Limit


class Device:
    """A pipe, and who waits on it."""

    def __init__(self, processors: int = 2) -> None:
        self.reading, self.writing = os.pipe()
        self.waiting = Waiting(Lock(), processors=processors)
        self.waiting.watch(self.reading)

    def ask(self) -> None:
        os.write(self.writing, b"?")

    def answer(self) -> None:
        assert os.read(self.reading, 1) == b"?"

    def unmount(self) -> None:
        os.close(self.writing)
        self.writing = -1

    def close(self) -> None:
        self.waiting.stop()
        for fd in {self.reading, self.writing} - {-1}:
            os.close(fd)


class MakeDevice(Protocol):
    def __call__(self, processors: int = 2) -> Device: ...


@pytest.fixture
def make_device() -> Iterator[MakeDevice]:
    made: list[Device] = []
    handler = signal.getsignal(signal.SIGALRM)

    def make(processors: int = 2) -> Device:
        made.append(Device(processors))
        return made[-1]

    yield make
    for device in made:
        device.close()
    signal.signal(signal.SIGALRM, handler)


@pytest.mark.parametrize("processors", [1, 2])
def test_a_request_that_is_there_is_found(make_device: MakeDevice, processors: int) -> None:
    device = make_device(processors)

    async def main() -> None:
        for _ in range(1000):
            device.ask()
            assert await device.waiting.wait()
            device.answer()

    trio.run(main)


@pytest.mark.parametrize("processors", [1, 2])
def test_a_request_that_comes_later_is_found(make_device: MakeDevice, processors: int) -> None:
    device = make_device(processors)

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            for delay in (0.0, 0.0001, 0.001, 0.01):
                nursery.start_soon(ask_after, delay)
                assert await device.waiting.wait()
                device.answer()

    async def ask_after(delay: float) -> None:
        await trio.sleep(delay)
        device.ask()

    trio.run(main)


def test_other_tasks_work_while_requests_never_stop(make_device: MakeDevice) -> None:
    device = make_device()
    turns = 0

    async def work() -> None:
        nonlocal turns
        while True:
            await trio.lowlevel.checkpoint()
            turns += 1

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(work)
            device.ask()
            second = Limit(1.0)
            while not second.is_over:
                # Never answered: there is always something to read.
                assert await device.waiting.wait()
            nursery.cancel_scope.cancel()

    trio.run(main)
    assert turns > 20


def test_one_task_at_a_time_waits_and_another_takes_over_from_one_that_does_something_else(
    make_device: MakeDevice,
) -> None:
    device = make_device()
    done = trio.Event()
    served: list[str] = []

    async def slow() -> None:
        assert await device.waiting.wait()
        device.answer()
        served.append("slow begins")
        await device.waiting.beside(lambda: trio.from_thread.run(done.wait))
        served.append("slow ends")

    async def quick() -> None:
        assert await device.waiting.wait()
        device.answer()
        served.append("quick")
        done.set()

    async def main() -> None:
        with trio.fail_after(10):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(slow)
                await trio.testing.wait_all_tasks_blocked()
                nursery.start_soon(quick)
                await trio.testing.wait_all_tasks_blocked()
                device.ask()
                while not served:
                    await trio.lowlevel.checkpoint()
                device.ask()

    trio.run(main)
    assert served == ["slow begins", "quick", "slow ends"]


def test_all_tasks_end_when_it_is_unmounted(make_device: MakeDevice) -> None:
    device = make_device()
    found: list[bool] = []

    async def task() -> None:
        found.append(await device.waiting.wait())

    async def main() -> None:
        with trio.fail_after(10):
            async with trio.open_nursery() as nursery:
                for _ in range(5):
                    nursery.start_soon(task)
                await trio.testing.wait_all_tasks_blocked()
                device.unmount()

    trio.run(main)
    # The one that waited finds out by reading.
    assert sorted(found) == [False, False, False, False, True]


def test_all_tasks_end_when_it_is_unmounted_while_one_reads_a_request(make_device: MakeDevice) -> None:
    device = make_device()
    found: list[bool] = []

    async def task() -> None:
        found.append(await device.waiting.wait())
        if found == [True]:
            # It was told of a request, and reads that the mount is gone.
            device.answer()
            device.unmount()

    async def main() -> None:
        with trio.fail_after(60):
            async with trio.open_nursery() as nursery:
                for _ in range(5):
                    nursery.start_soon(task)
                await trio.testing.wait_all_tasks_blocked()
                device.ask()

    trio.run(main)
    assert found == [True, False, False, False, False]


class Interrupted:
    """A poll object that a signal interrupts whenever it is asked; as any other, not one to be asked twice
    at a time."""

    real = staticmethod(select.poll)
    asked = 0

    def __init__(self) -> None:
        self._poll = self.real()
        self._busy = False

    def register(self, fd: int, events: int) -> None:
        self._poll.register(fd, events)

    def poll(self, timeout: int) -> list[tuple[int, int]]:
        if self._busy:
            raise RuntimeError("concurrent poll() invocation")
        self._busy = True
        if Interrupted.asked == 0:
            # Only the outermost: a signal is not interrupted by its own kind.
            Interrupted.asked += 1
            signal.raise_signal(signal.SIGALRM)
            Interrupted.asked -= 1
        self._busy = False
        return self._poll.poll(timeout)


def test_requests_are_found_whenever_a_signal_comes(
    make_device: MakeDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(select, "poll", Interrupted)
    device = make_device()

    async def serve() -> None:
        for _ in range(3):
            assert await device.waiting.wait()
            device.answer()
            device.ask()
        device.unmount()
        await device.waiting.wait()

    async def wait_meanwhile() -> None:
        assert not await device.waiting.wait()

    async def main() -> None:
        with trio.fail_after(60):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(serve)
                await trio.testing.wait_all_tasks_blocked()
                nursery.start_soon(wait_meanwhile)
                await trio.testing.wait_all_tasks_blocked()
                device.ask()

    trio.run(main)


@pytest.mark.parametrize("processors", [1, 2])
def test_waiting_for_a_request_that_does_not_come_takes_no_processor(
    make_device: MakeDevice, processors: int
) -> None:
    device = make_device(processors)

    async def main() -> None:
        device.ask()
        assert await device.waiting.wait()
        device.answer()
        before = used()
        with trio.move_on_after(2):
            await device.waiting.wait()
        assert used() - before < 0.02

    trio.run(main)


def used() -> float:
    usage = resource.getrusage(resource.RUSAGE_THREAD)
    return usage.ru_utime + usage.ru_stime
