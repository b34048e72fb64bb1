"""Copying of one object: bytes, attributes, access lists and everything that can be told about it.

Data is copied by reflink where the filesystem can, else by `copy_file_range`, else by read and write; holes
stay holes. `copy_data` touches only the two descriptors it is given, so it may run in a worker thread.

A replica has the content, mode, owner, times and extended attributes of its original. Marks of the layers are
never copied, nor are labels and capabilities that the host gives by place and by trust (`security.*`) unless
the caller asks for them. Attributes that this user or the target's filesystem cannot hold are left out, as
`cp -a` does.

No rename can replace a mountpoint, or a file that others hold on to. The bytes of such a file are written
over, after its former content was saved.

The host applies the default access list of a directory to an entry made in the directory. An entry that is
made elsewhere and moved there gets the same list here. POSIX access control lists are in the form of the
kernel's extended attributes: a version, then a tag, permissions and an id for each entry.
"""

import errno
import fcntl
import os
import stat
import struct
from collections.abc import Callable
from dataclasses import dataclass, replace

from sandboxfs.hostfs.directory import HostDir, HostObject, Named, unlocked
from sandboxfs.hostfs.durable import Syncer
from sandboxfs.hostfs.identity import ConcurrentChange, ObjectIdentity

PREFIX = b"user.overlay."


def is_private(attribute: bytes) -> bool:
    """Whether an extended attribute belongs to the layers and must not be seen in the view."""
    return attribute.startswith(PREFIX)


_CHUNK = 1 << 20
_FICLONE = 0x40049409
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


def reflink(source_fd: int, target_fd: int) -> None:
    """Make the target share the source's blocks; OSError where the filesystem cannot."""
    fcntl.ioctl(target_fd, _FICLONE, source_fd)


def _reflinked(source: int, target: int) -> bool:
    try:
        reflink(source, target)
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
            # The source shrank meanwhile, or is on a filesystem (proc, some FUSE) that reports no size.
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
    """Copy the extended attributes that the view shows; the layers' own are left out.

    Those that the target's filesystem or our privileges do not allow (labels, capabilities) are left out.
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


_NOT_SUPPORTED = {errno.ENOTSUP, errno.EPERM, errno.EACCES, errno.EINVAL, errno.ENODATA, errno.ERANGE}
_SMALL = 1 << 16

Keeps = Callable[[bytes], bool]
"""Whether an extended attribute is copied."""


class ChangedWhileCopied(Exception):
    """The original changed while it was copied."""


@dataclass(frozen=True, slots=True)
class Attributes:
    """All of an object besides its content. `mode` is a whole `st_mode`."""

    mode: int
    uid: int
    gid: int
    atime_ns: int
    mtime_ns: int
    xattrs: tuple[tuple[bytes, bytes], ...] = ()


def of_the_sandbox(attribute: bytes) -> bool:
    """Whether an attribute of an upper object belongs in the workspace."""
    return not is_private(attribute) and not attribute.startswith(b"security.")


def of_the_host(attribute: bytes) -> bool:
    """True for every attribute: an object of the host is kept as it is."""
    return True


def attributes_at(directory: HostDir, name: bytes, status: os.stat_result, keeps: Keeps) -> Attributes:
    """The attributes of *name*, which has *status*; an empty name is the directory itself."""
    return _attributes(directory.path_of(name), status, keeps)


def own_attributes(directory: HostDir, name: bytes, status: os.stat_result, keeps: Keeps) -> Attributes:
    """The attributes of an object of sandboxfs' own, whatever its mode: reading some takes permission."""
    try:
        return attributes_at(directory, name, status, keeps)
    except PermissionError:
        if stat.S_ISLNK(status.st_mode):
            raise
        path = directory.path_of(name) if name else directory.own_path()
        return unlocked(path, status.st_mode, lambda: attributes_at(directory, name, status, keeps))


def _attributes(place: int | bytes, status: os.stat_result, keeps: Keeps) -> Attributes:
    return Attributes(
        status.st_mode,
        status.st_uid,
        status.st_gid,
        status.st_atime_ns,
        status.st_mtime_ns,
        _xattrs(place, keeps),
    )


def _xattrs(place: int | bytes, keeps: Keeps) -> tuple[tuple[bytes, bytes], ...]:
    found = []
    try:
        names = os.listxattr(place, follow_symlinks=isinstance(place, int))
        for name in map(os.fsencode, names):
            if keeps(name):
                found.append((name, os.getxattr(place, name, follow_symlinks=isinstance(place, int))))
    except OSError as error:
        if error.errno not in _NOT_SUPPORTED:
            raise
    return tuple(found)


def open_source(directory: HostDir, name: bytes) -> int:
    """Open a file of sandboxfs' own for reading, whatever its mode."""
    try:
        return directory.open_quietly(name, os.O_RDONLY)
    except PermissionError:
        status = directory.stat(name)
        if status is None or not stat.S_ISREG(status.st_mode):
            raise
        path = directory.path_of(name)
        return unlocked(path, status.st_mode, lambda: directory.open_quietly(name, os.O_RDONLY))


def copy_file(
    source: HostDir, name: bytes, target: HostDir, new_name: bytes, syncer: Syncer, keeps: Keeps
) -> tuple[os.stat_result, os.stat_result]:
    """Copy a regular file; the status of the original, unchanged during the copy, and of the copy.

    The copy is on disk when *syncer* has waited.
    """
    original = open_source(source, name)
    try:
        status = os.fstat(original)
        made = target.open(new_name, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600)
        try:
            _copy_content(original, made, status)
            dress_file(made, _attributes(original, status, keeps))
            if _moved(status, os.fstat(original)):
                raise ChangedWhileCopied
            copied = os.fstat(made)
        except BaseException:
            os.close(made)
            raise
        syncer.take(made)
        return status, copied
    finally:
        os.close(original)


def _copy_content(original: int, made: int, status: os.stat_result) -> None:
    # Reading and writing a small file without holes takes half the time of asking for reflinks and holes.
    if status.st_size <= _SMALL and status.st_blocks * 512 >= status.st_size:
        _write(made, os.pread(original, status.st_size, 0))
    else:
        copy_data(original, made, status.st_size)


def _write(fd: int, content: bytes) -> None:
    view = memoryview(content)
    while view:
        view = view[os.write(fd, view) :]


def same_content(one: HostDir, one_name: bytes, other: HostDir, other_name: bytes) -> bool:
    """Whether two regular files have the same bytes."""
    with (
        open(open_source(one, one_name), "rb") as first,
        open(open_source(other, other_name), "rb") as second,
    ):
        while True:
            data = first.read(_CHUNK)
            if data != second.read(_CHUNK):
                return False
            if not data:
                return True


def _moved(before: os.stat_result, after: os.stat_result) -> bool:
    return (before.st_size, before.st_mtime_ns, before.st_ctime_ns) != (
        after.st_size,
        after.st_mtime_ns,
        after.st_ctime_ns,
    )


def write_file(
    content: bytes, attributes: Attributes, target: HostDir, new_name: bytes, syncer: Syncer
) -> None:
    """Make a regular file of *content*; it is on disk when *syncer* has waited."""
    made = target.open(new_name, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600)
    try:
        _write(made, content)
        dress_file(made, attributes)
    except BaseException:
        os.close(made)
        raise
    syncer.take(made)


def make_other(
    source: HostDir, name: bytes, target: HostDir, new_name: bytes, keeps: Keeps
) -> os.stat_result:
    """Make the replica of an object that is neither file nor directory; return the original's status."""
    status = source.stat(name)
    if status is None:
        raise ChangedWhileCopied
    if stat.S_ISLNK(status.st_mode):
        target.symlink(new_name, source.readlink(name))
    elif stat.S_ISREG(status.st_mode) or stat.S_ISDIR(status.st_mode):
        raise ChangedWhileCopied
    else:
        target.mknod(new_name, stat.S_IFMT(status.st_mode) | 0o600, status.st_rdev)
    dress(target, new_name, attributes_at(source, name, status, keeps))
    return status


def dress(directory: HostDir, name: bytes, attributes: Attributes) -> None:
    """Give *name*, an object of sandboxfs' own, all of *attributes*."""
    if stat.S_ISLNK(attributes.mode):
        _own(lambda uid, gid: directory.chown(name, uid, gid), attributes)
        directory.set_times(name, attributes.atime_ns, attributes.mtime_ns)
        return
    held = directory.hold(name)
    try:
        dress_held(held, attributes)
    finally:
        os.close(held)


def dress_held(fd: int, attributes: Attributes) -> None:
    """Give an object held by a descriptor, which is no symlink, all of *attributes*."""
    # Through /proc, because a descriptor opened with O_PATH cannot be used directly.
    path = b"/proc/self/fd/%d" % fd
    _set_xattrs(path, attributes)
    _own(lambda uid, gid: os.chown(path, uid, gid), attributes)
    # After the owner, whose change clears the set-id bits.
    os.chmod(path, stat.S_IMODE(attributes.mode))
    os.utime(path, ns=(attributes.atime_ns, attributes.mtime_ns))


def dress_file(fd: int, attributes: Attributes) -> None:
    """Give an open file all of *attributes*."""
    _set_xattrs(fd, attributes)
    _own(lambda uid, gid: os.fchown(fd, uid, gid), attributes)
    os.fchmod(fd, stat.S_IMODE(attributes.mode))
    os.utime(fd, ns=(attributes.atime_ns, attributes.mtime_ns))


def _set_xattrs(place: int | bytes, attributes: Attributes) -> None:
    for name, value in attributes.xattrs:
        try:
            os.setxattr(place, name, value)
        except OSError as error:
            if error.errno not in _NOT_SUPPORTED:
                raise


def _own(chown: Callable[[int, int], None], attributes: Attributes) -> None:
    """Give the object its owner and group, as far as our privileges go."""
    if (attributes.uid, attributes.gid) == (os.geteuid(), os.getegid()):
        # A new object is this user's, except where a directory passes its group on.
        return chown(-1, attributes.gid)
    for uid in (attributes.uid, -1):
        try:
            return chown(uid, attributes.gid)
        except PermissionError:
            continue
    return None


def change(fd: int, before: Attributes, after: Attributes) -> None:
    """Change the attributes of an object held by a descriptor from *before* to *after*; its times stay."""
    path = b"/proc/self/fd/%d" % fd
    values = dict(after.xattrs)
    for name, _ in before.xattrs:
        if name not in values:
            _remove_xattr(path, name)
    _set_xattrs(path, replace(after, xattrs=tuple(set(after.xattrs) - set(before.xattrs))))
    if (before.uid, before.gid) != (after.uid, after.gid):
        _own(lambda uid, gid: os.chown(path, uid, gid), after)
    os.chmod(path, stat.S_IMODE(after.mode))


def _remove_xattr(path: bytes, name: bytes) -> None:
    try:
        os.removexattr(path, name)
    except OSError as error:
        if error.errno not in _NOT_SUPPORTED:
            raise


def rewrite(
    source: HostDir,
    name: bytes,
    target: HostDir,
    target_name: bytes,
    expected: ObjectIdentity | None,
    path: bytes,
) -> None:
    """Give the file *target_name* the content and attributes of *name*, on disk when this returns.

    `ConcurrentChange`, about *path*, when that file is not the *expected* one; None expects any file.
    """
    original = open_source(source, name)
    try:
        written = target.open(target_name, os.O_WRONLY)
        try:
            if expected is not None and not expected.is_exactly(os.fstat(written)):
                raise ConcurrentChange(path, "changed in the workspace meanwhile")
            status = os.fstat(original)
            os.ftruncate(written, 0)
            copy_data(original, written, status.st_size)
            dress_file(written, attributes_at(source, name, status, of_the_host))
            os.fsync(written)
        finally:
            os.close(written)
    finally:
        os.close(original)


ACCESS_LIST = b"system.posix_acl_access"
DEFAULT_LIST = b"system.posix_acl_default"
NO_ACCESS_LIST = frozenset({errno.ENODATA, errno.EOPNOTSUPP})
"""The errors of an object without a list, and of a filesystem without lists."""

_VERSION = struct.Struct("<I")
_ENTRY = struct.Struct("<HHI")
_OWNER, _GROUP_OWNER, _MASK, _OTHER = 0x01, 0x04, 0x10, 0x20
# The position of the mode bits that limit the permissions of each kind of entry.
_SHIFTS = {_OWNER: 6, _GROUP_OWNER: 3, _MASK: 3, _OTHER: 0}


def remove_access_lists(owner: HostObject, *lists: bytes) -> None:
    """Remove lists that an object of sandboxfs' own inherited from the directory it was made in."""
    for name in lists:
        try:
            owner.removexattr(name)
        except OSError as error:
            if error.errno not in NO_ACCESS_LIST:
                raise


def inherited_access_list(default: bytes, mode: int) -> tuple[int, bytes | None]:
    """The mode and the access list of an entry made with *mode*; no list where the mode suffices."""
    entries = [list(entry) for entry in _ENTRY.iter_unpack(default[_VERSION.size :])]
    masked = any(tag == _MASK for tag, _, _ in entries)
    for entry in entries:
        shift = _SHIFTS.get(entry[0])
        if shift is None or (masked and entry[0] == _GROUP_OWNER):
            # With a mask, the mask is the group's part of the mode.
            continue
        entry[1] &= mode >> shift
        mode &= ~(0o7 << shift) | entry[1] << shift
    if not masked and len(entries) == len((_OWNER, _GROUP_OWNER, _OTHER)):
        return mode, None
    return mode, default[: _VERSION.size] + b"".join(_ENTRY.pack(*entry) for entry in entries)
