"""Is every request answered, without keeping other tasks from their work?

A socket stands for the device; closing its other end unmounts.
"""

import errno
import os
import resource
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Protocol

import pytest
import trio
import trio.testing

from sandboxfs.fuse.connection import Answer, RequestLoop
from tests.support.claims import Limit
from tests.unit.fuse.kernel import HUNG, Kernel, request

GETATTR, STATFS = 3, 17


class Device:
    """A socket, and the loop that reads it."""

    def __init__(self, processors: int, answer: Answer | None) -> None:
        self.kernel = Kernel()
        os.set_blocking(self.kernel.number, False)
        self.loop = RequestLoop(processors=processors)
        self.answer: Answer = self._put if answer is None else answer
        self._serial = 0
        self._found, self._taken = trio.open_memory_channel[bytes](1000)

    def _put(self, request: memoryview) -> None:
        self._found.send_nowait(bytes(request))

    def ask(self, opcode: int = STATFS) -> bytes:
        self._serial += 1
        asked = request(opcode, unique=self._serial)
        self.kernel.ask(asked)
        return asked

    async def take(self) -> bytes:
        """The next request that is to be answered, when it comes."""
        return await self._taken.receive()

    async def serve(self) -> None:
        await self.loop.serve(self.kernel.number, self.answer)

    @asynccontextmanager
    async def served(self) -> AsyncIterator[trio.Nursery]:
        """Serve until the end of the block."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.serve)
            yield nursery
            nursery.cancel_scope.cancel()


class MakeDevice(Protocol):
    def __call__(self, processors: int = 2, answer: Answer | None = None) -> Device: ...


@pytest.fixture
def make_device() -> Iterator[MakeDevice]:
    made: list[Device] = []

    def make(processors: int = 2, answer: Answer | None = None) -> Device:
        made.append(Device(processors, answer))
        return made[-1]

    yield make
    for device in made:
        device.kernel.close()


@pytest.mark.parametrize("processors", [1, 2])
def test_a_request_that_is_there_is_found(make_device: MakeDevice, processors: int) -> None:
    device = make_device(processors)

    async def main() -> None:
        asked = [device.ask() for _ in range(20)]
        async with device.served():
            assert [await device.take() for _ in range(20)] == asked
            for _ in range(1000):
                last = device.ask()
                assert await device.take() == last

    with_limit(main)


@pytest.mark.parametrize("processors", [1, 2])
def test_a_request_that_comes_later_is_found(make_device: MakeDevice, processors: int) -> None:
    device = make_device(processors)

    async def main() -> None:
        async with device.served():
            for delay in (0.0, 0.0001, 0.001, 0.01):
                await trio.sleep(delay)
                asked = device.ask()
                assert await device.take() == asked

    with_limit(main)


@pytest.mark.parametrize("processors", [1, 2])
def test_the_answer_is_told_all_requests_in_their_order(make_device: MakeDevice, processors: int) -> None:
    found: list[bytes] = []
    device = make_device(processors, lambda request: found.append(bytes(request)))

    async def main() -> None:
        asked = [device.ask(opcode) for opcode in (GETATTR, STATFS) * 10]
        async with trio.open_nursery() as nursery:
            nursery.start_soon(device.serve)
            for _ in range(20):
                await trio.testing.wait_all_tasks_blocked()
                asked.append(device.ask())
            await trio.testing.wait_all_tasks_blocked()
            device.kernel.unmount()
        assert found == asked

    with_limit(main)


class Turns:
    """Counts how often another task gets its turn while requests never stop."""

    def __init__(self) -> None:
        self.number = 0

    async def work(self) -> None:
        while True:
            await trio.lowlevel.checkpoint()
            self.number += 1


def test_other_tasks_work_while_requests_never_stop(make_device: MakeDevice) -> None:
    turns = Turns()
    second = Limit(1.0)

    def answer(request: memoryview) -> None:
        if second.is_over:
            device.kernel.unmount()
        else:
            device.ask()

    device = make_device(answer=answer)

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(turns.work)
            device.ask()
            await device.serve()
            nursery.cancel_scope.cancel()

    trio.run(main)
    assert turns.number > 20


def test_a_task_that_an_answer_starts_gets_its_turn_at_once(make_device: MakeDevice) -> None:
    answered = 0
    begun_after: list[int] = []

    async def task() -> None:
        begun_after.append(answered)

    async def main() -> None:
        for _ in range(10):
            device.ask()
        async with device.served() as nursery:
            start = device.loop.spawning(nursery.start_soon)
            starts.append(lambda: start(task))
            await trio.testing.wait_all_tasks_blocked()

    def answer(request: memoryview) -> None:
        nonlocal answered
        answered += 1
        # Not the first: after that there is a turn anyway.
        if answered == 5:
            starts[0]()

    starts: list[Callable[[], object]] = []
    device = make_device(answer=answer)
    with_limit(main)
    assert answered == 10
    assert begun_after == [5]


def test_requests_are_answered_while_work_is_done_beside_and_its_result_is_given(
    make_device: MakeDevice,
) -> None:
    answered = trio.Event()
    device = make_device(answer=lambda _: answered.set())

    def work() -> str:
        trio.from_thread.run(answered.wait)
        return "result"

    async def main() -> None:
        async with device.served() as nursery:
            await trio.testing.wait_all_tasks_blocked()
            nursery.start_soon(ask_when_it_has_begun)
            assert await device.loop.beside(work) == "result"

    async def ask_when_it_has_begun() -> None:
        await trio.testing.wait_all_tasks_blocked()
        device.ask()

    with_limit(main)


@pytest.mark.parametrize("processors", [1, 2])
def test_serving_ends_when_it_is_unmounted(make_device: MakeDevice, processors: int) -> None:
    device = make_device(processors)

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(device.serve)
            await trio.testing.wait_all_tasks_blocked()
            device.kernel.unmount()

    with_limit(main)


def test_serving_ends_when_it_is_unmounted_by_whoever_is_answered(make_device: MakeDevice) -> None:
    device = make_device(answer=lambda _: device.kernel.unmount())

    async def main() -> None:
        device.ask()
        await device.serve()

    with_limit(main)


@pytest.mark.parametrize("number", [errno.ENODEV, errno.ECONNABORTED])
def test_a_device_that_is_gone_is_unmounted(
    make_device: MakeDevice, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    device = make_device()
    monkeypatch.setattr(os, "readv", fails_with(number))
    with_limit(device.serve)


def test_any_other_error_of_the_device_is_not_hidden(
    make_device: MakeDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    device = make_device()
    monkeypatch.setattr(os, "readv", fails_with(errno.EPERM))

    async def main() -> None:
        with pytest.raises(PermissionError):
            await device.serve()

    with_limit(main)


class TakenBack:
    """Reads requests, of which some are gone when they are to be read, though there was one."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
        self._real = os.readv
        self._number = number
        self.announced_before = 0
        self.to_take = 0
        monkeypatch.setattr(os, "readv", self._read)

    def _read(self, fd: int, buffers: list[memoryview]) -> int:
        if self.announced_before:
            self.announced_before -= 1
            raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
        size = self._real(fd, buffers)
        if self.to_take:
            self.to_take -= 1
            raise OSError(self._number, os.strerror(self._number))
        return size


TAKEN_BACK = [errno.EAGAIN, errno.ENOENT, errno.EINTR]


@pytest.mark.parametrize("processors", [1, 2])
@pytest.mark.parametrize("number", TAKEN_BACK)
def test_a_request_that_is_taken_back_is_as_good_as_none(
    make_device: MakeDevice, monkeypatch: pytest.MonkeyPatch, number: int, processors: int
) -> None:
    device = make_device(processors)
    taken_back = TakenBack(monkeypatch, number)

    async def main() -> None:
        # The first look finds nothing, the poll finds it, and then it is gone.
        taken_back.announced_before = taken_back.to_take = 1
        device.ask()
        async with device.served():
            await trio.testing.wait_all_tasks_blocked()
            assert taken_back.to_take == 0
            asked = device.ask()
            assert await device.take() == asked

    with_limit(main)


@pytest.mark.parametrize("number", TAKEN_BACK)
def test_a_request_that_is_taken_back_after_a_long_wait_is_waited_on(
    make_device: MakeDevice, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    device = make_device()
    taken_back = TakenBack(monkeypatch, number)

    async def main() -> None:
        async with device.served():
            await trio.testing.wait_all_tasks_blocked()
            taken_back.to_take = 1
            device.ask()
            await trio.testing.wait_all_tasks_blocked()
            # Trio looks for events only now and then.
            while taken_back.to_take:
                await trio.lowlevel.checkpoint()
            await trio.testing.wait_all_tasks_blocked()
            asked = device.ask()
            assert await device.take() == asked

    with_limit(main)


@pytest.mark.parametrize("processors", [1, 2])
def test_waiting_for_a_request_that_does_not_come_takes_no_processor(
    make_device: MakeDevice, processors: int
) -> None:
    device = make_device(processors)

    async def main() -> None:
        async with device.served():
            device.ask()
            await device.take()
            before = used()
            await trio.sleep(2)
            assert used() - before < 0.02

    trio.run(main)


def with_limit(main: Callable[[], Awaitable[None]]) -> None:
    async def limited() -> None:
        with trio.fail_after(HUNG):
            await main()

    trio.run(limited)


def fails_with(number: int) -> Callable[[int, list[memoryview]], int]:
    def read(fd: int, buffers: list[memoryview]) -> int:
        raise OSError(number, os.strerror(number))

    return read


def used() -> float:
    usage = resource.getrusage(resource.RUSAGE_THREAD)
    return usage.ru_utime + usage.ru_stime
