"""Does the kernel get what we want it to be told, and nothing that it did not offer?"""

import struct

import pytest

from sandboxfs.fuse.completing import MENTIONED, MOST_ABRIDGED, abridged, greeted, offered, remembered
from sandboxfs.fuse.detour import LARGEST
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


def entry(name: bytes, inode: int, generation: int) -> bytes:
    attributes = bytes(range(112))
    head = struct.pack("=QQ", inode, generation) + attributes + struct.pack("=QQII", 900, 7, len(name), 8)
    return head + name + bytes(-len(name) % 8)


def listing(*entries: bytes, error: int = 0) -> bytes:
    body = b"".join(entries)
    return struct.pack("=IiQ", 16 + len(body), error, 77) + body


def test_what_is_mentioned_comes_without_an_inode_and_all_else_as_it_was() -> None:
    before = listing(entry(b"known", 5, MENTIONED), entry(b"x" * 255, 6, 0), entry(b"12345678", 7, MENTIONED))
    after = listing(entry(b"known", 0, MENTIONED), entry(b"x" * 255, 6, 0), entry(b"12345678", 0, MENTIONED))
    assert abridged(before) == after


@pytest.mark.parametrize("other", [b"", listing(), listing(error=-5), listing(entry(b"name", 5, 0))])
def test_a_listing_that_mentions_nothing_stays_as_it_is(other: bytes) -> None:
    assert abridged(other) == other


def test_the_largest_abridged_answer_fits_through_the_detour() -> None:
    longest = entry(b"n" * 255, 5, MENTIONED)
    assert len(listing(*[longest] * MOST_ABRIDGED)) <= LARGEST
