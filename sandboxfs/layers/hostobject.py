"""One host object whose attributes are read and changed: by its name, or by a descriptor when it has none.

Neither way follows a symlink: the attributes of a symlink are its own.
"""

import os
from typing import Protocol

from sandboxfs.layers.hostdir import HostDir


class HostObject(Protocol):
    """What can be done to an object without opening it."""

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

    Reached through /proc, because descriptors opened with O_PATH cannot be used directly, and because
    looking at a directory as `.` would need permission to search it.
    """

    __slots__ = ("_owner", "_path")

    def __init__(self, fd: int, owner: HostDir | None = None) -> None:
        """*owner* keeps *fd* open, and is kept."""
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
