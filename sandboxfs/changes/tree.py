"""How is something in one layer reached by its path?

A tree is one layer seen from its top. It holds a few directories open, as what is asked for next is usually
near; a path of any depth costs no more descriptors. No symlink is followed on the way: a path that leads
through one, or through anything else that is no directory, leads nowhere. Nothing here writes.
"""

import errno
import os
import stat
from collections import OrderedDict
from collections.abc import Callable, Iterator
from functools import partial
from typing import TypeVar

from sandboxfs.layers.hostdir import HostDir, unlocked

T = TypeVar("T")

_HELD = 32
_CHUNK = 1 << 20
# Nothing there, something else than a directory on the way, or no symlink any more.
_NOWHERE = {errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ESTALE}
_VANISHED = _NOWHERE | {errno.EINVAL, errno.ENODATA}


class Unreadable(Exception):
    """The content of one side of a change cannot be had; the text says why."""


class StillChanging(Unreadable):
    """A file changed while it was read, and again when it was read again; `data` is what was read last."""

    def __init__(self, data: bytes) -> None:
        super().__init__("still changing")
        self.data = data


def vanished(error: OSError) -> bool:
    """Whether what was just listed is not there any more, or is something else by now."""
    return error.errno in _VANISHED


def join(directory: bytes, name: bytes) -> bytes:
    return directory + b"/" + name if directory else name


def split(path: bytes) -> tuple[bytes, bytes]:
    """Return the directory and the last name of *path*, which is not empty."""
    directory, _, name = path.rpartition(b"/")
    return directory, name


class Tree:
    """One layer. *ours*: directories and files that lock their owner out may be unlocked for a moment."""

    def __init__(self, top: HostDir, *, ours: bool = False) -> None:
        self._top = top
        self._ours = ours
        self._held: OrderedDict[bytes, HostDir] = OrderedDict()

    def close(self) -> None:
        for directory in self._held.values():
            directory.close()
        self._held.clear()
        self._top.close()

    def directory(self, path: bytes) -> HostDir:
        """Return the open directory at *path*, to be used before the next call to this tree."""
        if not path:
            return self._top
        held = self._held.get(path)
        if held is not None:
            self._held.move_to_end(path)
            return held
        opened = self._open_directory(path)
        self._held[path] = opened
        if len(self._held) > _HELD:
            self._held.popitem(last=False)[1].close()
        return opened

    def stat(self, path: bytes) -> os.stat_result | None:
        """What is at *path*, or None; the top itself for an empty one."""
        if not path:
            return self._top.own_stat()
        parent, name = split(path)
        try:
            directory = self.directory(parent)
            try:
                return directory.stat(name)
            except PermissionError:
                return self.reaching(directory, lambda: directory.stat(name))
        except OSError as error:
            if error.errno in _NOWHERE:
                return None
            raise

    def readlink(self, path: bytes) -> bytes:
        parent, name = split(path)
        return self.directory(parent).readlink(name)

    def xattrs(self, path: bytes, wanted: Callable[[bytes], bool]) -> dict[bytes, bytes]:
        """The extended attributes of *path* whose names are *wanted*; none where there can be none."""
        parent, name = split(path) if path else (b"", b"")
        directory = self.directory(parent)
        try:
            return {key: directory.getxattr(name, key) for key in directory.listxattr(name) if wanted(key)}
        except OSError:
            return {}

    def entries(self, path: bytes) -> "Iterator[os.DirEntry[str]]":
        """List the directory at *path*; nothing where there is none."""
        try:
            directory = self.directory(path)
            listing = self.reaching(directory, directory.open_for_listing)
        except OSError as error:
            if error.errno in _NOWHERE:
                return
            raise
        try:
            with os.scandir(listing) as entries:
                yield from entries
        finally:
            os.close(listing)

    def open(self, path: bytes) -> int:
        """Open the file at *path* for reading."""
        parent, name = split(path)
        try:
            directory = self.directory(parent)
            try:
                return directory.open_quietly(name, os.O_RDONLY)
            except PermissionError:
                return self.reaching(directory, lambda: self._open_file(directory, name))
        except OSError as error:
            raise Unreadable(error.strerror or str(error)) from error

    def read(self, path: bytes) -> bytes:
        """Return the content of the regular file at *path*, as it was at one moment.

        A file that changes meanwhile is read once more; `StillChanging` is raised when that is no better.
        """
        return self.read_with_status(path)[0]

    def read_with_status(self, path: bytes) -> tuple[bytes, os.stat_result]:
        """Read, and return also the status of the file at that moment."""
        fd = self.open(path)
        try:
            data, status, still = _read_once(fd)
            if not still:
                data, status, still = _read_once(fd)
        except OSError as error:
            raise Unreadable(error.strerror or str(error)) from error
        finally:
            os.close(fd)
        if not stat.S_ISREG(status.st_mode):
            raise Unreadable("not a file any more")
        if not still:
            raise StillChanging(data)
        return data, status

    def _open_directory(self, path: bytes) -> HostDir:
        parent, name = split(path)
        held = self._held.get(parent) if parent else self._top
        if held is not None:
            return self.reaching(held, lambda: held.child(name))
        try:
            return self._top.descend(path)
        except PermissionError:
            if not self._ours:
                raise
        return self._open_locked(path)

    def _open_locked(self, path: bytes) -> HostDir:
        """Open a directory on the way to which are some that may not be searched."""
        here = self._top.child(b".")
        for name in path.split(b"/"):
            with here as above:
                here = self.reaching(above, partial(above.child, name))
        return here

    def _open_file(self, directory: HostDir, name: bytes) -> int:
        try:
            return directory.open_quietly(name, os.O_RDONLY)
        except PermissionError:
            status = directory.stat(name)
            if not self._ours or status is None or not stat.S_ISREG(status.st_mode):
                raise
            return unlocked(
                directory.path_of(name), status.st_mode, lambda: directory.open_quietly(name, os.O_RDONLY)
            )

    def reaching(self, directory: HostDir, action: Callable[[], T]) -> T:
        """Do *action*, which looks at something in *directory*; a program may have locked that."""
        try:
            return action()
        except PermissionError:
            if not self._ours:
                raise
            return unlocked(directory.own_path(), directory.own_stat().st_mode, action)


def stamp(status: os.stat_result) -> tuple[int, int, int]:
    """What changes when a file's content does."""
    return status.st_size, status.st_mtime_ns, status.st_ctime_ns


def _read_once(fd: int) -> tuple[bytes, os.stat_result, bool]:
    """Return what is in a file, its status, and whether it stood still meanwhile."""
    before = os.fstat(fd)
    data = _read_whole(fd, before.st_size)
    after = os.fstat(fd)
    return data, after, len(data) == after.st_size and stamp(before) == stamp(after)


def _read_whole(fd: int, size: int) -> bytes:
    data = os.pread(fd, size + 1, 0)
    if len(data) >= size:
        return data
    # It shrank, or is larger than the kernel reads at once.
    whole = bytearray(data)
    while part := os.pread(fd, _CHUNK, len(whole)):
        whole += part
    return bytes(whole)
