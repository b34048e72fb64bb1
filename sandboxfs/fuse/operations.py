"""One handler per FUSE operation: convert, delegate, reply. No decision is made here.

All of them, though most requests do not come here (see `express`): should pyfuse3 change so that they cannot
be read from the device beforehand, these answer them, more slowly.
"""

import errno
import os
from collections.abc import Sequence
from typing import cast

import pyfuse3
from pyfuse3 import FileHandleT, FileNameT, InodeT, ModeT, RequestContext, XAttrNameT

from sandboxfs.fuse import convert
from sandboxfs.fuse.convert import attributes, no_reply, reply
from sandboxfs.fuse.later import DoBeside, at_once
from sandboxfs.overlay.filesystem import Filesystem

SETXATTR_ANYHOW = 0
_DOTS = b".", b".."


class Operations(pyfuse3.Operations):
    """Serves a `Filesystem` to the kernel."""

    supports_dot_lookup = False
    enable_writeback_cache = False
    enable_acl = False

    def __init__(self, filesystem: Filesystem, beside: DoBeside = at_once) -> None:
        super().__init__()
        self._fs = filesystem
        self.beside = beside
        # Which directory each handle is of: pyfuse3 tells only the handle.
        self._directories: dict[FileHandleT, InodeT] = {}

    @reply
    def lookup(self, parent_inode: InodeT, name: FileNameT, ctx: RequestContext) -> pyfuse3.EntryAttributes:
        entry = self._fs.lookup(parent_inode, name, ctx)
        if entry is None:
            lasts = self._fs.absence_lasts(parent_inode)
            return convert.ABSENT_FOR_LONG if lasts else convert.ABSENT
        return attributes(entry)

    @no_reply
    def forget(self, inode_list: Sequence[tuple[InodeT, int]]) -> None:
        for inode, count in inode_list:
            self._fs.forget(inode, count)

    @reply
    def getattr(self, inode: InodeT, ctx: RequestContext) -> pyfuse3.EntryAttributes:
        return attributes(self._fs.getattr(inode, ctx))

    @reply
    def setattr(
        self,
        inode: InodeT,
        attr: pyfuse3.EntryAttributes,
        fields: pyfuse3.SetattrFields,
        fh: FileHandleT | None,
        ctx: RequestContext,
    ) -> pyfuse3.EntryAttributes:
        return attributes(self._fs.setattr(inode, convert.change(attr, fields), fh, ctx))

    @reply
    def readlink(self, inode: InodeT, ctx: RequestContext) -> FileNameT:
        return FileNameT(self._fs.readlink(inode, ctx))

    @reply
    def mknod(
        self, parent_inode: InodeT, name: FileNameT, mode: ModeT, rdev: int, ctx: RequestContext
    ) -> pyfuse3.EntryAttributes:
        return attributes(self._fs.mknod(parent_inode, name, mode, rdev, ctx))

    @reply
    def mkdir(
        self, parent_inode: InodeT, name: FileNameT, mode: ModeT, ctx: RequestContext
    ) -> pyfuse3.EntryAttributes:
        return attributes(self._fs.mkdir(parent_inode, name, mode, ctx))

    @reply
    def symlink(
        self, parent_inode: InodeT, name: FileNameT, target: FileNameT, ctx: RequestContext
    ) -> pyfuse3.EntryAttributes:
        return attributes(self._fs.symlink(parent_inode, name, target, ctx))

    @reply
    def link(
        self, inode: InodeT, new_parent_inode: InodeT, new_name: FileNameT, ctx: RequestContext
    ) -> pyfuse3.EntryAttributes:
        return attributes(self._fs.link(inode, new_parent_inode, new_name, ctx))

    @reply
    def unlink(self, parent_inode: InodeT, name: FileNameT, ctx: RequestContext) -> None:
        self._fs.unlink(parent_inode, name, ctx)

    @reply
    def rmdir(self, parent_inode: InodeT, name: FileNameT, ctx: RequestContext) -> None:
        self._fs.rmdir(parent_inode, name, ctx)

    @reply
    def rename(
        self,
        parent_inode_old: InodeT,
        name_old: FileNameT,
        parent_inode_new: InodeT,
        name_new: FileNameT,
        flags: int,
        ctx: RequestContext,
    ) -> None:
        self._fs.rename(parent_inode_old, name_old, parent_inode_new, name_new, flags, ctx)

    @reply
    def open(self, inode: InodeT, flags: int, ctx: RequestContext) -> pyfuse3.FileInfo:
        opened = self._fs.open(inode, flags, ctx)
        handle = FileHandleT(opened.handle)
        # Not to be written around pages: here nobody is told which writes have to be on the disk.
        direct = opened.direct and flags & os.O_ACCMODE == os.O_RDONLY
        return pyfuse3.FileInfo(fh=handle, keep_cache=opened.keep_cache, direct_io=direct)

    @reply
    def create(
        self, parent_inode: InodeT, name: FileNameT, mode: ModeT, flags: int, ctx: RequestContext
    ) -> tuple[pyfuse3.FileInfo, pyfuse3.EntryAttributes]:
        opened, entry = self._fs.create(parent_inode, name, mode, flags, ctx)
        handle = FileHandleT(opened.handle)
        return pyfuse3.FileInfo(fh=handle, keep_cache=opened.keep_cache), attributes(entry)

    @reply
    def read(self, fh: FileHandleT, off: int, size: int) -> bytes:
        # pyfuse3 takes whatever has a buffer, and is done with it before it asks again.
        return cast(bytes, self._fs.read(fh, off, size))

    @reply
    def write(self, fh: FileHandleT, off: int, buf: bytes) -> int:
        return self._fs.write(fh, off, buf)

    @reply
    def flush(self, fh: FileHandleT) -> None:
        # Nothing is buffered, so there is nothing to say at close: the kernel stops asking.
        raise pyfuse3.FUSEError(errno.ENOSYS)

    @reply
    def release(self, fh: FileHandleT) -> None:
        self._fs.release(fh)

    @reply
    def fsync(self, fh: FileHandleT, datasync: bool) -> None:
        self._fs.fsync(fh, datasync)

    @reply
    def opendir(self, inode: InodeT, ctx: RequestContext) -> FileHandleT:
        handle = FileHandleT(self._fs.opendir(inode, ctx))
        self._directories[handle] = inode
        return handle

    @reply
    def readdir(self, fh: FileHandleT, start_id: int, token: pyfuse3.ReaddirToken) -> None:
        for name, entry, next_id in self._fs.readdir(fh, start_id):
            if not pyfuse3.readdir_reply(token, name, attributes(entry), next_id):
                self._fs.forget(entry.ino, 0)
                break
            if name not in _DOTS:
                self._fs.remember(entry.ino)

    @reply
    def releasedir(self, fh: FileHandleT) -> None:
        del self._directories[fh]
        self._fs.releasedir(fh)

    @reply
    def fsyncdir(self, fh: FileHandleT, datasync: bool) -> None:
        self._fs.fsyncdir(self._directories[fh], datasync)

    @reply
    def statfs(self, ctx: RequestContext) -> pyfuse3.StatvfsData:
        return convert.statistics(self._fs.statfs())

    @reply
    def getxattr(self, inode: InodeT, name: XAttrNameT, ctx: RequestContext) -> bytes:
        return self._fs.getxattr(inode, name, ctx)

    @reply
    def setxattr(self, inode: InodeT, name: XAttrNameT, value: bytes, ctx: RequestContext) -> None:
        # pyfuse3 has dealt with XATTR_CREATE and XATTR_REPLACE by asking getxattr first.
        self._fs.setxattr(inode, name, value, SETXATTR_ANYHOW, ctx)

    @reply
    def listxattr(self, inode: InodeT, ctx: RequestContext) -> Sequence[XAttrNameT]:
        return [XAttrNameT(name) for name in self._fs.listxattr(inode, ctx)]

    @reply
    def removexattr(self, inode: InodeT, name: XAttrNameT, ctx: RequestContext) -> None:
        self._fs.removexattr(inode, name, ctx)
