"""How does something new appear in the view, and how does a name disappear?

What is new is made directly in the upper where the name is free; over a whiteout it is staged and exchanged
with it, so that at no moment the lower entry shows again. A name that a lower layer has is replaced by a
whiteout; a directory made where lower layers are merged is opaque.
"""

import errno
import os
import stat
from collections.abc import Callable

from sandboxfs.layers import marks
from sandboxfs.layers.hostdir import HostDir
from sandboxfs.overlay.copy_up import CopyUp
from sandboxfs.overlay.filesystem import Caller
from sandboxfs.overlay.merge import Merge
from sandboxfs.overlay.node import Directory, Found, Node
from sandboxfs.overlay.stack import host_error, stale, swap

NEW_FILE = os.O_CREAT | os.O_EXCL | os.O_RDWR
_SPECIAL = stat.S_ISUID | stat.S_ISGID | stat.S_ISVTX

Maker = Callable[[HostDir, bytes], None]
"""Makes an entry at a free name of a host directory."""


class Creation:
    """Makes and removes names."""

    def __init__(self, merge: Merge, copy_up: CopyUp) -> None:
        self._merge = merge
        self._stack = merge.stack
        self._copy_up = copy_up
        self._noting = copy_up.noting
        self._uid, self._gid = os.geteuid(), os.getegid()

    # Making

    def make(
        self, parent: Directory, name: bytes, caller: Caller, mode: int, make: Maker
    ) -> tuple[Node, Found]:
        """Make an entry at a free name with *make*, on behalf of *caller*."""
        if parent.only_upper and caller.uid == self._uid:
            # Making it is asking whether the name is free.
            upper = self._merge.fds.upper(parent)
            try:
                make(upper, name)
            except FileExistsError:
                # It is in the way, or a whiteout that hides nothing: found out below.
                pass
            else:
                self._own(upper, upper, name, caller, mode)
                return self._appeared(parent, name)
        is_directory = stat.S_ISDIR(mode)
        opaque = is_directory and bool(parent.lowers)
        upper = self.vacant(parent, name)

        def dressed(directory: HostDir, at: bytes) -> None:
            make(directory, at)
            if opaque:
                marks.set_opaque(directory, at)
            self._own(upper, directory, at, caller, mode)

        covered = upper.stat(name) is not None
        if covered and not is_directory:
            self._noting.replacement(parent, name)
        if covered or self._takes_steps(caller, opaque=opaque):
            self._staged(upper, name, dressed, covered=covered)
        else:
            dressed(upper, name)
        return self._appeared(parent, name)

    def make_plainly(
        self, parent: Directory, name: bytes, caller: Caller, permissions: int
    ) -> tuple[Node, os.stat_result, int] | None:
        """Make a file where the workspace has nothing; None where it takes `make`.

        Gives its node, its status and a read-write descriptor.
        """
        if (
            caller.uid != self._uid
            or caller.gid != self._gid
            or permissions & _SPECIAL
            or not self._merge.is_plain(parent, name)
        ):
            return None
        try:
            # Group and all are as the host makes them, which is as they should be.
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
        """Whether making the entry takes more than one call, so that a crash could leave half of it."""
        return opaque or caller.uid != self._uid

    def _staged(self, upper: HostDir, name: bytes, make: Maker, *, covered: bool) -> None:
        work = self._stack.staging.directory
        with self._stack.staging.name() as staged:
            make(work, staged)
            if not covered:
                work.rename(staged, upper, name)
            else:
                # A directory cannot be renamed over the whiteout; exchanged, the whiteout is thrown away.
                swap(work, staged, upper, name)

    def _own(self, parent: HostDir, directory: HostDir, name: bytes, caller: Caller, mode: int) -> None:
        """Give a new entry to the caller; group and set-group-id are inherited where the parent says so."""
        parent_stat = parent.own_stat()
        inherits = bool(parent_stat.st_mode & stat.S_ISGID)
        wanted_gid = parent_stat.st_gid if inherits else caller.gid
        if caller.uid != self._uid or wanted_gid != self._gid:
            try:
                directory.chown(name, caller.uid, wanted_gid)
            except PermissionError:
                # A group we are not in: as far as our privileges go.
                if self._uid == 0:
                    raise
        if stat.S_ISLNK(mode):
            return
        wanted_mode = stat.S_IMODE(mode)
        if inherits and stat.S_ISDIR(mode):
            wanted_mode |= stat.S_ISGID
        if wanted_mode & 0o7000 or inherits:
            # Making it in the work directory inherits nothing, and changing owners clears set-id bits.
            directory.chmod(name, wanted_mode)

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
        if directory.sealed is not None:
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

    # What removal means for the nodes

    def removed(self, parent: Directory, name: bytes, found: Found, node: Node | None) -> None:
        """Note that a name of a file is gone from the view."""
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
            # It lives on under names that nobody has looked up yet.
            node.parent = None

    def _links_left(self, found: Found) -> int:
        """How many names are left of the file that just lost one."""
        index = self._stack.index
        if found.indexed:
            record = marks.read_record(index.directory, index.link_name(found.ino))
            left = max(record.nlink - 1, 0)
            if left:
                marks.write_record(index.directory, index.link_name(found.ino), marks.Record(found.ino, left))
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
        marks.write_record(directory, name, marks.Record(node.number, record.nlink + change))

    def directory_gone(self, directory: Directory, last: os.stat_result | None) -> None:
        """Note that a directory is gone; a process may still have it as its working directory."""
        if last is None:
            last = self._merge.fds.lower(directory.lowers[0]).own_stat()
        self._merge.let_go(directory)
        directory.gone = last
        directory.lowers = ()
