"""Does a request wait without being lost, and is it given up when its caller has to go on, and only then?"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable

import pytest
import trio
import trio.testing

from sandboxfs.fuse.dispatch import WaitingRequests, wants_to_end
from sandboxfs.overlay.filesystem import AnonymousCaller, Caller

CALLER = AnonymousCaller(1, 2, 3)


class Waited:
    """A wait that a test ends."""

    caller: Caller = CALLER

    def __init__(self) -> None:
        self.tell: Callable[[], None] | None = None
        self.given_up = False

    def when_over(self, tell: Callable[[], None]) -> None:
        self.tell = tell

    def give_up(self) -> None:
        self.given_up = True


class Device:
    """What the requests are answered with, without a kernel."""

    def __init__(self, nursery: trio.Nursery, ends: Callable[[int], bool]) -> None:
        self.again: list[tuple[bytes, Caller]] = []
        self.refused: list[int] = []

        def spawn(task: Callable[[], Awaitable[object]]) -> None:
            nursery.start_soon(task)

        self.waiting = WaitingRequests(spawn, self.make_again, self.refused.append, ends)

    def make_again(self, request: memoryview, caller: Caller) -> None:
        self.again.append((bytes(request), caller))


def with_device(test: Callable[[Device], Awaitable[None]], ends: Callable[[int], bool]) -> None:
    async def run() -> None:
        async with trio.open_nursery() as nursery:
            await test(Device(nursery, ends))
            nursery.cancel_scope.cancel()

    trio.run(run)


def test_a_request_is_made_again_when_its_wait_is_over() -> None:
    async def test(device: Device) -> None:
        wait = Waited()
        device.waiting.add(7, b"request", 3, wait)
        assert wait.tell is not None
        assert len(device.waiting) == 1
        wait.tell()
        await trio.testing.wait_all_tasks_blocked()
        assert device.again == [(b"request", CALLER)]
        assert (len(device.waiting), device.refused) == (0, [])

    with_device(test, lambda thread: False)


def test_an_interrupted_request_waits_on_until_its_caller_has_to_end() -> None:
    ending: list[int] = []

    async def test(device: Device) -> None:
        one, other = Waited(), Waited()
        device.waiting.add(7, b"one", 3, one)
        device.waiting.add(8, b"other", 4, other)
        device.waiting.interrupt(7)
        await trio.sleep(0.3)
        assert device.refused == []
        ending.extend([3, 4])
        await trio.sleep(0.3)
        # The other one has got no signal.
        assert device.refused == [7]
        assert (one.given_up, other.given_up) == (True, False)

    with_device(test, lambda thread: thread in ending)


def test_an_interruption_that_comes_before_the_wait_is_remembered() -> None:
    async def test(device: Device) -> None:
        device.waiting.interrupt(7)
        wait = Waited()
        device.waiting.add(7, b"request", 3, wait)
        assert device.refused == [7]
        assert wait.given_up

    with_device(test, lambda thread: True)


def test_at_the_end_every_request_is_given_up() -> None:
    async def test(device: Device) -> None:
        waits = [Waited() for _ in range(3)]
        for unique, wait in enumerate(waits):
            device.waiting.add(unique, b"request", 3, wait)
        assert device.waiting.end() == [0, 1, 2]
        assert all(wait.given_up for wait in waits)

    with_device(test, lambda thread: False)


# Each program blocks the signals that it is about to get, or has a handler for them, and stands still.
PROGRAM = """
import signal, sys, time
exec(sys.argv[1])
print(flush=True)
time.sleep(60)
"""


@pytest.mark.parametrize(
    ("preparation", "number", "ends"),
    [
        ("signal.pthread_sigmask(signal.SIG_BLOCK, [2])", signal.SIGINT, False),
        ("signal.pthread_sigmask(signal.SIG_BLOCK, [14])", signal.SIGALRM, False),
        ("pass", 0, False),
    ],
)
def test_signals_that_are_blocked_do_not_end_a_wait(preparation: str, number: int, ends: bool) -> None:
    program = subprocess.Popen([sys.executable, "-c", PROGRAM, preparation], stdout=subprocess.PIPE)
    try:
        assert program.stdout is not None
        program.stdout.readline()
        os.kill(program.pid, number)
        time.sleep(0.05)
        assert wants_to_end(program.pid) is ends
    finally:
        program.kill()
        program.communicate()


def test_a_thread_that_is_gone_waits_no_more() -> None:
    program = subprocess.Popen(["true"])
    program.wait()
    assert wants_to_end(program.pid)
