"""How is an open file read and written?

All handles of one inode share its descriptors (see `OpenFile`), which copy-up exchanges under them.
Descriptors are opened without O_APPEND and O_TRUNC: the kernel turns appending into offsets, and truncating
is done here after copy-up, which then copies no data.
"""

import errno
import os
import stat
from itertools import count

from sandboxfs.layers.hostdir import unlocked
from sandboxfs.overlay.copy_up import CopyUp, fingerprint, open_readable
from sandboxfs.overlay.filesystem import Caller, Opened
from sandboxfs.overlay.node import Node, OpenFile
from sandboxfs.overlay.stack import host_error, stale

_READ_WRITE = os.O_RDWR
_SET_ID = stat.S_ISUID | stat.S_ISGID


class Handle:
    """What one open() gave. *strip*: its writes must clear set-id bits, which our privileges would keep."""

    __slots__ = ("file", "node", "strip")

    def __init__(self, node: Node, file: OpenFile, *, strip: bool) -> None:
        self.node = node
        self.file = file
        self.strip = strip


class Files:
    """The open files of one overlay."""

    def __init__(self, copy_up: CopyUp) -> None:
        self._copy_up = copy_up
        self._handles: dict[int, Handle] = {}
        self._serial = count(1)
        self._privileged = os.geteuid() == 0

    def __len__(self) -> int:
        return len(self._handles)

    def open(self, node: Node, flags: int, caller: Caller) -> Opened:
        if node.kind != stat.S_IFREG:
            raise host_error(errno.EISDIR if node.kind == stat.S_IFDIR else errno.ENXIO)
        truncates = bool(flags & os.O_TRUNC)
        writes = truncates or flags & os.O_ACCMODE != os.O_RDONLY
        if writes and node.gone is None:
            self._copy_up.content(node, 0 if truncates else None)
        file = node.opened or OpenFile()
        try:
            if writes:
                self._need_writable(node, file)
            if flags & os.O_ACCMODE != os.O_WRONLY:
                self._need_readable(node, file)
            if truncates:
                os.ftruncate(file.write_fd, 0)
        except BaseException:
            if node.opened is None:
                file.close()
            raise
        status = self._checked(node, file)
        stamp = fingerprint(status)
        # Pages of an upper file are right whatever its times: only the kernel writes it.
        keep_cache = node.stamp is not None and (node.upper or node.stamp == stamp)
        node.stamp = stamp
        return Opened(self._add(node, file, caller), keep_cache)

    def opened_new(self, node: Node, fd: int, caller: Caller) -> Opened:
        """Register the file that was just created with the read-write descriptor *fd*."""
        file = OpenFile()
        file.read_fd = file.write_fd = fd
        return Opened(self._add(node, file, caller), keep_cache=False)

    def read(self, handle: int, offset: int, size: int) -> bytes:
        file = self._handles[handle].file
        fd = file.read_fd
        return os.pread(fd if fd >= 0 else file.write_fd, size, offset)

    def write(self, handle: int, offset: int, data: bytes) -> int:
        opened = self._handles[handle]
        fd = opened.file.write_fd
        written = os.pwrite(fd, data, offset)
        if opened.strip:
            strip_set_id(fd)
        while written < len(data):
            try:
                written += os.pwrite(fd, data[written:], offset + written)
            except OSError:
                # What was written counts; the next write reports why it stopped.
                break
        return written

    def truncate(self, node: Node, size: int, caller: Caller) -> None:
        """Set the size of a file that may or may not be open."""
        if node.kind != stat.S_IFREG:
            raise host_error(errno.EISDIR if node.kind == stat.S_IFDIR else errno.EINVAL)
        if node.gone is None:
            self._copy_up.content(node, size)
        file = node.opened or OpenFile()
        try:
            self._need_writable(node, file)
            os.ftruncate(file.write_fd, size)
            if self._strips(caller):
                strip_set_id(file.write_fd)
        finally:
            if node.opened is None:
                file.close()

    def release(self, handle: int) -> None:
        opened = self._handles.pop(handle)
        file = opened.file
        file.users -= 1
        if file.users == 0:
            if opened.node.gone is not None:
                # The last look at a file without a name, for a descriptor that outlives the handle.
                opened.node.gone = os.fstat(file.fd)
            else:
                self._note_stamp(opened.node, file)
            file.close()
            opened.node.opened = None

    def fsync(self, handle: int, *, datasync: bool) -> None:
        opened = self._handles[handle]
        if not opened.node.upper:
            return
        if datasync:
            os.fdatasync(opened.file.fd)
        else:
            os.fsync(opened.file.fd)

    def close(self) -> None:
        for handle in list(self._handles):
            self.release(handle)

    def _add(self, node: Node, file: OpenFile, caller: Caller) -> int:
        node.opened = file
        file.users += 1
        handle = next(self._serial)
        self._handles[handle] = Handle(node, file, strip=self._strips(caller))
        return handle

    def _strips(self, caller: Caller) -> bool:
        return self._privileged and caller.uid != 0

    @staticmethod
    def _note_stamp(node: Node, file: OpenFile) -> None:
        # The kernel's pages hold what was read and written through it.
        if node.upper:
            node.stamp = fingerprint(os.fstat(file.fd))

    def _need_readable(self, node: Node, file: OpenFile) -> None:
        if file.read_fd >= 0:
            return
        if node.gone is not None:
            file.read_fd = _reopened(file, os.O_RDONLY)
            return
        directory, name = self._copy_up.location(node)
        file.read_fd = (
            open_readable(directory, name) if node.upper else directory.open_quietly(name, os.O_RDONLY)
        )

    def _need_writable(self, node: Node, file: OpenFile) -> None:
        if file.write_fd >= 0:
            return
        if node.gone is not None:
            fd = _reopened(file, _READ_WRITE)
        else:
            directory, name = self._copy_up.location(node)
            try:
                fd = directory.open(name, _READ_WRITE)
            except PermissionError:
                status = directory.stat(name)
                if status is None:
                    raise
                fd = unlocked(
                    directory.path_of(name), status.st_mode, lambda: directory.open(name, _READ_WRITE)
                )
        if file.read_fd >= 0:
            os.close(file.read_fd)
        file.read_fd = file.write_fd = fd

    def _checked(self, node: Node, file: OpenFile) -> os.stat_result:
        """The status of what was opened, which must be the file the node stands for."""
        status = os.fstat(file.fd)
        if node.stands_for(status):
            return status
        if node.opened is None:
            file.close()
        raise stale()


def strip_set_id(fd: int) -> None:
    """Clear the set-id bits, as the kernel does when an unprivileged process writes."""
    mode = os.fstat(fd).st_mode
    if mode & _SET_ID:
        kept = mode & ~stat.S_ISUID
        if mode & stat.S_IXGRP:
            kept &= ~stat.S_ISGID
        os.chmod(fd, stat.S_IMODE(kept))


def _reopened(file: OpenFile, flags: int) -> int:
    if file.fd < 0:
        raise host_error(errno.ENOENT)
    return os.open(f"/proc/self/fd/{file.fd}", flags | os.O_CLOEXEC)
