"""How low could a filesystem on pyfuse3 go? The thinnest one, run as a program.

    thinnest.py DIRECTORY MOUNTPOINT    says so on stdout when it is served; ends when it is unmounted

It passes one directory on, with no layers, rules, log or watching, and is served as sandboxfs is: what it
takes is what the kernel, the serving and Python take. It is asked as little as can be: names, attributes,
listings and pages stay in the kernel, the content of small files is given along, and listings only mention
what is known. As in sandboxfs, the kernel holds no written data back (ADR 18).

It does no more than the bench needs. Nobody else changes the directory, which lies on one filesystem; whoever
asks is whoever serves; nobody sets extended attributes.
"""

import errno
import os
import resource
import stat
import sys
from collections.abc import Iterator
from functools import cache, partial
from itertools import count

import trio

from sandboxfs.fuse.connection import serve
from sandboxfs.fuse.notify import Notifier
from sandboxfs.overlay.filesystem import ROOT_INODE, AttributeChange, Caller, Entry, Lasting, OpenedFile

# What is no larger is given to the kernel when it is first opened, as sandboxfs does.
_SMALL = 1 << 16
# The kernel says itself where to write, and what is open need not lie in memory as it likes.
_NOT_PASSED_ON = os.O_APPEND | os.O_DIRECT | os.O_NOFOLLOW
_DIRECTORY = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW
_AGAIN = 1 << 48
_LONG = Lasting.LONG
_RENAME_NOREPLACE = 1


class Node:
    """What the kernel knows by a number: that of the host, or another where the host uses one again."""

    __slots__ = ("count", "fd", "fresh", "host", "kind", "names", "number", "places")

    def __init__(self, number: int, host: int, kind: int) -> None:
        self.number, self.host, self.kind = number, host, kind
        self.count = 0  # how often the kernel was told of it
        self.places: list[tuple[Node, bytes]] = []  # where it has a name: a hard link has several
        self.names: dict[bytes, Node] = {}  # of a directory: those that the kernel was told of
        self.fd = -1  # of a directory: it stays right wherever the directory is moved
        self.fresh = 0  # of a small file: its size, until the kernel has pages of it


class Thinnest:
    """Passes a directory on; a `Filesystem`."""

    def __init__(self, directory: str) -> None:
        self.root = Node(ROOT_INODE, 0, stat.S_IFDIR)
        self.root.fd = os.open(directory, _DIRECTORY)
        self.nodes = {ROOT_INODE: self.root}
        self.hosts: dict[int, Node] = {}  # by the host's number
        self.files: dict[int, Node] = {}  # by the host's descriptor, which is the handle
        self.listings: dict[int, tuple[Node, list[bytes]]] = {}
        self.serial = count(1)

    def close(self) -> None:
        """All that is open goes with the process."""

    # What the kernel is told of

    def found(self, parent: Node, name: bytes, status: os.stat_result) -> Entry:
        """What has been there before, and may be known already."""
        node = self.hosts.get(status.st_ino)
        if node is None:
            node = self.new(parent, name, status)
            if node.kind == stat.S_IFREG and status.st_size <= _SMALL:
                node.fresh = status.st_size
        elif parent.names.get(name) is not node:
            self.named(node, parent, name)
        return Entry(node.number, status, status.st_nlink, _LONG, _LONG)

    def made(self, parent: Node, name: bytes, status: os.stat_result | None = None) -> Entry:
        """What has just been made."""
        status = status or os.lstat(name, dir_fd=parent.fd)
        node = self.new(parent, name, status)
        node.count = 1
        return Entry(node.number, status, status.st_nlink, _LONG, _LONG)

    def new(self, parent: Node, name: bytes, status: os.stat_result) -> Node:
        number = status.st_ino
        while number in self.nodes:
            # The host gives it to another file before the kernel has let go of the one that was removed.
            number += _AGAIN
        node = Node(number, status.st_ino, stat.S_IFMT(status.st_mode))
        if node.kind == stat.S_IFDIR:
            node.fd = os.open(name, _DIRECTORY, dir_fd=parent.fd)
        self.nodes[number] = self.hosts[node.host] = node
        self.named(node, parent, name)
        return node

    def named(self, node: Node, parent: Node, name: bytes) -> None:
        parent.names[name] = node
        node.places.append((parent, name))

    def unnamed(self, parent: Node, name: bytes) -> None:
        if (node := parent.names.pop(name, None)) is not None:
            node.places.remove((parent, name))

    def where(self, node: Node) -> tuple[bytes, int]:
        """Its name and the directory that it is in; what has no name any more is open."""
        if node.places:
            parent, name = node.places[0]
            return name, parent.fd
        return b"/proc/self/fd/%d" % self.held(node), self.root.fd

    def held(self, node: Node) -> int:
        if node.fd >= 0:
            return node.fd
        for handle, other in self.files.items():
            if other is node:
                return handle
        raise refusal(errno.ESTALE)

    def status(self, node: Node) -> os.stat_result:
        if node.fd >= 0 or not node.places:
            return os.fstat(self.held(node))
        parent, name = node.places[0]
        return os.lstat(name, dir_fd=parent.fd)

    def lookup(self, parent: int, name: bytes, caller: Caller) -> Entry | None:
        folder = self.nodes[parent]
        try:
            status = os.lstat(name, dir_fd=folder.fd)
        except FileNotFoundError:
            return None
        entry = self.found(folder, name, status)
        self.nodes[entry.ino].count += 1
        return entry

    def absence_lasts(self, parent: int) -> bool:
        return True

    def remember(self, ino: int) -> None:
        self.nodes[ino].count += 1

    def forget(self, ino: int, count: int) -> bool:
        node = self.nodes[ino]
        node.count -= count
        if node.count > 0 or node is self.root:
            return False
        del self.nodes[ino]
        if self.hosts.get(node.host) is node:
            del self.hosts[node.host]
        for parent, name in node.places:
            del parent.names[name]
        for name, child in node.names.items():
            child.places.remove((node, name))
        if node.fd >= 0:
            os.close(node.fd)
        return True

    # Attributes

    def getattr(self, ino: int, caller: Caller) -> Entry:
        status = self.status(self.nodes[ino])
        return Entry(ino, status, status.st_nlink, _LONG, _LONG)

    def setattr(self, ino: int, change: AttributeChange, handle: int | None, caller: Caller) -> Entry:
        node = self.nodes[ino]
        name, within = self.where(node)
        mode, uid, gid, size, accessed, modified = change
        if size is not None:
            node.fresh = 0
            truncate(name, within, handle, size)
        if mode is not None:
            os.chmod(name, stat.S_IMODE(mode), dir_fd=within)
        if uid is not None or gid is not None:
            owner, group = (-1 if one is None else one for one in (uid, gid))
            os.chown(name, owner, group, dir_fd=within, follow_symlinks=not node.places)
        if accessed is not None or modified is not None:
            if accessed is None or modified is None:
                before = self.status(node)
                accessed = before.st_atime_ns if accessed is None else accessed
                modified = before.st_mtime_ns if modified is None else modified
            os.utime(name, ns=(accessed, modified), dir_fd=within, follow_symlinks=not node.places)
        return self.getattr(ino, caller)

    def readlink(self, ino: int, caller: Caller) -> bytes:
        name, within = self.where(self.nodes[ino])
        return os.readlink(name, dir_fd=within)

    def getxattr(self, ino: int, name: bytes, caller: Caller) -> bytes:
        # The kernel asks for capabilities before the first write, programs for access lists.
        raise refusal(errno.ENODATA)

    def listxattr(self, ino: int, caller: Caller) -> list[bytes]:
        return []

    def setxattr(self, ino: int, name: bytes, value: bytes, flags: int, caller: Caller) -> None:
        raise refusal(errno.EOPNOTSUPP)

    def removexattr(self, ino: int, name: bytes, caller: Caller) -> None:
        raise refusal(errno.EOPNOTSUPP)

    def statfs(self) -> os.statvfs_result:
        return os.fstatvfs(self.root.fd)

    # Names

    def mknod(
        self, parent: int, name: bytes, mode: int, device: int, caller: Caller, *, umask: int = 0
    ) -> Entry:
        os.mknod(name, mode & ~umask, device, dir_fd=self.nodes[parent].fd)
        return self.made(self.nodes[parent], name)

    def mkdir(self, parent: int, name: bytes, mode: int, caller: Caller, *, umask: int = 0) -> Entry:
        os.mkdir(name, mode & ~umask, dir_fd=self.nodes[parent].fd)
        return self.made(self.nodes[parent], name)

    def symlink(self, parent: int, name: bytes, target: bytes, caller: Caller) -> Entry:
        os.symlink(target, name, dir_fd=self.nodes[parent].fd)
        return self.made(self.nodes[parent], name)

    def link(self, ino: int, parent: int, name: bytes, caller: Caller) -> Entry:
        node, folder = self.nodes[ino], self.nodes[parent]
        own, within = self.where(node)
        os.link(own, name, src_dir_fd=within, dst_dir_fd=folder.fd, follow_symlinks=not node.places)
        self.named(node, folder, name)
        node.count += 1
        return self.getattr(ino, caller)

    def unlink(self, parent: int, name: bytes, caller: Caller) -> None:
        folder = self.nodes[parent]
        os.unlink(name, dir_fd=folder.fd)
        self.unnamed(folder, name)

    def rmdir(self, parent: int, name: bytes, caller: Caller) -> None:
        folder = self.nodes[parent]
        os.rmdir(name, dir_fd=folder.fd)
        self.unnamed(folder, name)

    def rename(
        self, parent: int, name: bytes, new_parent: int, new_name: bytes, flags: int, caller: Caller
    ) -> None:
        # That nothing may be replaced, the kernel sees to: it knows every name.
        if flags & ~_RENAME_NOREPLACE:
            raise refusal(errno.EINVAL)
        old, new = self.nodes[parent], self.nodes[new_parent]
        os.rename(name, new_name, src_dir_fd=old.fd, dst_dir_fd=new.fd)
        node = old.names[name]
        # Of two names of one file both stay.
        if new.names.get(new_name) is not node:
            self.unnamed(new, new_name)
            self.unnamed(old, name)
            self.named(node, new, new_name)

    # Files

    def open(self, ino: int, flags: int, caller: Caller) -> OpenedFile:
        node = self.nodes[ino]
        name, within = self.where(node)
        fd = os.open(name, flags & ~_NOT_PASSED_ON, dir_fd=within)
        content = None
        if node.fresh:
            if flags & (os.O_ACCMODE | os.O_TRUNC) == os.O_RDONLY:
                content = os.pread(fd, node.fresh, 0)
            node.fresh = 0
        self.files[fd] = node
        return OpenedFile(fd, content is None, False, content)

    def create(
        self, parent: int, name: bytes, mode: int, flags: int, caller: Caller, *, umask: int = 0
    ) -> tuple[OpenedFile, Entry]:
        folder = self.nodes[parent]
        fd = os.open(name, flags & ~_NOT_PASSED_ON | os.O_CREAT, mode & ~umask, dir_fd=folder.fd)
        entry = self.made(folder, name, os.fstat(fd))
        self.files[fd] = self.nodes[entry.ino]
        return OpenedFile(fd, True), entry

    def read(self, handle: int, offset: int, size: int) -> bytes:
        return os.pread(handle, size, offset)

    def write(self, handle: int, offset: int, data: bytes | memoryview, *, strip: bool = False) -> int:
        return os.pwrite(handle, data, offset)

    def release(self, handle: int) -> None:
        del self.files[handle]
        os.close(handle)

    def fsync(self, handle: int, datasync: bool) -> None:
        (os.fdatasync if datasync else os.fsync)(handle)

    # Directories

    def opendir(self, ino: int, caller: Caller) -> int:
        handle = next(self.serial)
        self.listings[handle] = self.nodes[ino], []
        return handle

    def listing_lasts(self, handle: int) -> bool:
        return True

    def familiar(self, handle: int, start: int) -> bool:
        return True

    def readdir(self, handle: int, start: int, *, brief: bool = False) -> Iterator[tuple[bytes, Entry, int]]:
        folder, names = self.listings[handle]
        if start == 0:
            names[:] = os.listdir(b"/proc/self/fd/%d" % folder.fd)  # noqa: PTH208 - it gives no bytes
        for position, name in enumerate(names[start:] if start else names, start + 1):
            known = folder.names.get(name) if brief else None
            if known is not None:
                yield name, Entry(known.number, of_kind(known.kind), 1, _LONG, _LONG, False, True), position
                continue
            try:
                status = os.lstat(name, dir_fd=folder.fd)
            except FileNotFoundError:
                # Removed since the listing was begun.
                continue
            yield name, self.found(folder, name, status), position

    def releasedir(self, handle: int) -> None:
        del self.listings[handle]

    def fsyncdir(self, ino: int, datasync: bool) -> None:
        fd = os.open(b".", os.O_RDONLY | os.O_DIRECTORY, dir_fd=self.nodes[ino].fd)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)


def truncate(name: bytes, within: int, handle: int | None, size: int) -> None:
    """Through the handle where there is one: the file may be read-only by now."""
    fd = os.open(name, os.O_WRONLY, dir_fd=within) if handle is None else handle
    try:
        os.ftruncate(fd, size)
    finally:
        if handle is None:
            os.close(fd)


@cache
def of_kind(kind: int) -> os.stat_result:
    """A status of which only the type counts."""
    return os.stat_result((kind, *[0] * 9))


def refusal(code: int) -> OSError:
    return OSError(code, os.strerror(code))


def main() -> None:
    # Modes come as they are to be, and each directory that the kernel knows is held open.
    os.umask(0)
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    ready = partial(print, "served", flush=True)
    thinnest = Thinnest(sys.argv[1])
    trio.run(
        partial(serve, thinnest, sys.argv[2], Notifier(), read_only=False, allow_other=False, ready=ready)
    )


if __name__ == "__main__":
    main()
