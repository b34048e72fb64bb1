"""Does a position in a listing mean the same to every reader?"""

import time

import pytest

from sandboxfs.overlay import readdir
from sandboxfs.overlay.readdir import Snapshot

NAMES = [b"name %d" % number for number in range(1000)]


def test_all_names_are_listed_once_after_the_two_dots() -> None:
    listed = [name for _, name in Snapshot(NAMES).after(0)]
    assert listed[:2] == [b".", b".."]
    assert sorted(listed[2:]) == sorted(NAMES)


def test_a_listing_goes_on_after_any_position() -> None:
    places = list(Snapshot(NAMES).after(0))
    assert [position for position, _ in places] == sorted({position for position, _ in places})
    for index in (0, 1, 2, 500, 1001):
        assert list(Snapshot(NAMES).after(places[index][0])) == places[index + 1 :]


def test_a_listing_goes_on_where_it_was_though_its_names_are_others() -> None:
    places = list(Snapshot(NAMES).after(0))
    middle = places[500][0]
    half, more = NAMES[::2], [b"more %d" % number for number in range(1000)]
    found = [name for _, name in Snapshot(half + more).after(middle)]
    rest = [name for _, name in places[501:] if name in half]
    assert [name for name in found if name in half] == rest


def test_names_with_the_same_hash_are_all_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readdir, "_position", lambda name: 3 + len(name) % 2)
    places = list(Snapshot(NAMES).after(0))
    assert sorted(name for _, name in places[2:]) == sorted(NAMES)
    assert len({position for position, _ in places}) == len(places)
    assert list(Snapshot(NAMES).after(places[500][0])) == places[501:]


def test_names_made_to_have_the_same_hash_take_no_longer_than_others(monkeypatch: pytest.MonkeyPatch) -> None:
    many = [b"name %d" % number for number in range(50_000)]
    begun = time.process_time()
    Snapshot(many)
    others = time.process_time() - begun
    monkeypatch.setattr(readdir, "_position", lambda name: 3)
    begun = time.process_time()
    Snapshot(many)
    assert time.process_time() - begun < 20 * others
