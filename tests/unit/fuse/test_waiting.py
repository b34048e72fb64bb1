"""Is every request found, by one task at a time, without keeping other tasks from their work?

A socket stands for the device; closing its other end unmounts.
"""

import errno
import os
import resource
from collections.abc import Awaitable, Callable, Iterator
from typing import Protocol

import pyfuse3
import pytest
import trio
import trio.testing

from sandboxfs.fuse.passage import Passage
from sandboxfs.fuse.waiting import Answer, Waiting, can_be_installed
from tests.support.claims import Limit
from tests.unit.fuse.kernel import HUNG, Kernel, request

GETATTR, STATFS = 3, 17


def nothing(request: memoryview) -> bool:
    """Leave it to pyfuse3."""
    return False


class Device:
    """A socket, and who waits on it."""

    def __init__(self, processors: int, answer: Answer) -> None:
        self.kernel = Kernel()
        self.passage = Passage(self.kernel.number)
        self.waiting = Waiting(processors=processors)
        self.waiting.watch(self.passage, answer)
        self._serial = 0

    def ask(self, opcode: int = STATFS) -> bytes:
        self._serial += 1
        asked = request(opcode, unique=self._serial)
        self.kernel.ask(asked)
        return asked

    def take(self) -> bytes:
        """The request that pyfuse3 finds."""
        return os.read(self.kernel.number, 1000)

    def close(self) -> None:
        self.passage.close()
        self.kernel.close()


class MakeDevice(Protocol):
    def __call__(self, processors: int = 2, answer: Answer = nothing) -> Device: ...


@pytest.fixture
def make_device() -> Iterator[MakeDevice]:
    made: list[Device] = []

    def make(processors: int = 2, answer: Answer = nothing) -> Device:
        made.append(Device(processors, answer))
        return made[-1]

    yield make
    for device in made:
        device.close()


@pytest.mark.parametrize("processors", [1, 2])
def test_a_request_that_is_there_is_found(make_device: MakeDevice, processors: int) -> None:
    device = make_device(processors)

    async def main() -> None:
        for _ in range(1000):
            asked = device.ask()
            assert await device.waiting.wait()
            assert device.take() == asked

    trio.run(main)


@pytest.mark.parametrize("processors", [1, 2])
def test_a_request_that_comes_later_is_found(make_device: MakeDevice, processors: int) -> None:
    device = make_device(processors)
    asked: list[bytes] = []

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            for delay in (0.0, 0.0001, 0.001, 0.01):
                nursery.start_soon(ask_after, delay)
                assert await device.waiting.wait()
                assert device.take() == asked[-1]

    async def ask_after(delay: float) -> None:
        await trio.sleep(delay)
        asked.append(device.ask())

    trio.run(main)


@pytest.mark.parametrize("processors", [1, 2])
def test_waiting_goes_on_after_a_request_that_is_answered_at_once(
    make_device: MakeDevice, processors: int
) -> None:
    found: list[bytes] = []

    def answer(request: memoryview) -> bool:
        found.append(bytes(request))
        return True

    device = make_device(processors, answer)

    async def main() -> None:
        asked = [device.ask() for _ in range(20)]
        async with trio.open_nursery() as nursery:
            nursery.start_soon(ends)
            for _ in range(20):
                await trio.testing.wait_all_tasks_blocked()
                asked.append(device.ask())
            await trio.testing.wait_all_tasks_blocked()
            device.kernel.unmount()
        assert found == asked

    async def ends() -> None:
        assert not await device.waiting.wait()

    with_limit(main)


def test_what_is_not_answered_at_once_is_passed_on_and_ends_waiting(make_device: MakeDevice) -> None:
    found: list[bytes] = []

    def answer(request: memoryview) -> bool:
        found.append(bytes(request))
        return request[4] == GETATTR

    device = make_device(answer=answer)

    async def main() -> None:
        asked = [device.ask(opcode) for opcode in (GETATTR, STATFS, STATFS, GETATTR, GETATTR, STATFS)]
        for position in (1, 2, 5):
            assert await device.waiting.wait()
            assert found == asked[: position + 1]
            assert device.take() == asked[position]

    with_limit(main)


def test_waiting_goes_on_after_a_request_that_cannot_be_passed_on(
    make_device: MakeDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    device = make_device()
    refused: list[bytes] = []

    def refuse(request: memoryview) -> bool:
        refused.append(bytes(request))
        return False

    async def main() -> None:
        with monkeypatch.context() as patched:
            patched.setattr(device.passage, "pass_on", refuse)
            asked = [device.ask() for _ in range(3)]
            async with trio.open_nursery() as nursery:
                nursery.start_soon(finds_the_next)
                await trio.testing.wait_all_tasks_blocked()
                assert refused == asked
                patched.undo()
                device.ask()

    async def finds_the_next() -> None:
        assert await device.waiting.wait()

    with_limit(main)


def test_the_answer_to_a_request_that_was_passed_on_is_brought_back_whoever_waits(
    make_device: MakeDevice,
) -> None:
    device = make_device()

    async def main() -> None:
        device.ask()
        assert await device.waiting.wait()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(device.waiting.wait)
            await trio.testing.wait_all_tasks_blocked()
            os.write(device.kernel.number, b"answer")
            nursery.start_soon(device.waiting.wait)
            await trio.testing.wait_all_tasks_blocked()
            assert device.kernel.told() == b"answer"
            nursery.cancel_scope.cancel()

    with_limit(main)


def test_what_is_to_be_done_afterwards_is_done_once_the_answer_was_brought_back(
    make_device: MakeDevice,
) -> None:
    device = make_device()
    told: list[bytes | None] = []
    device.waiting.watch(device.passage, nothing, lambda: told.append(device.kernel.told()))

    async def main() -> None:
        for answer in (b"first", b"second"):
            device.ask()
            assert await device.waiting.wait()
            device.take()
            os.write(device.kernel.number, answer)
        device.ask()
        assert await device.waiting.wait()

    with_limit(main)
    assert told == [None, b"first", b"second"]


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

    def answer(request: memoryview) -> bool:
        if second.is_over:
            return False
        device.ask()
        return True

    device = make_device(answer=answer)

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(turns.work)
            device.ask()
            assert await device.waiting.wait()
            nursery.cancel_scope.cancel()

    trio.run(main)
    assert turns.number > 20


def test_other_tasks_work_while_requests_that_are_passed_on_never_stop(make_device: MakeDevice) -> None:
    device = make_device()
    turns = Turns()

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(turns.work)
            second = Limit(1.0)
            while not second.is_over:
                device.ask()
                assert await device.waiting.wait()
                device.take()
            nursery.cancel_scope.cancel()

    trio.run(main)
    assert turns.number > 20


def test_a_task_that_an_answer_starts_gets_its_turn_at_once(make_device: MakeDevice) -> None:
    answered = 0
    begun_after: list[int] = []

    async def task() -> None:
        begun_after.append(answered)

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            start = device.waiting.spawning(nursery.start_soon)
            starts.append(lambda: start(task))
            for _ in range(10):
                device.ask()
            nursery.start_soon(device.waiting.wait)
            await trio.testing.wait_all_tasks_blocked()
            nursery.cancel_scope.cancel()

    def answer(request: memoryview) -> bool:
        nonlocal answered
        answered += 1
        # Not the first: after that there is a turn anyway.
        if answered == 5:
            starts[0]()
        return True

    starts: list[Callable[[], object]] = []
    device = make_device(answer=answer)
    with_limit(main)
    assert answered == 10
    assert begun_after == [5]


def test_one_task_at_a_time_waits_and_another_takes_over_from_one_that_does_something_else(
    make_device: MakeDevice,
) -> None:
    device = make_device()
    done = trio.Event()
    served: list[str] = []

    async def slow() -> None:
        assert await device.waiting.wait()
        device.take()
        served.append("slow begins")
        await device.waiting.beside(lambda: trio.from_thread.run(done.wait))
        served.append("slow ends")

    async def quick() -> None:
        assert await device.waiting.wait()
        device.take()
        served.append("quick")
        done.set()

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(slow)
            await trio.testing.wait_all_tasks_blocked()
            nursery.start_soon(quick)
            await trio.testing.wait_all_tasks_blocked()
            device.ask()
            while not served:
                await trio.lowlevel.checkpoint()
            device.ask()

    with_limit(main)
    assert served == ["slow begins", "quick", "slow ends"]


def test_requests_are_answered_while_work_is_done_beside_and_its_result_is_given(
    make_device: MakeDevice,
) -> None:
    answered = trio.Event()

    def answer(request: memoryview) -> bool:
        answered.set()
        return True

    device = make_device(answer=answer)

    def work() -> str:
        trio.from_thread.run(answered.wait)
        return "result"

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(device.waiting.wait)
            await trio.testing.wait_all_tasks_blocked()
            nursery.start_soon(ask_when_it_has_begun)
            assert await device.waiting.beside(work) == "result"
            nursery.cancel_scope.cancel()

    async def ask_when_it_has_begun() -> None:
        await trio.testing.wait_all_tasks_blocked()
        device.ask()

    with_limit(main)


def test_all_tasks_end_when_it_is_unmounted(make_device: MakeDevice) -> None:
    device = make_device()
    found: list[bool] = []

    async def task() -> None:
        found.append(await device.waiting.wait())

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            for _ in range(5):
                nursery.start_soon(task)
            await trio.testing.wait_all_tasks_blocked()
            device.kernel.unmount()
        # Who comes later too.
        await task()

    with_limit(main)
    assert found == [False] * 6


def test_all_tasks_end_when_it_is_unmounted_while_one_has_a_request(make_device: MakeDevice) -> None:
    device = make_device()
    found: list[bool] = []

    async def task() -> None:
        found.append(await device.waiting.wait())
        if found == [True]:
            device.take()
            device.kernel.unmount()
            found.append(await device.waiting.wait())

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            for _ in range(5):
                nursery.start_soon(task)
            await trio.testing.wait_all_tasks_blocked()
            device.ask()

    with_limit(main)
    assert found == [True, False, False, False, False, False]


@pytest.mark.parametrize("number", [errno.ENODEV, errno.ECONNABORTED])
def test_a_device_that_is_gone_is_unmounted(
    make_device: MakeDevice, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    device = make_device()
    monkeypatch.setattr(os, "readv", fails_with(number))

    async def main() -> None:
        assert not await device.waiting.wait()

    with_limit(main)


def test_any_other_error_of_the_device_is_not_hidden(
    make_device: MakeDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    device = make_device()
    monkeypatch.setattr(os, "readv", fails_with(errno.EPERM))

    async def main() -> None:
        with pytest.raises(PermissionError):
            await device.waiting.wait()

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
        async with trio.open_nursery() as nursery:
            nursery.start_soon(finds_the_next)
            await trio.testing.wait_all_tasks_blocked()
            assert taken_back.to_take == 0
            device.ask()

    async def finds_the_next() -> None:
        assert await device.waiting.wait()
        assert device.take() == request(STATFS, unique=2)

    with_limit(main)


@pytest.mark.parametrize("number", TAKEN_BACK)
def test_a_request_that_is_taken_back_after_a_long_wait_is_waited_on(
    make_device: MakeDevice, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    device = make_device()
    taken_back = TakenBack(monkeypatch, number)

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(finds_the_next)
            await trio.testing.wait_all_tasks_blocked()
            taken_back.to_take = 1
            device.ask()
            await trio.testing.wait_all_tasks_blocked()
            # Trio looks for events only now and then.
            while taken_back.to_take:
                await trio.lowlevel.checkpoint()
            await trio.testing.wait_all_tasks_blocked()
            device.ask()

    async def finds_the_next() -> None:
        assert await device.waiting.wait()
        assert device.take() == request(STATFS, unique=2)

    with_limit(main)


@pytest.mark.parametrize("processors", [1, 2])
def test_waiting_for_a_request_that_does_not_come_takes_no_processor(
    make_device: MakeDevice, processors: int
) -> None:
    device = make_device(processors)

    async def main() -> None:
        device.ask()
        assert await device.waiting.wait()
        device.take()
        before = used()
        with trio.move_on_after(2):
            await device.waiting.wait()
        assert used() - before < 0.02

    trio.run(main)


def test_it_takes_the_place_of_the_waiting_of_pyfuse3(
    make_device: MakeDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    # So that it is there again afterwards.
    monkeypatch.setattr(pyfuse3, "_wait_fuse_readable", getattr(pyfuse3, "_wait_fuse_readable"))  # noqa: B009
    device = make_device()
    assert can_be_installed()
    waiting = Waiting(processors=1)
    waiting.install(device.passage, nothing, lambda: None)
    assert getattr(pyfuse3, "_wait_fuse_readable") == waiting.wait  # noqa: B009


@pytest.mark.parametrize("other", [None, lambda: True])
def test_a_pyfuse3_that_waits_in_another_way_is_left_alone(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, other: Callable[[], bool] | None
) -> None:
    if other is None:
        monkeypatch.delattr(pyfuse3, "_wait_fuse_readable")
    else:
        monkeypatch.setattr(pyfuse3, "_wait_fuse_readable", other)
    assert not can_be_installed()
    assert "waits in another way" in caplog.text


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
