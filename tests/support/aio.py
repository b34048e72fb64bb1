"""Asynchronous writes around the page cache (Linux AIO with O_DIRECT), which Python does not offer."""

import ctypes
import mmap
import os
import platform
from collections.abc import Iterator
from contextlib import contextmanager

# io_setup, io_destroy, io_getevents, io_submit.
_CALLS = {"x86_64": (206, 207, 208, 209), "aarch64": (0, 1, 4, 2)}
_PWRITE = 1
_libc = ctypes.CDLL(None, use_errno=True)
_libc.syscall.restype = ctypes.c_long


class _Iocb(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_uint64),
        ("key", ctypes.c_uint32),
        ("rw_flags", ctypes.c_int32),
        ("opcode", ctypes.c_uint16),
        ("priority", ctypes.c_int16),
        ("fd", ctypes.c_uint32),
        ("buffer", ctypes.c_uint64),
        ("size", ctypes.c_uint64),
        ("offset", ctypes.c_int64),
        ("reserved", ctypes.c_uint64),
        ("flags", ctypes.c_uint32),
        ("event_fd", ctypes.c_uint32),
    )


class _Event(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_uint64),
        ("obj", ctypes.c_uint64),
        ("result", ctypes.c_int64),
        ("result2", ctypes.c_int64),
    )


class Writer:
    """Writes asynchronously, and waits for it."""

    def __init__(self, context: ctypes.c_ulong, get: int, submit: int) -> None:
        self._context, self._get, self._submit = context, get, submit

    def write(self, fd: int, data: mmap.mmap) -> int:
        """Write a buffer, which mmap has aligned, to the start of a file; how many bytes were written."""
        place = ctypes.addressof(ctypes.c_char.from_buffer(data))
        block = _Iocb(opcode=_PWRITE, fd=fd, buffer=place, size=len(data))
        blocks = (ctypes.POINTER(_Iocb) * 1)(ctypes.pointer(block))
        _checked(self._submit, self._context, ctypes.c_long(1), blocks)
        event = _Event()
        one = ctypes.c_long(1)
        _checked(self._get, self._context, one, one, ctypes.byref(event), None)
        result: int = event.result
        if result < 0:
            raise OSError(-result, os.strerror(-result))
        return result


@contextmanager
def writer() -> Iterator[Writer]:
    setup, destroy, get, submit = _CALLS[platform.machine()]
    context = ctypes.c_ulong(0)
    _checked(setup, ctypes.c_uint(8), ctypes.byref(context))
    try:
        yield Writer(context, get, submit)
    finally:
        _checked(destroy, context)


def _checked(call: int, *arguments: object) -> None:
    if _libc.syscall(ctypes.c_long(call), *arguments) < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
