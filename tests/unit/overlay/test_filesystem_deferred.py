"""Is a sync handed over when it may take long, and done at once when it will not?"""

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from sandboxfs.overlay.filesystem import Deferred, Offload, Syncs


@pytest.fixture
def fd(tmp_path: Path) -> Iterator[int]:
    fd = os.open(tmp_path / "file", os.O_RDWR | os.O_CREAT)
    yield fd
    os.close(fd)


class Clock:
    """Stands still but for what a slow disk takes: a busy machine would make any disk a slow one."""

    def __init__(self) -> None:
        self.now = 0.0

    def perf_counter(self) -> float:
        return self.now


CLOCK = Clock()


@pytest.fixture(autouse=True)
def _time_is_what_the_disk_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sandboxfs.overlay.filesystem.time", CLOCK)


@pytest.fixture
def syncs() -> Syncs:
    beside = Offload()
    beside.allowed = True
    return Syncs(beside)


def nothing(fd: int) -> None:
    """A disk that takes no time."""


def slow(fd: int) -> None:
    CLOCK.now += 0.002


def handed_over(syncs: Syncs, fd: int, sync: Callable[[int], None]) -> bool:
    """Sync, here or beside; whether it was to be done beside."""
    try:
        syncs.sync(fd, sync)
    except Deferred as later:
        later.work()
        return True
    return False


def test_the_first_is_handed_over_and_the_next_done_at_once_if_that_was_quick(syncs: Syncs, fd: int) -> None:
    assert [handed_over(syncs, fd, nothing) for _ in range(4)] == [True, False, False, False]


def test_after_a_slow_one_they_are_handed_over_until_one_is_quick(syncs: Syncs, fd: int) -> None:
    speeds = [nothing, slow, slow, nothing, nothing]
    assert [handed_over(syncs, fd, speed) for speed in speeds] == [True, False, True, True, False]


def test_after_much_was_written_it_is_handed_over(syncs: Syncs, fd: int) -> None:
    handed_over(syncs, fd, nothing)
    syncs.written += 2 << 20
    assert handed_over(syncs, fd, nothing)
    syncs.written += 4096
    assert not handed_over(syncs, fd, nothing)


def test_all_are_done_at_once_where_nothing_is_done_beside(fd: int) -> None:
    assert not handed_over(Syncs(Offload()), fd, slow)


def test_what_is_handed_over_reaches_the_disk_though_its_descriptor_is_closed(
    syncs: Syncs, tmp_path: Path
) -> None:
    fd = os.open(tmp_path / "file", os.O_RDWR | os.O_CREAT)
    with pytest.raises(Deferred) as raised:
        syncs.sync(fd, os.fsync)
    os.close(fd)
    raised.value.work()


def test_an_error_of_the_disk_is_the_answer(syncs: Syncs, fd: int) -> None:
    def broken(fd: int) -> None:
        raise OSError(5, "Input/output error")

    handed_over(syncs, fd, nothing)
    with pytest.raises(OSError, match="Input/output error"):
        handed_over(syncs, fd, broken)
