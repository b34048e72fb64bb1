"""How is an object made a second time, with everything that can be told about it?

A replica has the content, mode, owner, times and extended attributes of its original. Marks of the layers
never go along, nor do labels and capabilities that the host gives by place and by trust (`security.*`) unless
asked for. What this user or the target's filesystem cannot hold is left out, as `cp -a` does.
"""

import errno
import os
import stat
from collections.abc import Callable
from dataclasses import dataclass, replace

from sandboxfs.layers import copying
from sandboxfs.layers.durable import Syncer
from sandboxfs.layers.hostdir import HostDir, unlocked
from sandboxfs.layers.marks import is_private

_NO_SUCH_SUPPORT = {errno.ENOTSUP, errno.EPERM, errno.EACCES, errno.EINVAL, errno.ENODATA, errno.ERANGE}
_CHUNK = 1 << 20
_SMALL = 1 << 16

Keeps = Callable[[bytes], bool]
"""Whether an extended attribute goes along."""


class StillChanging(Exception):
    """The original changed while it was copied."""


@dataclass(frozen=True, slots=True)
class Attributes:
    """All that an object is besides its content. `mode` is a whole `st_mode`."""

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
    """All of them: an object of the host is kept as it is."""
    return True


def attributes_at(directory: HostDir, name: bytes, status: os.stat_result, keeps: Keeps) -> Attributes:
    """The attributes of *name*, which has *status*; an empty name is the directory itself."""
    return _attributes(directory.path_of(name), status, keeps)


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
        if error.errno not in _NO_SUCH_SUPPORT:
            raise
    return tuple(found)


def open_source(directory: HostDir, name: bytes) -> int:
    """Open a file of ours for reading, whatever its mode."""
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
    """Copy a regular file; the status of the original, the same before and after the copy, and of the copy.

    The copy reaches the disk when *syncer* has waited.
    """
    original = open_source(source, name)
    try:
        status = os.fstat(original)
        made = target.open(new_name, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600)
        try:
            _copy_content(original, made, status)
            dress_file(made, _attributes(original, status, keeps))
            if _moved(status, os.fstat(original)):
                raise StillChanging
            copied = os.fstat(made)
        except BaseException:
            os.close(made)
            raise
        syncer.take(made)
        return status, copied
    finally:
        os.close(original)


def _copy_content(original: int, made: int, status: os.stat_result) -> None:
    # A small file without holes is read and written in half the time that asking about both takes.
    if status.st_size <= _SMALL and status.st_blocks * 512 >= status.st_size:
        _write(made, os.pread(original, status.st_size, 0))
    else:
        copying.copy_data(original, made, status.st_size)


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
    """Make a regular file of *content*; it reaches the disk when *syncer* has waited."""
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
    """Make the replica of what is neither file nor directory; the status of the original."""
    status = source.stat(name)
    if status is None:
        raise StillChanging
    if stat.S_ISLNK(status.st_mode):
        target.symlink(new_name, source.readlink(name))
    elif stat.S_ISREG(status.st_mode) or stat.S_ISDIR(status.st_mode):
        raise StillChanging
    else:
        target.mknod(new_name, stat.S_IFMT(status.st_mode) | 0o600, status.st_rdev)
    dress(target, new_name, attributes_at(source, name, status, keeps))
    return status


def dress(directory: HostDir, name: bytes, attributes: Attributes) -> None:
    """Give *name*, an object of ours, all of *attributes*."""
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
            if error.errno not in _NO_SUCH_SUPPORT:
                raise


def _own(chown: Callable[[int, int], None], attributes: Attributes) -> None:
    """Give the object its owner and group, as far as our privileges go."""
    if (attributes.uid, attributes.gid) == (os.geteuid(), os.getegid()):
        # What we make is ours, except where a directory passes its group on.
        return chown(-1, attributes.gid)
    for uid in (attributes.uid, -1):
        try:
            return chown(uid, attributes.gid)
        except PermissionError:
            continue
    return None


def change(fd: int, before: Attributes, after: Attributes) -> None:
    """Turn the attributes of an object held by a descriptor from *before* into *after*; its times stay."""
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
        if error.errno not in _NO_SUCH_SUPPORT:
            raise
