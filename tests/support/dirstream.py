"""What do the C library's directory streams offer that Python does not?

telldir, seekdir and rewinddir, and the inode number and type that readdir tells of an entry.
"""

import ctypes
import os
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Self


class _Dirent(ctypes.Structure):
    _fields_ = (
        ("d_ino", ctypes.c_uint64),
        ("d_off", ctypes.c_int64),
        ("d_reclen", ctypes.c_ushort),
        ("d_type", ctypes.c_ubyte),
        ("d_name", ctypes.c_char * 256),
    )


_libc = ctypes.CDLL(None, use_errno=True)
_libc.opendir.restype = ctypes.c_void_p
_libc.opendir.argtypes = [ctypes.c_char_p]
_libc.readdir.restype = ctypes.POINTER(_Dirent)
_libc.telldir.restype = ctypes.c_long
_libc.seekdir.restype = None
_libc.rewinddir.restype = None
for _function in (_libc.readdir, _libc.telldir, _libc.rewinddir, _libc.closedir):
    _function.argtypes = [ctypes.c_void_p]
_libc.seekdir.argtypes = [ctypes.c_void_p, ctypes.c_long]


class Listed(NamedTuple):
    name: bytes
    ino: int
    kind: int


class DirStream:
    """An open directory."""

    def __init__(self, path: Path) -> None:
        self._stream: int | None = _libc.opendir(os.fsencode(path))
        if self._stream is None:
            _fail(path)

    def read(self) -> Listed | None:
        """The next entry, or None at the end."""
        ctypes.set_errno(0)
        entry = _libc.readdir(self._stream)
        if not entry:
            if ctypes.get_errno():
                _fail(None)
            return None
        found = entry.contents
        return Listed(bytes(found.d_name), int(found.d_ino), int(found.d_type))

    def rest(self) -> list[Listed]:
        """All entries from here to the end."""
        found = []
        while (entry := self.read()) is not None:
            found.append(entry)
        return found

    def tell(self) -> int:
        return int(_libc.telldir(self._stream))

    def seek(self, position: int) -> None:
        _libc.seekdir(self._stream, position)

    def rewind(self) -> None:
        _libc.rewinddir(self._stream)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _libc.closedir(self._stream)


def _fail(path: Path | None) -> None:
    code = ctypes.get_errno()
    raise OSError(code, os.strerror(code), path)
