"""Is what we want added to the answer that the kernel gets, and nothing that it did not offer?"""

import struct

import pytest

from sandboxfs.fuse.greeting import greeted, offered, remembered
from sandboxfs.overlay.filesystem import Listing

KILLPRIV = 1 << 28
OTHERS = (1 << 0) | (1 << 5)


def request(flags: int, opcode: int = 26) -> bytes:
    body = struct.pack("=IIII", 7, 45, 131072, flags) + bytes(48)
    return struct.pack("=IIQQIIIHH", 40 + len(body), opcode, 77, 0, 0, 0, 0, 0, 0) + body


def answer(flags: int, error: int = 0) -> bytes:
    body = b"" if error else struct.pack("=IIII", 7, 38, 65536, flags) + bytes(range(48))
    return struct.pack("=IiQ", 16 + len(body), error, 77) + body


def test_what_the_kernel_offers_is_asked_for() -> None:
    assert greeted(answer(OTHERS), offered(request(OTHERS | KILLPRIV))) == answer(OTHERS | KILLPRIV)


def test_what_the_kernel_does_not_offer_is_not_asked_for() -> None:
    assert greeted(answer(OTHERS), offered(request(OTHERS))) == answer(OTHERS)


@pytest.mark.parametrize("other", [b"", request(KILLPRIV, opcode=1), request(KILLPRIV)[:50]])
def test_what_is_no_greeting_offers_nothing(other: bytes) -> None:
    assert offered(other) == 0


@pytest.mark.parametrize("other", [b"", answer(OTHERS, error=-71), answer(OTHERS)[:20]])
def test_an_answer_that_declines_stays_as_it_is(other: bytes) -> None:
    assert greeted(other, KILLPRIV) == other


def opened(flags: int, error: int = 0) -> bytes:
    body = b"" if error else struct.pack("=QII", 5, flags, 0)
    return struct.pack("=IiQ", 16 + len(body), error, 77) + body


@pytest.mark.parametrize("other", [b"", opened(0, error=-13), opened(0)[:20]])
def test_what_opens_no_directory_stays_as_it_is(other: bytes) -> None:
    assert remembered(other, Listing.KEPT) == other


@pytest.mark.parametrize(
    ("listing", "flags"), [(Listing.ASKED_FOR, 0), (Listing.ANEW, 1 << 3), (Listing.KEPT, 1 << 3 | 1 << 1)]
)
def test_a_listing_is_remembered_and_kept_by_one_flag_each(listing: Listing, flags: int) -> None:
    assert remembered(opened(1 << 5), listing) == opened(1 << 5 | flags)
