"""How does a test ask for something, whoever answers?

`Verbs` are system calls on paths relative to the root of a tree, with strings or bytes; errors are OSError.
`HostTree` answers with a plain directory, and so does a mount; the core's driver answers without a kernel.
A `Sandbox` adds the layers behind the view and, when it ends, the proof that the workspace is what it was.
"""

import os
import stat
from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.support.syscalls import getdents, renameat2
from tests.support.tree import Snapshot, assert_same_tree, capture

Name = str | bytes


class OpenFile(ABC):
    """An open file; closes itself at the end of a with statement."""

    @abstractmethod
    def pread(self, size: int, offset: int) -> bytes: ...
    @abstractmethod
    def pwrite(self, data: bytes, offset: int) -> int: ...
    @abstractmethod
    def append(self, data: bytes) -> int: ...
    @abstractmethod
    def truncate(self, size: int) -> None: ...
    @abstractmethod
    def stat(self) -> os.stat_result: ...
    @abstractmethod
    def fsync(self) -> None: ...
    @abstractmethod
    def chmod(self, mode: int) -> None: ...
    @abstractmethod
    def chown(self, uid: int, gid: int) -> None: ...
    @abstractmethod
    def utime(self, atime_ns: int, mtime_ns: int) -> None: ...
    @abstractmethod
    def getxattr(self, name: str) -> bytes: ...
    @abstractmethod
    def setxattr(self, name: str, value: bytes) -> None: ...
    @abstractmethod
    def removexattr(self, name: str) -> None: ...
    @abstractmethod
    def reopen(self, flags: int) -> "OpenFile":
        """Open the same file once more, as /proc/self/fd does, whether it has a name or not."""

    @abstractmethod
    def close(self) -> None: ...

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class OpenDir(ABC):
    """A directory being listed, "." and ".." included."""

    @abstractmethod
    def read(self) -> list[tuple[bytes, int]]:
        """The next few names, each with the cookie from which to go on after it; empty at the end."""

    @abstractmethod
    def seek(self, cookie: int) -> None:
        """Go on after the name that came with *cookie*; 0 starts anew."""

    @abstractmethod
    def close(self) -> None: ...

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class Verbs(ABC):
    """The system calls of one tree. As in C, stat, open, chmod and truncate follow a symlink."""

    @abstractmethod
    def stat(self, path: Name) -> os.stat_result: ...
    @abstractmethod
    def lstat(self, path: Name) -> os.stat_result: ...
    @abstractmethod
    def names(self, path: Name = ".") -> list[bytes]: ...
    @abstractmethod
    def open_dir(self, path: Name = ".") -> OpenDir: ...
    @abstractmethod
    def open(self, path: Name, flags: int, mode: int = 0o644) -> OpenFile: ...
    @abstractmethod
    def mkdir(self, path: Name, mode: int = 0o755) -> None: ...
    @abstractmethod
    def rmdir(self, path: Name) -> None: ...
    @abstractmethod
    def unlink(self, path: Name) -> None: ...
    @abstractmethod
    def rename(self, path: Name, new_path: Name, flags: int = 0) -> None: ...
    @abstractmethod
    def link(self, path: Name, new_path: Name) -> None: ...
    @abstractmethod
    def symlink(self, target: Name, path: Name) -> None: ...
    @abstractmethod
    def readlink(self, path: Name) -> bytes: ...
    @abstractmethod
    def mknod(self, path: Name, mode: int, device: int = 0) -> None: ...
    @abstractmethod
    def chmod(self, path: Name, mode: int) -> None: ...
    @abstractmethod
    def chown(self, path: Name, uid: int, gid: int) -> None: ...
    @abstractmethod
    def utime(self, path: Name, atime_ns: int, mtime_ns: int) -> None: ...
    @abstractmethod
    def truncate(self, path: Name, size: int) -> None: ...
    @abstractmethod
    def getxattr(self, path: Name, name: Name) -> bytes: ...
    @abstractmethod
    def setxattr(self, path: Name, name: Name, value: bytes, flags: int = 0) -> None: ...
    @abstractmethod
    def listxattr(self, path: Name) -> list[str]: ...
    @abstractmethod
    def removexattr(self, path: Name, name: Name) -> None: ...
    @abstractmethod
    def statvfs(self) -> os.statvfs_result: ...

    # What follows is made of the verbs above.

    def read(self, path: Name) -> bytes:
        with self.open(path, os.O_RDONLY) as file:
            data = bytearray()
            while part := file.pread(1 << 20, len(data)):
                data += part
            return bytes(data)

    def write(self, path: Name, data: bytes, flags: int = os.O_CREAT | os.O_TRUNC, mode: int = 0o644) -> None:
        """Write *data* at the beginning, by default creating the file or replacing all it held."""
        with self.open(path, os.O_WRONLY | flags, mode) as file:
            done = 0
            while done < len(data):
                done += file.pwrite(data[done : done + (1 << 20)], done)

    def create(self, path: Name, data: bytes = b"", mode: int = 0o644) -> None:
        """Make a file that must not exist."""
        self.write(path, data, os.O_CREAT | os.O_EXCL, mode)

    def append(self, path: Name, data: bytes) -> None:
        with self.open(path, os.O_WRONLY | os.O_APPEND) as file:
            file.append(data)

    def mkfifo(self, path: Name, mode: int = 0o644) -> None:
        self.mknod(path, stat.S_IFIFO | mode)

    def exists(self, path: Name) -> bool:
        """Whether the name is there, be it a dangling symlink."""
        try:
            self.lstat(path)
        except (FileNotFoundError, NotADirectoryError):
            return False
        return True

    def is_dir(self, path: Name) -> bool:
        return stat.S_ISDIR(self.lstat(path).st_mode)

    def remove_tree(self, path: Name) -> None:
        for name in self.names(path):
            inner = os.path.join(os.fsencode(path), name)
            if self.is_dir(inner):
                self.remove_tree(inner)
            else:
                self.unlink(inner)
        self.rmdir(path)


class HostFile(OpenFile):
    """A descriptor of the kernel's."""

    def __init__(self, fd: int) -> None:
        self.fd = fd

    def pread(self, size: int, offset: int) -> bytes:
        return os.pread(self.fd, size, offset)

    def pwrite(self, data: bytes, offset: int) -> int:
        return os.pwrite(self.fd, data, offset)

    def append(self, data: bytes) -> int:
        return os.write(self.fd, data)

    def truncate(self, size: int) -> None:
        os.ftruncate(self.fd, size)

    def stat(self) -> os.stat_result:
        return os.fstat(self.fd)

    def fsync(self) -> None:
        os.fsync(self.fd)

    def chmod(self, mode: int) -> None:
        os.fchmod(self.fd, mode)

    def chown(self, uid: int, gid: int) -> None:
        os.fchown(self.fd, uid, gid)

    def utime(self, atime_ns: int, mtime_ns: int) -> None:
        os.utime(self.fd, ns=(atime_ns, mtime_ns))

    def getxattr(self, name: str) -> bytes:
        return os.getxattr(self.fd, name)

    def setxattr(self, name: str, value: bytes) -> None:
        os.setxattr(self.fd, name, value)

    def removexattr(self, name: str) -> None:
        os.removexattr(self.fd, name)

    def reopen(self, flags: int) -> OpenFile:
        return HostFile(os.open(f"/proc/self/fd/{self.fd}", flags | os.O_CLOEXEC))

    def close(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


class HostDirectory(OpenDir):
    """A directory descriptor of the kernel's, read in small portions."""

    def __init__(self, fd: int) -> None:
        self.fd = fd

    def read(self) -> list[tuple[bytes, int]]:
        return getdents(self.fd, 1024)

    def seek(self, cookie: int) -> None:
        os.lseek(self.fd, cookie, os.SEEK_SET)

    def close(self) -> None:
        os.close(self.fd)


class HostTree(Verbs):
    """A directory of the kernel's, be it plain or a mount."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def at(self, path: Name) -> bytes:
        return os.path.join(os.fsencode(self.root), os.fsencode(path))

    def stat(self, path: Name) -> os.stat_result:
        return os.stat(self.at(path))

    def lstat(self, path: Name) -> os.stat_result:
        return os.lstat(self.at(path))

    def names(self, path: Name = ".") -> list[bytes]:
        return os.listdir(self.at(path))

    def open_dir(self, path: Name = ".") -> OpenDir:
        return HostDirectory(os.open(self.at(path), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC))

    def open(self, path: Name, flags: int, mode: int = 0o644) -> OpenFile:
        return HostFile(os.open(self.at(path), flags | os.O_CLOEXEC, mode))

    def mkdir(self, path: Name, mode: int = 0o755) -> None:
        os.mkdir(self.at(path), mode)

    def rmdir(self, path: Name) -> None:
        os.rmdir(self.at(path))

    def unlink(self, path: Name) -> None:
        os.unlink(self.at(path))

    def rename(self, path: Name, new_path: Name, flags: int = 0) -> None:
        renameat2(self.at(path), self.at(new_path), flags)

    def link(self, path: Name, new_path: Name) -> None:
        os.link(self.at(path), self.at(new_path), follow_symlinks=False)

    def symlink(self, target: Name, path: Name) -> None:
        os.symlink(os.fsencode(target), self.at(path))

    def readlink(self, path: Name) -> bytes:
        return os.readlink(self.at(path))

    def mknod(self, path: Name, mode: int, device: int = 0) -> None:
        os.mknod(self.at(path), mode, device)

    def chmod(self, path: Name, mode: int) -> None:
        os.chmod(self.at(path), mode)

    def chown(self, path: Name, uid: int, gid: int) -> None:
        os.chown(self.at(path), uid, gid, follow_symlinks=False)

    def utime(self, path: Name, atime_ns: int, mtime_ns: int) -> None:
        os.utime(self.at(path), ns=(atime_ns, mtime_ns), follow_symlinks=False)

    def truncate(self, path: Name, size: int) -> None:
        os.truncate(self.at(path), size)

    def getxattr(self, path: Name, name: Name) -> bytes:
        return os.getxattr(self.at(path), name, follow_symlinks=False)

    def setxattr(self, path: Name, name: Name, value: bytes, flags: int = 0) -> None:
        os.setxattr(self.at(path), name, value, flags, follow_symlinks=False)

    def listxattr(self, path: Name) -> list[str]:
        return os.listxattr(self.at(path), follow_symlinks=False)

    def removexattr(self, path: Name, name: Name) -> None:
        os.removexattr(self.at(path), name, follow_symlinks=False)

    def statvfs(self) -> os.statvfs_result:
        return os.statvfs(self.root)


class Sandbox(Verbs):
    """A view of a workspace, with its layers in sight: *lower* is the workspace, *upper* takes the writes."""

    kind: str
    lower: Path
    upper: Path
    work: Path
    baseline: Path
    # Where the view begins in the layers and in the baseline.
    top: bytes = b""
    _pristine: Snapshot

    @abstractmethod
    def start(self) -> None:
        """Serve the view."""

    @abstractmethod
    def stop(self) -> None:
        """End the view as a user would, and check that it ended well. Harmless when it is not served."""

    @abstractmethod
    def abandon(self) -> None:
        """Leave nothing running or mounted, whatever happened before."""

    @abstractmethod
    def forget(self) -> None:
        """Have every inode forgotten that nobody has open."""

    def remount(self) -> None:
        self.stop()
        self.start()

    def host_changed(self) -> None:
        """Say that the test itself has just changed the workspace: what it is now is what it must stay."""
        self._pristine = capture(self.lower)

    def finish(self, check: Callable[[], None] = lambda: None) -> None:
        """End the view and prove that it kept its promises."""
        self.stop()
        self._check_end(check)

    def _check_end(self, check: Callable[[], None]) -> None:
        check()
        assert_same_tree(capture(self.lower), self._pristine, what="the workspace")
        left = os.listdir(self.work)
        assert not left, f"left behind in staging: {left}"
