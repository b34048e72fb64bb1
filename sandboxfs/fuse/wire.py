"""What do requests and answers look like on the device?

The structures of linux/fuse.h that are read and written here. Every request begins with a header of 40 bytes,
every answer with one of 16; what follows is the body, at `BODY` in a request.
"""

import os
import struct
from enum import IntEnum

from sandboxfs.overlay.filesystem import Entry

BODY = 40


class Opcode(IntEnum):
    """What the kernel can ask for, as far as it matters here."""

    LOOKUP = 1
    FORGET = 2
    GETATTR = 3
    SETATTR = 4
    READLINK = 5
    SYMLINK = 6
    MKDIR = 9
    UNLINK = 10
    RMDIR = 11
    RENAME = 12
    LINK = 13
    OPEN = 14
    READ = 15
    WRITE = 16
    STATFS = 17
    RELEASE = 18
    FSYNC = 20
    SETXATTR = 21
    GETXATTR = 22
    LISTXATTR = 23
    REMOVEXATTR = 24
    INIT = 26
    OPENDIR = 27
    RELEASEDIR = 29
    FSYNCDIR = 30
    CREATE = 35
    INTERRUPT = 36
    IOCTL = 39
    BATCH_FORGET = 42
    READDIRPLUS = 44
    RENAME2 = 45


# Flags of an answer to OPEN and CREATE.
DIRECT_IO, KEEP_CACHE = 1 << 0, 1 << 1

# Seconds the kernel may answer by itself: what the host may change unnoticed, what it may only change
# unnoticed in ways that hardly anybody uses, and what nobody can.
FLEETING, WATCHED, LASTING = 0.5, 60.0, 3600.0
SECONDS = FLEETING, WATCHED, LASTING
_WHOLE_SECONDS = tuple(int(seconds) for seconds in SECONDS)
_NANOSECONDS = tuple(int(seconds % 1 * 1e9) for seconds in SECONDS)

header_of = struct.Struct("=IIQQIII4x").unpack_from
"""Length, opcode, number of the request, inode, and the caller's uid, gid and pid."""
HEADER = struct.Struct("=IiQ")
_pack_header = HEADER.pack

# fuse_attr, fuse_attr_out up to it, fuse_entry_out up to it, fuse_dirent up to the name, fuse_open_out,
# fuse_write_out, fuse_statfs_out.
_pack_attr = struct.Struct("=QQQqqqIIIIIIIIII").pack
_pack_lasting = struct.Struct("=QII").pack
_pack_entry = struct.Struct("=QQQQII").pack
_pack_dirent = struct.Struct("=QQII").pack
_pack_opened = struct.Struct("=QII").pack
_pack_written = struct.Struct("=II").pack
_pack_statistics = struct.Struct("=QQQQQIII28x").pack
_NO_ATTR = bytes(88)
# An entry of a listing that says nothing of its inode.
_MENTION = bytes(40) + _NO_ATTR
_PADDING = tuple(bytes(-length % 8) for length in range(8))
_A_SECOND = 10**9


def refusal(unique: int, number: int) -> bytes:
    """The answer that something cannot be done, and why."""
    return _pack_header(16, -number, unique)


def message(kind: int, body: bytes) -> bytes:
    """What the kernel is told without having asked."""
    return _pack_header(16 + len(body), kind, 0) + body


def attributes(entry: Entry) -> bytes:
    """The body of an answer that says what an inode is like."""
    if entry.guarded:
        return _pack_lasting(0, 0, 0) + _attr(entry)
    lasting = entry.attributes
    return _pack_lasting(_WHOLE_SECONDS[lasting], _NANOSECONDS[lasting], 0) + _attr(entry)


def found(entry: Entry) -> bytes:
    """The body of an answer that says what a name leads to."""
    if entry.guarded:
        return _pack_entry(entry.ino, 0, 0, 0, 0, 0) + _attr(entry)
    name, inode = entry.name, entry.attributes
    whole, rest = _WHOLE_SECONDS, _NANOSECONDS
    return _pack_entry(entry.ino, 0, whole[name], whole[inode], rest[name], rest[inode]) + _attr(entry)


ABSENT = _pack_entry(0, 0, int(FLEETING), 0, int(FLEETING % 1 * 1e9), 0) + _NO_ATTR
ABSENT_FOR_LONG = _pack_entry(0, 0, int(LASTING), 0, 0, 0) + _NO_ATTR
"""Bodies of the answer that there is no such name, which the kernel may remember."""


def listed(name: bytes, entry: Entry, position: int) -> bytes:
    """One entry of a listing. What is only mentioned has no inode: the kernel keeps what it knows."""
    mode = entry.stat.st_mode
    dirent = _pack_dirent(entry.ino, position, len(name), (mode >> 12) & 0o17)
    return (_MENTION if entry.mentioned else found(entry)) + dirent + name + _PADDING[len(name) % 8]


def opened(handle: int, flags: int) -> bytes:
    """The body of an answer that something is open."""
    return _pack_opened(handle, flags, 0)


def written(size: int) -> bytes:
    """The body of an answer that tells a size, of what was written or is to be read."""
    return _pack_written(size, 0)


def statistics(host: os.statvfs_result) -> bytes:
    """The body of an answer that tells how much room there is."""
    return _pack_statistics(
        host.f_blocks,
        host.f_bfree,
        host.f_bavail,
        host.f_files,
        host.f_ffree,
        host.f_bsize,
        host.f_namemax,
        host.f_frsize,
    )


def _attr(entry: Entry) -> bytes:
    status = entry.stat
    atime, mtime, ctime = status.st_atime_ns, status.st_mtime_ns, status.st_ctime_ns
    return _pack_attr(
        entry.ino,
        status.st_size,
        status.st_blocks,
        atime // _A_SECOND,
        mtime // _A_SECOND,
        ctime // _A_SECOND,
        atime % _A_SECOND,
        mtime % _A_SECOND,
        ctime % _A_SECOND,
        status.st_mode,
        entry.nlink,
        status.st_uid,
        status.st_gid,
        status.st_rdev,
        status.st_blksize,
        0,
    )
