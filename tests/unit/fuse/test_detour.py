"""Does an answer reach the kernel completed, and is the device there again afterwards?

A socket stands for the kernel's end, and the test for libfuse.
"""

import os
import socket
from collections.abc import Iterator
from threading import Lock

import pytest

from sandboxfs.fuse.detour import LARGEST, Detour


class Device:
    def __init__(self) -> None:
        self.kernel, self._end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.kernel.setblocking(False)
        self.fd = self._end.fileno()
        self.telling = Lock()
        self.detour = Detour(self.fd, self.telling)

    def close(self) -> None:
        self.detour.close()
        self._end.close()
        self.kernel.close()


@pytest.fixture
def device() -> Iterator[Device]:
    made = Device()
    yield made
    made.close()


def test_a_request_and_its_answer_go_around_and_the_device_is_there_again(device: Device) -> None:
    device.kernel.send(b"hello")
    device.detour.take(bytes.upper, device.detour.receive())
    assert os.read(device.fd, 1000) == b"hello"
    os.write(device.fd, b"answer")
    device.detour.leave()
    assert device.kernel.recv(1000) == b"ANSWER"
    device.kernel.send(b"the next request")
    assert os.read(device.fd, 1000) == b"the next request"
    os.write(device.fd, b"another answer")
    assert device.kernel.recv(1000) == b"another answer"


def test_it_can_be_taken_again(device: Device) -> None:
    for number in range(3):
        device.detour.take(bytes.upper)
        os.write(device.fd, b"answer %d" % number)
        device.detour.leave()
        assert device.kernel.recv(1000) == b"ANSWER %d" % number


def test_leaving_without_an_answer_leaves_the_device_as_it_was(device: Device) -> None:
    device.detour.take(bytes.upper)
    device.detour.leave()
    os.write(device.fd, b"answer")
    assert device.kernel.recv(1000) == b"answer"


def test_nothing_goes_around_while_the_kernel_is_told_something(device: Device) -> None:
    with device.telling:
        device.detour.take(bytes.upper)
        assert not device.detour.taken
        os.write(device.fd, b"answer")
        assert device.kernel.recv(1000) == b"answer"


def test_who_wants_to_tell_the_kernel_something_waits_for_the_answer(device: Device) -> None:
    device.detour.take(bytes.upper)
    assert not device.telling.acquire(blocking=False)
    device.detour.leave()
    assert device.telling.acquire(blocking=False)
    device.telling.release()


def test_closing_passes_the_last_answer_on() -> None:
    kernel, end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with kernel, end:
        detour = Detour(end.fileno(), Lock())
        detour.take(bytes.upper)
        os.write(end.fileno(), b"last")
        detour.close()
        assert kernel.recv(1000) == b"LAST"


def test_the_largest_answer_takes_the_detour_whole(device: Device) -> None:
    assert device.detour.is_wide
    assert device.detour.take(bytes.upper)
    os.write(device.fd, b"x" * LARGEST)
    device.detour.leave()
    assert device.kernel.recv(2 * LARGEST) == b"X" * LARGEST


def test_a_detour_that_is_granted_little_room_says_so(
    device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(socket.socket, "setsockopt", lambda *_: None)
    monkeypatch.setattr(socket.socket, "getsockopt", lambda *_: 1 << 13)
    detour = Detour(device.fd, Lock())
    assert not detour.is_wide
    detour.close()
