"""Does libfuse get the first request and the kernel its answer, and is the device there again afterwards?

A socket stands for the device, and a function of the test for the main loop of pyfuse3.
"""

import errno
import os
import re
import socket
import struct
import tomllib
from collections.abc import Awaitable, Callable, Iterator
from contextlib import closing
from pathlib import Path

import pyfuse3
import pytest
import trio
import trio.testing

from sandboxfs.errors import MountFailed
from sandboxfs.fuse import connection
from sandboxfs.fuse.connection import REQUIREMENT, Pyfuse3Bridge, SessionOperations, answer_init
from tests.support.claims import fails_with
from tests.unit.fuse.kernel import Kernel, request

INIT = 26
KILLPRIV = 1 << 28
GREETING = request(INIT, struct.pack("=IIII", 7, 45, 131072, KILLPRIV) + bytes(48))


def answered(flags: int = 0) -> bytes:
    return struct.pack("=IiQIIII", 80, 0, 77, 7, 38, 65536, flags) + bytes(48)


def taken(number: int) -> bytes:
    """What whoever reads the number finds there, without waiting for it."""
    with socket.socket(fileno=os.dup(number)) as end:
        return end.recv(1 << 16, socket.MSG_DONTWAIT)


@pytest.fixture
def kernel() -> Iterator[Kernel]:
    with closing(Kernel()) as made:
        yield made


def test_a_request_goes_through_and_its_answer_comes_back(kernel: Kernel) -> None:
    with closing(Pyfuse3Bridge(kernel.number)) as bridge:
        assert bridge.receive() is None
        bridge.send(GREETING)
        assert taken(kernel.number) == GREETING
        os.write(kernel.number, answered())
        assert bridge.receive() == answered()
        assert bridge.receive() is None
        assert kernel.told() is None


def test_the_device_is_at_its_number_again_afterwards(kernel: Kernel) -> None:
    Pyfuse3Bridge(kernel.number).close()
    kernel.ask(b"request")
    assert os.read(kernel.number, 100) == b"request"
    os.write(kernel.number, b"answer")
    assert kernel.told() == b"answer"


def test_closing_leaves_no_descriptor_open(kernel: Kernel) -> None:
    before = os.listdir("/proc/self/fd")
    Pyfuse3Bridge(kernel.number).close()
    assert os.listdir("/proc/self/fd") == before


def test_nothing_of_it_is_left_to_programs_that_are_started(kernel: Kernel) -> None:
    before = set(os.listdir("/proc/self/fd"))
    with closing(Pyfuse3Bridge(kernel.number)):
        made = {int(fd) for fd in set(os.listdir("/proc/self/fd")) - before}
        assert not any(inheritable(fd) for fd in made | {kernel.number})
    assert not os.get_inheritable(kernel.number)


def inheritable(fd: int) -> bool:
    try:
        return os.get_inheritable(fd)
    except OSError:
        # That of the listing itself.
        return False


# INIT

Main = Callable[[], Awaitable[None]]


def play(monkeypatch: pytest.MonkeyPatch, main: Main) -> None:
    """Have *main* take the place of pyfuse3's."""

    async def played(*, max_tasks: int) -> None:
        assert max_tasks == 1
        await main()

    monkeypatch.setattr(pyfuse3, "main", played)


def libfuse(kernel: Kernel, seen: list[bytes]) -> Main:
    async def main() -> None:
        await trio.lowlevel.checkpoint()
        seen.append(taken(kernel.number))
        os.write(kernel.number, answered())

    return main


def greet(kernel: Kernel) -> None:
    """Have INIT answered, on a descriptor of its own."""
    device = os.dup(kernel.number)
    os.set_blocking(device, False)
    try:
        trio.run(answer_init, device, kernel.number)
    finally:
        os.close(device)


def test_libfuse_answers_init_and_its_answer_is_completed(
    kernel: Kernel, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[bytes] = []
    play(monkeypatch, libfuse(kernel, seen))
    kernel.ask(GREETING)
    greet(kernel)
    assert seen == [GREETING]
    assert kernel.all_told() == [answered(KILLPRIV)]
    # From now on nobody else reads the device.
    kernel.ask(b"next")
    assert taken(kernel.number) == b"next"


def test_an_init_that_comes_later_is_waited_for(kernel: Kernel, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[bytes] = []
    play(monkeypatch, libfuse(kernel, seen))
    os.set_blocking(kernel.number, False)

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(answer_init, kernel.number, kernel.number)
            await trio.testing.wait_all_tasks_blocked()
            assert seen == []
            kernel.ask(GREETING)

    trio.run(main)
    assert seen == [GREETING]


def test_a_mount_that_is_gone_before_init_is_no_failure(
    kernel: Kernel, monkeypatch: pytest.MonkeyPatch
) -> None:
    play(monkeypatch, libfuse(kernel, []))
    with monkeypatch.context() as patched:
        patched.setattr(os, "read", fails(errno.ENODEV))
        greet(kernel)
    kernel.unmount()
    greet(kernel)


def test_a_kernel_that_takes_no_answer_any_more_is_no_failure(
    kernel: Kernel, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def unmounted() -> None:
        await libfuse(kernel, [])()
        kernel.unmount()

    play(monkeypatch, unmounted)
    kernel.ask(GREETING)
    greet(kernel)


def test_an_error_of_the_device_is_not_hidden(kernel: Kernel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "read", fails(errno.EPERM))
    with fails_with(errno.EPERM):
        greet(kernel)


def fails(number: int) -> Callable[[int, int], bytes]:
    def read(fd: int, size: int) -> bytes:
        raise OSError(number, os.strerror(number))

    return read


# Another pyfuse3


async def ends_at_once() -> None:
    await trio.lowlevel.checkpoint()


async def cannot_read() -> None:
    raise ExceptionGroup("in a nursery", [OSError(errno.EIO, "fuse_session_receive_buf failed")])


@pytest.mark.parametrize("main", [ends_at_once, trio.sleep_forever, cannot_read])
def test_a_pyfuse3_that_answers_in_another_way_is_named_with_the_versions_that_work(
    kernel: Kernel, monkeypatch: pytest.MonkeyPatch, main: Main
) -> None:
    monkeypatch.setattr(connection, "_PATIENCE", 0.1)
    monkeypatch.setattr(pyfuse3, "__version__", "3.99.0")
    play(monkeypatch, main)
    kernel.ask(GREETING)
    with pytest.raises(MountFailed) as raised:
        greet(kernel)
    assert raised.value.message.startswith("pyfuse3 3.99.0 ")
    assert REQUIREMENT in raised.value.message
    assert raised.value.hint == f"pip install '{REQUIREMENT}'"
    # The device is there again, for unmounting.
    kernel.ask(b"next")
    assert taken(kernel.number) == b"next"


def test_a_pyfuse3_that_takes_init_itself_is_named_too(
    kernel: Kernel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "_PATIENCE", 0.1)
    with pytest.raises(MountFailed, match=re.escape(REQUIREMENT)):
        greet(kernel)


def test_a_pyfuse3_that_has_no_device_open_is_named_too() -> None:
    # This process has mounted nothing.
    with pytest.raises(MountFailed, match=re.escape(REQUIREMENT)):
        connection._libfuse_device()


def test_the_versions_that_work_are_those_that_are_installed() -> None:
    project = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text())
    assert REQUIREMENT in project["project"]["dependencies"]


# The handlers of pyfuse3


def test_pyfuse3_reads_no_more_once_it_is_told_of_init(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []
    monkeypatch.setattr(pyfuse3, "terminate", lambda: told.append("terminate"))
    SessionOperations(lambda: told.append("ready"), access_lists=True).init()
    assert told == ["terminate", "ready"]


@pytest.mark.parametrize("wanted", [False, True])
def test_access_lists_are_asked_for_where_they_are_wanted(wanted: bool) -> None:
    assert SessionOperations(lambda: None, access_lists=wanted).enable_acl is wanted
