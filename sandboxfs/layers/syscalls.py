"""The Linux system calls that Python's `os` does not offer.

Each wrapper raises OSError like its `os` neighbours. Nothing here knows what the calls are used for.
"""

import ctypes
import fcntl
import os

RENAME_NOREPLACE = 1
RENAME_EXCHANGE = 2
RENAME_WHITEOUT = 4

_RESOLVE_NO_MAGICLINKS = 0x02
_RESOLVE_NO_SYMLINKS = 0x04
_RESOLVE_BENEATH = 0x08
_SYS_OPENAT2 = 437
_FICLONE = 0x40049409
_SYNC_FILE_RANGE_WRITE = 2

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
    # No types are declared for it: ctypes passes int and bytes as they are, and to check them takes time.
    if _libc.renameat2(old_dir_fd, old, new_dir_fd, new, flags) != 0:
        raise _last_error(old)


def reflink(source_fd: int, target_fd: int) -> None:
    """Make the target share the source's blocks; OSError where the filesystem cannot."""
    fcntl.ioctl(target_fd, _FICLONE, source_fd)


def start_writing(fd: int) -> None:
    """Have the kernel begin to write a file's data out, without waiting for it; at worst nothing happens."""
    _libc.sync_file_range(fd, 0, 0, _SYNC_FILE_RANGE_WRITE)
