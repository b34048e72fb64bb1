"""What does the kernel do for an open file or directory of the core?

It checks how the file was opened, finds the end for O_APPEND, and counts the entries that a listing gave it.
"""

import errno
import os
from typing import TYPE_CHECKING, NoReturn

from sandboxfs.overlay.filesystem import AttributeChange, Entry
from tests.support.drivers import OpenDir, OpenFile

if TYPE_CHECKING:
    from tests.support.core_driver import CoreDriver


def fail(code: int) -> NoReturn:
    raise OSError(code, os.strerror(code))


def shown(entry: Entry) -> os.stat_result:
    """What the kernel makes of an entry for stat."""
    status = entry.stat
    # st_dev is the mount's own there, whichever layer answered.
    visible = (status.st_mode, entry.ino, 0, entry.nlink, *status[4:])
    hidden = {name: getattr(status, name) for name in dir(status) if name.startswith("st_")}
    return os.stat_result(visible, hidden)


class CoreFile(OpenFile):
    def __init__(self, driver: "CoreDriver", ino: int, handle: int, flags: int) -> None:
        self._driver, self._fs = driver, driver.fs
        self.ino, self.handle = ino, handle
        self._access = flags & os.O_ACCMODE
        self._closed = False

    @property
    def writes(self) -> bool:
        return self._access != os.O_RDONLY

    def pread(self, size: int, offset: int) -> bytes:
        if self._access == os.O_WRONLY:
            fail(errno.EBADF)
        return bytes(self._fs.read(self.handle, offset, size))

    def pwrite(self, data: bytes, offset: int) -> int:
        if self._access == os.O_RDONLY:
            fail(errno.EBADF)
        return self._fs.write(self.handle, offset, data)

    def append(self, data: bytes) -> int:
        # The kernel finds the end by itself and asks for a write there.
        return self.pwrite(data, self._fs.getattr(self.ino).stat.st_size)

    def truncate(self, size: int) -> None:
        if self._access == os.O_RDONLY:
            fail(errno.EINVAL)
        self._change(AttributeChange(size=size))

    def stat(self) -> os.stat_result:
        return shown(self._fs.getattr(self.ino))

    def fsync(self) -> None:
        self._fs.fsync(self.handle, False)

    def _change(self, change: AttributeChange) -> None:
        self._fs.setattr(self.ino, change, self.handle, self._driver.caller)

    def chmod(self, mode: int) -> None:
        self._change(AttributeChange(mode=mode))

    def chown(self, uid: int, gid: int) -> None:
        self._change(AttributeChange(uid=None if uid == -1 else uid, gid=None if gid == -1 else gid))

    def utime(self, atime_ns: int, mtime_ns: int) -> None:
        self._change(AttributeChange(atime_ns=atime_ns, mtime_ns=mtime_ns))

    def getxattr(self, name: str) -> bytes:
        return self._fs.getxattr(self.ino, os.fsencode(name))

    def setxattr(self, name: str, value: bytes) -> None:
        self._fs.setxattr(self.ino, os.fsencode(name), value, 0)

    def removexattr(self, name: str) -> None:
        self._fs.removexattr(self.ino, os.fsencode(name))

    def reopen(self, flags: int) -> OpenFile:
        return self._driver.open_inode(self.ino, flags)

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._fs.release(self.handle)
            self._driver.closed(self)


class CoreDir(OpenDir):
    def __init__(self, driver: "CoreDriver", handle: int, portion: int) -> None:
        self._driver, self._fs = driver, driver.fs
        self._handle = handle
        self._portion = portion
        self._position = 0
        self._at_end = False

    def read(self) -> list[tuple[bytes, int]]:
        found: list[tuple[bytes, int]] = []
        for name, entry, cookie in self._fs.readdir(self._handle, self._position):
            if name not in (b".", b".."):
                self._fs.remember(entry.ino)
                self._driver.references[entry.ino] += 1
            found.append((name, cookie))
            self._position = cookie
            if len(found) == self._portion:
                break
        return found

    def seek(self, cookie: int) -> None:
        self._position = cookie

    def close(self) -> None:
        self._fs.releasedir(self._handle)
        self._driver.closed(self)
