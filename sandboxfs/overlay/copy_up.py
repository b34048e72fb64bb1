"""Copy-up: giving the upper its own copy of what the sandbox is about to change.

The copy is staged and appears in the upper whole or not at all, with the lower's mode, owner, times and
extended attributes and the inode number it had. Neither the copy nor the directories made on the way leave
a trace in the times of the directories around them: no program asked for them.

A lower file that lost its name while open is still the workspace's. Changed, it gets a copy that has no name
either.
"""

import errno
import os
import stat
from functools import partial

from sandboxfs.layers import copying, marks
from sandboxfs.layers.hostdir import HostDir, unlocked
from sandboxfs.layers.hostobject import Held, HostObject, Named
from sandboxfs.overlay.ahead import Ahead, Copier
from sandboxfs.overlay.later import Beside
from sandboxfs.overlay.merge import Merge
from sandboxfs.overlay.node import OUTDATED, Directory, Node, fingerprint
from sandboxfs.overlay.noting import Noting
from sandboxfs.overlay.stack import by_its_name, host_error, stale

# How often a file is copied again that the host changes during the copy.
_ATTEMPTS = 5


class CopyUp:
    """Moves nodes into the upper layer."""

    def __init__(self, merge: Merge, beside: Beside) -> None:
        self._merge = merge
        self._stack = merge.stack
        self._fds = merge.fds
        self._ahead = Ahead(merge.stack.staging, beside)
        self.noting = Noting(merge)

    # Where things are

    def location(self, node: Node) -> tuple[HostDir, bytes]:
        """The host directory and name by which a node that has a name is reached."""
        if node.indexed:
            return self._stack.index.directory, self._stack.index.link_name(node.number)
        if node.parent is None or node.gone is not None:
            raise stale()
        if node.upper:
            return self._fds.upper(node.parent), node.name
        for part in node.parent.lowers:
            if part.layer == node.layer:
                return self._fds.lower(part), node.name
        raise stale()

    # Directories

    def dress_root(self) -> None:
        """Give a new upper the attributes of the directory it stands for; later they are its own."""
        upper = self._stack.upper
        source = self._stack.layers[0].directory
        status = source.own_stat()
        record = marks.Record(self._merge.numbers.of_lower(status), 0)
        dressed = marks.read_directory(upper, b"").ino != 0
        if not dressed or self._stack.untouched:
            self.noting.root(status, record.ino)
        if dressed:
            return
        self._dress(upper, b".", Named(source, b""), status, record)

    def directory(self, directory: Directory) -> HostDir:
        """The upper part of a directory, made if need be."""
        if directory.gone is not None:
            raise host_error(errno.ENOENT)
        if directory.upper:
            return self._fds.upper(directory)
        if directory.sealed is not None:
            raise host_error(errno.EBUSY)
        if directory.parent is None:
            raise stale()
        source = self._fds.lower(directory.lowers[0])
        status = source.own_stat()
        if status.st_nlink == 0:
            # The host removed it; only our descriptor keeps it.
            raise host_error(errno.ENOENT)
        parent = self.directory(directory.parent)
        self.noting.directory(directory, source, status)
        work = self._stack.staging.directory
        with self._stack.staging.name() as staged:
            work.mkdir(staged, 0o700)
            self._dress(work, staged, Named(source, b""), status, marks.Record(directory.number, 0))
            made = work.stat(staged)
            parent.quietly(lambda: work.rename(staged, parent, directory.name))
        if made is not None:
            directory.host_dev, directory.host_ino = made.st_dev, made.st_ino
        directory.upper = True
        return self._fds.upper(directory)

    # Everything else

    def content(self, node: Node, length: int | None = None) -> None:
        """Bring a node's content up, no more than *length* bytes of it."""
        if node.upper:
            return
        if node.gone is not None:
            self._nameless(node, length)
            return
        if node.parent is None:
            # It has names, and nobody knows one.
            raise stale()
        # Looked at before the parents are made: what the host took away must not leave them behind.
        source, name = self.location(node)
        status = source.stat(name)
        if status is None or not node.stands_for(status):
            raise stale()
        # Before anything is changed: this may be as far as it gets for now.
        self._copy_ahead(source, name, status, length)
        parent = self.directory(node.parent)
        self.noting.content(node, status)
        indexed = stat.S_ISREG(status.st_mode) and status.st_nlink > 1
        with self._stack.staging.name() as staged:
            work = self._stack.staging.directory
            copied = self._copy(source, name, status, staged, length)
            nlink = status.st_nlink - self._stack.index.names_lost(node.number) if indexed else 0
            self._dress(work, staged, Named(source, name), copied, marks.Record(node.number, nlink))
            made = work.stat(staged)
            if made is None:
                raise stale()
            if not stat.S_ISREG(status.st_mode):
                self._stack.index.set_number(made.st_ino, node.number)
            if indexed:
                self._stack.index.add_link(node.number, work, staged)
            # Opened before the copy appears: afterwards nothing must fail, and no handle keep the lower file.
            read_fd = -1 if node.opened is None else open_readable(work, staged)
            try:
                parent.quietly(lambda: work.rename(staged, parent, node.name))
            except BaseException:
                if read_fd >= 0:
                    os.close(read_fd)
                raise
        node.indexed = indexed
        _replaced(node, copied, made, read_fd)

    def _nameless(self, node: Node, length: int | None) -> None:
        """Give a lower file without a name a copy of its own, and point all that have it open there."""
        opened = node.opened
        if opened is None:
            raise stale()
        work = self._stack.staging.directory
        with self._stack.staging.name() as staged:
            fd = work.open(staged, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600)
            try:
                copied = _copy_whole(opened.fd, fd, length)
                self._dress(work, staged, Held(opened.fd), copied, marks.NO_RECORD)
                made = os.fstat(fd)
                work.unlink(staged)
            except BaseException:
                os.close(fd)
                raise
        _replaced(node, copied, made, fd)
        opened.write_fd = fd

    def name(self, parent: Directory, name: bytes, node: Node) -> None:
        """Make sure that the upper has *node* under this very name, to be moved or linked from there."""
        self.content(node)
        upper = self.directory(parent)
        if node.indexed and upper.stat(name) is None:
            directory, link = self.location(node)
            self.noting.name(parent, name, node.number, keep=True)
            upper.quietly(lambda: directory.link(link, upper, name))

    def _copy(
        self, source: HostDir, name: bytes, status: os.stat_result, staged: bytes, length: int | None
    ) -> os.stat_result:
        """Make the bare copy under the staged name; the status of what was copied."""
        work = self._stack.staging.directory
        mode = status.st_mode
        if stat.S_ISREG(mode):
            taken = self._ahead.take(status, _wanted(status, length), staged)
            return self._copy_file(source, name, staged, length) if taken is None else taken
        if stat.S_ISLNK(mode):
            work.symlink(staged, source.readlink(name))
        elif stat.S_ISCHR(mode) and status.st_rdev == 0:
            # It would read as a whiteout.
            raise host_error(errno.EPERM)
        else:
            work.mknod(staged, stat.S_IFMT(mode) | 0o600, status.st_rdev)
        return status

    def _copy_file(self, source: HostDir, name: bytes, staged: bytes, length: int | None) -> os.stat_result:
        work = self._stack.staging.directory
        if length == 0:
            os.close(work.open(staged, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
            status = source.stat(name)
            if status is None:
                raise stale()
            return status
        return self._copy_opened(open_lower(source, name), length, staged)

    def _copy_opened(self, source_fd: int, length: int | None, staged: bytes) -> os.stat_result:
        """Copy from a descriptor, and close it."""
        work = self._stack.staging.directory
        try:
            target_fd = work.open(staged, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600)
            try:
                return _copy_whole(source_fd, target_fd, length)
            finally:
                os.close(target_fd)
        finally:
            os.close(source_fd)

    def _copy_ahead(self, source: HostDir, name: bytes, status: os.stat_result, length: int | None) -> None:
        """Have the bytes of a large file copied beside other requests, where that is allowed."""

        def begin() -> Copier:
            return partial(self._copy_opened, open_lower(source, name), length)

        if stat.S_ISREG(status.st_mode):
            self._ahead.need(status, _wanted(status, length), begin)

    def _dress(
        self,
        work: HostDir,
        staged: bytes,
        source: HostObject,
        status: os.stat_result,
        record: marks.Record,
    ) -> None:
        """Give a staged copy the attributes of its source."""
        mode = status.st_mode
        copying.carry_xattrs(source, Named(work, staged))
        if stat.S_ISREG(mode) or stat.S_ISDIR(mode):
            marks.write_record(work, staged, record)
        copying.copy_owner(work, staged, status)
        if not stat.S_ISLNK(mode):
            # After the owner, whose change clears the set-id bits.
            work.chmod(staged, stat.S_IMODE(mode))
        work.set_times(staged, status.st_atime_ns, status.st_mtime_ns)


def _replaced(node: Node, copied: os.stat_result, made: os.stat_result, read_fd: int) -> None:
    """Note that a node is its copy from now on, which those who have it open read through *read_fd*."""
    if node.stamp is not None:
        node.stamp = fingerprint(made) if node.stamp == fingerprint(copied) else OUTDATED
    node.upper = True
    node.host_dev, node.host_ino = made.st_dev, made.st_ino
    if node.opened is not None:
        node.opened.close()
        node.opened.read_fd = read_fd


def open_readable(directory: HostDir, name: bytes) -> int:
    """Open an upper file for reading, whatever its mode: the right to read it was granted before."""
    try:
        return directory.open(name, os.O_RDONLY)
    except PermissionError:
        status = directory.stat(name)
        if status is None:
            raise
        return unlocked(directory.path_of(name), status.st_mode, lambda: directory.open(name, os.O_RDONLY))


def open_lower(directory: HostDir, name: bytes) -> int:
    """Open a file of the workspace for reading, by the name it last had."""
    try:
        return directory.open_quietly(name, os.O_RDONLY)
    except OSError as error:
        raise by_its_name(error) from None


def _wanted(status: os.stat_result, length: int | None) -> int:
    return status.st_size if length is None else min(length, status.st_size)


def _copy_whole(source_fd: int, target_fd: int, length: int | None) -> os.stat_result:
    """Copy until the source stood still during a copy; its status then."""
    before = os.fstat(source_fd)
    for _ in range(_ATTEMPTS):
        size = _wanted(before, length)
        os.ftruncate(target_fd, 0)
        copying.copy_data(source_fd, target_fd, size)
        after = os.fstat(source_fd)
        if fingerprint(before) == fingerprint(after):
            break
        before = after
    return before
