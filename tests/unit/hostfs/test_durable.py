"""Does everything that is given to a syncer reach the disk, and is nothing left open?"""

import errno
import os
from contextlib import suppress
from pathlib import Path
from threading import Lock

import pytest

from sandboxfs.hostfs.durable import Syncer

MANY = 1000


class Disk:
    """Notes which files were synced; fails for some."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.synced: list[int] = []
        self.broken: set[int] = set()
        self._lock = Lock()
        monkeypatch.setattr(os, "fsync", self._sync)

    def _sync(self, fd: int) -> None:
        number = os.fstat(fd).st_ino
        if number in self.broken:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        with self._lock:
            self.synced.append(number)


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    return Disk(monkeypatch)


def written(place: Path, number: int) -> tuple[int, int]:
    """A file that is open and written: its descriptor and its inode number."""
    fd = os.open(place / str(number), os.O_CREAT | os.O_WRONLY, 0o600)
    os.write(fd, b"content")
    return fd, os.fstat(fd).st_ino


def open_files(place: Path) -> list[str]:
    links = [f"/proc/self/fd/{name}" for name in os.listdir("/proc/self/fd")]
    found = []
    for link in links:
        # Closed by another thread meanwhile.
        with suppress(FileNotFoundError):
            found.append(os.readlink(link))
    return [target for target in found if target.startswith(str(place))]


@pytest.mark.parametrize("count", [0, 1, 7, 192, MANY])
def test_every_file_is_synced_once_and_closed(tmp_path: Path, disk: Disk, count: int) -> None:
    numbers = []
    with Syncer() as syncer:
        for number in range(count):
            fd, ino = written(tmp_path, number)
            syncer.take(fd)
            numbers.append(ino)
    assert sorted(disk.synced) == sorted(numbers)
    assert open_files(tmp_path) == []


def test_after_waiting_everything_taken_so_far_is_synced(tmp_path: Path, disk: Disk) -> None:
    with Syncer() as syncer:
        fd, ino = written(tmp_path, 1)
        syncer.take(fd)
        syncer.wait()
        assert disk.synced == [ino]


def test_only_a_bounded_number_of_files_is_open_at_a_time(tmp_path: Path, disk: Disk) -> None:
    most = 0
    with Syncer() as syncer:
        for number in range(MANY):
            syncer.take(written(tmp_path, number)[0])
            if number % 25 == 0:
                most = max(most, len(open_files(tmp_path)))
    assert most <= 400


def give(syncer: Syncer, disk: Disk, place: Path, count: int, broken: int) -> None:
    """Let a syncer have *count* files, one of which cannot be synced."""
    for number in range(count):
        fd, ino = written(place, number)
        if number == broken:
            disk.broken.add(ino)
        syncer.take(fd)


@pytest.mark.parametrize("at", [0, 500, 900, MANY - 1])
def test_a_file_that_does_not_reach_the_disk_is_an_error_however_many_do(
    tmp_path: Path, disk: Disk, at: int
) -> None:
    with pytest.raises(OSError, match="Input/output error"), Syncer() as syncer:
        give(syncer, disk, tmp_path, MANY, at)
    assert open_files(tmp_path) == []


def test_whoever_gives_up_hears_of_his_own_error_and_leaves_no_file_open(tmp_path: Path, disk: Disk) -> None:
    def give_up() -> None:
        with Syncer() as syncer:
            give(syncer, disk, tmp_path, 300, 7)
            raise KeyError

    with pytest.raises(KeyError):
        give_up()
    assert open_files(tmp_path) == []
