"""The overlay as a filesystem: every verb of the protocol, each handed to the part that answers it."""

import errno
import os
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path

from sandboxfs.layers.hostdir import HostDir
from sandboxfs.overlay.attributes import Attributes
from sandboxfs.overlay.copy_up import CopyUp
from sandboxfs.overlay.creation import NEW_FILE, Creation, Maker
from sandboxfs.overlay.files import Files
from sandboxfs.overlay.filesystem import (
    ANYBODY,
    ROOT_INODE,
    Approve,
    AttributeChange,
    Caller,
    Entry,
    Opened,
    Seen,
)
from sandboxfs.overlay.later import Beside
from sandboxfs.overlay.listing import Listings
from sandboxfs.overlay.merge import Merge
from sandboxfs.overlay.node import Directory, Found, Node
from sandboxfs.overlay.noticing import Noticing
from sandboxfs.overlay.rename import Rename
from sandboxfs.overlay.settling import LiveSettling
from sandboxfs.overlay.stack import OverlayPaths, Stack, host_error
from sandboxfs.overlay.syncing import Syncs

__all__ = ["Overlay", "OverlayPaths"]


# So many absent names of a directory the kernel may remember for long: it must be told to forget them when
# the workspace gets the directory (see `settling`) or when events were lost (see `noticing`).
MOST_ABSENCES = 1024


class Overlay:
    """A merged, copy-on-write view of a stack of layers.

    Run it with a umask of 0: the modes it is given have been through the caller's. So many directories of the
    workspace as *watches* says may be watched: then somebody must do as `noticing` says.
    """

    def __init__(
        self,
        paths: OverlayPaths,
        hidden: Iterable[Path] = (),
        sealed: Iterable[Path] = (),
        *,
        watches: int = 0,
    ) -> None:
        self._stack = Stack(paths, hidden, sealed)
        self.beside = Beside()
        self._merge = Merge(self._stack, watches)
        self._watching = self._merge.watching
        self._inodes = self._merge.inodes
        self._copy_up = CopyUp(self._merge, self.beside)
        self._creation = Creation(self._merge, self._copy_up)
        self._rename = Rename(self._merge, self._copy_up, self._creation)
        self._attributes = Attributes(self._merge, self._copy_up)
        syncs = Syncs(self.beside)
        self._files = Files(self._copy_up, self.beside, syncs)
        self._listings = Listings(self._merge, self._attributes, syncs)
        self._copy_up.dress_root()

    def let_writes_go_around_pages(self) -> None:
        """Rely on the kernel to take away the pages that become wrong when it writes around them."""
        self._files.direct = True

    def seal_foreign(self, places: Iterable[Path]) -> None:
        """Show these mountpoints of other sandboxes as empty directories, instead of those given before."""
        self._merge.seal_foreign(places)

    def suspect_all(self) -> None:
        """Have everything asked for again that the kernel may have cached: it may be outdated unnoticed."""
        self._watching.suspect_all()

    def settling(self, commits: HostDir) -> LiveSettling:
        """What changes the upper for those who review it; *commits* holds their records."""
        return LiveSettling(self._merge, self._files, commits)

    def noticing(self) -> Noticing:
        """What tells which of the answers given are outdated by what the host did since."""
        return Noticing(self._merge, self._files)

    # Looking

    def lookup(self, parent: int, name: bytes, caller: Caller = ANYBODY) -> Entry | None:
        directory = self._inodes.directory(parent)
        if directory.watches is None:
            self._watching.need(directory)
        found = self._merge.look(directory, name)
        if found is None:
            if directory.noticed:
                _note_absence(directory, name)
            return None
        if directory.told:
            directory.told += 1
        else:
            directory.tell(1)
        node, status = found
        node.lookups += 1
        return self._attributes.entry(node, status)

    def absence_lasts(self, parent: int) -> bool:
        """Whether a name that *parent* does not have cannot appear unnoticed."""
        directory = self._inodes.directory(parent)
        return directory.noticed and len(directory.absences or ()) < MOST_ABSENCES

    def remember(self, ino: int) -> None:
        self._inodes.node(ino).lookups += 1

    def forget(self, ino: int, count: int) -> bool:
        """Take references back; whether that was the last."""
        return self._inodes.forget(ino, count)

    def getattr(self, ino: int, caller: Caller = ANYBODY) -> Entry:
        return self._attributes.entry(self._inodes.node(ino))

    def setattr(self, ino: int, change: AttributeChange, handle: int | None, caller: Caller) -> Entry:
        node = self._inodes.node(ino)
        if change.size is not None:
            self._files.truncate(node, change.size, caller)
        self._attributes.change(node, change)
        return self._attributes.entry(node)

    def readlink(self, ino: int, caller: Caller = ANYBODY) -> bytes:
        return self._attributes.readlink(self._inodes.node(ino))

    def statfs(self) -> os.statvfs_result:
        return os.fstatvfs(self._stack.upper.fd)

    # Where things are

    def places(self, ino: int) -> list[tuple[int, bytes]]:
        """The known names of an inode, each as the directory it is in and the name; the root has none.

        Of one that lives on without a name, the last it had.
        """
        node = self._inodes.node(ino)
        if ino == ROOT_INODE or node.parent is None:
            return []
        names = node.aliases or {(node.parent, node.name)}
        return [(parent.ino, name) for parent, name in names if self._inodes.taken(parent.ino)]

    def inodes(self) -> list[int]:
        """All inodes that the kernel remembers."""
        return self._inodes.numbers()

    def path(self, ino: int) -> bytes:
        """The path of an inode in the view, by one of its names; of one without any, its last."""
        node = self._inodes.node(ino)
        return _path(node.parent, node.name)

    def path_to(self, parent: int, name: bytes) -> bytes:
        """The path of a name in a directory."""
        return _path(self._inodes.directory(parent), name)

    def is_dir(self, ino: int) -> bool:
        return isinstance(self._inodes.node(ino), Directory)

    def in_workspace(self, parent: int, name: bytes | None, at: bytes | None = None) -> bool:
        """Whether a directory, or with *name* an entry in it, comes from the workspace or is placed there.

        Both count: what the workspace has may be moved away in the view, and something else put in its
        place. *at* is the path where the directory would be, when that is not where it is.
        """
        directory = self._inodes.directory(parent)
        there = self._merge.lowers_at(self.path(parent) if at is None else at)
        if name is None:
            return bool(directory.lowers or there)
        return self._merge.lower_has(directory, name) or self._merge.has(there, name)

    def has_workspace_directory(self, path: bytes) -> bool:
        """Whether the workspace has a directory at that path of the view, whatever the view has there."""
        return bool(self._merge.lowers_at(path))

    # Names

    def mknod(self, parent: int, name: bytes, mode: int, device: int, caller: Caller) -> Entry:
        if stat.S_ISCHR(mode) and device == 0:
            # It would be a whiteout.
            raise host_error(errno.EPERM)
        return self._made(parent, name, caller, mode, lambda d, n: d.mknod(n, mode, device))

    def mkdir(self, parent: int, name: bytes, mode: int, caller: Caller) -> Entry:
        # mkdir(2) takes no set-id bits; the parent's set-group-id is inherited.
        permissions = mode & 0o1777
        return self._made(
            parent, name, caller, stat.S_IFDIR | permissions, lambda d, n: d.mkdir(n, permissions)
        )

    def symlink(self, parent: int, name: bytes, target: bytes, caller: Caller) -> Entry:
        return self._made(parent, name, caller, stat.S_IFLNK | 0o777, lambda d, n: d.symlink(n, target))

    def link(self, ino: int, parent: int, name: bytes, caller: Caller = ANYBODY) -> Entry:
        node = self._inodes.node(ino)
        if isinstance(node, Directory):
            raise host_error(errno.EPERM)
        found = self._creation.link(node, self._inodes.directory(parent), name)
        return self._counted(node, found)

    def unlink(self, parent: int, name: bytes, caller: Caller = ANYBODY) -> None:
        self._creation.unlink(self._inodes.directory(parent), name)

    def rmdir(self, parent: int, name: bytes, caller: Caller = ANYBODY) -> None:
        self._creation.rmdir(self._inodes.directory(parent), name)

    def rename(
        self, parent: int, name: bytes, new_parent: int, new_name: bytes, flags: int, caller: Caller = ANYBODY
    ) -> None:
        self.move(parent, name, new_parent, new_name, flags, _whatever_it_is)

    def move(
        self, parent: int, name: bytes, new_parent: int, new_name: bytes, flags: int, approve: Approve
    ) -> None:
        """Rename, if *approve* has nothing against it when told what is at both names."""
        directories = self._inodes.directory(parent), self._inodes.directory(new_parent)
        self._rename.rename(directories[0], name, directories[1], new_name, flags, approve)

    # Files

    def open(self, ino: int, flags: int, caller: Caller) -> Opened:
        return self._files.open(self._inodes.node(ino), flags, caller)

    def create(self, parent: int, name: bytes, mode: int, flags: int, caller: Caller) -> tuple[Opened, Entry]:
        directory = self._inodes.directory(parent)
        made = self._creation.make_plainly(directory, name, caller, stat.S_IMODE(mode))
        if made is None:
            return self._create(directory, name, mode, flags, caller)
        node, status, fd = made
        node.lookups += 1
        return self._files.opened_new(node, fd, flags, caller), self._attributes.entry(node, status)

    def _create(
        self, directory: Directory, name: bytes, mode: int, flags: int, caller: Caller
    ) -> tuple[Opened, Entry]:
        fds: list[int] = []
        mode = stat.S_IFREG | stat.S_IMODE(mode)

        def make(upper: HostDir, at: bytes) -> None:
            fds.append(upper.open(at, NEW_FILE, stat.S_IMODE(mode)))

        try:
            node, found = self._creation.make(directory, name, caller, mode, make)
        except FileExistsError:
            return self._open_existing(directory.ino, name, flags, caller)
        except BaseException:
            for fd in fds:
                os.close(fd)
            raise
        opened = self._files.opened_new(node, fds[0], flags, caller)
        return opened, self._counted(node, found)

    def _open_existing(self, parent: int, name: bytes, flags: int, caller: Caller) -> tuple[Opened, Entry]:
        """The name appeared (on the host) after the kernel had found it absent."""
        if flags & os.O_EXCL:
            raise host_error(errno.EEXIST)
        entry = self.lookup(parent, name)
        if entry is None:
            raise host_error(errno.ESTALE)
        try:
            return self.open(entry.ino, flags, caller), entry
        except BaseException:
            self.forget(entry.ino, 1)
            raise

    def read(self, handle: int, offset: int, size: int) -> bytes | memoryview:
        return self._files.read(handle, offset, size)

    def write(self, handle: int, offset: int, data: bytes | memoryview) -> int:
        return self._files.write(handle, offset, data)

    def release(self, handle: int) -> None:
        self._files.release(handle)

    def fsync(self, handle: int, datasync: bool) -> None:
        self._files.fsync(handle, datasync=datasync)

    # Directories

    def opendir(self, ino: int, caller: Caller = ANYBODY) -> int:
        return self._listings.open(self._inodes.directory(ino))

    def listing_lasts(self, handle: int) -> bool:
        """Whether a listing, read to its end, stays right until something is noticed."""
        return self._listings.lasts(handle)

    def familiar(self, handle: int, start: int) -> bool:
        """Whether the kernel knows most of what a directory lists, and need not be told again."""
        return self._listings.is_familiar(handle, start)

    def readdir(self, handle: int, start: int, *, brief: bool = False) -> Iterator[tuple[bytes, Entry, int]]:
        """What comes after *start*; *brief*: what the kernel knows already may be only mentioned."""
        return self._listings.read(handle, start, brief=brief)

    def releasedir(self, handle: int) -> None:
        self._listings.release(handle)

    def fsyncdir(self, ino: int, datasync: bool) -> None:
        self._listings.sync(self._inodes.directory(ino))

    # Extended attributes

    def getxattr(self, ino: int, name: bytes, caller: Caller = ANYBODY) -> bytes:
        return self._attributes.getxattr(self._inodes.node(ino), name)

    def setxattr(self, ino: int, name: bytes, value: bytes, flags: int, caller: Caller = ANYBODY) -> None:
        self._attributes.setxattr(self._inodes.node(ino), name, value, flags)

    def listxattr(self, ino: int, caller: Caller = ANYBODY) -> list[bytes]:
        return self._attributes.listxattr(self._inodes.node(ino))

    def removexattr(self, ino: int, name: bytes, caller: Caller = ANYBODY) -> None:
        self._attributes.removexattr(self._inodes.node(ino), name)

    def close(self) -> None:
        """Close every descriptor. Nothing is buffered: what was written is in the upper."""
        self._files.close()
        self._watching.close()
        self._merge.fds.close()
        self._stack.close()

    def _made(self, parent: int, name: bytes, caller: Caller, mode: int, make: Maker) -> Entry:
        node, found = self._creation.make(self._inodes.directory(parent), name, caller, mode, make)
        return self._counted(node, found)

    def _counted(self, node: Node, found: Found) -> Entry:
        node.lookups += 1
        return self._attributes.entry(node, found.stat)


def _whatever_it_is(source: Seen | None, target: Seen | None) -> None:
    """Approve."""


def _path(above: Directory | None, name: bytes) -> bytes:
    while above is not None and above.ino != ROOT_INODE:
        name = above.name + b"/" + name
        above = above.parent
    return name


def _note_absence(directory: Directory, name: bytes) -> None:
    if directory.absences is None:
        directory.absences = set()
    if len(directory.absences) < MOST_ABSENCES:
        directory.absences.add(name)
