"""Host directories and objects: everything sandboxfs does to names on the host, by directory descriptor.

This module is the door to the host: nothing outside `hostfs/` touches user data with `os` calls of its own.
Every method works relative to the directory's descriptor on a single name, and none follows a symlink,
so no call can leave the directory it was given; the attributes of a symlink are its own. Descriptors are
opened with O_PATH: searching needs no read permission, and holding a descriptor keeps no file open.
"""

import errno
import os
import stat
from collections.abc import Callable, Iterator
from typing import Protocol, TypeVar

from sandboxfs.hostfs import syscalls

T = TypeVar("T")

_DIRECTORY = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# Longer paths are opened in steps: the kernel takes no more than 4096 bytes at once.
_LONGEST_STEP = 4000
# The errors of filesystems that do not know a flag of renameat2.
NO_SUCH_RENAME = {errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP}


class HostDir:
    """A directory of the host, held by descriptor until it is closed or the last reference is gone.

    A closed `HostDir` is no directory: never the one that gets its descriptor's number next.
    """

    __slots__ = ("fd",)

    def __init__(self, fd: int) -> None:
        self.fd = fd

    @classmethod
    def at(cls, path: str | bytes | os.PathLike[str]) -> "HostDir":
        """Open the directory at *path*; only here may symlinks on the way be followed."""
        return cls(os.open(path, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC))

    def close(self) -> None:
        fd, self.fd = self.fd, -1
        if fd >= 0:
            os.close(fd)

    __del__ = close

    def __enter__(self) -> "HostDir":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # Finding

    def child(self, name: bytes) -> "HostDir":
        return HostDir(os.open(name, _DIRECTORY, dir_fd=self.fd))

    def again(self) -> "HostDir":
        """This directory with a descriptor of its own; finding "." would take permission to search it."""
        return HostDir(os.dup(self.fd))

    def descend(self, path: bytes) -> "HostDir":
        """Open the directory at the relative *path*, never crossing a symlink on the way."""
        if not path:
            return self.again()
        if len(path) <= _LONGEST_STEP:
            return HostDir(syscalls.open_beneath(self.fd, path, _DIRECTORY))
        here, at = self, 0
        while len(path) - at > _LONGEST_STEP:
            cut = path.rindex(b"/", at, at + _LONGEST_STEP)
            here, at = HostDir(syscalls.open_beneath(here.fd, path[at:cut], _DIRECTORY)), cut + 1
        return HostDir(syscalls.open_beneath(here.fd, path[at:], _DIRECTORY))

    def stat(self, name: bytes) -> os.stat_result | None:
        """The status of *name*, or None when there is no such name."""
        try:
            return os.stat(name, dir_fd=self.fd, follow_symlinks=False)
        except FileNotFoundError:
            return None
        except PermissionError:
            if name != b".":
                raise
            return self.own_stat()

    def own_stat(self) -> os.stat_result:
        return os.fstat(self.fd)

    def filesystem_id(self, name: bytes) -> int:
        """The id of the filesystem of *name*; 0 where it has none."""
        return os.statvfs(self.path_of(name)).f_fsid

    def born(self, name: bytes) -> int:
        """The time of birth of *name* in nanoseconds; 0 where the filesystem keeps none, or it is gone."""
        try:
            return syscalls.statx_directory(self.fd, name).born
        except FileNotFoundError:
            return 0

    def entries(self) -> Iterator["os.DirEntry[str]"]:
        """The directory's entries, in the host's order."""
        fd = self.open_for_listing()
        try:
            with os.scandir(fd) as entries:
                yield from entries
        finally:
            os.close(fd)

    def names(self) -> list[bytes]:
        return [os.fsencode(entry.name) for entry in self.entries()]

    def is_empty(self) -> bool:
        """Whether there is no entry, also if the mode denies the list to its owner."""
        try:
            return self._has_none()
        except PermissionError:
            return unlocked(self.own_path(), self.own_stat().st_mode, self._has_none)

    def _has_none(self) -> bool:
        return next(self.entries(), None) is None

    def open_for_listing(self) -> int:
        try:
            return self.open_quietly(b".", os.O_RDONLY | os.O_DIRECTORY)
        except PermissionError:
            # Finding "." takes permission to search the directory; listing the directory does not.
            return os.open(self.own_path(), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)

    # Files

    def open(self, name: bytes, flags: int, mode: int = 0) -> int:
        """Open a file; a FIFO in its place is refused or opened without waiting for its other end."""
        return os.open(name, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, mode, dir_fd=self.fd)

    def open_quietly(self, name: bytes, flags: int) -> int:
        """Open without moving the access time, where the owner rule allows that."""
        try:
            return self.open(name, flags | os.O_NOATIME)
        except PermissionError:
            return self.open(name, flags)

    def readlink(self, name: bytes) -> bytes:
        return os.readlink(name, dir_fd=self.fd)

    def hold(self, name: bytes) -> int:
        """Open *name*, of whatever type, only to read and change its attributes."""
        return os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=self.fd)

    def read(self, name: bytes) -> bytes:
        """The whole content of the file *name*."""
        with open(self.open(name, os.O_RDONLY), "rb") as file:
            return file.read()

    # Changing names

    def mkdir(self, name: bytes, mode: int) -> None:
        os.mkdir(name, mode, dir_fd=self.fd)

    def mknod(self, name: bytes, mode: int, device: int) -> None:
        os.mknod(name, mode, device, dir_fd=self.fd)

    def symlink(self, name: bytes, target: bytes) -> None:
        os.symlink(target, name, dir_fd=self.fd)

    def link(self, name: bytes, other: "HostDir", other_name: bytes) -> None:
        """Give *name* here the second name *other_name* in *other*."""
        os.link(name, other_name, src_dir_fd=self.fd, dst_dir_fd=other.fd, follow_symlinks=False)

    def unlink(self, name: bytes) -> None:
        os.unlink(name, dir_fd=self.fd)

    def rmdir(self, name: bytes) -> None:
        os.rmdir(name, dir_fd=self.fd)

    def rename(self, name: bytes, other: "HostDir", other_name: bytes, flags: int = 0) -> None:
        """Move *name*, also a directory that its owner may not write (mode 0555).

        The kernel requires that permission to rewrite the directory's `..`. A program that removes such a
        directory or changes a file in it needs none, but sandboxfs has to move it between work and upper.
        """
        try:
            self._rename(name, other, other_name, flags)
        except PermissionError:
            moves = [(self, name, other, other_name)]
            if flags & syscalls.RENAME_EXCHANGE:
                moves.append((other, other_name, self, name))
            locked = [(move, mode) for move in moves if (mode := move[0]._locked_directory(move[1]))]
            if not locked:
                raise
            for (here, at, _, _), mode in locked:
                here.chmod(at, stat.S_IMODE(mode) | 0o700)
            moved = False
            try:
                self._rename(name, other, other_name, flags)
                moved = True
            finally:
                for (here, at, there, then), mode in locked:
                    if moved:
                        there.chmod(then, stat.S_IMODE(mode))
                    else:
                        here.chmod(at, stat.S_IMODE(mode))

    def move(self, name: bytes, other: "HostDir", other_name: bytes) -> None:
        """Move *name* to a free name; FileExistsError when that is taken: nothing is replaced."""
        try:
            self.rename(name, other, other_name, syscalls.RENAME_NOREPLACE)
        except OSError as error:
            if error.errno not in NO_SUCH_RENAME:
                raise
            self._move_plainly(name, other, other_name)

    def _move_plainly(self, name: bytes, other: "HostDir", other_name: bytes) -> None:
        """Move where the filesystem knows no flags: an object that is no directory is linked first."""
        try:
            self.link(name, other, other_name)
        except PermissionError:
            # A filesystem without hard links, or a directory; rename would replace only an empty directory.
            if other.stat(other_name) is not None:
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST)) from None
            self.rename(name, other, other_name)
        else:
            self.unlink(name)

    def exchange(self, name: bytes, other: "HostDir", other_name: bytes) -> None:
        """Exchange two names at once; where the filesystem cannot, *other_name* is free for a moment.

        The former *other_name* waits as `aside(name)` in that moment; `settle_exchange` looks for it.
        """
        try:
            self.rename(name, other, other_name, syscalls.RENAME_EXCHANGE)
        except OSError as error:
            if error.errno not in NO_SUCH_RENAME:
                raise
            other.move(other_name, self, aside(name))
            self.move(name, other, other_name)
            self.move(aside(name), self, name)

    def settle_exchange(self, name: bytes, other: "HostDir", other_name: bytes) -> None:
        """Bring an interrupted exchange to its end, or back to its beginning."""
        if self.stat(aside(name)) is None:
            return
        if self.stat(name) is None:
            self.move(aside(name), self, name)
        elif other.stat(other_name) is None:
            self.move(aside(name), other, other_name)

    def _rename(self, name: bytes, other: "HostDir", other_name: bytes, flags: int) -> None:
        if flags:
            syscalls.rename(self.fd, name, other.fd, other_name, flags)
        else:
            os.rename(name, other_name, src_dir_fd=self.fd, dst_dir_fd=other.fd)

    def _locked_directory(self, name: bytes) -> int:
        """The type and mode of a directory that its owner may not write; 0 for anything else."""
        status = self.stat(name)
        if status is None or not stat.S_ISDIR(status.st_mode) or status.st_mode & 0o200:
            return 0
        return status.st_mode

    def remove_tree(self, name: bytes) -> None:
        """Remove *name* and all below it, whatever its permissions; absent is fine."""
        try:
            self.unlink(name)
        except FileNotFoundError:
            return
        except (IsADirectoryError, PermissionError):
            status = self.stat(name)
            if status is None or not stat.S_ISDIR(status.st_mode):
                raise
        else:
            return
        with self.child(name) as directory:
            directory.remove_entries()
        self.rmdir(name)

    def remove_entries(self) -> None:
        """Remove everything in this directory; no other process may use the names in it.

        Every directory in it is moved to this one before it is emptied: depth costs neither descriptors, nor
        the interpreter's stack, nor paths that are too long.
        """
        # A name that no entry has, so that moving a directory up never replaces an entry.
        prefix = b".moved-%s-" % os.urandom(8).hex().encode()
        pending = self._cleared()
        moved = 0
        while pending:
            name = pending.pop()
            with self.child(name) as directory:
                for inner in directory._cleared():
                    moved += 1
                    directory.rename(inner, self, b"%s%d" % (prefix, moved))
                    pending.append(b"%s%d" % (prefix, moved))
            self.rmdir(name)

    def _cleared(self) -> list[bytes]:
        """Remove all but the directories that are not empty; return the names of those."""
        mode = self.own_stat().st_mode
        if mode & 0o700 != 0o700:
            os.chmod(self.own_path(), stat.S_IMODE(mode) | 0o700)
        left = []
        for name in self.names():
            status = self.stat(name)
            if status is None or not stat.S_ISDIR(status.st_mode):
                self.unlink(name)
                continue
            try:
                self.rmdir(name)
            except OSError as error:
                if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                    raise
                left.append(name)
        return left

    # Changing attributes. The target is never a symlink unless the method says so.

    def chmod(self, name: bytes, mode: int) -> None:
        os.chmod(name, mode, dir_fd=self.fd)

    def chmod_own(self, mode: int) -> None:
        """Change the mode of this directory itself, which need not be searchable."""
        os.chmod(self.own_path(), stat.S_IMODE(mode))

    def chown(self, name: bytes, uid: int, gid: int) -> None:
        """Change owners, of a symlink itself too; -1 leaves one as it is."""
        os.chown(name, uid, gid, dir_fd=self.fd, follow_symlinks=False)

    def set_times(self, name: bytes, atime_ns: int, mtime_ns: int) -> None:
        """Set the times, of a symlink itself too."""
        os.utime(name, ns=(atime_ns, mtime_ns), dir_fd=self.fd, follow_symlinks=False)

    def set_own_times(self, atime_ns: int, mtime_ns: int) -> None:
        """Set the times of this directory itself."""
        os.utime(self.own_path(), ns=(atime_ns, mtime_ns))

    # Extended attributes, of a symlink itself too

    def path_of(self, name: bytes) -> bytes:
        """A path for the calls that take no directory descriptor; they do not follow its last component.

        An empty name means this directory itself, whose attributes need no permission to search it.
        """
        return b"/proc/self/fd/%d/%s" % (self.fd, name)

    def own_path(self) -> bytes:
        return b"/proc/self/fd/%d" % self.fd

    def getxattr(self, name: bytes, attribute: bytes) -> bytes:
        return os.getxattr(self.path_of(name), attribute, follow_symlinks=False)

    def listxattr(self, name: bytes) -> list[bytes]:
        return [os.fsencode(a) for a in os.listxattr(self.path_of(name), follow_symlinks=False)]

    def setxattr(self, name: bytes, attribute: bytes, value: bytes, flags: int = 0) -> None:
        os.setxattr(self.path_of(name), attribute, value, flags, follow_symlinks=False)

    def removexattr(self, name: bytes, attribute: bytes) -> None:
        os.removexattr(self.path_of(name), attribute, follow_symlinks=False)

    # sandboxfs' own changes

    def quietly(self, action: Callable[[], T]) -> T:
        """Run *action*, a change of this directory that no program asked for, leaving no trace in its times.

        A directory that its owner may not write (mode 0555) is made writable for the moment.
        """
        before = os.fstat(self.fd)
        try:
            result = action()
        except PermissionError:
            result = unlocked(self.own_path(), before.st_mode, action)
        os.utime(self.own_path(), ns=(before.st_atime_ns, before.st_mtime_ns))
        return result


def aside(name: bytes) -> bytes:
    """The name of the replaced object during an exchange that takes more than one call."""
    return name + b"~"


def unlocked(path: bytes, mode: int, action: Callable[[], T]) -> T:
    """Run *action* while *path* (not a symlink, of *mode*) is writable by its owner."""
    mode = stat.S_IMODE(mode)
    if mode & 0o700 == 0o700:
        # The permissions did not cause the failure.
        return action()
    os.chmod(path, mode | 0o700)
    try:
        return action()
    finally:
        os.chmod(path, mode)


class HostObject(Protocol):
    """The operations on an object that need no open file."""

    def chmod(self, mode: int) -> None: ...
    def chown(self, uid: int, gid: int) -> None: ...
    def set_times(self, atime_ns: int, mtime_ns: int) -> None: ...
    def getxattr(self, attribute: bytes) -> bytes: ...
    def listxattr(self) -> list[bytes]: ...
    def setxattr(self, attribute: bytes, value: bytes, flags: int) -> None: ...
    def removexattr(self, attribute: bytes) -> None: ...


class Named:
    """An object under its name in a directory."""

    __slots__ = ("directory", "name")

    def __init__(self, directory: HostDir, name: bytes) -> None:
        self.directory = directory
        self.name = name

    def chmod(self, mode: int) -> None:
        self.directory.chmod(self.name, mode)

    def chown(self, uid: int, gid: int) -> None:
        self.directory.chown(self.name, uid, gid)

    def set_times(self, atime_ns: int, mtime_ns: int) -> None:
        self.directory.set_times(self.name, atime_ns, mtime_ns)

    def getxattr(self, attribute: bytes) -> bytes:
        return self.directory.getxattr(self.name, attribute)

    def listxattr(self) -> list[bytes]:
        return self.directory.listxattr(self.name)

    def setxattr(self, attribute: bytes, value: bytes, flags: int) -> None:
        self.directory.setxattr(self.name, attribute, value, flags)

    def removexattr(self, attribute: bytes) -> None:
        self.directory.removexattr(self.name, attribute)


class Held:
    """An object held by descriptor: an open file, which may have no name any more, or a directory.

    Calls go through /proc, because descriptors opened with O_PATH cannot be used directly, and because naming
    a directory as `.` would need permission to search it.
    """

    __slots__ = ("_owner", "_path")

    def __init__(self, fd: int, owner: HostDir | None = None) -> None:
        """*owner* keeps *fd* open, and is kept alive."""
        self._path = b"/proc/self/fd/%d" % fd
        self._owner = owner

    def chmod(self, mode: int) -> None:
        os.chmod(self._path, mode)

    def chown(self, uid: int, gid: int) -> None:
        os.chown(self._path, uid, gid)

    def set_times(self, atime_ns: int, mtime_ns: int) -> None:
        os.utime(self._path, ns=(atime_ns, mtime_ns))

    def getxattr(self, attribute: bytes) -> bytes:
        return os.getxattr(self._path, attribute)

    def listxattr(self) -> list[bytes]:
        return [os.fsencode(attribute) for attribute in os.listxattr(self._path)]

    def setxattr(self, attribute: bytes, value: bytes, flags: int) -> None:
        os.setxattr(self._path, attribute, value, flags)

    def removexattr(self, attribute: bytes) -> None:
        os.removexattr(self._path, attribute)
