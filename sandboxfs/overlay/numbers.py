"""Which inode number does the view show for a host object?

The number must be the same before and after copy-up and in every session, and two objects must not share one:

- an object of the workspace's own filesystem keeps its host number, so that git's index stays valid
- one of another filesystem mounted inside the workspace gets that filesystem's tag in the high bits
- one made in the sandbox gets the upper's tag; one that was copied up carries its old number in a record

The high seven bits below the sign are the tag. Host numbers too large to leave them room are folded; a
number that clashes all the same is replaced by a random one (`Inodes.place`).
"""

import os
import secrets

_TAG_SHIFT = 56
_LARGEST = 1 << _TAG_SHIFT
_UPPER = 127 << _TAG_SHIFT
_RANDOM = 126 << _TAG_SHIFT
_FIRST_TAG, _LAST_TAG = 1, 125
# For what exists only in the view: above all numbers of host objects.
FIRST_VIRTUAL = 128 << _TAG_SHIFT
_FOLD = 0x9E3779B97F4A7C15


class Numbers:
    """The numbering of one stack of layers."""

    def __init__(self, workspace_dev: int) -> None:
        self._tags = {workspace_dev: 0}

    def knows(self, dev: int) -> bool:
        return dev in self._tags

    def learn(self, dev: int, fsid: int) -> None:
        """Choose the tag of a filesystem, by its own id: device numbers change with the order of mounting."""
        taken = set(self._tags.values())
        tag = _FIRST_TAG + (fsid or dev) % (_LAST_TAG - _FIRST_TAG + 1)
        for _ in range(_LAST_TAG):
            if tag << _TAG_SHIFT not in taken:
                break
            tag = tag + 1 if tag < _LAST_TAG else _FIRST_TAG
        self._tags[dev] = tag << _TAG_SHIFT

    def of_lower(self, status: os.stat_result) -> int:
        ino = status.st_ino
        return self._tags.get(status.st_dev, 0) | (ino if ino < _LARGEST else _folded(ino))

    def of_host(self, dev: int, ino: int) -> int:
        return self._tags.get(dev, 0) | (ino if ino < _LARGEST else _folded(ino))

    def of_upper(self, status: os.stat_result) -> int:
        ino = status.st_ino
        return _UPPER | (ino if ino < _LARGEST else _folded(ino))

    @staticmethod
    def random() -> int:
        return _RANDOM | secrets.randbelow(_LARGEST)


def _folded(ino: int) -> int:
    return ((ino * _FOLD) & 0xFFFFFFFFFFFFFFFF) >> 8
