"""Has the record room for what is about to be replaced?

On one filesystem that is only renamed. From another one it is copied, and so is a file that is written over.
Whether it fits is asked before anything changes; a guess, for others write to the same disk.
"""

import os
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path

from sandboxfs.changes.carrying import contents
from sandboxfs.changes.ground import Ground
from sandboxfs.changes.journal import Steps, Swap
from sandboxfs.changes.records import COMMIT, Record
from sandboxfs.changes.steps import is_below, joined
from sandboxfs.errors import UsageError
from sandboxfs.paths import quoted

# For the rest of the journal, the baseline and the directories themselves.
_MARGIN = 1 << 16


def check_room(ground: Ground, steps: Steps, record: Record) -> None:
    """Refuse *steps* if what they replace does not fit where *record* is."""
    device = record.directory.own_stat().st_dev
    copied = [swap for swap in steps.swaps if _is_copied(swap, device)]
    if not copied:
        return
    disk = os.fstatvfs(record.directory.fd)
    # What moves out of a directory that goes is not replaced.
    moving = [joined(steps.places[swap.came[0]].before, swap.came[1]) for swap in steps.swaps if swap.came]
    found = [
        size
        for swap in copied
        for path, size in _sizes(ground, steps, swap)
        if not any(is_below(path, top) for top in moving)
    ]
    needed = _rounded(found, disk.f_frsize or 1) + _MARGIN
    free = disk.f_bavail * disk.f_frsize
    # Some filesystems do not know how large they are.
    if disk.f_blocks and needed > free:
        raise _no_room(record, f"{_size(needed)} needed, {_size(free)} free, {_size(needed - free)} missing")
    if disk.f_files and len(found) > disk.f_favail:
        raise _no_room(record, f"{len(found)} inodes needed, {disk.f_favail} free")


def _is_copied(swap: Swap, device: int) -> bool:
    return swap.in_place or (swap.old is not None and swap.old.dev != device)


def _sizes(ground: Ground, steps: Steps, swap: Swap) -> Iterator[tuple[bytes, int]]:
    """What each object takes that *swap* replaces, by its path now."""
    place = steps.places[swap.place]
    here = None if place.made else ground.find(place.before, place.identity.ino)
    status = None if here is None else here.stat(swap.name)
    if here is None or status is None:
        # What is not there is found out when it is looked at most closely.
        return
    path = joined(place.before, swap.name)
    yield path, _taken(status)
    if stat.S_ISDIR(status.st_mode):
        with here.child(swap.name) as top:
            yield from ((joined(path, below), _taken(inner)) for below, inner in contents(top))


def _taken(status: os.stat_result) -> int:
    """How many bytes a copy takes: holes stay holes."""
    return min(status.st_size, status.st_blocks * 512) if stat.S_ISREG(status.st_mode) else status.st_size


def _rounded(sizes: Iterable[int], block: int) -> int:
    return sum(-(-size // block) * block for size in sizes)


def _no_room(record: Record, how_much: str) -> UsageError:
    where = Path(os.fsdecode(record.directory.own_path())).readlink().parent
    less = ", or commit less at a time" if record.about.kind == COMMIT else ""
    return UsageError(
        f"no room at {quoted(where)} for what the {record.about.kind} replaces: {how_much}",
        hint=f"nothing was changed; make room there{less}",
    )


def _size(size: int) -> str:
    return f"{size / (1 << 20):.1f} MiB"
