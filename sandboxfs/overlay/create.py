"""Creating and removing names in the view.

A new entry is made directly in the upper where the upper has nothing at the name. Over a whiteout the entry
is staged and exchanged with the whiteout, so that at no moment the lower entry shows again. A removed name
that a lower layer has gets a whiteout; a new directory where lower directories would be merged is opaque.

The caller's umask counts only where the directory has no default access list, which takes the umask's place.
An entry made in the upper inherits that list from the host; a staged entry is given the same list.
"""

import errno
import os
import stat
from collections.abc import Callable

from sandboxfs.hostfs.copy import ACCESS_LIST, DEFAULT_LIST, NO_ACCESS_LIST, inherited_access_list
from sandboxfs.hostfs.directory import Held, HostDir, Named
from sandboxfs.overlay.copy_up import CopyUp
from sandboxfs.overlay.filesystem import Caller, host_error, stale
from sandboxfs.overlay.layers import swap
from sandboxfs.overlay.lookup import Lookup
from sandboxfs.overlay.nodes import Directory, Found, Node
from sandboxfs.upper import marks

NEW_FILE = os.O_CREAT | os.O_EXCL | os.O_RDWR
_SPECIAL = stat.S_ISUID | stat.S_ISGID | stat.S_ISVTX

Maker = Callable[[HostDir, bytes, int], None]
"""Makes an entry with the given permissions at a free name of a host directory."""


class Creator:
    """Makes and removes names."""

    def __init__(self, merge: Lookup, copy_up: CopyUp) -> None:
        self._merge = merge
        self._stack = merge.stack
        self._copy_up = copy_up
        self._noting = copy_up.noting
        self._uid, self._gid = os.geteuid(), os.getegid()

    # Making

    def make(
        self, parent: Directory, name: bytes, caller: Caller, mode: int, umask: int, make: Maker
    ) -> tuple[Node, Found]:
        """Make an entry at a free name with *make*, for *caller*."""
        if parent.only_upper and caller.uid == self._uid:
            # The attempt to make the entry tells whether the name is free.
            upper = self._merge.fds.upper(parent)
            masked = mode if self._default_list(parent) else mode & ~umask
            try:
                make(upper, name, stat.S_IMODE(masked))
            except FileExistsError:
                # The name is taken, or has a whiteout that hides nothing: the steps below tell.
                pass
            else:
                self._own(upper, upper, name, caller, masked)
                return self._appeared(parent, name)
        opaque = stat.S_ISDIR(mode) and bool(parent.lowers)
        upper = self.vacant(parent, name)
        default = self._default_list(parent)
        masked = mode if default else mode & ~umask

        def dressed(directory: HostDir, at: bytes) -> None:
            make(directory, at, stat.S_IMODE(masked))
            if opaque:
                marks.set_opaque(directory, at)
            if default and directory is not upper:
                _bequeath(default, directory, at, masked)
            self._own(upper, directory, at, caller, masked)

        covered = upper.stat(name) is not None
        if covered and not stat.S_ISDIR(mode):
            self._noting.replacement(parent, name)
        if covered or self._takes_steps(caller, opaque=opaque):
            self._staged(upper, name, dressed, covered=covered)
        else:
            dressed(upper, name)
        return self._appeared(parent, name)

    def _default_list(self, parent: Directory) -> bytes:
        """The access list that new entries of an upper directory inherit; empty where there is none."""
        if parent.default_list is None:
            try:
                parent.default_list = Held(self._merge.fds.upper(parent).fd).getxattr(DEFAULT_LIST)
            except OSError as error:
                if error.errno not in NO_ACCESS_LIST:
                    raise
                parent.default_list = b""
        return parent.default_list

    def make_plainly(
        self, parent: Directory, name: bytes, caller: Caller, permissions: int, umask: int
    ) -> tuple[Node, os.stat_result, int] | None:
        """Make a file where the workspace has nothing; None where the case takes `make`.

        Gives the file's node, its status and a read-write descriptor.
        """
        if (
            caller.uid != self._uid
            or caller.gid != self._gid
            or permissions & _SPECIAL
            or not self._merge.is_plain(parent, name)
        ):
            return None
        if not (self._default_list(parent) if parent.default_list is None else parent.default_list):
            permissions &= ~umask
        try:
            # The host sets the group and applies access lists as the view needs them.
            fd = self._merge.fds.upper(parent).open(name, NEW_FILE, permissions)
        except FileExistsError:
            return None
        try:
            status = os.fstat(fd)
            return self._merge.made_file(parent, name, status), status, fd
        except BaseException:
            os.close(fd)
            raise

    def link(self, node: Node, parent: Directory, name: bytes) -> Found:
        """Give an existing node another name."""
        if node.gone is not None:
            raise host_error(errno.ENOENT)
        upper = self.vacant(parent, name)
        self._copy_up.content(node)
        directory, at = self._copy_up.location(node)
        if upper.stat(name) is not None:
            self._noting.replacement(parent, name)
            work = self._stack.staging.directory
            with self._stack.staging.name() as staged:
                directory.link(at, work, staged)
                work.rename(staged, upper, name)
        else:
            directory.link(at, upper, name)
        if node.indexed:
            self.count_links(node, +1)
        found = self._merge.find(parent, name)
        if found is None:
            raise stale()
        node.place_at(parent, name)
        return found

    def vacant(self, parent: Directory, name: bytes) -> HostDir:
        """The upper part of *parent*, provided that the view has nothing at *name*."""
        if parent.gone is not None:
            raise host_error(errno.ENOENT)
        if parent.masks is not None and name in parent.masks:
            raise host_error(errno.EACCES if parent.masks[name] is None else errno.EEXIST)
        if self._merge.find(parent, name) is not None:
            raise host_error(errno.EEXIST)
        return self._copy_up.directory(parent)

    def _takes_steps(self, caller: Caller, *, opaque: bool) -> bool:
        """Whether making the entry takes several calls, so that a crash could leave it half made."""
        return opaque or caller.uid != self._uid

    def _staged(
        self, upper: HostDir, name: bytes, make: Callable[[HostDir, bytes], None], *, covered: bool
    ) -> None:
        work = self._stack.staging.directory
        with self._stack.staging.name() as staged:
            make(work, staged)
            if not covered:
                work.rename(staged, upper, name)
            else:
                # A directory cannot be renamed over the whiteout; after the exchange the whiteout is removed.
                swap(work, staged, upper, name)

    def _own(self, parent: HostDir, directory: HostDir, name: bytes, caller: Caller, mode: int) -> None:
        """Give a new entry to the caller; group and set-group-id are inherited from a set-group-id parent."""
        parent_stat = parent.own_stat()
        inherits = bool(parent_stat.st_mode & stat.S_ISGID)
        wanted_gid = parent_stat.st_gid if inherits else caller.gid
        if caller.uid != self._uid or wanted_gid != self._gid:
            try:
                directory.chown(name, caller.uid, wanted_gid)
            except PermissionError:
                # A group that the daemon is not in: the ownership stays as far as its privileges go.
                if self._uid == 0:
                    raise
        if stat.S_ISLNK(mode):
            return
        special = mode & _SPECIAL
        if inherits and stat.S_ISDIR(mode):
            special |= stat.S_ISGID
        if special or inherits:
            # An entry made in the work directory inherits no bit, and changing owners clears set-id bits.
            made = directory.stat(name)
            if made is None:
                raise stale()
            # The permissions may come from a default access list.
            directory.chmod(name, made.st_mode & 0o777 | special)

    def _appeared(self, parent: Directory, name: bytes) -> tuple[Node, Found]:
        upper = self._merge.fds.upper(parent)
        status = upper.stat(name)
        if status is None:
            raise stale()
        if not (stat.S_ISREG(status.st_mode) or stat.S_ISDIR(status.st_mode)):
            self._stack.index.drop_number(status.st_ino)
        found = Found(status, self._merge.numbers.of_upper(status), upper=True)
        return self._merge.node_of(parent, name, found), found

    # Removing

    def unlink(self, parent: Directory, name: bytes) -> None:
        if self._merge.is_plain(parent, name):
            upper = self._merge.fds.upper(parent)
            made = self._merge.made_here(upper, name)
            if made is not None:
                node, status = made
                upper.unlink(name)
                node.gone, node.aliases = status, None
                return
        self._unlink(parent, name)

    def _unlink(self, parent: Directory, name: bytes) -> None:
        found = self.existing(parent, name)
        if stat.S_ISDIR(found.stat.st_mode):
            raise host_error(errno.EISDIR)
        node = self._merge.inodes.known(found)
        upper = self._copy_up.directory(parent)
        self._noting.removal(parent, name, found)
        if not found.upper or self._merge.lower_has(parent, name):
            self._stack.put_whiteout(upper, name)
        else:
            upper.unlink(name)
        self.removed(parent, name, found, node)

    def rmdir(self, parent: Directory, name: bytes) -> None:
        found = self.existing(parent, name)
        if not stat.S_ISDIR(found.stat.st_mode):
            raise host_error(errno.ENOTDIR)
        node = self._merge.node_of(parent, name, found)
        try:
            if isinstance(node, Directory):
                self._rmdir(parent, name, node, found)
        finally:
            self._merge.inodes.discard_unused(node)

    def _rmdir(self, parent: Directory, name: bytes, directory: Directory, found: Found) -> None:
        if directory.sealed is not None or self._merge.is_pinned(found):
            raise host_error(errno.EBUSY)
        if not self._merge.is_empty(directory):
            raise host_error(errno.ENOTEMPTY)
        last = self._merge.fds.upper(directory).own_stat() if directory.upper else None
        upper = self._copy_up.directory(parent)
        self._noting.removal(parent, name, found)
        if self._merge.lower_has(parent, name):
            self._stack.put_whiteout(upper, name)
        else:
            self.remove_upper_directory(upper, name)
        self.directory_gone(directory, last)

    def remove_upper_directory(self, upper: HostDir, name: bytes) -> None:
        """Remove an upper directory that holds nothing but whiteouts."""
        try:
            upper.rmdir(name)
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise
            self._stack.staging.absorb(upper, name)

    def existing(self, parent: Directory, name: bytes) -> Found:
        found = self._merge.find(parent, name)
        if found is None:
            raise host_error(errno.ENOENT)
        return found

    # Nodes after a removal

    def removed(self, parent: Directory, name: bytes, found: Found, node: Node | None) -> None:
        """Record in the node that a name of a file is gone from the view."""
        left = self._links_left(found)
        if found.upper and not left and not stat.S_ISREG(found.stat.st_mode):
            self._stack.index.drop_number(found.stat.st_ino)
        if node is None:
            return
        if not left:
            node.gone = found.stat
            node.aliases = None
            node.indexed = False
        elif not node.lose_place(parent, name):
            # The file has further names, which the kernel has not looked up yet.
            node.parent = None

    def _links_left(self, found: Found) -> int:
        """The number of names left of a file that just lost one."""
        index = self._stack.index
        if found.indexed:
            record = marks.read_record(index.directory, index.link_name(found.ino))
            left = max(record.nlink - 1, 0)
            if left:
                marks.write_record(
                    index.directory, index.link_name(found.ino), marks.InodeRecord(found.ino, left)
                )
            else:
                index.drop_link(found.ino)
            return left
        if not found.upper and found.stat.st_nlink > 1:
            index.lose_name(found.ino)
            return max(found.stat.st_nlink - index.names_lost(found.ino), 0)
        return found.stat.st_nlink - 1

    def count_links(self, node: Node, change: int) -> None:
        directory, name = self._copy_up.location(node)
        record = marks.read_record(directory, name)
        marks.write_record(directory, name, marks.InodeRecord(node.number, record.nlink + change))

    def directory_gone(self, directory: Directory, last: os.stat_result | None) -> None:
        """Mark a directory as removed; a process may still have it as its working directory."""
        if last is None:
            last = self._merge.fds.lower(directory.lowers[0]).own_stat()
        self._merge.let_go(directory)
        directory.gone = last
        directory.lowers = ()


def _bequeath(default: bytes, directory: HostDir, name: bytes, mode: int) -> None:
    """Give a staged entry the access lists that it would have inherited in its future directory."""
    if stat.S_ISLNK(mode):
        return
    permissions, access = inherited_access_list(default, stat.S_IMODE(mode))
    directory.chmod(name, permissions)
    entry = Named(directory, name)
    if access is not None:
        entry.setxattr(ACCESS_LIST, access, 0)
    if stat.S_ISDIR(mode):
        entry.setxattr(DEFAULT_LIST, default, 0)
