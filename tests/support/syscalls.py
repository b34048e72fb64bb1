"""Which system calls do the tests need that Python does not offer?"""

import ctypes
import os
import struct

RENAME_NOREPLACE = 1
RENAME_EXCHANGE = 2
RENAME_WHITEOUT = 4

AT_FDCWD = -100
MNT_DETACH = 2
_AT_SYMLINK_NOFOLLOW, _STATX_TYPE, _STATX_MODE = 0x100, 1, 2
# Where struct statx has the mode.
_AT_MODE = 28

_DIRENT = struct.Struct("=QqHB")  # d_ino, d_off, d_reclen, d_type; then the name

_libc = ctypes.CDLL(None, use_errno=True)


def renameat2(source: bytes, target: bytes, flags: int) -> None:
    """Rename with flags, relative to the current directory."""
    if _libc.renameat2(AT_FDCWD, source, AT_FDCWD, target, ctypes.c_uint(flags)):
        _fail(source)


def getdents(fd: int, size: int) -> list[tuple[bytes, int]]:
    """The names that fit into a buffer of *size* bytes, each with the offset after it."""
    buffer = ctypes.create_string_buffer(size)
    filled: int = _libc.getdents64(fd, buffer, ctypes.c_size_t(size))
    if filled < 0:
        _fail(b"%d" % fd)
    found, position = [], 0
    while position < filled:
        _, offset, length, _ = _DIRENT.unpack_from(buffer, position)
        name = buffer.raw[position + _DIRENT.size : position + length].split(b"\0", 1)[0]
        found.append((name, offset))
        position += length
    return found


def detach(mountpoint: bytes) -> None:
    """Unmount lazily; needs root."""
    if _libc.umount2(mountpoint, MNT_DETACH):
        _fail(mountpoint)


def statx_mode(path: bytes) -> int:
    """The type and permissions of a file, asked for alone: the kernel may answer from what it remembers."""
    answer = ctypes.create_string_buffer(256)
    if _libc.statx(AT_FDCWD, path, _AT_SYMLINK_NOFOLLOW, _STATX_TYPE | _STATX_MODE, answer):
        _fail(path)
    mode: int = struct.unpack_from("=H", answer, _AT_MODE)[0]
    return mode


def _fail(path: bytes) -> None:
    code = ctypes.get_errno()
    raise OSError(code, os.strerror(code), os.fsdecode(path))
