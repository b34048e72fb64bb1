"""How is something in an upper read that programs may be writing, or have locked?

A file is read until it stood still meanwhile. What only grows is taken as it was at first; what changes
otherwise every time cannot be told. What its owner may not read is unlocked for the moment.
"""

import errno
import os
import stat
from collections.abc import Callable, Iterator
from hashlib import blake2b
from typing import TypeVar

from sandboxfs.changes.archive_fields import DIGEST_SIZE, travels
from sandboxfs.changes.archive_stream import CHUNK
from sandboxfs.changes.tree import stamp
from sandboxfs.layers.hostdir import HostDir, unlocked

T = TypeVar("T")

_ATTEMPTS = 3

Progress = Callable[[int], None]
"""Is told of bytes that were dealt with."""


def chunks(fd: int, size: int) -> Iterator[bytes]:
    """The first *size* bytes of a file, or less when it has become shorter."""
    at = 0
    while at < size and (chunk := os.pread(fd, min(CHUNK, size - at), at)):
        yield chunk
        at += len(chunk)


def digest(fd: int, size: int, progress: Progress) -> bytes | None:
    """The digest of the first *size* bytes; None when there are less."""
    found = blake2b(digest_size=DIGEST_SIZE)
    at = 0
    for chunk in chunks(fd, size):
        found.update(chunk)
        at += len(chunk)
        progress(len(chunk))
    return found.digest() if at == size else None


def steady(fd: int, progress: Progress) -> tuple[int, bytes] | None:
    """The size and the digest of a file's content at one moment; None when it never stands still."""
    for _ in range(_ATTEMPTS):
        before = os.fstat(fd)
        found = digest(fd, before.st_size, progress)
        stood = stamp(before) == stamp(os.fstat(fd))
        # Otherwise something may have been appended to it, and what was there stands.
        if found is not None and (stood or found == digest(fd, before.st_size, progress)):
            return before.st_size, found
    return None


def attributes(directory: HostDir, name: bytes, status: os.stat_result) -> tuple[tuple[bytes, bytes], ...]:
    """The extended attributes that go along."""

    def read() -> tuple[tuple[bytes, bytes], ...]:
        names = sorted(filter(travels, directory.listxattr(name)))
        return tuple((attribute, directory.getxattr(name, attribute)) for attribute in names)

    def read_unlocked() -> tuple[tuple[bytes, bytes], ...]:
        try:
            return read()
        except PermissionError:
            if stat.S_ISLNK(status.st_mode):
                raise
            return unlocked(directory.path_of(name), status.st_mode, read)

    try:
        return allowed(directory, read_unlocked)
    except OSError as error:
        if error.errno in (errno.ENOTSUP, errno.ENODATA, errno.EPERM, errno.EACCES):
            return ()
        raise


def allowed(directory: HostDir, action: Callable[[], T]) -> T:
    """Do *action* in an upper directory that a program may have locked."""
    try:
        return action()
    except PermissionError:
        return unlocked(directory.own_path(), directory.own_stat().st_mode, action)
