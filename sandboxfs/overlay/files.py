"""Open files: reading, writing, and how many one process may hold open.

Each open inode takes a descriptor of the daemon, and the number of descriptors is limited for all processes
together. A process that holds as many as are left for all others gets EMFILE; a process that holds few still
gets some. No process can have too many before half of the descriptors are taken. From a quarter on, the
process of each thread is looked up while the thread waits for its answer: later the thread may have ended.

All handles of one inode share its descriptors (see `OpenFile`), which copy-up exchanges under the handles.
Descriptors are opened without O_APPEND and O_TRUNC: the kernel turns appending into offsets, and `Files`
truncates after copy-up, which then copies no data.

A program that opens a file only for writing gains nothing from the kernel's pages. Where the kernel is
reliable (`Files.direct`), such a handle goes around the pages: then the kernel does not ask for the file's
capabilities before the first write, and holds no data twice. A file that a program has open for reading and
writing is excepted, because the program may have mapped the file: a store through the mapping at the same
moment would make the kernel write an old page over the new bytes.
"""

import errno
import os
import stat
from collections.abc import Callable
from itertools import count

from sandboxfs.hostfs.directory import unlocked
from sandboxfs.hostfs.identity import fingerprint, is_in_memory
from sandboxfs.overlay.copy_up import CopyUp, open_lower, open_readable
from sandboxfs.overlay.filesystem import Caller, Offload, OpenedFile, Syncs, host_error, stale
from sandboxfs.overlay.nodes import OUTDATED, SET_ID, Node, OpenFile

UNLIMITED = 1 << 30


class Shares:
    """The descriptors of open files, by the thread that opened each."""

    def __init__(self, limit: int = UNLIMITED) -> None:
        self._limit = limit
        self._taken = 0
        self._by_thread: dict[int, int] = {}
        # The process of each thread, where it was looked up.
        self._process: dict[int, int] = {}

    def check(self, thread: int) -> None:
        """Raise OSError unless the process of *thread* may open one more file."""
        left = self._limit - self._taken
        if self._taken < left:
            return
        if left <= 0:
            raise host_error(errno.ENFILE)
        process = self._process_of(thread)
        held = sum(count for other, count in self._by_thread.items() if self._process_of(other) == process)
        if held >= left:
            raise host_error(errno.EMFILE)

    def take(self, thread: int) -> None:
        self._taken += 1
        self._by_thread[thread] = self._by_thread.get(thread, 0) + 1
        if self._taken * 4 >= self._limit:
            self._process_of(thread)

    def give_back(self, thread: int) -> None:
        self._taken -= 1
        left = self._by_thread.get(thread, 0) - 1
        if left > 0:
            self._by_thread[thread] = left
        else:
            self._by_thread.pop(thread, None)
            # The system may give the thread's number to a thread of another process.
            self._process.pop(thread, None)

    def _process_of(self, thread: int) -> int:
        known = self._process.get(thread)
        if known is None:
            known = _leader(thread)
            if thread in self._by_thread:
                self._process[thread] = known
        return known


def _leader(thread: int) -> int:
    """The process of *thread*; the thread itself when it has ended or is not visible."""
    try:
        with open(f"/proc/{thread}/status", "rb") as status:
            head = status.read(512)
        start = head.index(b"\nTgid:\t") + 7
        return int(head[start : head.index(b"\n", start)])
    except (OSError, ValueError):
        return thread


_READ_WRITE = os.O_RDWR
# The data is not in the page cache; or the filesystem does not support the question.
_NOT_NOW = {errno.EAGAIN, errno.EOPNOTSUPP}
# Smaller answers are copied out of the buffer at once, because they may be kept.
_WORTH_A_VIEW = 1 << 14
# A file up to this size is given to the kernel when first opened: most are then read to their end.
_SMALL = 1 << 16
# Stamps with which the kernel has no pages to keep.
_NO_GOOD = None, OUTDATED
# The stamp of an upper file, which is never compared.
_WHATEVER_IT_IS = 0, 0, 0


class Handle:
    """The result of one open(). *strip*: writes must clear set-id bits, which the daemon's privileges keep.

    *appends*: the kernel writes at the offset that it takes for the end of the file.
    """

    __slots__ = ("appends", "file", "node", "strip")

    def __init__(self, node: Node, file: OpenFile, *, strip: bool, appends: bool) -> None:
        self.node = node
        self.file = file
        self.strip = strip
        self.appends = appends


class Files:
    """The open files of one overlay."""

    def __init__(self, copy_up: CopyUp, beside: Offload, syncs: Syncs, shares: Shares) -> None:
        self._copy_up = copy_up
        self._beside = beside
        self._syncs = syncs
        self.shares = shares
        # The data read last; large answers are views of this buffer.
        self._buffer = memoryview(bytearray())
        self._handles: dict[int, Handle] = {}
        self._serial = count(1)
        self._privileged = os.geteuid() == 0
        # Whether writes may go around the kernel's pages: the kernel must drop the pages written over.
        self.direct = False
        # Called with an inode whose mode a write changed without the kernel's knowledge.
        self.mode_changed: Callable[[int], None] = _ignore

    def __len__(self) -> int:
        return len(self._handles)

    def open(self, node: Node, flags: int, caller: Caller) -> OpenedFile:
        if node.kind != stat.S_IFREG:
            raise host_error(errno.EISDIR if node.kind == stat.S_IFDIR else errno.ENXIO)
        if node.opened is None:
            self.shares.check(caller.pid)
        truncates = bool(flags & os.O_TRUNC)
        writes = truncates or flags & os.O_ACCMODE != os.O_RDONLY
        if writes:
            self._copy_up.content(node, 0 if truncates else None)
        file = self._with_descriptors(node, flags, caller, writes=writes)
        status = self._checked(node, file)
        file.set_id = status.st_mode & SET_ID
        stamp = fingerprint(status)
        # Pages of an upper file are right whatever the file's times: only the kernel writes it.
        keep_cache = node.stamp not in _NO_GOOD and (node.upper or node.stamp == stamp)
        if self._goes_around_pages(file, flags):
            return OpenedFile(self._add(node, file, flags, caller), keep_cache, direct=True)
        content = None
        if node.stamp is None and node.opened is None and not writes:
            content = _at_hand(file.read_fd, status.st_size)
        node.stamp = stamp
        file.paged = True
        return OpenedFile(self._add(node, file, flags, caller), keep_cache, content=content)

    def _with_descriptors(self, node: Node, flags: int, caller: Caller, *, writes: bool) -> OpenFile:
        """The open file of a node, with the descriptors for *flags*, and truncated where *flags* say so."""
        file = node.opened or OpenFile()
        try:
            if writes:
                self._need_writable(node, file)
            if flags & os.O_ACCMODE != os.O_WRONLY:
                self._need_readable(node, file)
            if flags & os.O_TRUNC:
                file.set_id = os.fstat(file.write_fd).st_mode & SET_ID
                os.ftruncate(file.write_fd, 0)
                if file.set_id:
                    self._lose_set_id(node, file, strip=self._strips(caller))
        except BaseException:
            if node.opened is None:
                file.close()
            raise
        return file

    def readable(self, node: Node) -> int:
        """A descriptor of its own for reading a file, for work in a thread."""
        return self._open_readable(node, node.opened or OpenFile())

    def opened_new(self, node: Node, fd: int, flags: int, caller: Caller, mode: int = 0) -> OpenedFile:
        """Register a newly created file, open read-write at *fd*."""
        file = OpenFile()
        file.set_id = mode & SET_ID
        file.read_fd = file.write_fd = fd
        file.bare = True
        direct = self._goes_around_pages(file, flags)
        file.paged = not direct
        return OpenedFile(self._add(node, file, flags, caller), False, direct)

    def read(self, handle: int, offset: int, size: int) -> bytes | memoryview:
        """Read from the page cache, else in a thread. The answer is valid until the next read."""
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
            # Only the first part was in the page cache.
            return self._beside.answer(_reading(fd, offset, size))
        return found[:count] if count >= _WORTH_A_VIEW else found[:count].tobytes()

    def write(self, handle: int, offset: int, data: bytes | memoryview, *, strip: bool = False) -> int:
        """Write *data*; *strip*: the caller has no privileges, and set-id bits are cleared."""
        opened = self._handles[handle]
        fd = opened.file.write_fd
        if fd < 0:
            # A review removed the upper entry under the handle.
            self._copy_up.content(opened.node)
            self._need_writable(opened.node, opened.file)
            fd = opened.file.write_fd
        if opened.appends and offset in opened.file.ends:
            # A review has exchanged the file since the kernel last asked for its size.
            opened.file.ends = opened.file.ends - {offset} | {offset + len(data)}
            offset = os.fstat(fd).st_size
        written = os.pwrite(fd, data, offset)
        self._syncs.written += written
        if opened.file.set_id:
            self._lose_set_id(opened.node, opened.file, strip=self._privileged and (strip or opened.strip))
        while written < len(data):
            try:
                written += os.pwrite(fd, data[written:], offset + written)
            except OSError:
                # The bytes written so far count; the next write reports the error.
                break
        return written

    def truncate(self, node: Node, size: int, caller: Caller) -> None:
        """Set the size of a file, open or not."""
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
                # The final status of a nameless file, for a descriptor that outlives the handle.
                opened.node.gone = os.fstat(file.fd)
            if opened.node.stamp is None and file.paged:
                # A file made in the sandbox: the kernel's pages hold its content, as long as it has a name.
                is_there = opened.node.upper and opened.node.gone is None
                opened.node.stamp = _WHATEVER_IT_IS if is_there else OUTDATED
            file.close()
            self.shares.give_back(file.opener)
            opened.node.opened = None

    def fsync(self, handle: int, *, datasync: bool) -> None:
        opened = self._handles[handle]
        if not opened.node.upper:
            # Nothing was written since the file was opened, or since a review removed the upper entry.
            return
        self._syncs.sync(opened.file.fd, os.fdatasync if datasync else os.fsync)

    def rebind(self, node: Node) -> bool:
        """Point the handles of a node to the file that the node stands for after a review.

        The handles read that file; the next write copies up. A node without a name (*gone*) keeps its old
        file, which is copied first unless the node counts as upper. When the file cannot be opened, nothing
        changes and the answer is False.
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
        file.set_id = os.fstat(fd).st_mode & SET_ID
        # The kernel's pages hold the old file's content.
        node.stamp = OUTDATED
        return True

    def written(self) -> list[Node]:
        """The nodes that are open for writing."""
        return list({id(h.node): h.node for h in self._handles.values() if h.file.write_fd >= 0}.values())

    def mapped(self) -> list[Node]:
        """The nodes that programs may have mapped for writing."""
        return list({id(h.node): h.node for h in self._handles.values() if h.file.mappable}.values())

    def nodes(self) -> list[Node]:
        """The nodes that are open."""
        return list({id(h.node): h.node for h in self._handles.values()}.values())

    def close(self) -> None:
        for handle in list(self._handles):
            self.release(handle)

    def _add(self, node: Node, file: OpenFile, flags: int, caller: Caller) -> int:
        node.opened = file
        if file.users == 0:
            file.opener = caller.pid
            self.shares.take(caller.pid)
        file.users += 1
        handle = next(self._serial)
        appends = bool(flags & os.O_APPEND)
        if flags & os.O_ACCMODE == os.O_RDWR:
            file.mappable = True
        self._handles[handle] = Handle(node, file, strip=self._strips(caller), appends=appends)
        return handle

    def _goes_around_pages(self, file: OpenFile, flags: int) -> bool:
        return self.direct and flags & os.O_ACCMODE == os.O_WRONLY and not file.mappable

    def _lose_set_id(self, node: Node, file: OpenFile, *, strip: bool) -> None:
        """Clear set-id bits after a change, unless the host did, and report a changed mode."""
        if strip:
            strip_set_id(file.write_fd)
        left = os.fstat(file.write_fd).st_mode & SET_ID
        if left != file.set_id:
            file.set_id = left
            self.mode_changed(node.ino)

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
        """The status of the opened file, which must be the file that the node stands for."""
        status = os.fstat(file.fd)
        if node.stands_for(status):
            return status
        if node.opened is None:
            file.close()
        raise stale()


def _ignore(ino: int) -> None:
    """The callback where no kernel caches anything."""


def _at_hand(fd: int, size: int) -> bytes | None:
    """The whole content of a small file; None where the disk would have to be read."""
    if not 0 < size <= _SMALL:
        return None
    content = bytearray(size)
    try:
        count = _read_now(fd, content, 0)
    except OSError:
        return None
    return bytes(content) if count == size else None


def _read_now(fd: int, buffer: bytearray | memoryview, offset: int) -> int:
    """Read cached data without waiting for a disk; raises an error of `_NOT_NOW` where that is impossible."""
    try:
        return os.preadv(fd, [buffer], offset, os.RWF_NOWAIT)
    except OSError as error:
        if error.errno != errno.EOPNOTSUPP or not is_in_memory(fd):
            raise
        return os.preadv(fd, [buffer], offset)


def _reading(fd: int, offset: int, size: int) -> Callable[[], bytes]:
    # A duplicate: copy-up may exchange the descriptor meanwhile.
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
    if mode & SET_ID:
        kept = mode & ~stat.S_ISUID
        if mode & stat.S_IXGRP:
            kept &= ~stat.S_ISGID
        os.chmod(fd, stat.S_IMODE(kept))


def _reopened(file: OpenFile, flags: int) -> int:
    if file.fd < 0:
        raise host_error(errno.ENOENT)
    return os.open(f"/proc/self/fd/{file.fd}", flags | os.O_CLOEXEC)
