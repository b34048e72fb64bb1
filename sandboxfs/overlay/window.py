"""How can a program in the view find out what is allowed? By reading `.sandboxfs/` at the root.

The directory is never listed and cannot be changed: it shows, it does not control. Its files are made up when
they are opened, like those of /proc. Everything else is passed on.
"""

import errno
import os
import stat
import time
from collections.abc import Callable, Iterator, Mapping
from itertools import count

from sandboxfs.overlay.filesystem import (
    ROOT_INODE,
    AttributeChange,
    Caller,
    Entry,
    Filesystem,
    Lasting,
    Opened,
)
from sandboxfs.overlay.numbers import FIRST_VIRTUAL
from sandboxfs.overlay.stack import host_error

NAME = b".sandboxfs"
_DIRECTORY = FIRST_VIRTUAL
_LAST_HANDLE = 1 << 62


class Window:
    """A filesystem with the virtual directory in it; *files* give the content of each of its files."""

    def __init__(self, inner: Filesystem, files: Mapping[bytes, Callable[[], bytes]]) -> None:
        self._inner = inner
        self._names = sorted(files)
        self._files = files
        self._open: dict[int, bytes] = {}
        self._roots: set[int] = set()
        # Handles count down from far above those of the filesystem behind.
        self._serial = count(_LAST_HANDLE, -1)
        self._made = int(time.time())
        # A process that may change nothing; no program has this number.
        self.onlooker = -1

    # The virtual part

    def _ino(self, name: bytes) -> int | None:
        return _DIRECTORY + 1 + self._names.index(name) if name in self._files else None

    def _entry(self, ino: int) -> Entry:
        is_dir = ino == _DIRECTORY
        mode = stat.S_IFDIR | 0o555 if is_dir else stat.S_IFREG | 0o444
        fields = (mode, ino, 0, 1, os.geteuid(), os.getegid(), 0, self._made, self._made, self._made)
        nanoseconds = self._made * 10**9
        others = dict.fromkeys(("st_atime_ns", "st_mtime_ns", "st_ctime_ns"), nanoseconds)
        status = os.stat_result(fields, {**others, "st_blksize": 4096, "st_blocks": 0, "st_rdev": 0})
        return Entry(ino, status, 1, Lasting.LONG, Lasting.LONG)

    # What may not be changed, for those who change an inode or a name

    def _check(self, ino: int, caller: Caller) -> None:
        if ino >= _DIRECTORY:
            raise host_error(errno.EROFS)
        if caller.pid == self.onlooker:
            raise host_error(errno.EPERM)

    def _check_name(self, parent: int, name: bytes, caller: Caller) -> None:
        if parent >= _DIRECTORY or (parent == ROOT_INODE and name == NAME):
            raise host_error(errno.EROFS)
        if caller.pid == self.onlooker:
            raise host_error(errno.EPERM)

    def _seem_to_change(self, ino: int, change: AttributeChange, caller: Caller) -> Entry:
        """Answer the onlooker, who wants to change an inode."""
        raise host_error(errno.EPERM)

    def _seem_to_remove(self, parent: int, name: bytes) -> None:
        """Answer the onlooker, who wants to remove a name."""
        raise host_error(errno.EPERM)

    # Looking

    def lookup(self, parent: int, name: bytes, caller: Caller) -> Entry | None:
        if name == NAME and parent == ROOT_INODE:
            return self._entry(_DIRECTORY)
        if parent >= _DIRECTORY:
            ino = self._ino(name)
            return None if ino is None else self._entry(ino)
        return self._inner.lookup(parent, name, caller)

    def absence_lasts(self, parent: int) -> bool:
        return parent >= _DIRECTORY or self._inner.absence_lasts(parent)

    def remember(self, ino: int) -> None:
        if ino < _DIRECTORY:
            self._inner.remember(ino)

    def forget(self, ino: int, count: int) -> bool:
        return ino < _DIRECTORY and self._inner.forget(ino, count)

    def getattr(self, ino: int, caller: Caller) -> Entry:
        return self._inner.getattr(ino, caller) if ino < _DIRECTORY else self._entry(ino)

    def readlink(self, ino: int, caller: Caller) -> bytes:
        return self._inner.readlink(ino, caller)

    def statfs(self) -> os.statvfs_result:
        return self._inner.statfs()

    def getxattr(self, ino: int, name: bytes, caller: Caller) -> bytes:
        if ino >= _DIRECTORY:
            raise host_error(errno.ENODATA)
        return self._inner.getxattr(ino, name, caller)

    def listxattr(self, ino: int, caller: Caller) -> list[bytes]:
        return [] if ino >= _DIRECTORY else self._inner.listxattr(ino, caller)

    # Changing

    def setattr(self, ino: int, change: AttributeChange, handle: int | None, caller: Caller) -> Entry:
        if caller.pid == self.onlooker:
            return self._seem_to_change(ino, change, caller)
        self._check(ino, caller)
        return self._inner.setattr(ino, change, handle, caller)

    def setxattr(self, ino: int, name: bytes, value: bytes, flags: int, caller: Caller) -> None:
        self._check(ino, caller)
        self._inner.setxattr(ino, name, value, flags, caller)

    def removexattr(self, ino: int, name: bytes, caller: Caller) -> None:
        self._check(ino, caller)
        self._inner.removexattr(ino, name, caller)

    def mknod(self, parent: int, name: bytes, mode: int, device: int, caller: Caller) -> Entry:
        self._check_name(parent, name, caller)
        return self._inner.mknod(parent, name, mode, device, caller)

    def mkdir(self, parent: int, name: bytes, mode: int, caller: Caller) -> Entry:
        self._check_name(parent, name, caller)
        return self._inner.mkdir(parent, name, mode, caller)

    def symlink(self, parent: int, name: bytes, target: bytes, caller: Caller) -> Entry:
        self._check_name(parent, name, caller)
        return self._inner.symlink(parent, name, target, caller)

    def link(self, ino: int, parent: int, name: bytes, caller: Caller) -> Entry:
        self._check(ino, caller)
        self._check_name(parent, name, caller)
        return self._inner.link(ino, parent, name, caller)

    def unlink(self, parent: int, name: bytes, caller: Caller) -> None:
        if caller.pid == self.onlooker:
            self._seem_to_remove(parent, name)
            return
        self._check_name(parent, name, caller)
        self._inner.unlink(parent, name, caller)

    def rmdir(self, parent: int, name: bytes, caller: Caller) -> None:
        self._check_name(parent, name, caller)
        self._inner.rmdir(parent, name, caller)

    def rename(
        self, parent: int, name: bytes, new_parent: int, new_name: bytes, flags: int, caller: Caller
    ) -> None:
        self._check_name(parent, name, caller)
        self._check_name(new_parent, new_name, caller)
        self._inner.rename(parent, name, new_parent, new_name, flags, caller)

    # Files

    def open(self, ino: int, flags: int, caller: Caller) -> Opened:
        if ino < _DIRECTORY:
            if caller.pid == self.onlooker:
                raise host_error(errno.EPERM)
            return self._inner.open(ino, flags, caller)
        if flags & os.O_ACCMODE != os.O_RDONLY or flags & os.O_TRUNC:
            raise host_error(errno.EROFS)
        handle = next(self._serial)
        self._open[handle] = self._files[self._names[ino - _DIRECTORY - 1]]()
        return Opened(handle, keep_cache=False, direct=True)

    def create(self, parent: int, name: bytes, mode: int, flags: int, caller: Caller) -> tuple[Opened, Entry]:
        self._check_name(parent, name, caller)
        return self._inner.create(parent, name, mode, flags, caller)

    def read(self, handle: int, offset: int, size: int) -> bytes | memoryview:
        if handle in self._open:
            return self._open[handle][offset : offset + size]
        return self._inner.read(handle, offset, size)

    def write(self, handle: int, offset: int, data: bytes | memoryview) -> int:
        return self._inner.write(handle, offset, data)

    def release(self, handle: int) -> None:
        if self._open.pop(handle, None) is None:
            self._inner.release(handle)

    def fsync(self, handle: int, datasync: bool) -> None:
        if handle not in self._open:
            self._inner.fsync(handle, datasync)

    # Directories

    def opendir(self, ino: int, caller: Caller) -> int:
        if ino < _DIRECTORY:
            handle = self._inner.opendir(ino, caller)
            if ino == ROOT_INODE:
                self._roots.add(handle)
            return handle
        handle = next(self._serial)
        self._open[handle] = b""
        return handle

    def listing_lasts(self, handle: int) -> bool:
        return handle in self._open or self._inner.listing_lasts(handle)

    def familiar(self, handle: int, start: int) -> bool:
        return handle not in self._open and self._inner.familiar(handle, start)

    def readdir(self, handle: int, start: int, *, brief: bool = False) -> Iterator[tuple[bytes, Entry, int]]:
        if handle in self._open:
            return self._virtual_entries(start)
        entries = self._inner.readdir(handle, start, brief=brief)
        # A workspace may have something of this name; the view has only ours.
        return (entry for entry in entries if entry[0] != NAME) if handle in self._roots else entries

    def _virtual_entries(self, start: int) -> Iterator[tuple[bytes, Entry, int]]:
        inodes = [_DIRECTORY, ROOT_INODE, *range(_DIRECTORY + 1, _DIRECTORY + 1 + len(self._names))]
        for position, name in enumerate([b".", b"..", *self._names]):
            if position >= start:
                entry = self._entry(max(inodes[position], _DIRECTORY))
                yield name, entry, position + 1

    def releasedir(self, handle: int) -> None:
        self._roots.discard(handle)
        if self._open.pop(handle, None) is None:
            self._inner.releasedir(handle)

    def fsyncdir(self, ino: int, datasync: bool) -> None:
        if ino < _DIRECTORY:
            self._inner.fsyncdir(ino, datasync)

    def close(self) -> None:
        self._inner.close()
