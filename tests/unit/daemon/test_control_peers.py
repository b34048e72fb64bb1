"""No number of connections keeps the owner's commands from the daemon."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import trio
import trio.testing

from sandboxfs.control.control_socket import ControlAddress, ask
from sandboxfs.daemon.control_peers import (
    EACH,
    INSIDE,
    ControlConnection,
    ControlConnections,
    Peer,
    Turn,
    ViewWatch,
)
from sandboxfs.errors import SandboxBusy
from tests.unit.daemon.test_control_server import address, connected, line, serving

__all__ = ["address"]

MANY = 150
# Far less than the patience of a daemon that such connections would have to wear out.
SOON = 15.0

# Connects so often, from one process or from one each, asks, and neither reads the answers nor goes away.
CROWD = """
import os, socket, sys
path, count, said, apart = sys.argv[1], int(sys.argv[2]), sys.argv[3].encode(), sys.argv[4] == "apart"
kept = []
for _ in range(count):
    if apart and os.fork():
        continue
    kept.append(socket.socket(socket.AF_UNIX))
    kept[-1].connect(path)
    kept[-1].sendall(said and said + b"\\n")
    os.write(1, b"x")
    if apart:
        os.read(0, 1)
        os._exit(0)
os.read(0, 1)
"""


@contextmanager
def crowd(address: ControlAddress, said: bytes, how: str) -> Iterator[None]:
    """150 connections that have said something."""
    words = [sys.executable, "-c", CROWD, str(address.socket), str(MANY), said.decode().strip(), how]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.read(MANY) == b"x" * MANY
        try:
            yield
        finally:
            process.communicate(b"x" * (MANY + 1), timeout=60)


@pytest.mark.parametrize("how", ["together", "apart"])
@pytest.mark.parametrize("said", [b"", line("echo"), line("large")])
def test_150_connections_keep_no_command_out(address: ControlAddress, said: bytes, how: str) -> None:
    with serving(address), crowd(address, said, how):
        began = time.monotonic()
        assert ask(address, "later", timeout=60) == "later"
        assert time.monotonic() - began < SOON


def test_a_connection_that_gives_way_is_told_so(address: ControlAddress) -> None:
    with serving(address, connections=1), connected(address) as idle:
        # It has its place by the time that it is answered.
        idle.sendall(line())
        assert idle.recv(1000)
        assert ask(address, "later", timeout=60) == "later"
        assert b"others wait to ask the daemon" in idle.recv(1000)


class Inside(ViewWatch):
    """Takes the processes of this test for some inside the view."""

    def __init__(self) -> None:
        super().__init__(Path("/nowhere"))

    def objection(self, peer: Peer) -> str | None:
        return None if peer.pid == os.getpid() else "it is one of the crowd"


def test_processes_inside_the_view_leave_most_places_to_others(address: ControlAddress) -> None:
    with (
        serving(address, view=Inside(), harmless=("echo", "later", "large")),
        crowd(address, line("large"), "apart"),
    ):
        began = time.monotonic()
        assert ask(address, "later", timeout=60) == "later"
        assert time.monotonic() - began < 5


# Without sockets


def test_one_process_holds_a_few_places_and_those_inside_fewer() -> None:
    async def main() -> None:
        places, attended = ControlConnections(), list[ControlConnection]()

        async def attend(place: ControlConnection) -> None:
            place.daemon()
            attended.append(place)
            await trio.sleep_forever()

        async with trio.open_nursery() as nursery:
            for _ in range(20):
                nursery.start_soon(places.serve, 1, lambda: False, attend)
            await trio.testing.wait_all_tasks_blocked()
            assert len(attended) == EACH
            for process in range(100, 120):
                nursery.start_soon(places.serve, process, lambda: True, attend)
            await trio.testing.wait_all_tasks_blocked()
            assert len(attended) == EACH + INSIDE
            nursery.start_soon(places.serve, 2, lambda: False, attend)
            await trio.testing.wait_all_tasks_blocked()
            assert attended[-1].process == 2
            nursery.cancel_scope.cancel()

    trio.run(main)


def test_a_process_that_asks_without_end_is_slowed_down_and_others_are_not() -> None:
    async def main() -> None:
        places = ControlConnections()
        began = trio.current_time()
        for _ in range(150):
            await places.turn(1)
        assert 0.9 < trio.current_time() - began < 1.2
        now = trio.current_time()
        await places.turn(2)
        assert trio.current_time() == now

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))


def test_whoever_waits_for_long_is_told_what_for() -> None:
    async def main() -> None:
        turn = Turn(patience=8)
        held = trio.Event()

        async def hold() -> None:
            async with turn.taken("allow", 12):
                held.set()
                await trio.sleep_forever()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(hold)
            await held.wait()
            with pytest.raises(SandboxBusy, match="'ro' waits for 'allow' of process 12"):
                async with turn.taken("ro", 13):
                    raise AssertionError("it has the turn")
            nursery.cancel_scope.cancel()
        async with turn.taken("rw", 14):
            pass

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))
