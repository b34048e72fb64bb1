"""Is it worth a thread to have something reach the disk?

Handing it over takes longer than most disks take, so often not. But it can take seconds too, and everybody
would wait. So it is done at once if it was quick the last time and little has been written since; otherwise,
and so for the first time, beside.
"""

import os
import time
from collections.abc import Callable

from sandboxfs.overlay.later import Beside

# Seconds, and bytes.
_QUICK = 1e-3
_LITTLE = 1 << 20


class Syncs:
    """What is known of how long it takes. *written*: so many bytes were written since the last time."""

    __slots__ = ("_beside", "_quick", "written")

    def __init__(self, beside: Beside) -> None:
        self._beside = beside
        self._quick = False
        self.written = 0

    def sync(self, fd: int, sync: Callable[[int], None] = os.fsync) -> None:
        """Make an open file or directory reach the disk."""
        at_once = self._quick and self.written <= _LITTLE
        self.written = 0
        if at_once or not self._beside.allowed:
            self._timed(fd, sync)
            return
        # Whatever becomes of the other descriptor meanwhile.
        own = os.dup(fd)

        def reach_the_disk() -> None:
            try:
                self._timed(own, sync)
            finally:
                os.close(own)

        self._beside.answer(reach_the_disk)

    def _timed(self, fd: int, sync: Callable[[int], None]) -> None:
        begun = time.perf_counter()
        sync(fd)
        self._quick = time.perf_counter() - begun < _QUICK
