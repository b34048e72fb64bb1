"""Which large files are copied before their copy-up?

Copy-up is one step for everybody who looks, but the bytes of a large file need not be part of it: they are
copied beside the other requests (see `later`), and copy-up takes the finished copy if the file is still what
was copied. A copy that nobody takes is removed.
"""

import os
from collections.abc import Callable
from functools import partial
from threading import Event

from sandboxfs.layers.staging import Staging
from sandboxfs.overlay.later import Beside, Later
from sandboxfs.overlay.node import fingerprint

# Copied within a few milliseconds, where not even a reflink helps.
LARGE = 4 << 20

Copier = Callable[[bytes], os.stat_result]
"""Makes a copy under a name in staging, and tells the status of what it copied."""
Key = tuple[int, int, int]
"""Device, inode number, and how many bytes are wanted."""


class _Copy:
    """One copy, from its beginning on."""

    __slots__ = ("error", "finished", "name", "status")

    def __init__(self, name: bytes) -> None:
        self.name = name
        self.finished = Event()
        self.status: os.stat_result | None = None
        self.error: OSError | None = None

    def is_of(self, status: os.stat_result) -> bool:
        return self.status is not None and fingerprint(self.status) == fingerprint(status)

    def make(self, copy: Copier) -> None:
        try:
            self.status = copy(self.name)
        except OSError as error:
            self.error = error
        finally:
            self.finished.set()


class Ahead:
    """The copies that are made ahead, in a staging directory."""

    def __init__(self, staging: Staging, beside: Beside) -> None:
        self._staging = staging
        self._beside = beside
        self._copies: dict[Key, _Copy] = {}

    def need(self, status: os.stat_result, length: int, begin: Callable[[], Copier]) -> None:
        """Return when a copy of what *status* tells of is there, or is not worth it; else raise `Later`.

        *begin* gives what makes it, in another thread.
        """
        if not self._beside.allowed or length < LARGE:
            return
        key = status.st_dev, status.st_ino, length
        known = self._copies.get(key)
        if known is not None:
            if not known.finished.is_set():
                raise Later(known.finished.wait, answers=False)
            if known.error is not None:
                raise known.error
            if known.is_of(status):
                return
            # The host changed the file meanwhile.
            self._drop(key, known)
        copy = begin()
        begun = self._copies[key] = _Copy(self._staging.fresh_name())
        raise Later(partial(begun.make, copy), answers=False, over=partial(self._drop, key, begun))

    def take(self, status: os.stat_result, length: int, staged: bytes) -> os.stat_result | None:
        """Give a finished copy the name *staged*; the status of what was copied, None when there is none."""
        key = status.st_dev, status.st_ino, length
        known = self._copies.get(key)
        if known is None or not known.is_of(status):
            return None
        directory = self._staging.directory
        directory.rename(known.name, directory, staged)
        del self._copies[key]
        return known.status

    def _drop(self, key: Key, copy: _Copy) -> None:
        if self._copies.get(key) is copy:
            del self._copies[key]
            self._staging.directory.remove_tree(copy.name)
