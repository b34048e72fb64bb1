"""What kind of filesystem is something on?"""

import ctypes

_libc = ctypes.CDLL(None, use_errno=True)
_libc.fstatfs.argtypes = [ctypes.c_int, ctypes.c_void_p]

# From linux/magic.h: tmpfs and ramfs.
_IN_MEMORY = {0x01021994, 0x858458F6}


def type_of(fd: int) -> int:
    """The number of the kind of filesystem that an open file is on; 0 where the kernel does not tell."""
    # Larger than struct statfs anywhere; its first field is the type.
    buffer = (ctypes.c_long * 64)()
    if _libc.fstatfs(fd, buffer) != 0:
        return 0
    return int(buffer[0] & 0xFFFFFFFF)


def is_in_memory(fd: int) -> bool:
    """Whether an open file is on a filesystem that has no disk to wait for."""
    return type_of(fd) in _IN_MEMORY
