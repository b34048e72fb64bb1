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

import struct

from sandboxfs.fuse.detour import LARGEST
from sandboxfs.overlay.filesystem import Listing

# From linux/fuse.h: the headers of requests and answers, and how fuse_init_in, fuse_init_out and
# fuse_open_out begin.
_REQUEST = struct.Struct("=IIQQIIIHH")
_ANSWER = struct.Struct("=IiQ")
_INIT = struct.Struct("=IIII")
_OPEN = struct.Struct("=QI")
# fuse_direntplus up to the name: the inode, its generation, times and attributes that do not matter here, the
# number and position that are listed, the length of the name, its type.
_ENTRY = struct.Struct("=QQ112xQQII")
_INODE = struct.Struct("=Q")
_LONGEST_NAME = 256
_OPCODE_INIT = 26
_HANDLE_KILLPRIV_V2 = 1 << 28
_KEEP_CACHE, _CACHE_DIR = 1 << 1, 1 << 3
_OF_LISTING = {Listing.ANEW: _CACHE_DIR, Listing.KEPT: _CACHE_DIR | _KEEP_CACHE}

MENTIONED = 1
"""The generation that marks an entry which is to come without attributes. No other entry has one."""
MOST_ABRIDGED = LARGEST // (_ENTRY.size + _LONGEST_NAME)
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
    if not _is_success(answer, 0):
        return answer
    changed = bytearray(answer)
    at = _ANSWER.size
    while at + _ENTRY.size <= len(answer):
        _, generation, _, _, length, _ = _ENTRY.unpack_from(answer, at)
        if generation == MENTIONED:
            _INODE.pack_into(changed, at, 0)
        # Entries begin at multiples of eight.
        at += _ENTRY.size + (length + 7 & ~7)
    return bytes(changed)


def _is_success(answer: bytes, size: int) -> bool:
    return len(answer) >= _ANSWER.size + size and _ANSWER.unpack_from(answer)[1] == 0
