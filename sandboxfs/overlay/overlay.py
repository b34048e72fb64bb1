"""The overlay as a filesystem: every verb of the protocol, each handed to the part that carries it out."""

import errno
import os
import stat
from collections.abc import Callable, Collection, Iterable, Iterator
from pathlib import Path

from sandboxfs.hostfs.copy import ACCESS_LIST
from sandboxfs.hostfs.directory import HostDir
from sandboxfs.overlay.attributes import InodeAttributes
from sandboxfs.overlay.copy_up import CopyUp
from sandboxfs.overlay.create import NEW_FILE, Creator, Maker
from sandboxfs.overlay.files import UNLIMITED, Files, Shares
from sandboxfs.overlay.filesystem import (
    ANYBODY,
    ROOT_INODE,
    Approve,
    AttributeChange,
    Caller,
    Entry,
    Offload,
    OpenedFile,
    Seen,
    Syncs,
    host_error,
)
from sandboxfs.overlay.host_changes import HostChanges
from sandboxfs.overlay.layers import LayerStack, OverlayPaths
from sandboxfs.overlay.live_edits import LiveEdits
from sandboxfs.overlay.lookup import Lookup
from sandboxfs.overlay.nodes import MOST_OPEN, Directory, Found, Node, path_of
from sandboxfs.overlay.readdir import DirectoryListings
from sandboxfs.overlay.rename import Rename
from sandboxfs.paths import joined

__all__ = ["Overlay", "OverlayPaths"]


# The most absent names of one directory that the kernel may cache for long: the kernel must be told to forget
# them when the workspace gets the directory (see `live_edits`) or when events were lost (see `host_changes`).
MOST_ABSENCES = 1024


class Overlay:
    """A merged, copy-on-write view of a stack of layers.

    The process must run with umask 0: the caller's umask is an argument where it counts. *watches* limits the
    watched directories of the workspace; with any, the daemon must act on the results of `HostChanges`.
    *open_files* and *open_directories* limit the open descriptors.
    """

    def __init__(
        self,
        paths: OverlayPaths,
        hidden: Iterable[Path] = (),
        sealed: Iterable[Path] = (),
        *,
        covered: Iterable[Path] = (),
        watches: int = 0,
        open_files: int = UNLIMITED,
        open_directories: int = MOST_OPEN,
    ) -> None:
        self._stack = LayerStack(paths, hidden, sealed, covered)
        self.beside = Offload()
        self._merge = Lookup(self._stack, watches, open_directories)
        self._watching = self._merge.watching
        self._inodes = self._merge.inodes
        self._copy_up = CopyUp(self._merge, self.beside)
        self._creation = Creator(self._merge, self._copy_up)
        self._rename = Rename(self._merge, self._copy_up, self._creation)
        self._attributes = InodeAttributes(self._merge, self._copy_up)
        syncs = Syncs(self.beside)
        self._files = Files(self._copy_up, self.beside, syncs, Shares(open_files))
        self._listings = DirectoryListings(self._merge, self._attributes, syncs)
        self._copy_up.dress_root()

    def let_writes_go_around_pages(self) -> None:
        """Rely on the kernel to drop the pages that it writes around."""
        self._files.direct = True

    def tell_of_modes(self, changed: Callable[[int], None]) -> None:
        """Call *changed*, before the answer, for each inode whose mode a write or access list changes."""
        self._files.mode_changed = changed

    def seal_foreign(self, places: Iterable[Path]) -> None:
        """Show these mountpoints of other sandboxes as empty directories, instead of the earlier ones."""
        self._merge.seal_foreign(places)

    def misplaced(self, path: bytes) -> bytes | None:
        """The path on the way to the covered directory *path* that the upper has replaced, or None."""
        return self._merge.misplaced(path)

    def suspect_all(self) -> None:
        """Make the kernel ask again for everything that it may have cached: it may be stale unnoticed."""
        self._watching.suspect_all()

    def upper_editor(self, commits: HostDir) -> LiveEdits:
        """The editor of the upper, for reviews; *commits* holds their records."""
        return LiveEdits(self._merge, self._files, commits)

    def mapped(self) -> list[int]:
        """The inodes of files that programs may have mapped for writing."""
        return [node.ino for node in self._files.mapped()]

    def noticing(self) -> HostChanges:
        """The detection of cached answers that a host edit made stale."""
        return HostChanges(self._merge, self._files)

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
        """Whether an absent name of *parent* cannot appear unnoticed."""
        directory = self._inodes.directory(parent)
        return directory.noticed and len(directory.absences or ()) < MOST_ABSENCES

    def remember(self, ino: int) -> None:
        self._inodes.node(ino).lookups += 1

    def forget(self, ino: int, count: int) -> bool:
        """Give references back; whether the inode went with the last of them."""
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

    # Places and paths

    def places(self, ino: int) -> list[tuple[int, bytes]]:
        """The known names of an inode, each as its directory and the name; the root has none.

        For an inode without a name, the last one that it had.
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
        """The path of an inode in the view, by one of its names; for an inode without one, by its last."""
        node = self._inodes.node(ino)
        return path_of(node.parent, node.name)

    def path_to(self, parent: int, name: bytes) -> bytes:
        """The path of a name in a directory."""
        return path_of(self._inodes.directory(parent), name)

    def is_dir(self, ino: int) -> bool:
        return isinstance(self._inodes.node(ino), Directory)

    def made_here(self, ino: int) -> bool:
        """Whether a file is wholly the sandbox's own: made there, and no copy of the workspace's content.

        Its number tells: a copied-up file keeps that of the workspace's file. A file whose number is a random
        one counts as a copy.
        """
        node = self._inodes.node(ino)
        return node.upper and self._merge.numbers.is_upper(node.number)

    def changed_here(self, ino: int) -> bool:
        """Whether the sandbox made or changed a file."""
        return self._inodes.node(ino).upper

    def readable(self, ino: int) -> int:
        """A descriptor of its own for reading a file, which the caller closes."""
        return self._files.readable(self._inodes.node(ino))

    def in_workspace(self, parent: int, name: bytes | None, at: bytes | None = None) -> bool:
        """Whether a directory, or with *name* an entry in it, comes from the workspace or has a path there.

        Both count: in the view a workspace entry may be moved away, and another entry put in its place. *at*
        is the path that the directory would have, where the question is about another path than its own.
        """
        directory = self._inodes.directory(parent)
        there = self._merge.lowers_at(self.path(parent) if at is None else at)
        if name is None:
            return bool(directory.lowers or there)
        return self._merge.lower_has(directory, name) or self._merge.has(there, name)

    @property
    def redirected(self) -> bool:
        """Whether any directory may have origins: a redirect has been followed or written."""
        return self._merge.redirected

    def origins(self, ino: int) -> Collection[bytes]:
        """The lower paths of a directory that its name and its parent do not lead to.

        A redirect leads there: the directory was renamed, or its upper was written to look so.
        """
        node = self._inodes.node(ino)
        if not isinstance(node, Directory) or node.parent is None:
            return ()
        natural = {joined(part.path, node.name) for part in node.parent.lowers}
        return {part.path for part in node.lowers} - natural

    def has_workspace_directory(self, path: bytes) -> bool:
        """Whether the workspace has a directory at a path, whatever the view has there."""
        return bool(self._merge.lowers_at(path))

    # Names

    def mknod(
        self, parent: int, name: bytes, mode: int, device: int, caller: Caller, *, umask: int = 0
    ) -> Entry:
        if stat.S_ISCHR(mode) and device == 0:
            # The device would be a whiteout.
            raise host_error(errno.EPERM)
        kind = stat.S_IFMT(mode)
        return self._made(parent, name, caller, mode, umask, lambda d, n, m: d.mknod(n, kind | m, device))

    def mkdir(self, parent: int, name: bytes, mode: int, caller: Caller, *, umask: int = 0) -> Entry:
        # mkdir(2) takes no set-id bits; the parent's set-group-id is inherited.
        mode = stat.S_IFDIR | mode & 0o1777
        return self._made(parent, name, caller, mode, umask, HostDir.mkdir)

    def symlink(self, parent: int, name: bytes, target: bytes, caller: Caller) -> Entry:
        return self._made(parent, name, caller, stat.S_IFLNK | 0o777, 0, lambda d, n, _: d.symlink(n, target))

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
        """Rename, unless *approve*, called with the entries at both names, raises."""
        directories = self._inodes.directory(parent), self._inodes.directory(new_parent)
        self._rename.rename(directories[0], name, directories[1], new_name, flags, approve)

    # Files

    def open(self, ino: int, flags: int, caller: Caller) -> OpenedFile:
        return self._files.open(self._inodes.node(ino), flags, caller)

    def create(
        self, parent: int, name: bytes, mode: int, flags: int, caller: Caller, *, umask: int = 0
    ) -> tuple[OpenedFile, Entry]:
        self._files.shares.check(caller.pid)
        directory = self._inodes.directory(parent)
        made = self._creation.make_plainly(directory, name, caller, stat.S_IMODE(mode), umask)
        if made is None:
            return self._create(directory, name, mode, flags, caller, umask)
        node, status, fd = made
        node.lookups += 1
        return self._files.opened_new(node, fd, flags, caller), self._attributes.entry(node, status)

    def _create(
        self, directory: Directory, name: bytes, mode: int, flags: int, caller: Caller, umask: int
    ) -> tuple[OpenedFile, Entry]:
        fds: list[int] = []
        mode = stat.S_IFREG | stat.S_IMODE(mode)

        def make(upper: HostDir, at: bytes, permissions: int) -> None:
            fds.append(upper.open(at, NEW_FILE, permissions))

        try:
            node, found = self._creation.make(directory, name, caller, mode, umask, make)
        except FileExistsError:
            return self._open_existing(directory.ino, name, flags, caller)
        except BaseException:
            for fd in fds:
                os.close(fd)
            raise
        opened = self._files.opened_new(node, fds[0], flags, caller, found.stat.st_mode)
        return opened, self._counted(node, found)

    def _open_existing(
        self, parent: int, name: bytes, flags: int, caller: Caller
    ) -> tuple[OpenedFile, Entry]:
        """Open a name that the host created after the kernel had found it absent."""
        if flags & os.O_EXCL:
            raise host_error(errno.EEXIST)
        entry = self.lookup(parent, name)
        if entry is None:
            raise host_error(errno.ESTALE)
        try:
            # The policy decided about a file, and may decide otherwise about a directory.
            if stat.S_ISDIR(entry.stat.st_mode):
                raise host_error(errno.EISDIR)
            return self.open(entry.ino, flags, caller), entry
        except BaseException:
            self.forget(entry.ino, 1)
            raise

    def read(self, handle: int, offset: int, size: int) -> bytes | memoryview:
        return self._files.read(handle, offset, size)

    def write(self, handle: int, offset: int, data: bytes | memoryview, *, strip: bool = False) -> int:
        return self._files.write(handle, offset, data, strip=strip)

    def release(self, handle: int) -> None:
        self._files.release(handle)

    def fsync(self, handle: int, datasync: bool) -> None:
        self._files.fsync(handle, datasync=datasync)

    # Directories

    def opendir(self, ino: int, caller: Caller = ANYBODY) -> int:
        return self._listings.open(self._inodes.directory(ino))

    def listing_lasts(self, handle: int) -> bool:
        """Whether a listing that was read to its end may stay cached until the kernel is notified."""
        return self._listings.lasts(handle)

    def familiar(self, handle: int, start: int) -> bool:
        """Whether the kernel knows most entries of a listing, so that they may be only mentioned."""
        return self._listings.is_familiar(handle, start)

    def readdir(self, handle: int, start: int, *, brief: bool = False) -> Iterator[tuple[bytes, Entry, int]]:
        """The entries after *start*; *brief*: entries that the kernel knows may be only mentioned."""
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
        if name == ACCESS_LIST:
            self._files.mode_changed(ino)

    def listxattr(self, ino: int, caller: Caller = ANYBODY) -> list[bytes]:
        return self._attributes.listxattr(self._inodes.node(ino))

    def removexattr(self, ino: int, name: bytes, caller: Caller = ANYBODY) -> None:
        self._attributes.removexattr(self._inodes.node(ino), name)
        if name == ACCESS_LIST:
            self._files.mode_changed(ino)

    def close(self) -> None:
        """Close every descriptor. Nothing is buffered: all written data is in the upper."""
        self._files.close()
        self._watching.close()
        self._merge.fds.close()
        self._stack.close()

    def _made(self, parent: int, name: bytes, caller: Caller, mode: int, umask: int, make: Maker) -> Entry:
        node, found = self._creation.make(self._inodes.directory(parent), name, caller, mode, umask, make)
        return self._counted(node, found)

    def _counted(self, node: Node, found: Found) -> Entry:
        node.lookups += 1
        return self._attributes.entry(node, found.stat)


def _whatever_it_is(source: Seen | None, target: Seen | None) -> None:
    """Approve any rename."""


def _note_absence(directory: Directory, name: bytes) -> None:
    if directory.absences is None:
        directory.absences = set()
    if len(directory.absences) < MOST_ABSENCES:
        directory.absences.add(name)
