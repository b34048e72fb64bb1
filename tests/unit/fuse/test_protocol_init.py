"""Does the kernel get what we want it to be told at the beginning, and nothing that it did not offer?"""

import struct

import pytest

from sandboxfs.fuse.protocol import LARGEST_WRITE, Greeting
from tests.unit.fuse.kernel import request

INIT = 26
KILLPRIV = 1 << 28
OTHERS = (1 << 0) | (1 << 5)


def greeting(flags: int) -> bytes:
    return request(INIT, struct.pack("=IIII", 7, 45, 131072, flags) + bytes(48))


def answer(flags: int, error: int = 0, largest: int = LARGEST_WRITE) -> bytes:
    rest = struct.pack("=HHI", 12, 9, largest) + bytes(range(40))
    body = b"" if error else struct.pack("=IIII", 7, 38, 65536, flags) + rest
    return struct.pack("=IiQ", 16 + len(body), error, 77) + body


def test_what_the_kernel_offers_is_asked_for() -> None:
    assert Greeting.of(greeting(OTHERS | KILLPRIV)).completed(answer(OTHERS)) == answer(OTHERS | KILLPRIV)


def test_what_the_kernel_does_not_offer_is_not_asked_for() -> None:
    assert Greeting.of(greeting(OTHERS)).completed(answer(OTHERS)) == answer(OTHERS)


def test_what_is_asked_for_already_stays_asked_for() -> None:
    assert Greeting.of(greeting(KILLPRIV)).completed(answer(KILLPRIV)) == answer(KILLPRIV)


def test_the_umask_and_the_long_form_of_setting_attributes_are_asked_for() -> None:
    more = 1 << 29 | 1 << 6
    assert Greeting(KILLPRIV | more).completed(answer(OTHERS)) == answer(OTHERS | KILLPRIV | more)


@pytest.mark.parametrize("flag", [1 << 15, 1 << 23])
def test_direct_writes_that_nobody_waits_for_and_remembered_links_are_not_asked_for(flag: int) -> None:
    assert Greeting(flag).completed(answer(OTHERS | flag)) == answer(OTHERS)


@pytest.mark.parametrize("other", [b"", greeting(KILLPRIV)[:50]])
def test_a_greeting_that_is_too_short_offers_nothing(other: bytes) -> None:
    assert Greeting.of(other).offers == 0


@pytest.mark.parametrize("other", [b"", answer(OTHERS, error=-71), answer(OTHERS)[:20]])
def test_an_answer_that_declines_stays_as_it_is(other: bytes) -> None:
    assert Greeting(KILLPRIV).completed(other) == other


@pytest.mark.parametrize(("asked", "allowed"), [(4096, 4096), (16 * LARGEST_WRITE, LARGEST_WRITE)])
def test_no_write_is_allowed_for_which_there_is_no_room(asked: int, allowed: int) -> None:
    assert Greeting(0).completed(answer(OTHERS, largest=asked)) == answer(OTHERS, largest=allowed)
