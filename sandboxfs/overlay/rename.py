"""Renaming in the view: exchanges, replacements, redirects.

The source is copied up first (a file whole, a directory without its content), and every step that may fail is
done before the one host rename that makes the change. A directory with lower content takes a redirect along,
which names the path of that content: renaming costs the same whatever is below. Where a lower layer still has
the old name, the rename leaves a whiteout there in the same call.
"""

import errno
import stat

from sandboxfs.hostfs.directory import NO_SUCH_RENAME, HostDir
from sandboxfs.hostfs.syscalls import RENAME_EXCHANGE, RENAME_NOREPLACE, RENAME_WHITEOUT
from sandboxfs.overlay.copy_up import CopyUp
from sandboxfs.overlay.create import Creator
from sandboxfs.overlay.filesystem import Approve, Seen, host_error
from sandboxfs.overlay.layers import swap
from sandboxfs.overlay.lookup import Lookup, ancestors
from sandboxfs.overlay.nodes import Directory, Found, Node
from sandboxfs.upper import marks


class Rename:
    """Moves and exchanges names."""

    def __init__(self, merge: Lookup, copy_up: CopyUp, creation: Creator) -> None:
        self._merge = merge
        self._stack = merge.stack
        self._copy_up = copy_up
        self._creation = creation
        self._noting = copy_up.noting
        # Until the upper's filesystem refuses RENAME_NOREPLACE.
        self._asks_by_renaming = True

    def rename(
        self,
        parent: Directory,
        name: bytes,
        new_parent: Directory,
        new_name: bytes,
        flags: int,
        approve: Approve,
    ) -> None:
        if flags & ~(RENAME_NOREPLACE | RENAME_EXCHANGE) or flags == RENAME_NOREPLACE | RENAME_EXCHANGE:
            raise host_error(errno.EINVAL)
        exchanges = bool(flags & RENAME_EXCHANGE)
        if not exchanges and self._renamed_plainly(parent, name, new_parent, new_name, approve):
            return
        source = self._merge.find(parent, name)
        target = self._merge.find(new_parent, new_name)
        node = None if source is None else self._merge.node_of(parent, name, source)
        other = None if target is None else self._merge.node_of(new_parent, new_name, target)
        try:
            approve(_seen(node), _seen(other))
            if source is None or node is None:
                raise host_error(errno.ENOENT)
            self._refuse_masked(new_parent, new_name, source, target)
            _refuse_by_flags(target, flags)
            if new_parent.gone is not None:
                raise host_error(errno.ENOENT)
            if other is node:
                return
            _refuse_loop(node, new_parent)
            if exchanges and other is not None:
                _refuse_loop(other, parent)
                self._exchange(parent, name, node, new_parent, new_name, other)
            else:
                self._move(parent, name, node, new_parent, new_name, target, other)
        finally:
            for found in (node, other):
                if found is not None:
                    self._merge.inodes.discard_unused(found)

    def _renamed_plainly(
        self, parent: Directory, name: bytes, new_parent: Directory, new_name: bytes, approve: Approve
    ) -> bool:
        """Rename a file made in the sandbox to a free name, where the workspace has neither."""
        if not self._asks_by_renaming or not (
            self._merge.is_plain(parent, name) and self._merge.is_plain(new_parent, new_name)
        ):
            return False
        upper, new_upper = self._merge.fds.upper(parent), self._merge.fds.upper(new_parent)
        made = self._merge.made_here(upper, name)
        if made is None:
            return False
        node, _ = made
        approve(Seen(node.ino, is_dir=False), None)
        try:
            # The attempt to rename tells whether the new name is free.
            upper.rename(name, new_upper, new_name, RENAME_NOREPLACE)
        except OSError as error:
            if error.errno in NO_SUCH_RENAME:
                self._asks_by_renaming = False
            elif error.errno != errno.EEXIST:
                raise
            return False
        node.move((parent, name), new_parent, new_name)
        return True

    def _move(
        self,
        parent: Directory,
        name: bytes,
        node: Node,
        new_parent: Directory,
        new_name: bytes,
        target: Found | None,
        other: Node | None,
    ) -> None:
        if other is not None:
            self._check_replaceable(node, other)
        self._prepare(parent, name, node, new_parent)
        from_upper = self._copy_up.directory(parent)
        to_upper = self._copy_up.directory(new_parent)
        self._note(node, new_parent, new_name, target)
        last = None
        if isinstance(other, Directory):
            last = (self._merge.fds.upper if other.upper else self._lower_of)(other).own_stat()
        leaves_whiteout = self._merge.lower_has(parent, name)
        self._rename_upper(from_upper, name, node, to_upper, new_name, leaves_whiteout=leaves_whiteout)
        if isinstance(other, Directory):
            self._creation.directory_gone(other, last)
        elif other is not None and target is not None:
            self._creation.removed(new_parent, new_name, target, other)
        node.move((parent, name), new_parent, new_name)

    def _exchange(
        self,
        parent: Directory,
        name: bytes,
        node: Node,
        new_parent: Directory,
        new_name: bytes,
        other: Node,
    ) -> None:
        self._prepare(parent, name, node, new_parent)
        self._prepare(new_parent, new_name, other, parent)
        swap(self._copy_up.directory(parent), name, self._copy_up.directory(new_parent), new_name)
        node.move((parent, name), new_parent, new_name)
        other.move((new_parent, new_name), parent, name)

    def _prepare(self, parent: Directory, name: bytes, node: Node, new_parent: Directory) -> None:
        """Copy the source up, and mark a directory so that it shows the same content in its new place."""
        if not isinstance(node, Directory):
            self._copy_up.name(parent, name, node)
            return
        self._copy_up.directory(node)
        upper = self._copy_up.directory(parent)
        if node.lowers:
            self._merge.redirected = True
            marks.set_redirect(upper, name, node.origin)
        elif new_parent.lowers:
            marks.set_opaque(upper, name)

    def _note(self, node: Node, new_parent: Directory, new_name: bytes, target: Found | None) -> None:
        """Note in the baseline the workspace's entry at the new name of *node*."""
        if target is not None:
            self._noting.removal(new_parent, new_name, target, keep=node.kind == stat.S_IFREG)
        elif (
            not isinstance(node, Directory)
            and new_parent.lowers
            and self._merge.upper_has(new_parent, new_name)
        ):
            self._noting.replacement(new_parent, new_name)

    def _check_replaceable(self, node: Node, other: Node) -> None:
        if isinstance(other, Directory):
            if not isinstance(node, Directory):
                raise host_error(errno.EISDIR)
            if not self._merge.is_empty(other):
                raise host_error(errno.ENOTEMPTY)
        elif isinstance(node, Directory):
            raise host_error(errno.ENOTDIR)

    def _rename_upper(
        self,
        source: HostDir,
        name: bytes,
        node: Node,
        target: HostDir,
        new_name: bytes,
        *,
        leaves_whiteout: bool,
    ) -> None:
        """Make the change: one host rename, or an exchange after which the replaced entry is removed."""
        in_the_way = target.stat(new_name) if isinstance(node, Directory) else None
        if in_the_way is not None:
            # A whiteout, or a directory that is empty in the view but may hold whiteouts: no rename replaces
            # either. After the exchange it has the source's old name, until the next call removes it.
            swap(source, name, target, new_name)
            if leaves_whiteout:
                if not self._stack.whiteouts.covers(source, name, in_the_way):
                    self._stack.put_whiteout(source, name)
            else:
                self._stack.staging.absorb(source, name)
        elif not leaves_whiteout:
            source.rename(name, target, new_name)
        elif not self._renamed_with_whiteout(source, name, target, new_name):
            with self._stack.staging.name() as staged:
                # The whiteout is made first: after the rename no step may fail.
                work = self._stack.staging.directory
                self._stack.whiteouts.announce(source)
                self._stack.whiteouts.create(work, staged)
                source.rename(name, target, new_name)
                work.rename(staged, source, name)

    def _renamed_with_whiteout(self, source: HostDir, name: bytes, target: HostDir, new_name: bytes) -> bool:
        """Rename and leave a whiteout in one call, where the filesystem supports that."""
        if not self._stack.whiteouts.devices:
            return False
        try:
            source.rename(name, target, new_name, RENAME_WHITEOUT)
        except OSError as error:
            if error.errno == errno.EINVAL:
                return False
            raise
        return True

    def _lower_of(self, directory: Directory) -> HostDir:
        return self._merge.fds.lower(directory.lowers[0])

    def _refuse_masked(
        self, new_parent: Directory, new_name: bytes, source: Found, target: Found | None
    ) -> None:
        for found in (source, target):
            if found is not None and (found.sealed or self._merge.is_pinned(found)):
                raise host_error(errno.EBUSY)
        if target is None and new_parent.masks is not None and new_name in new_parent.masks:
            raise host_error(errno.EACCES)


def _seen(node: Node | None) -> Seen | None:
    return None if node is None else Seen(node.ino, isinstance(node, Directory))


def _refuse_by_flags(target: Found | None, flags: int) -> None:
    if target is not None and flags & RENAME_NOREPLACE:
        raise host_error(errno.EEXIST)
    if target is None and flags & RENAME_EXCHANGE:
        raise host_error(errno.ENOENT)


def _refuse_loop(node: Node, new_parent: Directory) -> None:
    """A directory must not be moved below itself."""
    if isinstance(node, Directory) and any(above is node for above in ancestors(new_parent)):
        raise host_error(errno.EINVAL)
