"""Under which other names does the view show a file that the sandbox changed under one of them?

A lower file of several names is copied up under the one that was written to; its other names lead to the copy
through the index, by an inode number that means nothing elsewhere. Here they are found by walking the
workspace as the view shows it, so that an archive can list all of them as what they are: names of one file.
Each comes with the directories on the way to it and with sightings, as if it had been copied up under every
name.
"""

import os
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from sandboxfs.changes.archive_entry import Entry, Type
from sandboxfs.changes.tree import split
from sandboxfs.changes.view import View
from sandboxfs.layers.baseline import Sighting

Pair = tuple[Entry, Sighting]
"""An entry of the upper as it would be, and what would be noted of the workspace with it."""


@dataclass(frozen=True)
class OtherName:
    """One more name of a file; *way* are the directories around it that the upper does not have."""

    path: bytes
    sighting: Sighting
    way: list[Pair]


def other_names(view: View, missing: Mapping[int, int]) -> Iterator[OtherName]:
    """Find the names that the upper lacks; *missing* says of which number, and how many."""
    if not missing:
        return
    wanted = {
        (sighting.dev, sighting.ino): sighting
        for sighting in view.layers.baseline.below(b"")
        if sighting.number in missing
    }
    numbers = {ino for _, ino in wanted}
    left = sum(missing[sighting.number] for sighting in wanted.values())
    made: set[bytes] = set()
    for shown in view.below(b"") if left else ():
        if shown.ino not in numbers or shown.upper is not None or shown.lower_path is None:
            continue
        status = view.layers.workspace.stat(shown.lower_path)
        sighting = None if status is None else wanted.get((status.st_dev, status.st_ino))
        if sighting is not None:
            way = _way(view, split(shown.path)[0], split(shown.lower_path)[0], made)
            yield OtherName(shown.path, replace(sighting, path=shown.lower_path), way)
            left -= 1
            if not left:
                return


def _way(view: View, path: bytes, lower: bytes, made: set[bytes]) -> list[Pair]:
    """Copies of the directories down to *path* that the upper does not have, outermost first."""
    way: list[Pair] = []
    while view.upper.get(path) is None and path not in made:
        status = view.layers.workspace.stat(lower)
        if status is None:
            break
        made.add(path)
        way.append((_copy(path, status), _sighting(lower, status)))
        path, lower = split(path)[0], split(lower)[0]
    return way[::-1]


def _copy(path: bytes, status: os.stat_result) -> Entry:
    return Entry(
        path,
        Type.DIRECTORY,
        mode=stat.S_IMODE(status.st_mode),
        uid=status.st_uid,
        gid=status.st_gid,
        mtime_ns=status.st_mtime_ns,
        number=status.st_ino,
    )


def _sighting(path: bytes, status: os.stat_result) -> Sighting:
    return Sighting(
        path=path,
        mode=status.st_mode,
        uid=status.st_uid,
        gid=status.st_gid,
        size=status.st_size,
        nlink=status.st_nlink,
        mtime_ns=status.st_mtime_ns,
        ctime_ns=status.st_ctime_ns,
        dev=status.st_dev,
        ino=status.st_ino,
        number=status.st_ino,
        digest=None,
        target=None,
        saved=None,
    )
