"""Identities of objects and directories, to know them again; `ConcurrentChange` where one is another.

An unplugged disk or an unmounted view leaves an empty directory at the path of its workspace. The device
number cannot tell the two apart: it changes with a reboot or a remount for many file systems. The type of
the file system lasts and, where the file system keeps them, the inode number and the time of birth; on file
systems that make numbers up, the type and whether the directory is the root of a mount are compared.

Two disks that are mounted at one place, one after the other, may have the same device number, the same root
inode and, made in the same second or copied, the same birth. Their volumes differ: the id of the file system,
where statfs(2) makes it of the UUID on the disk and not of the device number.
"""

import ctypes
import os
import stat
from dataclasses import dataclass, field

from sandboxfs.codec import SPARSE
from sandboxfs.hostfs.syscalls import statx_directory

_libc = ctypes.CDLL(None, use_errno=True)
_libc.fstatfs.argtypes = [ctypes.c_int, ctypes.c_void_p]

# From linux/magic.h: tmpfs and ramfs.
_IN_MEMORY = {0x01021994, 0x858458F6}


def type_of(fd: int) -> int:
    """The number of the type of filesystem that an open file is on; 0 where the kernel does not tell."""
    # Larger than struct statfs anywhere; its first field is the type.
    buffer = (ctypes.c_long * 64)()
    if _libc.fstatfs(fd, buffer) != 0:
        return 0
    return int(buffer[0] & 0xFFFFFFFF)


def is_in_memory(fd: int) -> bool:
    """Whether an open file is on a filesystem that has no disk to wait for."""
    return type_of(fd) in _IN_MEMORY


def fingerprint(status: os.stat_result) -> tuple[int, int, int]:
    """The values that change when a file's content does."""
    return status.st_mtime_ns, status.st_ctime_ns, status.st_size


class ConcurrentChange(Exception):
    """The workspace changed since the transaction was planned; at *path*, and *why* is half a sentence."""

    def __init__(self, path: bytes, why: str) -> None:
        super().__init__(path, why)
        self.path = path
        self.why = why


@dataclass(frozen=True, slots=True)
class ObjectIdentity:
    """One state of one object. A directory's state includes neither its content nor its times."""

    dev: int
    ino: int
    mode: int
    size: int
    mtime_ns: int
    ctime_ns: int = 0

    @classmethod
    def of(cls, status: os.stat_result) -> "ObjectIdentity":
        return cls(
            status.st_dev,
            status.st_ino,
            status.st_mode,
            status.st_size,
            status.st_mtime_ns,
            status.st_ctime_ns,
        )

    @property
    def is_dir(self) -> bool:
        return stat.S_ISDIR(self.mode)

    def is_object(self, status: os.stat_result | None) -> bool:
        """Whether *status* is of this very object, in whatever state.

        The device is not compared: its number may differ after a restart of the machine.
        """
        return (
            status is not None
            and status.st_ino == self.ino
            and stat.S_IFMT(status.st_mode) == stat.S_IFMT(self.mode)
        )

    def is_untouched(self, status: os.stat_result | None) -> bool:
        """Whether *status* is of this object unchanged, but for a rename, which changes only its ctime."""
        if status is None or not self.is_object(status):
            return False
        return self.is_dir or (
            status.st_size == self.size
            and status.st_mtime_ns == self.mtime_ns
            and status.st_mode == self.mode
        )

    def is_exactly(self, status: os.stat_result | None) -> bool:
        """Whether *status* is of this object and not even its ctime changed."""
        if status is None or not self.is_untouched(status) or status.st_dev != self.dev:
            return False
        # A file that its owner may not read is unlocked for a moment whenever its content is read.
        return self.is_dir or status.st_ctime_ns == self.ctime_ns or not self.mode & stat.S_IRUSR

    def is_as_seen(self, status: os.stat_result | None) -> bool:
        """Whether *status* is of this object unchanged in all that sandboxfs does not change itself.

        A change through another name of a file shows in its ctime.
        """
        if status is not None and status.st_nlink > 1 and not self.is_dir:
            return self.is_untouched(status)
        return self.is_exactly(status)


# From linux/magic.h and the projects' own: ext2/3/4, XFS, btrfs, f2fs, bcachefs, ZFS, tmpfs, ramfs, JFS.
_ON_DISK = frozenset(
    {0xEF53, 0x58465342, 0x9123683E, 0xF2F52010, 0xCA451A4E, 0x2FC12FC1, 0x01021994, 0x858458F6, 0x3153464A}
)
# NFS shows the server's inode numbers; whether it tells birth times depends on its version.
_NUMBERED = _ON_DISK | {0x6969}


# ext2/3/4, btrfs, bcachefs and ZFS make the id of the UUID; others, XFS too, make it of the device number.
_WITH_VOLUME = frozenset({0xEF53, 0x9123683E, 0xCA451A4E, 0x2FC12FC1})


@dataclass(frozen=True)
class DirectoryIdentity:
    """A directory: *filesystem* is a type of statfs(2), *born* nanoseconds, 0 where unknown.

    *volume* is the lasting id of the file system, empty where there is none.
    """

    filesystem: int
    inode: int
    born: int
    mount_root: bool
    volume: str = field(default="", metadata=SPARSE)

    def is_same(self, now: "DirectoryIdentity") -> bool:
        """Say whether *now*, seen at the same path later, is this directory."""
        if self.filesystem != now.filesystem:
            return False
        if self.filesystem not in _NUMBERED:
            return self.mount_root == now.mount_root
        if is_other_volume(self.volume, now.volume):
            return False
        births_known = self.filesystem in _ON_DISK and self.born and now.born
        return self.inode == now.inode and (not births_known or self.born == now.born)

    def why_not(self, now: "DirectoryIdentity") -> str:
        """Say what is missing where *now* was found in the place of this directory."""
        if self.mount_root and not now.mount_root:
            return "it was on a disk or a view that is not mounted now"
        if now.mount_root and not self.mount_root:
            return "something else is mounted there now"
        if self.filesystem != now.filesystem:
            return "it was on another file system"
        if is_other_volume(self.volume, now.volume):
            return "it was on another disk"
        return "it was removed, or moved away, and another directory has its place"


def identity_of(fd: int) -> DirectoryIdentity:
    """Return the identity of the directory that is open as *fd*."""
    seen = statx_directory(fd)
    return DirectoryIdentity(
        type_of(fd), os.fstat(fd).st_ino, seen.born, seen.mount_root, volume=_volume_of(fd)
    )


def mounted_volume(fd: int, name: bytes = b"") -> str | None:
    """The volume of the directory that is open as *fd*, or of *name* in it; None for no root of a mount."""
    if not statx_directory(fd, name).mount_root:
        return None
    if not name:
        return _volume_of(fd)
    opened = os.open(name, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=fd)
    try:
        return _volume_of(opened)
    finally:
        os.close(opened)


def is_other_volume(one: str, other: str) -> bool:
    """Whether both volumes are known, and differ."""
    return bool(one and other) and one != other


def _volume_of(fd: int) -> str:
    return f"{os.statvfs(fd).f_fsid:016x}" if type_of(fd) in _WITH_VOLUME else ""
