"""Disk use of trees in the state directory, their removal, and the reserve for a full disk.

Sandboxed programs wrote the trees: directories that their owner may not enter, links that lead anywhere,
paths of any depth. Nothing here follows a symbolic link, recurses, or holds more than a few descriptors.

The disk reserve is room that only a clean-up may use. A discard writes a commit record before it drops
changes. A full disk refuses that record, and no command could free space. The reserve is a directory of
files, for disks without inodes left; the first file has a megabyte, for disks without blocks left. A clean-up
releases the reserve and makes a new one afterwards.
"""

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from sandboxfs.hostfs.directory import HostDir
from sandboxfs.state.locations import Locations


@dataclass(frozen=True)
class TreeSize:
    """The disk use of a tree; not *complete* when the walk hit its limit or could not read an entry."""

    size: int
    entries: int
    complete: bool


def measure_tree(top: Path, limit: int = 50_000) -> TreeSize:
    """Add up the disk use of the tree below *top*, looking at no more than *limit* entries."""
    size = entries = 0
    complete = True
    linked: set[int] = set()
    pending = [str(top)]
    while pending:
        try:
            listing = os.scandir(pending.pop())
        except OSError:
            complete = False
            continue
        with listing:
            for entry in listing:
                if entries == limit:
                    return TreeSize(size, entries, complete=False)
                entries += 1
                try:
                    found = entry.stat(follow_symlinks=False)
                except OSError:
                    complete = False
                    continue
                if found.st_nlink > 1 and not stat.S_ISDIR(found.st_mode):
                    if found.st_ino in linked:
                        continue
                    linked.add(found.st_ino)
                size += found.st_blocks * 512
                if stat.S_ISDIR(found.st_mode):
                    pending.append(entry.path)
    return TreeSize(size, entries, complete)


def is_empty(directory: Path) -> bool:
    """Say whether *directory* has no entry; a missing directory has none.

    A program that locked its user out of the top of a view has changed the top's mode: an upper that cannot
    be listed holds that change, if no other.
    """
    try:
        with os.scandir(directory) as listing:
            return next(listing, None) is None
    except FileNotFoundError:
        return True
    except PermissionError:
        return False


def remove_tree(top: Path) -> None:
    """Remove *top* and everything below it; a missing *top* is fine."""
    with suppress(FileNotFoundError):
        if not stat.S_ISDIR(top.lstat().st_mode):
            top.unlink()
            return
        top.chmod(0o700)
        empty_directory(top)
        top.rmdir()


def empty_directory(top: Path) -> None:
    """Remove all entries of *top*, which stays; no other process may use names in *top*."""
    with HostDir.at(top) as directory:
        directory.remove_entries()


NO_ROOM: Final = (errno.ENOSPC, errno.EDQUOT)

_FILES = 24
_BYTES = 1 << 20


def keep_reserve(locations: Locations) -> None:
    """Make the missing files of the reserve, as far as the disk has room."""
    place = _place(locations)
    with suppress(OSError):
        if len(list(place.iterdir())) == _FILES:
            return
    with suppress(OSError):
        place.mkdir(mode=0o700, exist_ok=True)
        for number in range(_FILES):
            fd = os.open(place / str(number), os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
            try:
                if number == 0:
                    os.posix_fallocate(fd, 0, _BYTES)
            finally:
                os.close(fd)


@contextmanager
def released_reserve(locations: Locations) -> Iterator[None]:
    """Release the reserve's space while the block runs."""
    place = _place(locations)
    had_one = place.is_dir()
    for number in range(_FILES) if had_one else ():
        with suppress(OSError):
            (place / str(number)).unlink()
    try:
        yield
    finally:
        if had_one:
            keep_reserve(locations)


def is_full(path: Path) -> bool:
    """Say whether the filesystem of *path* has less free space, or fewer free inodes, than the reserve."""
    try:
        found = os.statvfs(path)
    except OSError:
        return False
    no_blocks = bool(found.f_blocks) and found.f_bavail * found.f_frsize < _BYTES
    return no_blocks or (bool(found.f_files) and found.f_favail < _FILES)


def _place(locations: Locations) -> Path:
    return locations.state / "reserve"
