"""Asking: the seam between the guard, which finds that a rule asks, and the queue of questions to a person.

The guard calls `Person.permit` for each access that a rule asks about. The answer is a verdict, or the
request is postponed and made again later. The digest of a new program is worked out in a thread before
anybody is asked, because a question about a program is a question about its content.
"""

import errno
import hashlib
import os
import time
from functools import partial
from typing import NamedTuple, Protocol

from sandboxfs.overlay.filesystem import Caller, Deferred, host_error
from sandboxfs.policy.model import Access, Decision


class Asked(NamedTuple):
    """An access to a file that a rule asks about; *paths* are the file's names that the rule matches."""

    access: Access
    ino: int
    paths: tuple[bytes, ...]
    decision: Decision
    content: str | None = None


class Verdict(NamedTuple):
    """The answer to an access: the *grant* that allowed or refused it, None where nothing stays."""

    allows: bool
    grant: int | None = None


class Person(Protocol):
    """Whoever answers questions."""

    @property
    def has_spoken(self) -> bool:
        """Whether anything was granted, or is being asked."""

    def permit(self, asked: Asked, caller: Caller) -> Verdict:
        """Return the verdict about an access; raise `Postponed` where somebody has to be asked first."""

    def opened(self, grant: int) -> None:
        """A file is open because of a grant."""

    def closed(self, grant: int) -> None:
        """A file that was open because of a grant is closed."""

    def stands(self, grant: int, decision: Decision, access: Access) -> bool:
        """Tell whether a grant still allows an access."""

    def keeps_apart(self, old: bytes, new: bytes) -> bool:
        """Tell whether content may get the name *new* beside or instead of *old*.

        Not where something was granted, or is being asked, about the new name only: other content was meant.
        """


class Nobody:
    """No person can be asked: every question is refused."""

    has_spoken = False

    def permit(self, asked: Asked, caller: Caller) -> Verdict:
        return Verdict(allows=False)

    def opened(self, grant: int) -> None:
        """Nothing was granted."""

    def closed(self, grant: int) -> None:
        """Nothing was granted."""

    def stands(self, grant: int, decision: Decision, access: Access) -> bool:
        return False

    def keeps_apart(self, old: bytes, new: bytes) -> bool:
        return True


_Stamp = tuple[int, int, int, int, int]
# The most digests that are remembered.
_REMEMBERED = 1024
# How often a file is hashed that changes while it is hashed.
_ATTEMPTS = 5
# Seconds for which a change may leave no trace in the times of a file: the clock of files is coarse.
_SETTLING = 0.02
_PART = 1 << 20


class ContentDigests:
    """Digests of files by their stamps: device, inode, size and times."""

    def __init__(self) -> None:
        self._known: dict[_Stamp, str] = {}
        # Threads add to this list, and to nothing else.
        self._found: list[tuple[_Stamp, str]] = []
        self._attempts: dict[int, int] = {}

    def of(self, ino: int, fd: int) -> str:
        """Return the digest of an open file, and close *fd*; raise `Deferred` while it is not known."""
        while self._found:
            if len(self._known) >= _REMEMBERED:
                self._known.clear()
            self._known.update([self._found.pop()])
        digest = self._known.get(_stamp(fd))
        attempts = self._attempts.pop(ino, 0)
        if digest is None and attempts < _ATTEMPTS:
            self._attempts[ino] = attempts + 1
            raise Deferred(partial(_hash, fd, self._found), answers=False)
        os.close(fd)
        if digest is None:
            raise host_error(errno.ETXTBSY)
        return digest


def _hash(fd: int, found: list[tuple[_Stamp, str]]) -> None:
    """Hash a file, in a thread; the digest counts unless the file changed meanwhile."""
    try:
        changed = os.fstat(fd).st_ctime_ns / 1e9
        time.sleep(min(max(0.0, changed + _SETTLING - time.time()), _SETTLING))
        before = _stamp(fd)
        digest, offset = hashlib.sha256(), 0
        while part := os.pread(fd, _PART, offset):
            digest.update(part)
            offset += len(part)
        if _stamp(fd) == before:
            found.append((before, digest.hexdigest()))
    finally:
        os.close(fd)


def _stamp(fd: int) -> _Stamp:
    status = os.fstat(fd)
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns
