"""Which listing does a request go on with, when nobody opens a directory?

The kernel asks for the entries of a directory that come after a position, and positions mean the same to
everybody who reads it (see `overlay/listing`). So one listing for each directory is enough, however many read
it, and one that was given up can be begun again anywhere. It is opened by the first request and released with
the last; of those that nobody reads to the end, some are kept.
"""

import time

from sandboxfs.overlay.filesystem import Caller, Filesystem

MOST_STREAMS = 64
"""So many listings may be under way at once; beyond that, the one that has rested longest is begun again."""

# Seconds for which nothing is remembered of a directory that was read by several at once: one of them may
# have been told a part of it, and not have taken it in yet.
_MIXED = 10.0


class Streams:
    """The listings of one filesystem that are under way, the last used last."""

    def __init__(self, filesystem: Filesystem) -> None:
        self._fs = filesystem
        self._handles: dict[int, int] = {}
        # Until when others may have told a part of what the kernel puts together of a directory.
        self._mixed: dict[int, float] = {}

    def __len__(self) -> int:
        return len(self._handles)

    def at(self, ino: int, start: int, caller: Caller) -> int:
        """The handle of the listing of a directory that is to be read from a position on."""
        handle = self._handles.pop(ino, None)
        if handle is not None and start == 0:
            # From the beginning it is decided about again, and told as it is now.
            self._fs.releasedir(handle)
            self._mixed[ino] = time.monotonic() + _MIXED
            handle = None
        if handle is None:
            handle = self._fs.opendir(ino, caller)
            if start:
                self._mixed[ino] = time.monotonic() + _MIXED
            if len(self._handles) >= MOST_STREAMS:
                self.end(next(iter(self._handles)))
        self._handles[ino] = handle
        return handle

    def lasts(self, ino: int) -> bool:
        """Whether what was told of a directory, to the end, is right until the kernel is told otherwise.

        Not where another one was told a part of it: that may have reached the kernel's memory only after the
        kernel was told that it is not right any more.
        """
        if ino in self._mixed:
            if time.monotonic() < self._mixed[ino]:
                return False
            del self._mixed[ino]
        return self._fs.listing_lasts(self._handles[ino])

    def end(self, ino: int) -> None:
        """Have the listing of a directory begun again, if it is read further."""
        handle = self._handles.pop(ino, None)
        if handle is not None:
            self._fs.releasedir(handle)

    def forget(self, ino: int) -> None:
        """Forget about a directory of which the kernel knows nothing any more: another may get its number."""
        self.end(ino)
        self._mixed.pop(ino, None)
