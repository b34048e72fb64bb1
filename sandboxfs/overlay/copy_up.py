"""Copy-up: giving the upper its own copy of a lower entry before the sandbox changes the entry.

Copy-up is one step in the view, but the bytes of a large file need not be part of that step: a worker thread
copies them while other requests are answered (see `Deferred`), and copy-up takes the finished copy if the
file has not changed since. A copy that no copy-up takes is removed.

Every name that the upper is about to get, and did not have before, gets a baseline entry if the workspace has
the name: copies, whiteouts, and entries moved over a lower entry. Noting the baseline entry belongs to the
preparation of a change: where it fails, the change fails. While the upper has an entry, whiteouts included,
its name is not noted again: the baseline is what the sandbox saw first.

The copy is staged and appears in the upper whole or not at all, with the lower's mode, owner, times, extended
attributes and inode number. The times of the directories around the copy are kept, both for the copy and for
the directories made on the way: no program asked for either.

A lower file that lost its name while open is still the workspace's. When changed, the file gets a copy that
has no name either.
"""

import errno
import os
import stat
from collections.abc import Callable
from functools import partial
from threading import Event

from sandboxfs.hostfs import copy
from sandboxfs.hostfs.copy import ACCESS_LIST, DEFAULT_LIST, remove_access_lists
from sandboxfs.hostfs.directory import Held, HostDir, HostObject, Named, unlocked
from sandboxfs.hostfs.identity import fingerprint
from sandboxfs.overlay.filesystem import Deferred, Offload, by_its_name, host_error, stale
from sandboxfs.overlay.lookup import Lookup
from sandboxfs.overlay.nodes import OUTDATED, Directory, Found, LowerPart, Node
from sandboxfs.paths import joined
from sandboxfs.upper import marks
from sandboxfs.upper.marks import Staging

# Up to this size, a file is copied within a few milliseconds, even without reflink.
LARGE = 4 << 20

Copier = Callable[[bytes], os.stat_result]
"""Copies the source to a name in staging, and gives the status of the source."""
Key = tuple[int, int, int]
"""Device, inode number, and the number of bytes to copy."""


class _Copy:
    """One copy made ahead, finished or not."""

    __slots__ = ("error", "finished", "name", "status")

    def __init__(self, name: bytes) -> None:
        self.name = name
        self.finished = Event()
        self.status: os.stat_result | None = None
        self.error: OSError | None = None

    def is_of(self, status: os.stat_result) -> bool:
        return self.status is not None and fingerprint(self.status) == fingerprint(status)

    def make(self, copy: Copier) -> None:
        try:
            self.status = copy(self.name)
        except OSError as error:
            self.error = error
        finally:
            self.finished.set()


class EarlyCopies:
    """The copies that are made ahead, in the staging directory."""

    def __init__(self, staging: Staging, beside: Offload) -> None:
        self._staging = staging
        self._beside = beside
        self._copies: dict[Key, _Copy] = {}

    def need(self, status: os.stat_result, length: int, begin: Callable[[], Copier]) -> None:
        """Return when a copy of the file with *status* is finished, or not worthwhile; else raise `Deferred`.

        *begin* gives the copier, which runs in another thread.
        """
        if not self._beside.allowed or length < LARGE:
            return
        key = status.st_dev, status.st_ino, length
        known = self._copies.get(key)
        if known is not None:
            if not known.finished.is_set():
                raise Deferred(known.finished.wait, answers=False)
            if known.error is not None:
                raise known.error
            if known.is_of(status):
                return
            # The host changed the file meanwhile.
            self._drop(key, known)
        copy = begin()
        begun = self._copies[key] = _Copy(self._staging.fresh_name())
        raise Deferred(partial(begun.make, copy), answers=False, over=partial(self._drop, key, begun))

    def take(self, status: os.stat_result, length: int, staged: bytes) -> os.stat_result | None:
        """Give a finished copy the name *staged*; the status of its source, None when there is no copy."""
        key = status.st_dev, status.st_ino, length
        known = self._copies.get(key)
        if known is None or not known.is_of(status):
            return None
        directory = self._staging.directory
        directory.rename(known.name, directory, staged)
        del self._copies[key]
        return known.status

    def _drop(self, key: Key, copy: _Copy) -> None:
        if self._copies.get(key) is copy:
            del self._copies[key]
            self._staging.directory.remove_tree(copy.name)


class BaselineRecorder:
    """Notes baseline entries for the bottom layer; layers above were uppers, with baselines of their own."""

    def __init__(self, merge: Lookup) -> None:
        self._merge = merge
        self._stack = merge.stack
        self._bottom = len(merge.stack.layers) - 1

    def root(self, status: os.stat_result, number: int) -> None:
        if self._stack.baseline is not None and self._bottom == 0:
            self._stack.baseline.note(b"", self._stack.workspace, b"", status, number, keep=False)

    def directory(self, directory: Directory, source: HostDir, status: os.stat_result) -> None:
        """Note a lower directory that is about to be copied."""
        top = directory.lowers[0]
        if self._stack.baseline is not None and top.layer == self._bottom:
            self._stack.baseline.note(top.path, source, b"", status, directory.number, keep=False)

    def content(self, node: Node, status: os.stat_result) -> None:
        """Note a lower file that is about to be copied, with its bytes: a merge may need them."""
        if node.parent is not None and node.layer == self._bottom:
            self._note(node.parent, node.name, status, node.number, keep=True)

    def removal(self, parent: Directory, name: bytes, found: Found, *, keep: bool = False) -> None:
        """Note the entry at *name* before it is removed or replaced; *keep* when a file replaces it."""
        if not found.upper:
            layer = found.lowers[0].layer if found.lowers else found.layer
            if layer == self._bottom:
                self._note(parent, name, found.stat, found.ino, keep=keep)
        elif found.indexed and not self._merge.upper_has(parent, name):
            self.name(parent, name, found.ino, keep=keep)

    def name(self, parent: Directory, name: bytes, number: int, *, keep: bool) -> None:
        """Note another name of a hard-linked lower file, where the upper has no entry yet."""
        part = self._part(parent)
        status = None if part is None else self._merge.fds.lower(part).stat(name)
        if status is not None:
            self._note(parent, name, status, number, keep=keep)

    def replacement(self, parent: Directory, name: bytes) -> None:
        """Keep the bytes of a deleted lower file whose name a new file is about to take."""
        part = self._part(parent)
        if self._stack.baseline is not None and part is not None:
            self._stack.baseline.keep(joined(part.path, name), self._merge.fds.lower(part), name)

    def _part(self, directory: Directory) -> LowerPart | None:
        """The workspace's part of a directory, which is always its last lower part."""
        lowers = directory.lowers
        return lowers[-1] if lowers and lowers[-1].layer == self._bottom else None

    def _note(
        self, parent: Directory, name: bytes, status: os.stat_result, number: int, *, keep: bool
    ) -> None:
        part = self._part(parent)
        if self._stack.baseline is not None and part is not None:
            source = self._merge.fds.lower(part)
            self._stack.baseline.note(joined(part.path, name), source, name, status, number, keep=keep)


# The number of attempts to copy a file that the host changes during the copy.
_ATTEMPTS = 5


class CopyUp:
    """Moves nodes into the upper layer."""

    def __init__(self, merge: Lookup, beside: Offload) -> None:
        self._merge = merge
        self._stack = merge.stack
        self._fds = merge.fds
        self._ahead = EarlyCopies(merge.stack.staging, beside)
        self.noting = BaselineRecorder(merge)

    # Places on the host

    def location(self, node: Node) -> tuple[HostDir, bytes]:
        """The host directory and name that lead to a node which has a name."""
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
        """Give a new upper the attributes of the topmost lower's root; later the upper has its own."""
        upper = self._stack.upper
        source = self._stack.layers[0].directory
        status = source.own_stat()
        record = marks.InodeRecord(self._merge.numbers.of_lower(status), 0)
        dressed = marks.read_directory(upper, b"").ino != 0
        if not dressed or self._stack.untouched:
            self.noting.root(status, record.ino)
        if dressed:
            return
        remove_access_lists(Held(upper.fd), ACCESS_LIST, DEFAULT_LIST)
        self._dress(upper, b".", Named(source, b""), status, record)

    def directory(self, directory: Directory) -> HostDir:
        """The upper part of a directory, made where missing, with any number of missing parents."""
        missing = []
        at = directory
        while True:
            if at.gone is not None:
                raise host_error(errno.ENOENT)
            if at.upper:
                break
            if at.sealed is not None:
                raise host_error(errno.EBUSY)
            if at.parent is None:
                raise stale()
            if self._fds.lower(at.lowers[0]).own_stat().st_nlink == 0:
                # The host removed the directory; only our descriptor keeps it.
                raise host_error(errno.ENOENT)
            missing.append(at)
            at = at.parent
        for one in reversed(missing):
            self._make_directory(one, at)
            at = one
        return self._fds.upper(directory)

    def _make_directory(self, directory: Directory, parent: Directory) -> None:
        """Make the upper part of a lower directory, in the upper part of its *parent*."""
        source = self._fds.lower(directory.lowers[0])
        status = source.own_stat()
        above = self._fds.upper(parent)
        self.noting.directory(directory, source, status)
        work = self._stack.staging.directory
        with self._stack.staging.name() as staged:
            work.mkdir(staged, 0o700)
            self._dress(work, staged, Named(source, b""), status, marks.InodeRecord(directory.number, 0))
            made = work.stat(staged)
            above.quietly(lambda: work.rename(staged, above, directory.name))
        if made is not None:
            directory.stand_for(made)
        directory.upper = True

    # Files and other types

    def content(self, node: Node, length: int | None = None) -> None:
        """Copy a node's content up, no more than *length* bytes of it."""
        if node.upper:
            return
        if node.gone is not None:
            self._nameless(node, length)
            return
        if node.parent is None:
            # The file has names, but the overlay knows none of them.
            raise stale()
        # Checked before the parents are made: a file that the host removed must not leave new parents behind.
        source, name = self.location(node)
        status = source.stat(name)
        if status is None or not node.stands_for(status):
            raise stale()
        # Before any change: `Deferred` may end the attempt here.
        self._copy_ahead(source, name, status, length)
        parent = self.directory(node.parent)
        self.noting.content(node, status)
        indexed = stat.S_ISREG(status.st_mode) and status.st_nlink > 1
        with self._stack.staging.name() as staged:
            work = self._stack.staging.directory
            copied = self._copy(source, name, status, staged, length)
            nlink = status.st_nlink - self._stack.index.names_lost(node.number) if indexed else 0
            self._dress(work, staged, Named(source, name), copied, marks.InodeRecord(node.number, nlink))
            made = work.stat(staged)
            if made is None:
                raise stale()
            if not stat.S_ISREG(status.st_mode):
                self._stack.index.set_number(made.st_ino, node.number)
            if indexed:
                self._stack.index.add_link(node.number, work, staged)
            # Opened before the copy appears: afterwards nothing may fail, and no handle keep the lower file.
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
        """Give a nameless lower file a copy of its own, and point all its handles to the copy."""
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
        """Make sure that the upper has *node* at this very name, to be moved or linked from there."""
        self.content(node)
        upper = self.directory(parent)
        if node.indexed and upper.stat(name) is None:
            directory, link = self.location(node)
            self.noting.name(parent, name, node.number, keep=True)
            upper.quietly(lambda: directory.link(link, upper, name))

    def _copy(
        self, source: HostDir, name: bytes, status: os.stat_result, staged: bytes, length: int | None
    ) -> os.stat_result:
        """Make the copy, without attributes, at the staged name; the status of its source."""
        work = self._stack.staging.directory
        mode = status.st_mode
        if stat.S_ISREG(mode):
            taken = self._ahead.take(status, _wanted(status, length), staged)
            return self._copy_file(source, name, staged, length) if taken is None else taken
        if stat.S_ISLNK(mode):
            work.symlink(staged, source.readlink(name))
        elif stat.S_ISCHR(mode) and status.st_rdev == 0:
            # The copy would read as a whiteout.
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
        """Copy from a descriptor, and close the descriptor."""
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
        """Copy the bytes of a large file in another thread, where that is allowed."""

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
        record: marks.InodeRecord,
    ) -> None:
        """Give a staged copy the attributes of its source."""
        mode = status.st_mode
        copy.carry_xattrs(source, Named(work, staged))
        if stat.S_ISREG(mode) or stat.S_ISDIR(mode):
            marks.write_record(work, staged, record)
        copy.copy_owner(work, staged, status)
        if not stat.S_ISLNK(mode):
            # After the owner, whose change clears the set-id bits.
            work.chmod(staged, stat.S_IMODE(mode))
        work.set_times(staged, status.st_atime_ns, status.st_mtime_ns)


def _replaced(node: Node, copied: os.stat_result, made: os.stat_result, read_fd: int) -> None:
    """Make a node refer to its copy; handles that have the node open read through *read_fd* from now on."""
    if node.stamp is not None:
        node.stamp = fingerprint(made) if node.stamp == fingerprint(copied) else OUTDATED
    node.upper = True
    node.stand_for(made)
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
    """Copy until the source does not change during a copy; the status of the source then."""
    before = os.fstat(source_fd)
    for _ in range(_ATTEMPTS):
        size = _wanted(before, length)
        os.ftruncate(target_fd, 0)
        copy.copy_data(source_fd, target_fd, size)
        after = os.fstat(source_fd)
        if fingerprint(before) == fingerprint(after):
            break
        before = after
    return before
