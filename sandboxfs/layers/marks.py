"""How does an upper directory say "deleted", "opaque", "moved here"? The on-disk encodings, known only here.

The encodings are those of kernel overlayfs mounted with `userxattr`:

- whiteout: a character device 0:0; where the filesystem refuses those, an empty file with
  `user.overlay.whiteout`
- opaque directory: `user.overlay.opaque` = `y` (`x` says only that xattr whiteouts are inside)
- redirect: `user.overlay.redirect`, an absolute path in the layers below, or a name beside the old one

and one of ours, in the same namespace so that the kernel hides it too:

- record: `user.overlay.sandboxfs`, the inode number and, for an indexed file, the link count that the view
  shows
"""

import errno
import os
import stat
import struct
from collections.abc import Callable
from typing import NamedTuple, TypeVar

from sandboxfs.layers.hostdir import HostDir, unlocked

T = TypeVar("T")

PREFIX = b"user.overlay."
_OPAQUE = PREFIX + b"opaque"
_REDIRECT = PREFIX + b"redirect"
_WHITEOUT = PREFIX + b"whiteout"
_RECORD = PREFIX + b"sandboxfs"
_RECORD_LAYOUT = struct.Struct("<BxxxIQ")
_RECORD_VERSION = 1


class Record(NamedTuple):
    """What the view shows of an upper file or directory: 0 where the host's own number is right."""

    ino: int
    nlink: int


class DirMarks(NamedTuple):
    """All marks of one upper directory."""

    opaque: bool
    redirect: bytes | None
    ino: int


NO_RECORD = Record(0, 0)
NO_MARKS = DirMarks(opaque=False, redirect=None, ino=0)


def is_private(attribute: bytes) -> bool:
    """Whether an extended attribute belongs to the layers and must not be seen in the view."""
    return attribute.startswith(PREFIX)


class Whiteouts:
    """One upper's way of writing and telling whiteouts."""

    def __init__(self, *, devices: bool) -> None:
        self.devices = devices

    def covers(self, directory: HostDir, name: bytes, status: os.stat_result) -> bool:
        """Whether the entry with *status* is a whiteout."""
        if stat.S_ISCHR(status.st_mode):
            return status.st_rdev == 0
        if self.devices or status.st_size or not stat.S_ISREG(status.st_mode):
            return False
        try:
            directory.getxattr(name, _WHITEOUT)
        except OSError:
            return False
        return True

    def may_cover(self, entry: "os.DirEntry[str]") -> bool:
        """Whether a listed entry could be a whiteout, without looking at it."""
        if self.devices:
            return not (entry.is_file(follow_symlinks=False) or entry.is_dir(follow_symlinks=False))
        return not entry.is_dir(follow_symlinks=False)

    def create(self, directory: HostDir, name: bytes) -> None:
        """Put a whiteout at a free name."""
        if self.devices:
            directory.mknod(name, stat.S_IFCHR, 0)
            return
        os.close(directory.open(name, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
        directory.setxattr(name, _WHITEOUT, b"y")

    def announce(self, directory: HostDir) -> None:
        """Mark a directory that is to hold whiteouts, where the kernel would not look for them otherwise."""
        if self.devices:
            return
        try:
            directory.setxattr(b"", _OPAQUE, b"x", os.XATTR_CREATE)
        except FileExistsError:
            pass


def read_directory(directory: HostDir, name: bytes) -> DirMarks:
    """The marks of the directory *name*."""
    attributes = directory.listxattr(name)
    if not attributes:
        return NO_MARKS
    opaque = _OPAQUE in attributes and _get(directory, name, _OPAQUE) == b"y"
    redirect = _get(directory, name, _REDIRECT) if _REDIRECT in attributes else None
    ino = _unpack(_get(directory, name, _RECORD)).ino if _RECORD in attributes else 0
    return DirMarks(opaque, redirect, ino)


def read_record(directory: HostDir, name: bytes) -> Record:
    """The record of the regular file *name*."""
    try:
        return _unpack(_get(directory, name, _RECORD))
    except OSError as error:
        if error.errno in (errno.ENODATA, errno.ENOTSUP):
            return NO_RECORD
        raise


def _unpack(value: bytes) -> Record:
    if len(value) != _RECORD_LAYOUT.size:
        return NO_RECORD
    version, nlink, ino = _RECORD_LAYOUT.unpack(value)
    return Record(ino, nlink) if version == _RECORD_VERSION else NO_RECORD


def write_record(directory: HostDir, name: bytes, record: Record) -> None:
    _set(directory, name, _RECORD, _RECORD_LAYOUT.pack(_RECORD_VERSION, record.nlink, record.ino))


def set_opaque(directory: HostDir, name: bytes) -> None:
    _set(directory, name, _OPAQUE, b"y")


def clear_opaque(directory: HostDir, name: bytes, whiteouts: Whiteouts) -> None:
    """Let the directory *name* be merged again; what kernel overlayfs needs to find whiteouts in it stays."""
    if whiteouts.devices:
        _remove(directory, name, _OPAQUE)
    else:
        _set(directory, name, _OPAQUE, b"x")


def clear_redirect(directory: HostDir, name: bytes) -> None:
    _remove(directory, name, _REDIRECT)


def set_redirect(directory: HostDir, name: bytes, path: bytes) -> None:
    """Say that the lower content of the directory *name* is at *path*, from the root of the layers below."""
    _set(directory, name, _REDIRECT, b"/" + path)


def redirected_path(redirect: bytes, lower_parent: bytes) -> bytes:
    """Where a redirect leads, as a path relative to the root of the layers below."""
    if redirect.startswith(b"/"):
        return redirect.strip(b"/")
    return lower_parent + b"/" + redirect if lower_parent else redirect


def _set(directory: HostDir, name: bytes, attribute: bytes, value: bytes) -> None:
    _unlocked(directory, name, lambda: directory.setxattr(name, attribute, value))


def _remove(directory: HostDir, name: bytes, attribute: bytes) -> None:
    try:
        _unlocked(directory, name, lambda: directory.removexattr(name, attribute))
    except OSError as error:
        if error.errno != errno.ENODATA:
            raise


def _get(directory: HostDir, name: bytes, attribute: bytes) -> bytes:
    return _unlocked(directory, name, lambda: directory.getxattr(name, attribute))


def _unlocked(directory: HostDir, name: bytes, action: Callable[[], T]) -> T:
    """Run *action* on the marks of an object whose mode may keep even its owner from them."""
    try:
        return action()
    except PermissionError:
        status = directory.stat(name)
        if status is None or stat.S_ISLNK(status.st_mode):
            raise
        return unlocked(directory.path_of(name), status.st_mode, action)
