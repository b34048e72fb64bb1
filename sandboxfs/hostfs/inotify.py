"""inotify by directory descriptor: what the host does to directories.

A watch belongs to a directory, whatever path leads there, and reports changes of the names in it and of the
files behind them; not changes of a file through another name elsewhere, nor writes through memory maps before
they are unmapped. A network filesystem, or another one that changes without this kernel, reports none of
those changes: `reports_changes` knows the filesystems that change through this kernel alone.
"""

import ctypes
import errno
import os
import struct
from dataclasses import dataclass
from pathlib import Path

from sandboxfs.hostfs.directory import HostDir
from sandboxfs.hostfs.identity import type_of

MODIFY = 0x00000002
ATTRIB = 0x00000004
CLOSE_WRITE = 0x00000008
MOVED_FROM = 0x00000040
MOVED_TO = 0x00000080
CREATE = 0x00000100
DELETE = 0x00000200
DELETE_SELF = 0x00000400
MOVE_SELF = 0x00000800
UNMOUNT = 0x00002000
OVERFLOW = 0x00004000
IGNORED = 0x00008000
ISDIR = 0x40000000

NAMES = MOVED_FROM | MOVED_TO | CREATE | DELETE
"""The events that change which names a directory has."""
_WATCHED = MODIFY | ATTRIB | CLOSE_WRITE | NAMES | DELETE_SELF | MOVE_SELF
_ONLYDIR = 0x01000000

_EVENT = struct.Struct("=iIII")
# Room for some thousand events; one event never needs more than 300 bytes.
_BUFFER = 65536
_MOST_WATCHES = Path("/proc/sys/fs/inotify/max_user_watches")
# The kernel's errors when there are no more watches, or no memory for them.
EXHAUSTED = {errno.ENOSPC, errno.ENOMEM, errno.EMFILE, errno.ENFILE}

# From linux/magic.h and the filesystems' sources. Overlayfs reports the changes made through itself.
_LOCAL = {
    0xEF53,  # ext2, ext3, ext4
    0x58465342,  # xfs
    0x9123683E,  # btrfs
    0x01021994,  # tmpfs
    0x858458F6,  # ramfs
    0xF2F52010,  # f2fs
    0x2FC12FC1,  # zfs
    0x794C7630,  # overlayfs
    0xCA451A4E,  # bcachefs
    0x3153464A,  # jfs
    0x52654973,  # reiserfs
    0x00003434,  # nilfs2
    0x00004D44,  # vfat
    0x2011BAB0,  # exfat
    0x73717368,  # squashfs
    0xE0F5E1E2,  # erofs
    0x00009660,  # iso9660
}

_libc = ctypes.CDLL(None, use_errno=True)
_libc.inotify_init1.argtypes = [ctypes.c_int]
_libc.inotify_add_watch.argtypes = [ctypes.c_int, ctypes.c_char_p, ctypes.c_uint32]
_libc.inotify_rm_watch.argtypes = [ctypes.c_int, ctypes.c_int]


@dataclass(frozen=True, slots=True)
class Event:
    """An event (*mask*) at a *name* of a watched directory, or, without a name, at the directory itself."""

    watch: int
    mask: int
    name: bytes


class Inotify:
    """One queue of events, and the watches that feed it."""

    def __init__(self) -> None:
        self.fd: int = _libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        if self.fd < 0:
            raise _last_error()

    def add(self, directory: HostDir) -> int:
        """Watch a directory; the number of the watch, the same for the same directory."""
        watch: int = _libc.inotify_add_watch(self.fd, directory.own_path(), _WATCHED | _ONLYDIR)
        if watch < 0:
            raise _last_error()
        return watch

    def remove(self, watch: int) -> None:
        """Stop watching; events that are queued already still come. A watch that ended by itself is fine."""
        _libc.inotify_rm_watch(self.fd, watch)

    def read(self) -> list[Event]:
        """The events that are there now, some thousand at most; perhaps none."""
        try:
            data = os.read(self.fd, _BUFFER)
        except BlockingIOError:
            return []
        return list(parsed(data))

    def close(self) -> None:
        os.close(self.fd)


def parsed(data: bytes) -> list[Event]:
    """The events in the kernel's *data*."""
    events = []
    at = 0
    while at < len(data):
        watch, mask, _, length = _EVENT.unpack_from(data, at)
        at += _EVENT.size
        events.append(Event(watch, mask, data[at : at + length].rstrip(b"\0")))
        at += length
    return events


def allowance() -> int:
    """The number of watches that one sandbox may take: half of the user's limit."""
    try:
        return int(_MOST_WATCHES.read_text()) // 2
    except (OSError, ValueError):
        return 0


def reports_changes(directory: HostDir) -> bool:
    """Whether all changes of a directory's filesystem go through this kernel."""
    return type_of(directory.fd) in _LOCAL


def _last_error() -> OSError:
    number = ctypes.get_errno()
    return OSError(number, os.strerror(number))
