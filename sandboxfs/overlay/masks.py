"""Which names must not be asked of the host?

A *hidden* name (the state directory) does not exist in the view. A *sealed* one is shown as an empty
directory: the mountpoint itself, where looking would make the daemon wait for its own answer, and the
mounts of other sandboxes inside the workspace, whose daemons may in turn be waiting for ours.
"""

import os
from collections.abc import Iterable
from pathlib import Path

Shown = os.stat_result | None
"""What to show instead: a directory's status, or None for nothing."""


class Masks:
    """The masked names, by the identity of the host directory they are in."""

    def __init__(self, hidden: Iterable[Path], sealed: Iterable[Path]) -> None:
        self._lasting: dict[tuple[int, int], dict[bytes, Shown]] = {}
        for path in hidden:
            _add(self._lasting, path, None)
        for path in sealed:
            _add(self._lasting, path, path.stat())
        self._foreign: dict[tuple[int, int], dict[bytes, Shown]] = {}

    def seal_foreign(self, places: Iterable[Path]) -> None:
        """Seal other sandboxes' mountpoints, instead of those of the last call.

        The mounts are not looked at: their parents' status is shown, under another number.
        """
        self._foreign = {}
        for place in places:
            try:
                _add(self._foreign, place, _numbered(place.parent.stat()))
            except OSError:
                # Gone again, or out of reach: then the view cannot lead there either.
                continue

    def in_directory(self, dev: int, ino: int) -> dict[bytes, Shown]:
        here = dev, ino
        return self._foreign.get(here, {}) | self._lasting.get(here, {})


def _add(masks: dict[tuple[int, int], dict[bytes, Shown]], path: Path, shown: Shown) -> None:
    parent = path.parent.stat()
    masks.setdefault((parent.st_dev, parent.st_ino), {})[os.fsencode(path.name)] = shown


def _numbered(status: os.stat_result) -> os.stat_result:
    """The same status with an inode number that no host filesystem uses."""
    fields = list(status)
    fields[1] = status.st_ino | 1 << 55
    # The plain sequence has neither nanoseconds nor blocks.
    others = {name: getattr(status, name) for name in dir(status) if name.startswith("st_")}
    return os.stat_result(fields, others)
