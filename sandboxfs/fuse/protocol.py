"""The FUSE wire protocol: requests, answers, the INIT message, and what the kernel's version makes reliable.

The structures of linux/fuse.h that are read and written here. Every request begins with a header of 40 bytes,
every answer with one of 16; the body follows, at `BODY` in a request.

In its greeting, INIT, the kernel offers features. libfuse's answer is changed in these points:

- FUSE_HANDLE_KILLPRIV_V2 is added: the daemon clears set-id bits and capabilities of files that are written,
  truncated or given away. Without the flag the kernel asks for a file's capabilities before each write, and
  for its mode before each chown.
- FUSE_DONT_MASK is added: the kernel sends the caller's umask instead of applying it, because a default
  access list takes the umask's place.
- FUSE_SETXATTR_EXT is added: the kernel says whether the set-group-id bit goes when an access list is set.
- FUSE_ASYNC_DIO is removed: after an asynchronous direct write, the kernel leaves pages in place that were
  read meanwhile.
- FUSE_CACHE_SYMLINKS is removed: the policy decides about a link each time it is followed.
- The largest write is limited to the size of the request buffer.
"""

import os
import re
import struct
from dataclasses import dataclass
from enum import IntEnum
from functools import cache

from sandboxfs.overlay.filesystem import Entry

BODY = 40


class Opcode(IntEnum):
    """The opcodes that have a handler; every other opcode is refused with ENOSYS."""

    LOOKUP = 1
    FORGET = 2
    GETATTR = 3
    SETATTR = 4
    READLINK = 5
    SYMLINK = 6
    MKNOD = 8
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
    DESTROY = 38
    IOCTL = 39
    NOTIFY_REPLY = 41
    BATCH_FORGET = 42
    READDIRPLUS = 44
    RENAME2 = 45


# Flags of an answer to OPEN and CREATE.
DIRECT_IO, KEEP_CACHE = 1 << 0, 1 << 1

# Flags of OPEN, WRITE and SETATTR: set-id bits have to go.
OPEN_KILLS_SET_ID, WRITE_KILLS_SET_ID, SETATTR_KILLS_SET_ID = 1 << 0, 1 << 2, 1 << 11
# A flag of SETXATTR: the caller who sets an access list is not in the file's group.
KILL_SET_GID = 1 << 0

# Seconds for which the kernel may cache an answer: one that the host may change unnoticed; one that the host
# may change unnoticed only in rarely used ways; one that the host cannot change unnoticed.
FLEETING, WATCHED, LASTING = 0.5, 60.0, 3600.0
SECONDS = FLEETING, WATCHED, LASTING
_WHOLE_SECONDS = tuple(int(seconds) for seconds in SECONDS)
_NANOSECONDS = tuple(int(seconds % 1 * 1e9) for seconds in SECONDS)

header_of = struct.Struct("=IIQQIII4x").unpack_from
"""Length, opcode, number of the request, inode, and the caller's uid, gid and pid."""
_setxattr_in = struct.Struct("=II").unpack_from
_number = struct.Struct("=Q").unpack_from
HEADER = struct.Struct("=IiQ")

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
# A directory entry without attributes.
_MENTION = bytes(40) + _NO_ATTR
_PADDING = tuple(bytes(-length % 8) for length in range(8))
_A_SECOND = 10**9


def interrupted(request: memoryview) -> int:
    """The number of the request that an INTERRUPT is about."""
    return int(_number(request, BODY)[0])


def message(kind: int, body: bytes) -> bytes:
    """A notification: a message to the kernel that answers no request."""
    return HEADER.pack(16 + len(body), kind, 0) + body


def attributes(entry: Entry) -> bytes:
    """The body of an answer with the attributes of an inode."""
    if entry.guarded:
        return _pack_lasting(0, 0, 0) + _attr(entry)
    lasting = entry.attributes
    return _pack_lasting(_WHOLE_SECONDS[lasting], _NANOSECONDS[lasting], 0) + _attr(entry)


def found(entry: Entry) -> bytes:
    """The body of an answer with the entry that a name leads to."""
    if entry.guarded:
        return _pack_entry(entry.ino, 0, 0, 0, 0, 0) + _attr(entry)
    name, inode = entry.name, entry.attributes
    whole, rest = _WHOLE_SECONDS, _NANOSECONDS
    return _pack_entry(entry.ino, 0, whole[name], whole[inode], rest[name], rest[inode]) + _attr(entry)


ABSENT = _pack_entry(0, 0, int(FLEETING), 0, int(FLEETING % 1 * 1e9), 0) + _NO_ATTR
ABSENT_FOR_LONG = _pack_entry(0, 0, int(LASTING), 0, 0, 0) + _NO_ATTR
"""Bodies of the answer that a name does not exist, which the kernel may cache."""


def listed(name: bytes, entry: Entry, position: int) -> bytes:
    """One entry of a listing. A mentioned entry comes without attributes: the kernel keeps those it has."""
    mode = entry.stat.st_mode
    dirent = _pack_dirent(entry.ino, position, len(name), (mode >> 12) & 0o17)
    return (_MENTION if entry.mentioned else found(entry)) + dirent + name + _PADDING[len(name) % 8]


def attribute_to_set(request: memoryview) -> tuple[bytes, bytes, int, int]:
    """Name, value, flags and further flags of SETXATTR, in the long or, from kernels before 5.13, short form.

    The form is the one whose parts add up to the length of the request.
    """
    size, flags = _setxattr_in(request, BODY)
    name, _, value = request[BODY + 8 :].tobytes().partition(b"\0")
    if len(value) == size and name:
        return name, value, flags, 0
    name, _, value = request[BODY + 16 :].tobytes().partition(b"\0")
    return name, value[:size], flags, _setxattr_in(request, BODY + 8)[0]


def opened(handle: int, flags: int) -> bytes:
    """The body of an answer that opened a file or directory."""
    return _pack_opened(handle, flags, 0)


def written(size: int) -> bytes:
    """The body of an answer with a size: bytes written, or bytes that there are to read."""
    return _pack_written(size, 0)


def statistics(host: os.statvfs_result) -> bytes:
    """The body of an answer with the space and inodes of the filesystem."""
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


# The beginning of fuse_init_in and fuse_init_out.
_INIT = struct.Struct("=IIII")
_DONT_MASK = 1 << 6
_ASYNC_DIO = 1 << 15
_CACHE_SYMLINKS = 1 << 23
_HANDLE_KILLPRIV_V2 = 1 << 28
_SETXATTR_EXT = 1 << 29
_UNWANTED = _ASYNC_DIO | _CACHE_SYMLINKS
_WANTED = _DONT_MASK | _HANDLE_KILLPRIV_V2 | _SETXATTR_EXT
# The place of the largest write in fuse_init_out, and the largest value for it.
_write_size = struct.Struct("=I")
_AT_WRITE_SIZE = HEADER.size + 20
LARGEST_WRITE = 1 << 20


@dataclass(frozen=True)
class Greeting:
    """The INIT request: the flags that the kernel offers."""

    offers: int

    @classmethod
    def of(cls, request: bytes | memoryview) -> "Greeting":
        if len(request) < BODY + _INIT.size:
            return cls(0)
        return cls(int(_INIT.unpack_from(request, BODY)[3]))

    def completed(self, answer: bytes) -> bytes:
        """libfuse's answer with our flags added, as far as the kernel offers them, and others removed."""
        if len(answer) < HEADER.size + _INIT.size or HEADER.unpack_from(answer)[1] != 0:
            return answer
        major, minor, readahead, flags = _INIT.unpack_from(answer, HEADER.size)
        changed = bytearray(answer)
        wanted = flags & ~_UNWANTED | self.offers & _WANTED
        _INIT.pack_into(changed, HEADER.size, major, minor, readahead, wanted)
        if len(answer) >= _AT_WRITE_SIZE + _write_size.size:
            asked = _write_size.unpack_from(answer, _AT_WRITE_SIZE)[0]
            _write_size.pack_into(changed, _AT_WRITE_SIZE, min(asked, LARGEST_WRITE))
        return bytes(changed)


def stores_well() -> bool:
    """Whether the kernel, given a small file's content, clears the rest of the last page after the end."""
    return _version() >= (6, 11)


def drops_what_is_written_over() -> bool:
    """Whether the kernel, at a direct write, writes the pages there back and drops them before and after it.

    Older kernels drop the pages before the write only: a reader meanwhile brings the old data back. Some of
    them have been repaired since, which their version does not always tell.
    """
    return _version() >= (6, 18, 3)


@cache
def _version() -> tuple[int, ...]:
    numbers = re.match(r"(\d+)\.(\d+)(?:\.(\d+))?", os.uname().release)
    return tuple(int(number or 0) for number in numbers.groups()) if numbers is not None else (0,)
