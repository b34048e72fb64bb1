"""How is an open file read and written?

All handles of one inode share its descriptors (see `OpenFile`), which copy-up exchanges under them.
Descriptors are opened without O_APPEND and O_TRUNC: the kernel turns appending into offsets, and truncating
is done here after copy-up, which then copies no data.

Who opens a file only to write it gains nothing from the kernel's pages. Where the kernel can be relied on
(`Files.direct`), such a handle goes around them: then it does not ask for the file's capabilities before the
first write, and holds nothing twice. Not where somebody has the file open for reading and writing, and may
have mapped it: what is stored there at the same moment makes the kernel write an old page over the new bytes.
"""

import errno
import os
import stat
from collections.abc import Callable
from itertools import count

from sandboxfs.layers.filesystems import is_in_memory
from sandboxfs.layers.hostdir import unlocked
from sandboxfs.overlay.copy_up import CopyUp, open_lower, open_readable
from sandboxfs.overlay.filesystem import Caller, Opened
from sandboxfs.overlay.later import Beside
from sandboxfs.overlay.node import OUTDATED, Node, OpenFile, fingerprint
from sandboxfs.overlay.stack import host_error, stale
from sandboxfs.overlay.syncing import Syncs

_READ_WRITE = os.O_RDWR
# Not in the page cache; or the filesystem cannot tell.
_NOT_NOW = {errno.EAGAIN, errno.EOPNOTSUPP}
# Smaller answers are copied at once: they may be kept.
_WORTH_A_VIEW = 1 << 14
# What is no larger is given to the kernel when it is first opened: most files are then read to their end.
_SMALL = 1 << 16
# Stamps by which the kernel has nothing to keep.
_NO_GOOD = None, OUTDATED
# The stamp of an upper file, at which nobody looks.
_WHATEVER_IT_IS = 0, 0, 0
_SET_ID = stat.S_ISUID | stat.S_ISGID


class Handle:
    """What one open() gave. *strip*: its writes must clear set-id bits, which our privileges would keep.

    *appends*: the kernel makes them at what it takes for the end of the file.
    """

    __slots__ = ("appends", "file", "node", "strip")

    def __init__(self, node: Node, file: OpenFile, *, strip: bool, appends: bool) -> None:
        self.node = node
        self.file = file
        self.strip = strip
        self.appends = appends


class Files:
    """The open files of one overlay."""

    def __init__(self, copy_up: CopyUp, beside: Beside, syncs: Syncs) -> None:
        self._copy_up = copy_up
        self._beside = beside
        self._syncs = syncs
        # What was read last; large answers are handed out as views of it.
        self._buffer = memoryview(bytearray())
        self._handles: dict[int, Handle] = {}
        self._serial = count(1)
        self._privileged = os.geteuid() == 0
        # Whether writing may go around the kernel's pages: it must take away those that become wrong.
        self.direct = False

    def __len__(self) -> int:
        return len(self._handles)

    def open(self, node: Node, flags: int, caller: Caller) -> Opened:
        if node.kind != stat.S_IFREG:
            raise host_error(errno.EISDIR if node.kind == stat.S_IFDIR else errno.ENXIO)
        truncates = bool(flags & os.O_TRUNC)
        writes = truncates or flags & os.O_ACCMODE != os.O_RDONLY
        if writes:
            self._copy_up.content(node, 0 if truncates else None)
        file = self._with_descriptors(node, flags, caller, writes=writes)
        status = self._checked(node, file)
        stamp = fingerprint(status)
        # Pages of an upper file are right whatever its times: only the kernel writes it.
        keep_cache = node.stamp not in _NO_GOOD and (node.upper or node.stamp == stamp)
        if self._goes_around_pages(file, flags):
            return Opened(self._add(node, file, flags, caller), keep_cache, direct=True)
        content = None
        if node.stamp is None and node.opened is None and not writes:
            content = _at_hand(file.read_fd, status.st_size)
        node.stamp = stamp
        file.paged = True
        return Opened(self._add(node, file, flags, caller), keep_cache, content=content)

    def _with_descriptors(self, node: Node, flags: int, caller: Caller, *, writes: bool) -> OpenFile:
        """The open file of a node, with the descriptors that the flags take, and truncated if they say so."""
        file = node.opened or OpenFile()
        try:
            if writes:
                self._need_writable(node, file)
            if flags & os.O_ACCMODE != os.O_WRONLY:
                self._need_readable(node, file)
            if flags & os.O_TRUNC:
                os.ftruncate(file.write_fd, 0)
                if self._strips(caller):
                    strip_set_id(file.write_fd)
        except BaseException:
            if node.opened is None:
                file.close()
            raise
        return file

    def opened_new(self, node: Node, fd: int, flags: int, caller: Caller) -> Opened:
        """Register the file that was just created with the read-write descriptor *fd*."""
        file = OpenFile()
        file.read_fd = file.write_fd = fd
        file.bare = True
        direct = self._goes_around_pages(file, flags)
        file.paged = not direct
        return Opened(self._add(node, file, flags, caller), False, direct)

    def read(self, handle: int, offset: int, size: int) -> bytes | memoryview:
        """Read from the page cache; what is not there is read beside. The answer is good until the next."""
        file = self._handles[handle].file
        fd = file.read_fd if file.read_fd >= 0 else file.write_fd
        if len(self._buffer) < size:
            self._buffer = memoryview(bytearray(size))
        found = self._buffer[:size]
        try:
            count = _read_now(fd, found, offset)
        except OSError as error:
            if error.errno not in _NOT_NOW:
                raise
            return self._beside.answer(_reading(fd, offset, size))
        if count < size and offset + count < os.fstat(fd).st_size:
            # Only the first part was there.
            return self._beside.answer(_reading(fd, offset, size))
        return found[:count] if count >= _WORTH_A_VIEW else found[:count].tobytes()

    def write(self, handle: int, offset: int, data: bytes | memoryview) -> int:
        opened = self._handles[handle]
        fd = opened.file.write_fd
        if fd < 0:
            # A review took the upper's entry away under the handle.
            self._copy_up.content(opened.node)
            self._need_writable(opened.node, opened.file)
            fd = opened.file.write_fd
        if opened.appends and offset in opened.file.ends:
            # A review has exchanged the file since the kernel last asked for its size.
            opened.file.ends = opened.file.ends - {offset} | {offset + len(data)}
            offset = os.fstat(fd).st_size
        written = os.pwrite(fd, data, offset)
        self._syncs.written += written
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
            if opened.node.stamp is None and file.paged:
                # A file that was made here: the kernel's pages hold what was written, as long as it is there.
                is_there = opened.node.upper and opened.node.gone is None
                opened.node.stamp = _WHATEVER_IT_IS if is_there else OUTDATED
            file.close()
            opened.node.opened = None

    def fsync(self, handle: int, *, datasync: bool) -> None:
        opened = self._handles[handle]
        if not opened.node.upper:
            # Nothing was written since it was opened, or since a review took it away.
            return
        self._syncs.sync(opened.file.fd, os.fdatasync if datasync else os.fsync)

    def rebind(self, node: Node) -> bool:
        """Have those who have a node open use what it stands for now, after a review exchanged that.

        They read it; the next write copies up. One that has no name any more (*gone*) goes on with what it
        had, copying that first unless it counts as upper. When it cannot be opened, nothing changes and the
        answer is False.
        """
        file = node.opened
        if file is None:
            return True
        try:
            fd = os.dup(file.fd) if node.gone is not None else self._open_readable(node, file)
        except OSError:
            return False
        if node.gone is None and not node.stands_for(os.fstat(fd)):
            os.close(fd)
            return False
        file.ends |= {os.fstat(file.fd).st_size}
        file.close()
        file.read_fd = fd
        # The kernel's pages are of what it was.
        node.stamp = OUTDATED
        return True

    def written(self) -> list[Node]:
        """The nodes that are open for writing."""
        return list({id(h.node): h.node for h in self._handles.values() if h.file.write_fd >= 0}.values())

    def nodes(self) -> list[Node]:
        """The nodes that are open."""
        return list({id(h.node): h.node for h in self._handles.values()}.values())

    def close(self) -> None:
        for handle in list(self._handles):
            self.release(handle)

    def _add(self, node: Node, file: OpenFile, flags: int, caller: Caller) -> int:
        node.opened = file
        file.users += 1
        handle = next(self._serial)
        appends = bool(flags & os.O_APPEND)
        if flags & os.O_ACCMODE == os.O_RDWR:
            file.mappable = True
        self._handles[handle] = Handle(node, file, strip=self._strips(caller), appends=appends)
        return handle

    def _goes_around_pages(self, file: OpenFile, flags: int) -> bool:
        return self.direct and flags & os.O_ACCMODE == os.O_WRONLY and not file.mappable

    def _strips(self, caller: Caller) -> bool:
        return self._privileged and caller.uid != 0

    def _need_readable(self, node: Node, file: OpenFile) -> None:
        if file.read_fd < 0:
            file.read_fd = self._open_readable(node, file)

    def _open_readable(self, node: Node, file: OpenFile) -> int:
        if node.gone is not None:
            return _reopened(file, os.O_RDONLY)
        directory, name = self._copy_up.location(node)
        return open_readable(directory, name) if node.upper else open_lower(directory, name)

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


def _at_hand(fd: int, size: int) -> bytes | None:
    """All that is in a small file, unless the disk would have to be waited for."""
    if not 0 < size <= _SMALL:
        return None
    content = bytearray(size)
    try:
        count = _read_now(fd, content, 0)
    except OSError:
        return None
    return bytes(content) if count == size else None


def _read_now(fd: int, buffer: bytearray | memoryview, offset: int) -> int:
    """Read what is there without waiting for a disk; an error of `_NOT_NOW` where that cannot be known."""
    try:
        return os.preadv(fd, [buffer], offset, os.RWF_NOWAIT)
    except OSError as error:
        if error.errno != errno.EOPNOTSUPP or not is_in_memory(fd):
            raise
        return os.preadv(fd, [buffer], offset)


def _reading(fd: int, offset: int, size: int) -> Callable[[], bytes]:
    # Its own descriptor: copy-up may exchange the other meanwhile.
    own = os.dup(fd)

    def read() -> bytes:
        try:
            return os.pread(own, size, offset)
        finally:
            os.close(own)

    return read


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
