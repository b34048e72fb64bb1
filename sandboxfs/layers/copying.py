"""How are bytes and attributes carried from one layer to another?

Data goes by reflink where the filesystem can, else by `copy_file_range`, else by hand; holes stay holes.
`copy_data` touches only the two descriptors it is given, so it may run in a worker thread.
"""

import errno
import os

from sandboxfs.layers import syscalls
from sandboxfs.layers.hostdir import HostDir
from sandboxfs.layers.hostobject import HostObject, Named
from sandboxfs.layers.marks import is_private

_CHUNK = 1 << 20
_NO_FAST_COPY = {errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.EBADF, errno.EIO}
_NO_SUCH_SUPPORT = {errno.ENOTSUP, errno.EPERM, errno.EACCES, errno.EINVAL, errno.ENODATA}


def copy_data(source: int, target: int, length: int) -> None:
    """Copy the first *length* bytes of *source* into the empty file *target*."""
    if length == 0:
        return
    if length == os.fstat(source).st_size and _reflinked(source, target):
        return
    os.ftruncate(target, length)
    for start, end in _data_ranges(source, length):
        _copy_range(source, target, start, end)


def _reflinked(source: int, target: int) -> bool:
    try:
        syscalls.reflink(source, target)
    except OSError:
        return False
    return True


def _data_ranges(source: int, length: int) -> list[tuple[int, int]]:
    """The parts of the file that are not holes."""
    ranges = []
    end = 0
    while end < length:
        try:
            start = os.lseek(source, end, os.SEEK_DATA)
            end = min(os.lseek(source, start, os.SEEK_HOLE), length)
        except OSError as error:
            if error.errno == errno.ENXIO:
                break
            return [(0, length)]
        if start < end:
            ranges.append((start, end))
    return ranges


def _copy_range(source: int, target: int, start: int, end: int) -> None:
    while start < end:
        try:
            copied = os.copy_file_range(source, target, end - start, start, start)
        except OSError as error:
            if error.errno not in _NO_FAST_COPY:
                raise
            return _copy_by_hand(source, target, start, end)
        if copied == 0:
            # The source shrank meanwhile, or is a filesystem (proc, some FUSE) that reports no size.
            return _copy_by_hand(source, target, start, end)
        start += copied
    return None


def _copy_by_hand(source: int, target: int, start: int, end: int) -> None:
    while start < end:
        data = os.pread(source, min(_CHUNK, end - start), start)
        if not data:
            return
        view = memoryview(data)
        while view:
            written = os.pwrite(target, view, start)
            start += written
            view = view[written:]


def copy_xattrs(source: HostDir, source_name: bytes, target: HostDir, target_name: bytes) -> None:
    """Copy the extended attributes from one name to another, as `carry_xattrs` does."""
    carry_xattrs(Named(source, source_name), Named(target, target_name))


def carry_xattrs(source: HostObject, target: HostObject) -> None:
    """Copy the extended attributes that the view shows; those of the layers' own stay behind.

    What the target's filesystem or our privileges cannot hold (labels, capabilities) is left out.
    """
    try:
        attributes = source.listxattr()
    except OSError as error:
        if error.errno in _NO_SUCH_SUPPORT:
            return
        raise
    for attribute in attributes:
        if is_private(attribute):
            continue
        try:
            target.setxattr(attribute, source.getxattr(attribute), 0)
        except OSError as error:
            if error.errno not in _NO_SUCH_SUPPORT:
                raise


def copy_owner(directory: HostDir, name: bytes, status: os.stat_result) -> None:
    """Give *name* the owner and group of *status*, as far as our privileges go."""
    uid, gid = os.geteuid(), os.getegid()
    if (status.st_uid, status.st_gid) == (uid, gid):
        return
    try:
        directory.chown(name, status.st_uid, status.st_gid)
    except PermissionError:
        try:
            directory.chown(name, -1, status.st_gid)
        except PermissionError:
            pass
