"""Marks of an upper, as they are on disk: whiteouts, opaque directories, redirects; inode index and staging.

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

The inode index, a directory beside the upper, holds facts about upper inodes that extended attributes cannot
hold. Three kinds of facts, each a tiny entry, written with one system call:

- `h<ino>`  a hard link to the upper file that stands for a lower file of several names: all its names lead to
  this link
- `i<host ino>`  a symlink whose text is the inode number shown for an upper symlink, FIFO, socket or device,
  which can carry no `user.` attribute
- `n<ino>`  a symlink whose text is how many names of a lower file the sandbox took away

An empty index, the usual case, costs nothing.

In staging, the work directory, entries are made before they appear in the upper. An entry that takes more
than one call to make (a copied file, a marked directory) is made there under a name of its own and moved into
the upper with one rename, so that the upper never shows half of it, also not after `kill -9`.
"""

import errno
import os
import stat
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import Enum
from itertools import count
from typing import Final, NamedTuple, TypeVar

from sandboxfs.hostfs.copy import DEFAULT_LIST, PREFIX, remove_access_lists
from sandboxfs.hostfs.directory import Held, HostDir, unlocked

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


class Staging:
    """The work directory of one upper."""

    def __init__(self, directory: HostDir) -> None:
        self.directory = directory
        self._serial = count(1)

    def clear(self) -> None:
        """Remove leftovers of an earlier session, and access lists that every new entry would inherit."""
        remove_access_lists(Held(self.directory.fd), DEFAULT_LIST)
        for name in self.directory.names():
            self.directory.remove_tree(name)

    def fresh_name(self) -> bytes:
        return b"%x" % next(self._serial)

    @contextmanager
    def name(self) -> Iterator[bytes]:
        """A free name; an entry that still has it at the end is removed."""
        name = self.fresh_name()
        try:
            yield name
        finally:
            self.directory.remove_tree(name)

    def absorb(self, directory: HostDir, name: bytes) -> None:
        """Remove *name* with all below it; it disappears at once."""
        with self.name() as staged:
            directory.rename(name, self.directory, staged)


class Index:
    """The index directory of one upper. Inode numbers are those of the view unless called host numbers."""

    def __init__(self, directory: HostDir, staging: Staging) -> None:
        self.directory = directory
        self._staging = staging
        self._used = next(directory.entries(), None) is not None

    # Hard links

    @staticmethod
    def link_name(ino: int) -> bytes:
        return b"h%x" % ino

    def has_link(self, ino: int) -> bool:
        return self._used and self.directory.stat(self.link_name(ino)) is not None

    def add_link(self, ino: int, directory: HostDir, name: bytes) -> None:
        """Index the upper (or staged) file *name*."""
        self._used = True
        directory.link(name, self.directory, self.link_name(ino))

    def replace_link(self, ino: int, directory: HostDir, name: bytes) -> None:
        """Index *name* instead of whatever is indexed now, at once."""
        self._used = True
        with self._staging.name() as staged:
            directory.link(name, self._staging.directory, staged)
            self._staging.directory.rename(staged, self.directory, self.link_name(ino))

    def drop_link(self, ino: int) -> None:
        self._drop(self.link_name(ino))

    # Numbers of objects that cannot carry attributes

    def number(self, host_ino: int) -> int:
        """The inode number to show for the upper object, or 0."""
        return self._read(b"i%x" % host_ino)

    def set_number(self, host_ino: int, ino: int) -> None:
        self._write(b"i%x" % host_ino, ino)

    def drop_number(self, host_ino: int) -> None:
        """Forget the number; also called for a new upper object, as the host reuses its inode numbers."""
        if self._used:
            self._drop(b"i%x" % host_ino)

    # Link counts

    def names_lost(self, ino: int) -> int:
        """The number of names of the lower file that the sandbox has taken away."""
        return self._read(b"n%x" % ino)

    def lose_name(self, ino: int) -> None:
        self._write(b"n%x" % ino, self.names_lost(ino) + 1)

    def regain_name(self, ino: int) -> None:
        """Count one of the names taken away as back; the count never goes below none."""
        lost = self.names_lost(ino)
        if lost > 1:
            self._write(b"n%x" % ino, lost - 1)
        elif lost:
            self._drop(b"n%x" % ino)

    def regain_all_names(self) -> None:
        """Reset the counts: no name of any lower file is away any more."""
        for name in self.directory.names() if self._used else ():
            if name.startswith(b"n"):
                self._drop(name)

    def _read(self, name: bytes) -> int:
        if not self._used:
            return 0
        try:
            return int(self.directory.readlink(name))
        except FileNotFoundError:
            return 0

    def _write(self, name: bytes, value: int) -> None:
        self._used = True
        with self._staging.name() as staged:
            self._staging.directory.symlink(staged, b"%d" % value)
            self._staging.directory.rename(staged, self.directory, name)

    def _drop(self, name: bytes) -> None:
        try:
            self.directory.unlink(name)
        except FileNotFoundError:
            pass
