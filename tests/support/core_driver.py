"""The core, asked as the kernel would ask it, in this process.

The driver stands in for the kernel: it walks paths by lookup, follows symlinks, refuses what the kernel
refuses before any filesystem is asked (unlinking a directory, a rename into itself), and gives every
reference back. With *remembers* it keeps them, as the kernel's cache of names does, until `forget` is called.
"""

import errno
import os
import stat
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sandboxfs.overlay.filesystem import ROOT_INODE, AnonymousCaller, AttributeChange, Entry
from sandboxfs.overlay.overlay import Overlay, OverlayPaths
from tests.support.core_files import CoreDir, CoreFile, fail, shown
from tests.support.drivers import Name, OpenDir, OpenFile, Sandbox
from tests.support.syscalls import RENAME_EXCHANGE, RENAME_NOREPLACE
from tests.support.tree import capture

# Flags that the kernel keeps for itself.
_KERNEL_FLAGS = os.O_CREAT | os.O_EXCL | os.O_NOCTTY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_DIRECTORY
_MOST_SYMLINKS = 40


def is_dir(entry: Entry) -> bool:
    return stat.S_ISDIR(entry.stat.st_mode)


class CoreDriver(Sandbox):
    kind = "core"

    def __init__(
        self, place: Path, workspace: Path, *, remembers: bool = False, covered: tuple[str, ...] = ()
    ) -> None:
        self.lower = workspace
        self.covered = [workspace / name for name in covered]
        self.upper, self.work, self.index, self.baseline = (
            place / name for name in ("upper", "work", "index", "baseline")
        )
        for directory in (self.upper, self.work, self.index, self.baseline):
            directory.mkdir(parents=True)
        self.caller = AnonymousCaller(os.getuid(), os.getgid(), os.getpid())
        self.remembers = remembers
        self.references: Counter[int] = Counter()
        self._open: set[OpenFile | OpenDir] = set()
        self._pristine = capture(workspace)
        self._running = False
        self.start()

    # Life

    def start(self) -> None:
        # The overlay wants its modes unmasked, as the daemon's are.
        self._umask = os.umask(0)
        paths = OverlayPaths([self.lower], self.upper, self.work, self.index, self.baseline)
        self.fs = Overlay(paths, hidden=[], sealed=[], covered=self.covered)
        self._running = True

    def stop(self) -> None:
        if not self._running:
            return
        assert not self._open, "the test left files open"
        try:
            self.forget()
            self._check_all_forgotten()
        finally:
            self._running = False
            self.fs.close()
            os.umask(self._umask)

    def abandon(self) -> None:
        if self._running:
            self._running = False
            os.umask(self._umask)
            self.fs.close()

    def forget(self) -> None:
        for ino, count in self.references.items():
            self.fs.forget(ino, count)
        self.references.clear()

    def _check_all_forgotten(self) -> None:
        remembered = len(self.fs._inodes)
        assert remembered == 1, f"{remembered - 1} inodes are still in memory after all were forgotten"

    def closed(self, what: OpenFile | OpenDir) -> None:
        self._open.discard(what)
        self._settle()

    def _settle(self) -> None:
        # An open file pins its directories in the kernel, wherever they move: nothing goes before it closes.
        if not self.remembers and not self._open:
            self.forget()

    # Walking

    @contextmanager
    def _asking(self) -> Iterator[None]:
        try:
            yield
        finally:
            self._settle()

    def _lookup(self, parent: int, name: bytes) -> Entry | None:
        entry = self.fs.lookup(parent, name)
        if entry is not None:
            self.references[entry.ino] += 1
        return entry

    def _resolve(self, base: list[Entry], path: bytes, follow: bool, depth: int = 0) -> list[Entry]:
        """All entries on the way from the root to *path*, which starts at the last one of *base*."""
        if path.startswith(b"/"):
            raise AssertionError("the symlink leads out of the view")
        way = list(base)
        parts = [part for part in path.split(b"/") if part not in (b"", b".")]
        for number, part in enumerate(parts, 1):
            if not is_dir(way[-1]):
                fail(errno.ENOTDIR)
            if part == b"..":
                way = way[:-1] or way
                continue
            entry = self._lookup(way[-1].ino, part) or fail(errno.ENOENT)
            if stat.S_ISLNK(entry.stat.st_mode) and (follow or number < len(parts)):
                if depth == _MOST_SYMLINKS:
                    fail(errno.ELOOP)
                way = self._resolve(way, self.fs.readlink(entry.ino), True, depth + 1)
            else:
                way.append(entry)
        return way

    def _find(self, path: Name, *, follow: bool = False) -> Entry:
        return self._resolve([self.fs.getattr(ROOT_INODE)], os.fsencode(path), follow)[-1]

    def _parent(self, path: Name) -> tuple[list[Entry], bytes]:
        """The way to the directory that holds the last component, and that component."""
        folder, name = os.path.split(os.fsencode(path))
        assert name not in (b"", b".", b".."), "the verb needs a name"
        way = self._resolve([self.fs.getattr(ROOT_INODE)], folder, True)
        if not is_dir(way[-1]):
            fail(errno.ENOTDIR)
        return way, name

    def _new_place(self, path: Name) -> tuple[int, bytes]:
        """Where something is about to be made; the kernel sees to it that the name is free."""
        way, name = self._parent(path)
        if self._lookup(way[-1].ino, name) is not None:
            fail(errno.EEXIST)
        return way[-1].ino, name

    def _count(self, entry: Entry) -> None:
        self.references[entry.ino] += 1

    # Verbs

    def stat(self, path: Name) -> os.stat_result:
        with self._asking():
            return shown(self.fs.getattr(self._find(path, follow=True).ino))

    def lstat(self, path: Name) -> os.stat_result:
        with self._asking():
            return shown(self._find(path))

    def names(self, path: Name = ".") -> list[bytes]:
        with self.open_dir(path) as directory:
            found: list[bytes] = []
            while portion := directory.read():
                found += [name for name, _ in portion if name not in (b".", b"..")]
            return found

    def open_dir(self, path: Name = ".") -> OpenDir:
        with self._asking():
            entry = self._find(path, follow=True)
            if not is_dir(entry):
                fail(errno.ENOTDIR)
            opened = CoreDir(self, self.fs.opendir(entry.ino), portion=30)
            self._open.add(opened)
            return opened

    def open(self, path: Name, flags: int, mode: int = 0o644) -> OpenFile:
        with self._asking():
            if not flags & os.O_CREAT:
                return self._open_existing(self._find(path, follow=not flags & os.O_NOFOLLOW), flags)
            way, name, entry = self._place_to_create(path, flags)
            if entry is None:
                opened, entry = self.fs.create(
                    way[-1].ino, name, stat.S_IFREG | mode, flags & ~(os.O_NOCTTY | os.O_CLOEXEC), self.caller
                )
                self._count(entry)
                return self._opened(entry.ino, opened.handle, flags)
            if flags & os.O_EXCL:
                fail(errno.EEXIST)
            if is_dir(entry):
                fail(errno.EISDIR)
            return self._open_existing(entry, flags)

    def _place_to_create(self, path: Name, flags: int) -> tuple[list[Entry], bytes, Entry | None]:
        """Where open would make a file, and what is there: at the end of a chain of symlinks."""
        way, name = self._parent(path)
        for _ in range(_MOST_SYMLINKS):
            entry = self._lookup(way[-1].ino, name)
            is_link = entry is not None and stat.S_ISLNK(entry.stat.st_mode)
            if entry is None or not is_link or flags & (os.O_NOFOLLOW | os.O_EXCL):
                return way, name, entry
            folder, name = os.path.split(self.fs.readlink(entry.ino))
            way = self._resolve(way, folder, True)
            if not is_dir(way[-1]):
                fail(errno.ENOTDIR)
        return fail(errno.ELOOP)

    def _open_existing(self, entry: Entry, flags: int) -> OpenFile:
        if flags & os.O_DIRECTORY and not is_dir(entry):
            fail(errno.ENOTDIR)
        if stat.S_ISLNK(entry.stat.st_mode):
            fail(errno.ELOOP)
        if is_dir(entry):
            fail(errno.EISDIR)
        assert stat.S_ISREG(entry.stat.st_mode), "the kernel opens these without asking"
        return self.open_inode(entry.ino, flags)

    def open_inode(self, ino: int, flags: int) -> OpenFile:
        opened = self.fs.open(ino, flags & ~_KERNEL_FLAGS, self.caller)
        return self._opened(ino, opened.handle, flags)

    def _opened(self, ino: int, handle: int, flags: int) -> OpenFile:
        file = CoreFile(self, ino, handle, flags)
        self._open.add(file)
        return file

    def mkdir(self, path: Name, mode: int = 0o755) -> None:
        with self._asking():
            parent, name = self._new_place(path)
            self._count(self.fs.mkdir(parent, name, stat.S_IFDIR | (mode & 0o1777), self.caller))

    def rmdir(self, path: Name) -> None:
        with self._asking():
            way, name = self._parent(path)
            if not is_dir(self._lookup(way[-1].ino, name) or fail(errno.ENOENT)):
                fail(errno.ENOTDIR)
            self.fs.rmdir(way[-1].ino, name)

    def unlink(self, path: Name) -> None:
        with self._asking():
            way, name = self._parent(path)
            if is_dir(self._lookup(way[-1].ino, name) or fail(errno.ENOENT)):
                fail(errno.EISDIR)
            self.fs.unlink(way[-1].ino, name)

    def rename(self, path: Name, new_path: Name, flags: int = 0) -> None:
        with self._asking():
            way, name = self._parent(path)
            new_way, new_name = self._parent(new_path)
            source = self._lookup(way[-1].ino, name) or fail(errno.ENOENT)
            target = self._lookup(new_way[-1].ino, new_name)
            if self._kernel_allows_rename(way, source, new_way, target, flags):
                self.fs.rename(way[-1].ino, name, new_way[-1].ino, new_name, flags)

    @staticmethod
    def _kernel_allows_rename(
        way: list[Entry], source: Entry, new_way: list[Entry], target: Entry | None, flags: int
    ) -> bool:
        """Refuse as the kernel does, in its order; False when there is nothing to do."""
        exchange = bool(flags & RENAME_EXCHANGE)
        if target is not None and flags & RENAME_NOREPLACE:
            fail(errno.EEXIST)
        if target is None and exchange:
            fail(errno.ENOENT)
        if source.ino in {entry.ino for entry in new_way}:
            fail(errno.EINVAL)
        if target is None:
            return True
        if target.ino in {entry.ino for entry in way}:
            fail(errno.EINVAL if exchange else errno.ENOTEMPTY)
        if source.ino == target.ino:
            return False
        if not exchange and is_dir(source) != is_dir(target):
            fail(errno.ENOTDIR if is_dir(source) else errno.EISDIR)
        return True

    def link(self, path: Name, new_path: Name) -> None:
        with self._asking():
            entry = self._find(path)
            parent, name = self._new_place(new_path)
            if is_dir(entry):
                fail(errno.EPERM)
            self._count(self.fs.link(entry.ino, parent, name))

    def symlink(self, target: Name, path: Name) -> None:
        with self._asking():
            parent, name = self._new_place(path)
            self._count(self.fs.symlink(parent, name, os.fsencode(target), self.caller))

    def readlink(self, path: Name) -> bytes:
        with self._asking():
            entry = self._find(path)
            if not stat.S_ISLNK(entry.stat.st_mode):
                fail(errno.EINVAL)
            return self.fs.readlink(entry.ino)

    def mknod(self, path: Name, mode: int, device: int = 0) -> None:
        with self._asking():
            parent, name = self._new_place(path)
            self._count(self.fs.mknod(parent, name, mode, device, self.caller))

    def _change(self, entry: Entry, change: AttributeChange) -> None:
        self.fs.setattr(entry.ino, change, None, self.caller)

    def chmod(self, path: Name, mode: int) -> None:
        with self._asking():
            self._change(self._find(path, follow=True), AttributeChange(mode=mode))

    def chown(self, path: Name, uid: int, gid: int) -> None:
        with self._asking():
            change = AttributeChange(uid=None if uid == -1 else uid, gid=None if gid == -1 else gid)
            self._change(self._find(path), change)

    def utime(self, path: Name, atime_ns: int, mtime_ns: int) -> None:
        with self._asking():
            self._change(self._find(path), AttributeChange(atime_ns=atime_ns, mtime_ns=mtime_ns))

    def truncate(self, path: Name, size: int) -> None:
        with self._asking():
            entry = self._find(path, follow=True)
            if not stat.S_ISREG(entry.stat.st_mode):
                fail(errno.EISDIR if is_dir(entry) else errno.EINVAL)
            self._change(entry, AttributeChange(size=size))

    @staticmethod
    def _takes_user_xattrs(entry: Entry, name: Name, code: int) -> None:
        plain = stat.S_ISREG(entry.stat.st_mode) or is_dir(entry)
        if os.fsencode(name).startswith(b"user.") and not plain:
            fail(code)

    def getxattr(self, path: Name, name: Name) -> bytes:
        with self._asking():
            entry = self._find(path)
            self._takes_user_xattrs(entry, name, errno.ENODATA)
            return self.fs.getxattr(entry.ino, os.fsencode(name))

    def setxattr(self, path: Name, name: Name, value: bytes, flags: int = 0) -> None:
        with self._asking():
            entry = self._find(path)
            self._takes_user_xattrs(entry, name, errno.EPERM)
            self.fs.setxattr(entry.ino, os.fsencode(name), value, flags)

    def listxattr(self, path: Name) -> list[str]:
        with self._asking():
            return [os.fsdecode(name) for name in self.fs.listxattr(self._find(path).ino)]

    def removexattr(self, path: Name, name: Name) -> None:
        with self._asking():
            entry = self._find(path)
            self._takes_user_xattrs(entry, name, errno.EPERM)
            self.fs.removexattr(entry.ino, os.fsencode(name))

    def statvfs(self) -> os.statvfs_result:
        return self.fs.statfs()
