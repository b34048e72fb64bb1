"""What does the kernel say on the device and read from it? As linux/fuse.h has it; a socket is the device.

Written down once more, so that a mistake in `sandboxfs.fuse.protocol` is not made here too.
"""

import select
import socket
import struct
from collections.abc import Iterator
from typing import NamedTuple

# Larger than any request or answer of these tests.
ROOM = 1 << 19
# Seconds after which what should have happened never will.
HUNG = 30.0


def request(
    opcode: int,
    body: bytes = b"",
    *,
    ino: int = 1,
    unique: int = 77,
    caller: tuple[int, int, int] = (0, 0, 1),
) -> bytes:
    """struct fuse_in_header, with uid, gid and pid of the caller, and what follows it."""
    return struct.pack("=IIQQIIIHH", 40 + len(body), opcode, unique, ino, *caller, 0, 0) + body


class Reply(NamedTuple):
    """An answer; *error* is negative where something was refused."""

    error: int
    unique: int
    body: bytes


def reply_of(message: bytes) -> Reply:
    length, error, unique = struct.unpack_from("=IiQ", message)
    assert length == len(message)
    return Reply(error, unique, message[16:])


class Attr(NamedTuple):
    """struct fuse_attr."""

    ino: int
    size: int
    blocks: int
    atime: int
    mtime: int
    ctime: int
    atimensec: int
    mtimensec: int
    ctimensec: int
    mode: int
    nlink: int
    uid: int
    gid: int
    rdev: int
    blksize: int
    flags: int


def attr_of(data: bytes) -> Attr:
    assert len(data) == 88
    return Attr(*struct.unpack("=QQQqqqIIIIIIIIII", data))


class EntryOut(NamedTuple):
    """struct fuse_entry_out; how long it is good in nanoseconds."""

    nodeid: int
    generation: int
    entry_valid: int
    attr_valid: int
    attr: Attr


def entry_of(data: bytes) -> EntryOut:
    assert len(data) == 128
    nodeid, generation, entry, attr, entry_nsec, attr_nsec = struct.unpack("=QQQQII", data[:40])
    lasting = entry * 10**9 + entry_nsec, attr * 10**9 + attr_nsec
    return EntryOut(nodeid, generation, *lasting, attr_of(data[40:]))


class AttrOut(NamedTuple):
    """struct fuse_attr_out."""

    attr_valid: int
    attr: Attr


def attributes_of(data: bytes) -> AttrOut:
    assert len(data) == 104
    seconds, nanoseconds, _ = struct.unpack("=QII", data[:16])
    return AttrOut(seconds * 10**9 + nanoseconds, attr_of(data[16:]))


class OpenOut(NamedTuple):
    """struct fuse_open_out."""

    handle: int
    flags: int


def opened_of(data: bytes) -> OpenOut:
    handle, flags, backing = struct.unpack("=QIi", data)
    assert backing == 0
    return OpenOut(handle, flags)


class Listed(NamedTuple):
    """struct fuse_direntplus."""

    entry: EntryOut
    ino: int
    position: int
    type: int
    name: bytes


def listed_in(data: bytes) -> Iterator[Listed]:
    while data:
        ino, position, length, kind = struct.unpack_from("=QQII", data, 128)
        end = 152 + length
        aligned = (end + 7) // 8 * 8
        assert data[end:aligned] == bytes(aligned - end)
        yield Listed(entry_of(data[:128]), ino, position, kind, data[152:end])
        data = data[aligned:]


class Kernel:
    """The kernel's end of a device, and the number that a daemon has open on it."""

    def __init__(self) -> None:
        self._end, self._device = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        for end in (self._end, self._device):
            end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, ROOM)
        self._end.setblocking(False)
        self.number = self._device.fileno()

    def ask(self, request: bytes) -> None:
        self._end.send(request)

    def told(self) -> bytes | None:
        """The next message that was written to the device, if there is one."""
        try:
            return self._end.recv(ROOM)
        except BlockingIOError:
            return None

    def waited_for(self) -> bytes:
        """The next message, when it comes."""
        assert select.select([self._end], [], [], HUNG)[0], "nothing was told"
        return self._end.recv(ROOM)

    def all_told(self) -> list[bytes]:
        found = []
        while (message := self.told()) is not None:
            found.append(message)
        return found

    def unmount(self) -> None:
        self._end.close()

    def close(self) -> None:
        self._end.close()
        self._device.close()
