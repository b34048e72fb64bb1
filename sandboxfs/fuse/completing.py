"""What do we tell the kernel that pyfuse3 cannot?

Answers are completed on their way (see `detour`).

- In the answer to INIT, the kernel's greeting, in which it offers what it can do: FUSE_HANDLE_KILLPRIV_V2, by
  which it is on us to clear set-id bits and capabilities of files that are written, truncated or given away.
  Without it the kernel asks for a file's capabilities before each write, and for its mode before each chown.
- In the answer to OPENDIR: FOPEN_CACHE_DIR, by which the kernel remembers the listing that is read next, and
  FOPEN_KEEP_CACHE, by which the one that it remembers is still right.
- In the answer to READDIRPLUS: that an entry comes without attributes, by giving no number for its inode. The
  kernel knows them, and what it knows stays as it is.
"""

import secrets
import struct

from sandboxfs.fuse.detour import LARGEST
from sandboxfs.overlay.filesystem import Listing

# From linux/fuse.h: the headers of requests and answers, and how fuse_init_in, fuse_init_out and
# fuse_open_out begin.
_REQUEST = struct.Struct("=IIQQIIIHH")
_ANSWER = struct.Struct("=IiQ")
_INIT = struct.Struct("=IIII")
_OPEN = struct.Struct("=QI")
# fuse_direntplus up to the name: it begins with the inode and its generation.
_ENTRY = 152
_INODE = 8
_LONGEST_NAME = 256
_OPCODE_INIT = 26
_HANDLE_KILLPRIV_V2 = 1 << 28
_KEEP_CACHE, _CACHE_DIR = 1 << 1, 1 << 3
_OF_LISTING = {Listing.ANEW: _CACHE_DIR, Listing.KEPT: _CACHE_DIR | _KEEP_CACHE}

MENTIONED = secrets.randbits(64)
"""The generation that marks an entry which is to come without attributes. Nobody can guess it, and have it in
the name of a file."""
_MARK = struct.pack("=Q", MENTIONED)
_NO_INODE = bytes(_INODE) + _MARK
MOST_ABRIDGED = LARGEST // (_ENTRY + _LONGEST_NAME)
"""So many entries can be in an answer that is abridged, however long their names."""


def offered(request: bytes) -> int:
    """The flags that the kernel offers in an INIT; 0 where it is something else."""
    if len(request) < _REQUEST.size + _INIT.size or _REQUEST.unpack_from(request)[1] != _OPCODE_INIT:
        return 0
    return int(_INIT.unpack_from(request, _REQUEST.size)[3])


def greeted(answer: bytes, offers: int) -> bytes:
    """The answer to INIT with what we want besides, as far as the kernel offers it."""
    if not _is_success(answer, _INIT.size):
        return answer
    major, minor, readahead, flags = _INIT.unpack_from(answer, _ANSWER.size)
    changed = bytearray(answer)
    _INIT.pack_into(changed, _ANSWER.size, major, minor, readahead, flags | offers & _HANDLE_KILLPRIV_V2)
    return bytes(changed)


def remembered(answer: bytes, listing: Listing) -> bytes:
    """The answer to OPENDIR, by which the kernel remembers a listing."""
    if not _is_success(answer, _OPEN.size):
        return answer
    handle, flags = _OPEN.unpack_from(answer, _ANSWER.size)
    changed = bytearray(answer)
    _OPEN.pack_into(changed, _ANSWER.size, handle, flags | _OF_LISTING.get(listing, 0))
    return bytes(changed)


def abridged(answer: bytes) -> bytes:
    """The answer to READDIRPLUS, without what is marked as known to the kernel."""
    *marked, rest = answer.split(_MARK)
    # What a mark follows is the number of an inode.
    return b"".join([*(part[:-_INODE] + _NO_INODE for part in marked), rest])


def _is_success(answer: bytes, size: int) -> bool:
    return len(answer) >= _ANSWER.size + size and _ANSWER.unpack_from(answer)[1] == 0
