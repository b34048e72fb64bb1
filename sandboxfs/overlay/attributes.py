"""Attributes of inodes, extended ones included: reading and changing.

A change of a lower entry copies the entry up first. Attributes of an open file are read through its
descriptor, so that a file without a name still answers.
"""

import errno
import os
import stat

from sandboxfs.hostfs.copy import is_private
from sandboxfs.hostfs.directory import Held, HostObject, Named
from sandboxfs.overlay.copy_up import CopyUp
from sandboxfs.overlay.filesystem import AttributeChange, Entry, Lasting, by_its_name, host_error, stale
from sandboxfs.overlay.lookup import Lookup
from sandboxfs.overlay.nodes import SET_ID, Directory, Node
from sandboxfs.upper import marks

CAPABILITY = b"security.capability"

_BRIEFLY, _WATCHED, _LONG = Lasting.BRIEFLY, Lasting.WATCHED, Lasting.LONG


class InodeAttributes:
    """Reads and changes attributes and extended attributes."""

    def __init__(self, merge: Lookup, copy_up: CopyUp) -> None:
        self._merge = merge
        self._index = merge.stack.index
        self._copy_up = copy_up

    # Reading

    def status(self, node: Node) -> os.stat_result:
        """The host's status of a node; ESTALE when another object has taken the node's place."""
        if isinstance(node, Directory):
            return self._directory_status(node)
        if node.opened is not None:
            return os.fstat(node.opened.fd)
        if node.gone is not None:
            return node.gone
        directory, name = self._copy_up.location(node)
        status = directory.stat(name)
        if status is None or not node.stands_for(status):
            raise stale()
        return status

    def _directory_status(self, directory: Directory) -> os.stat_result:
        if directory.gone is not None:
            return directory.gone
        if directory.held is not None:
            # The usual case: the kernel asks for a directory's attributes after each change in it.
            return os.fstat(directory.held.fd)
        if directory.sealed is not None:
            return directory.sealed
        if directory.upper:
            return self._merge.fds.upper(directory).own_stat()
        return self._merge.fds.lower(directory.lowers[0]).own_stat()

    def entry(self, node: Node, status: os.stat_result | None = None) -> Entry:
        if isinstance(node, Directory):
            return self._directory_entry(node, status or self._directory_status(node))
        if status is None:
            status = self.status(node)
        nlink = status.st_nlink
        if node.gone is not None:
            nlink = 0
        elif nlink > 1 or node.indexed:
            nlink = self._links(node, nlink)
        # The host may remove a workspace name of an indexed file.
        if node.upper and not node.indexed:
            return Entry(node.ino, status, nlink, _LONG, _LONG)
        parent = node.parent
        if parent is None or not (parent.steady or parent.noticed):
            return Entry(node.ino, status, nlink, _BRIEFLY, _BRIEFLY)
        watched = (
            # A write through another name would send no event.
            status.st_nlink == 1
            and not node.indexed
            and node.gone is None
            and (node.opened is None or self._is_in_place(node))
        )
        return Entry(node.ino, status, nlink, _LONG, _WATCHED if watched else _BRIEFLY)

    def _directory_entry(self, directory: Directory, status: os.stat_result) -> Entry:
        nlink = status.st_nlink
        if directory.gone is not None:
            nlink = 0
        elif directory.upper and directory.lowers:
            # As kernel overlayfs does: counting the subdirectories of a merged directory is not worth it.
            nlink = 1
        if directory.upper:
            return Entry(directory.ino, status, nlink, _LONG, _LONG)
        if directory.parent is None or not directory.parent.noticed:
            return Entry(directory.ino, status, nlink, _BRIEFLY, _BRIEFLY)
        # Creating and removing entries changes a directory's times; only the directory's own watch tells.
        return Entry(directory.ino, status, nlink, _LONG, _LONG if directory.steady else _BRIEFLY)

    def _is_in_place(self, node: Node) -> bool:
        """Whether an open file is still at its watched place, not moved elsewhere by the host."""
        try:
            directory, name = self._copy_up.location(node)
            status = directory.stat(name)
        except OSError:
            return False
        return status is not None and node.stands_for(status)

    def _links(self, node: Node, host: int) -> int:
        if node.indexed:
            directory, name = self._copy_up.location(node)
            return marks.read_record(directory, name).nlink
        return host if node.upper else host - self._index.names_lost(node.number)

    def readlink(self, node: Node) -> bytes:
        directory, name = self._copy_up.location(node)
        try:
            return directory.readlink(name)
        except OSError as error:
            raise by_its_name(error) from None

    # Changing

    def change(self, node: Node, change: AttributeChange) -> None:
        """Apply every change but that of the size, which `Files` makes."""
        target = self._upper_object(node)
        if change.uid is not None or change.gid is not None:
            target.chown(-1 if change.uid is None else change.uid, -1 if change.gid is None else change.gid)
        if change.mode is not None and node.kind != stat.S_IFLNK:
            target.chmod(stat.S_IMODE(change.mode))
            if node.opened is not None:
                node.opened.set_id = change.mode & SET_ID
        atime, mtime = change.atime_ns, change.mtime_ns
        if atime is None and mtime is None:
            return
        if atime is None or mtime is None:
            now = self.status(node)
            atime = now.st_atime_ns if atime is None else atime
            mtime = now.st_mtime_ns if mtime is None else mtime
        target.set_times(atime, mtime)

    # Extended attributes

    def getxattr(self, node: Node, attribute: bytes) -> bytes:
        if is_private(attribute):
            raise host_error(errno.ENODATA)
        if attribute == CAPABILITY and node.opened is not None and node.opened.bare:
            # The kernel asks for capabilities before the first write to every new file.
            raise host_error(errno.ENODATA)
        try:
            return self._object(node).getxattr(attribute)
        except OSError as error:
            raise by_its_name(error) from None

    def listxattr(self, node: Node) -> list[bytes]:
        try:
            return [a for a in self._object(node).listxattr() if not is_private(a)]
        except OSError as error:
            raise by_its_name(error) from None

    def setxattr(self, node: Node, attribute: bytes, value: bytes, flags: int) -> None:
        if is_private(attribute):
            raise host_error(errno.EPERM)
        if flags:
            # Checked first: a call that must fail must not copy up.
            self._check_presence(node, attribute, flags)
        if node.opened is not None:
            node.opened.bare = False
        self._upper_object(node).setxattr(attribute, value, flags)
        _forget_default_list(node)

    def _check_presence(self, node: Node, attribute: bytes, flags: int) -> None:
        try:
            self.getxattr(node, attribute)
        except OSError as error:
            if flags & os.XATTR_REPLACE or error.errno != errno.ENODATA:
                raise
        else:
            if flags & os.XATTR_CREATE:
                raise host_error(errno.EEXIST)

    def removexattr(self, node: Node, attribute: bytes) -> None:
        # Read first: removing an absent attribute must not copy up.
        self.getxattr(node, attribute)
        self._upper_object(node).removexattr(attribute)
        _forget_default_list(node)

    def _upper_object(self, node: Node) -> HostObject:
        """The node's host object, copied up where necessary."""
        if isinstance(node, Directory):
            self._copy_up.directory(node)
        else:
            self._copy_up.content(node)
        return self._object(node)

    def _object(self, node: Node) -> HostObject:
        if node.opened is not None:
            return Held(node.opened.fd)
        if not isinstance(node, Directory):
            return Named(*self._copy_up.location(node))
        if node.gone is not None or node.sealed is not None:
            raise host_error(errno.ENODATA)
        fds = self._merge.fds
        directory = fds.upper(node) if node.upper else fds.lower(node.lowers[0])
        return Held(directory.fd, directory)


def _forget_default_list(node: Node) -> None:
    if isinstance(node, Directory):
        node.default_list = None
