"""Linux system calls that Python's `os` does not offer.

Each wrapper raises OSError like its `os` neighbours. This module knows no use of the calls.
"""

import ctypes
import os
import struct
from dataclasses import dataclass

RENAME_NOREPLACE = 1
RENAME_EXCHANGE = 2
RENAME_WHITEOUT = 4

_RESOLVE_NO_MAGICLINKS = 0x02
_RESOLVE_NO_SYMLINKS = 0x04
_RESOLVE_BENEATH = 0x08
_SYS_OPENAT2 = 437
_SYNC_FILE_RANGE_WRITE = 2
_AT_EMPTY_PATH = 0x1000
_AT_SYMLINK_NOFOLLOW = 0x100
_STATX_BTIME = 0x800
_STATX_ATTR_MOUNT_ROOT = 0x2000

_libc = ctypes.CDLL(None, use_errno=True)
_libc.syscall.restype = ctypes.c_long
_libc.sync_file_range.argtypes = [ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint]


class _OpenHow(ctypes.Structure):
    _fields_ = (("flags", ctypes.c_uint64), ("mode", ctypes.c_uint64), ("resolve", ctypes.c_uint64))


def _last_error(name: bytes) -> OSError:
    number = ctypes.get_errno()
    return OSError(number, os.strerror(number), os.fsdecode(name))


def open_beneath(dir_fd: int, path: bytes, flags: int) -> int:
    """Open *path* below *dir_fd*; no component may be a symlink or lead out of it."""
    how = _OpenHow(flags | os.O_CLOEXEC, 0, _RESOLVE_BENEATH | _RESOLVE_NO_SYMLINKS | _RESOLVE_NO_MAGICLINKS)
    fd: int = _libc.syscall(
        ctypes.c_long(_SYS_OPENAT2),
        ctypes.c_int(dir_fd),
        ctypes.c_char_p(path),
        ctypes.byref(how),
        ctypes.c_size_t(ctypes.sizeof(how)),
    )
    if fd < 0:
        raise _last_error(path)
    return fd


def rename(old_dir_fd: int, old: bytes, new_dir_fd: int, new: bytes, flags: int) -> None:
    """Rename with the flags of renameat2(2)."""
    # No types are declared for the call: ctypes passes int and bytes as they are, and checks take time.
    if _libc.renameat2(old_dir_fd, old, new_dir_fd, new, flags) != 0:
        raise _last_error(old)


def start_writing(fd: int) -> None:
    """Have the kernel begin to write a file's data out, without waiting; a failure has no effect."""
    _libc.sync_file_range(fd, 0, 0, _SYNC_FILE_RANGE_WRITE)


@dataclass(frozen=True)
class DirectoryStatx:
    """The fields of statx(2) beyond stat(2): birth in nanoseconds, 0 where unknown, and a mount's root."""

    born: int
    mount_root: bool


def statx_directory(fd: int, name: bytes = b"") -> DirectoryStatx:
    """Ask statx(2) about the directory that is open as *fd*, or about any *name* in it, following no link."""
    answer = ctypes.create_string_buffer(256)
    if _libc.statx(fd, name, _AT_EMPTY_PATH | _AT_SYMLINK_NOFOLLOW, _STATX_BTIME, answer) != 0:
        raise _last_error(name)
    (mask,) = struct.unpack_from("=I", answer, 0)
    (attributes,) = struct.unpack_from("=Q", answer, 8)
    seconds, nanoseconds = struct.unpack_from("=qI", answer, 80)
    born = seconds * 1_000_000_000 + nanoseconds if mask & _STATX_BTIME else 0
    return DirectoryStatx(born, bool(attributes & _STATX_ATTR_MOUNT_ROOT))
