"""Overlay marks: the on-disk encodings of whiteouts, opaque directories and redirects.

The marks are read and written only here. Their namespace is `PREFIX` of `hostfs/copy`, which carries none of
them along; `hostfs/probe` tries whether a filesystem can hold them.

The encodings are those of kernel overlayfs mounted with `userxattr`:

- whiteout: a character device 0:0; where the filesystem refuses those, an empty file with
  `user.overlay.whiteout`
- opaque directory: `user.overlay.opaque` = `y` (`x` says only that xattr whiteouts are inside)
- redirect: `user.overlay.redirect`, an absolute path in the layers below, or a name beside the old one

and one of sandboxfs, in the same namespace so that the kernel hides it too:

- inode record: `user.overlay.sandboxfs`, the inode number and, for an indexed file, the link count that the
  view shows

A redirect that is no path in the layers below (`..`, an empty name, a name that is too long) is *damaged*:
its directory is treated as opaque, so that the damage affects only that directory.
"""

import errno
import os
import stat
import struct
from collections.abc import Callable
from enum import Enum
from typing import Final, NamedTuple, TypeVar

from sandboxfs.hostfs.copy import PREFIX
from sandboxfs.hostfs.directory import HostDir, unlocked

T = TypeVar("T")
_OPAQUE = PREFIX + b"opaque"
_REDIRECT = PREFIX + b"redirect"
_WHITEOUT = PREFIX + b"whiteout"
_RECORD = PREFIX + b"sandboxfs"
_RECORD_LAYOUT = struct.Struct("<BxxxIQ")
_RECORD_VERSION = 1
_LONGEST_NAME = 255


class InodeRecord(NamedTuple):
    """The numbers that the view shows for an upper file or directory: 0 where the host's own is right."""

    ino: int
    nlink: int


class DirMarks(NamedTuple):
    """All marks of one upper directory; one whose redirect is *damaged* is opaque and has none."""

    opaque: bool
    redirect: bytes | None
    ino: int
    damaged: bool = False

    @property
    def is_plain(self) -> bool:
        """Whether no mark decides which lower content belongs to the directory."""
        return not self.opaque and self.redirect is None


class EntryState(Enum):
    """The upper's entry at a name, unless that is a directory."""

    ABSENT = "absent"
    WHITEOUT = "whiteout"
    FILE = "file"


NameState = EntryState | DirMarks
"""The upper's entry at a name. A *file* is anything but a directory and a whiteout."""

ABSENT: Final = EntryState.ABSENT
WHITEOUT: Final = EntryState.WHITEOUT
FILE: Final = EntryState.FILE
NO_RECORD = InodeRecord(0, 0)
NO_MARKS = DirMarks(opaque=False, redirect=None, ino=0)


class Whiteouts:
    """One upper's way of making and recognising whiteouts."""

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
        """Whether a listed entry could be a whiteout, by its listed type alone."""
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


EITHER_ENCODING: Final = Whiteouts(devices=False)
"""Whiteouts of an upper on a filesystem of unknown abilities. Only for recognising them."""


def read_state(
    directory: HostDir, name: bytes, status: os.stat_result, whiteouts: Whiteouts = EITHER_ENCODING
) -> NameState:
    """The upper directory's entry at *name*, which has *status*."""
    if stat.S_ISDIR(status.st_mode):
        return read_directory(directory, name)
    return WHITEOUT if whiteouts.covers(directory, name, status) else FILE


def read_directory(directory: HostDir, name: bytes) -> DirMarks:
    """The marks of the directory *name*."""
    attributes = directory.listxattr(name)
    if not attributes:
        return NO_MARKS
    opaque = _OPAQUE in attributes and _get(directory, name, _OPAQUE) == b"y"
    redirect = _get(directory, name, _REDIRECT) if _REDIRECT in attributes else None
    ino = _unpack(_get(directory, name, _RECORD)).ino if _RECORD in attributes else 0
    if redirect is not None and not _leads_below(redirect):
        return DirMarks(opaque=True, redirect=None, ino=ino, damaged=True)
    return DirMarks(opaque, redirect, ino)


def read_record(directory: HostDir, name: bytes) -> InodeRecord:
    """The record of the regular file *name*."""
    try:
        return _unpack(_get(directory, name, _RECORD))
    except OSError as error:
        if error.errno in (errno.ENODATA, errno.ENOTSUP):
            return NO_RECORD
        raise


def _unpack(value: bytes) -> InodeRecord:
    if len(value) != _RECORD_LAYOUT.size:
        return NO_RECORD
    version, nlink, ino = _RECORD_LAYOUT.unpack(value)
    return InodeRecord(ino, nlink) if version == _RECORD_VERSION else NO_RECORD


def write_record(directory: HostDir, name: bytes, record: InodeRecord) -> None:
    _set(directory, name, _RECORD, _RECORD_LAYOUT.pack(_RECORD_VERSION, record.nlink, record.ino))


def set_opaque(directory: HostDir, name: bytes) -> None:
    _set(directory, name, _OPAQUE, b"y")


def clear_opaque(directory: HostDir, name: bytes, whiteouts: Whiteouts) -> None:
    """Let the directory *name* be merged again; the mark with which kernel overlayfs finds whiteouts stays.

    A redirect, which has no effect in an opaque directory, goes too: a damaged redirect made it opaque.
    """
    clear_redirect(directory, name)
    if whiteouts.devices:
        _remove(directory, name, _OPAQUE)
    else:
        _set(directory, name, _OPAQUE, b"x")


def clear_redirect(directory: HostDir, name: bytes) -> None:
    _remove(directory, name, _REDIRECT)


def set_redirect(directory: HostDir, name: bytes, path: bytes) -> None:
    """Redirect the directory *name* to its lower content at *path*, from the root of the layers below."""
    _set(directory, name, _REDIRECT, b"/" + path)


def _leads_below(redirect: bytes) -> bool:
    """Whether a redirect names a path in the layers below: one from their root, or one name."""
    names = redirect[1:].split(b"/") if redirect.startswith(b"/") else [redirect]
    return all(map(_is_name, names))


def _is_name(name: bytes) -> bool:
    return (
        0 < len(name) <= _LONGEST_NAME
        and name not in (b".", b"..")
        and b"/" not in name
        and b"\0" not in name
    )


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
    """Run *action* on the marks of an object whose mode may deny them even to its owner."""
    try:
        return action()
    except PermissionError:
        status = directory.stat(name) if name else directory.own_stat()
        if status is None or stat.S_ISLNK(status.st_mode):
            raise
        return unlocked(directory.path_of(name) if name else directory.own_path(), status.st_mode, action)
