"""One open host directory, and everything sandboxfs does to the names in it.

This is the door to the host: nothing outside `layers/` touches user data with `os` calls of its own.
Every method works relative to the directory's descriptor on a single name, and none follows a symlink,
so no call can leave the directory it was given. Descriptors are opened with O_PATH: searching needs no
read permission, and holding one keeps no file open.
"""

import errno
import os
import stat
from collections.abc import Callable, Iterator
from typing import TypeVar

from sandboxfs.layers import syscalls

T = TypeVar("T")

_DIRECTORY = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# Longer paths are opened in steps: the kernel takes no more than 4096 bytes at once.
_LONGEST_STEP = 4000
# What filesystems answer that do not know a flag of renameat2.
NO_SUCH_RENAME = {errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP}


class HostDir:
    """A directory of the host, held by descriptor, until it is closed or nobody has it any more.

    Closed, it is no directory: never the one that gets its descriptor's number next.
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

    def descend(self, path: bytes) -> "HostDir":
        """Open the directory at the relative *path*, never crossing a symlink on the way."""
        if not path:
            return self.child(b".")
        if len(path) <= _LONGEST_STEP:
            return HostDir(syscalls.open_beneath(self.fd, path, _DIRECTORY))
        cut = path.rindex(b"/", 0, _LONGEST_STEP)
        with self.descend(path[:cut]) as step:
            return step.descend(path[cut + 1 :])

    def stat(self, name: bytes) -> os.stat_result | None:
        """What *name* is, or None when there is no such name."""
        try:
            return os.stat(name, dir_fd=self.fd, follow_symlinks=False)
        except FileNotFoundError:
            return None

    def own_stat(self) -> os.stat_result:
        return os.fstat(self.fd)

    def filesystem_id(self, name: bytes) -> int:
        """The id of the filesystem that *name* is on; 0 where it has none."""
        return os.statvfs(self.path_of(name)).f_fsid

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
        return next(self.entries(), None) is None

    def open_for_listing(self) -> int:
        return self.open_quietly(b".", os.O_RDONLY | os.O_DIRECTORY)

    # Files

    def open(self, name: bytes, flags: int, mode: int = 0) -> int:
        """Open a file; a FIFO that took its place is refused or opened without waiting for its other end."""
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
        """Open *name*, whatever it is, only to look at it and change its attributes."""
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
        """Move *name*, a directory that its owner may not write (mode 0555) too.

        The kernel wants that permission to rewrite the directory's `..`; a program that removes such a
        directory or changes a file in it, for which it has to be moved between work and upper, needs none.
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
        """Move *name* to a name that is free: FileExistsError when it is not, and nothing is replaced."""
        try:
            self.rename(name, other, other_name, syscalls.RENAME_NOREPLACE)
        except OSError as error:
            if error.errno not in NO_SUCH_RENAME:
                raise
            self._move_plainly(name, other, other_name)

    def _move_plainly(self, name: bytes, other: "HostDir", other_name: bytes) -> None:
        """Move where the filesystem knows no flags: what is no directory gets its second name first."""
        try:
            self.link(name, other, other_name)
        except PermissionError:
            # No second names here, or a directory; of those only an empty one would be replaced.
            if other.stat(other_name) is not None:
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST)) from None
            self.rename(name, other, other_name)
        else:
            self.unlink(name)

    def exchange(self, name: bytes, other: "HostDir", other_name: bytes) -> None:
        """Exchange two names at once; where the filesystem cannot, *other_name* is free for a moment.

        What was *other_name* is then put aside as `aside(name)`, for which `settle_exchange` looks.
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
        """Bring an exchange that was broken off to one of its ends."""
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
            if status.st_mode & 0o700 != 0o700:
                os.chmod(directory.own_path(), 0o700)
            for inner in directory.names():
                directory.remove_tree(inner)
        self.rmdir(name)

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

        An empty name means this directory itself, which may be asked without permission to search it.
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
    """Where the other half of an exchange waits that takes more than one call."""
    return name + b"~"


def unlocked(path: bytes, mode: int, action: Callable[[], T]) -> T:
    """Run *action* while *path* (not a symlink, of *mode*) is writable by its owner."""
    mode = stat.S_IMODE(mode)
    if mode & 0o700 == 0o700:
        # The permissions are not what stood in the way.
        return action()
    os.chmod(path, mode | 0o700)
    try:
        return action()
    finally:
        os.chmod(path, mode)
