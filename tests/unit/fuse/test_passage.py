"""Do requests get to pyfuse3 and its answers to the kernel, and is the device there again afterwards?

A socket stands for the device, and the test for pyfuse3.
"""

import errno
import os
import socket
import struct
from collections.abc import Iterator

import pytest

from sandboxfs.fuse.passage import LARGEST, Passage
from tests.unit.fuse.kernel import Kernel, reply_of, request

INIT, STATFS = 26, 17
KILLPRIV = 1 << 28


class Way:
    def __init__(self) -> None:
        self.kernel = Kernel()
        self.number = self.kernel.number
        self.passage = Passage(self.number)

    def taken(self) -> bytes:
        """What whoever reads the number finds there, without waiting for it."""
        with socket.socket(fileno=os.dup(self.number)) as end:
            return end.recv(2 * LARGEST, socket.MSG_DONTWAIT)

    def answered(self, answer: bytes) -> bytes | None:
        os.write(self.number, answer)
        self.passage.bring_back()
        return self.kernel.told()

    def pass_on(self, message: bytes) -> bool:
        return self.passage.pass_on(memoryview(message))


@pytest.fixture
def way() -> Iterator[Way]:
    made = Way()
    yield made
    made.passage.close()
    made.kernel.close()


def greeting_answered(flags: int = 0) -> bytes:
    return struct.pack("=IiQIIII", 80, 0, 77, 7, 38, 65536, flags) + bytes(48)


def test_a_request_goes_through_and_its_answer_comes_back(way: Way) -> None:
    for number in range(3):
        asked = request(STATFS, unique=number)
        assert way.pass_on(asked)
        assert way.taken() == asked
        answer = struct.pack("=IiQ", 16, -5, number)
        assert way.answered(answer) == answer


def test_no_answer_comes_back_before_there_is_one(way: Way) -> None:
    way.pass_on(request(STATFS))
    way.passage.bring_back()
    assert way.kernel.told() is None


def test_answers_come_back_one_by_one_however_many_there_are(way: Way) -> None:
    answers = [struct.pack("=IiQ", 16, 0, number) for number in range(5)]
    for answer in answers:
        os.write(way.number, answer)
    way.passage.bring_back()
    assert way.kernel.all_told() == answers


def test_the_device_itself_is_at_hand_and_never_makes_anybody_wait(way: Way) -> None:
    with pytest.raises(BlockingIOError):
        os.read(way.passage.device, 100)
    way.kernel.ask(b"request")
    assert os.read(way.passage.device, 100) == b"request"
    os.write(way.passage.device, b"message")
    assert way.kernel.told() == b"message"


def test_the_answer_to_the_greeting_is_completed_and_no_other(way: Way) -> None:
    way.pass_on(request(INIT, struct.pack("=IIII", 7, 45, 131072, KILLPRIV) + bytes(48)))
    assert way.answered(greeting_answered()) == greeting_answered(KILLPRIV)
    way.pass_on(request(STATFS))
    assert way.answered(greeting_answered()) == greeting_answered()


def test_the_largest_goes_through_whole_both_ways(way: Way) -> None:
    largest = request(STATFS, os.urandom(LARGEST - 40))
    assert way.pass_on(largest)
    assert way.taken() == largest
    answer = os.urandom(LARGEST)
    assert way.answered(answer) == answer


def test_what_is_too_large_is_refused_and_not_passed_on(way: Way, monkeypatch: pytest.MonkeyPatch) -> None:
    def too_large(self: socket.socket, data: memoryview) -> int:
        raise OSError(errno.EMSGSIZE, os.strerror(errno.EMSGSIZE))

    monkeypatch.setattr(socket.socket, "send", too_large)
    assert not way.pass_on(request(STATFS, unique=5))
    monkeypatch.undo()
    with pytest.raises(BlockingIOError):
        way.taken()
    told = way.kernel.told()
    assert told is not None
    assert reply_of(told) == (-errno.E2BIG, 5, b"")


def test_what_nobody_takes_out_is_refused_in_the_end(way: Way) -> None:
    asked = request(STATFS, bytes(LARGEST - 40), unique=6)
    while way.pass_on(asked):
        assert way.kernel.told() is None
    told = way.kernel.told()
    assert told is not None
    assert reply_of(told) == (-errno.EIO, 6, b"")


@pytest.mark.parametrize("number", [errno.ENOENT, errno.ENODEV])
def test_an_answer_that_nobody_waits_for_any_more_is_no_error(
    way: Way, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, number: int
) -> None:
    real = os.write

    def write(fd: int, data: bytes) -> int:
        if fd == way.passage.device and data == b"late":
            raise OSError(number, os.strerror(number))
        return real(fd, data)

    monkeypatch.setattr(os, "write", write)
    os.write(way.number, b"late")
    assert way.answered(b"next") == b"next"
    assert not caplog.records


def test_closing_brings_the_last_answer_back_and_puts_the_device_at_the_number_again() -> None:
    kernel = Kernel()
    passage = Passage(kernel.number)
    os.write(kernel.number, b"last")
    passage.close()
    assert kernel.told() == b"last"
    kernel.ask(b"request")
    assert os.read(kernel.number, 100) == b"request"
    os.write(kernel.number, b"answer")
    assert kernel.told() == b"answer"
    kernel.close()


def test_closing_leaves_no_descriptor_open() -> None:
    kernel = Kernel()
    before = os.listdir("/proc/self/fd")
    Passage(kernel.number).close()
    assert os.listdir("/proc/self/fd") == before
    kernel.close()


def test_nothing_of_it_is_left_to_programs_that_are_started(way: Way) -> None:
    assert not os.get_inheritable(way.number)
    assert not os.get_inheritable(way.passage.device)
