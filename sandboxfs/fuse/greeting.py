"""What do we ask of the kernel at the beginning that pyfuse3 cannot?

In its greeting, INIT, the kernel offers what it can do. To the answer is added FUSE_HANDLE_KILLPRIV_V2, by
which it is on us to clear set-id bits and capabilities of files that are written, truncated or given away.
Without it the kernel asks for a file's capabilities before each write, and for its mode before each chown.
And it is told that no write may be larger than there is room for, and to send extended attributes in the
short form that is known here, whatever libfuse would take.
"""

import struct
from dataclasses import dataclass

from sandboxfs.fuse.wire import BODY, HEADER

# How fuse_init_in and fuse_init_out begin.
_INIT = struct.Struct("=IIII")
_HANDLE_KILLPRIV_V2 = 1 << 28
_SETXATTR_EXT = 1 << 29
# Where in fuse_init_out the largest write is, and what it may be at most.
_write_size = struct.Struct("=I")
_AT_WRITE_SIZE = HEADER.size + 20
LARGEST_WRITE = 1 << 20


@dataclass(frozen=True)
class Greeting:
    """The flags that the kernel offers."""

    offers: int

    @classmethod
    def of(cls, request: bytes | memoryview) -> "Greeting":
        if len(request) < BODY + _INIT.size:
            return cls(0)
        return cls(int(_INIT.unpack_from(request, BODY)[3]))

    def completed(self, answer: bytes) -> bytes:
        """The answer with what we want besides, as far as the kernel offers it."""
        if len(answer) < HEADER.size + _INIT.size or HEADER.unpack_from(answer)[1] != 0:
            return answer
        major, minor, readahead, flags = _INIT.unpack_from(answer, HEADER.size)
        changed = bytearray(answer)
        wanted = flags & ~_SETXATTR_EXT | self.offers & _HANDLE_KILLPRIV_V2
        _INIT.pack_into(changed, HEADER.size, major, minor, readahead, wanted)
        if len(answer) >= _AT_WRITE_SIZE + _write_size.size:
            asked = _write_size.unpack_from(answer, _AT_WRITE_SIZE)[0]
            _write_size.pack_into(changed, _AT_WRITE_SIZE, min(asked, LARGEST_WRITE))
        return bytes(changed)
