"""Git index files: the paths a repository tracks, and comparing without the stat cache.

Only names and modes are read. An index that cannot be read for certain raises `UnreadableIndex`: a split
index, whose names are in another file, an unknown extension that must be understood, a damaged file. A sparse
index names a directory instead of the files in it.

`git status` writes the index anew when its inode numbers and times are outdated, as they are after a commit
of the sandbox. Such an index lists the same blobs for the same paths and is as good as the one before.
Format: gitformat-index(5), versions 2 to 4. Tracked paths are read with SHA-1 and SHA-256, comparisons are
made with SHA-1.
"""

import hashlib
import struct
from collections.abc import Iterator, Set
from dataclasses import dataclass
from typing import NamedTuple

NAME = b"index"
LARGEST = 64 << 20
"""Larger index files are not read."""

_HEADER = struct.Struct(">4sII")
_EXTENSION = struct.Struct(">4sI")
_VERSIONS = (2, 3, 4)
_EXTENDED = 0x4000
_DIRECTORY = 0o040000
_SPARSE = b"sdir"
_SLASH = ord("/")
_SHA1, _SHA256 = 20, 32
# Times, device, inode; mode; owner and size; the object's name, by its length; flags. Of the status only the
# mode is more than a cache.
_ENTRIES = {size: struct.Struct(f">24xI12x{size}sH") for size in (_SHA1, _SHA256)}
# The errors of reading a damaged file.
_DAMAGED = (ValueError, struct.error, IndexError)


class UnreadableIndex(ValueError):
    """The index does not tell the tracked paths for certain; the text says why."""


class _Entry(NamedTuple):
    mode: int
    blob: bytes
    flags: int
    extended: bytes
    name: bytes


@dataclass(frozen=True)
class GitIndex:
    """The tracked *files*, and the *directories* that are tracked as a whole."""

    files: frozenset[bytes] = frozenset()
    directories: frozenset[bytes] = frozenset()

    def tracks(self, path: bytes) -> bool:
        if path in self.files:
            return True
        at = path.find(b"/") if self.directories else -1
        while at >= 0:
            if path[:at] in self.directories:
                return True
            at = path.find(b"/", at + 1)
        return False


def parse_index(data: bytes) -> GitIndex:
    """Read the content of an index file."""
    problem = "too short"
    # The file does not say which digest its repository uses.
    for hash_size in _ENTRIES:
        try:
            return _tracked(*_parts(data, hash_size))
        except _DAMAGED as error:
            problem = str(error)
    raise UnreadableIndex(problem)


def _tracked(entries: list[_Entry], extensions: list[bytes]) -> GitIndex:
    directories = [entry.name.removesuffix(b"/") for entry in entries if entry.mode == _DIRECTORY]
    for one in extensions:
        name = one[:4]
        # An extension whose name starts with a small letter must be understood.
        if not name.isalpha() or (not name[:1].isupper() and not (directories and name == _SPARSE)):
            raise UnreadableIndex(f"an extension that is not known: {name!r}")
    files = (entry.name for entry in entries if entry.mode != _DIRECTORY)
    return GitIndex(frozenset(files), frozenset(directories))


def same_entries(one: bytes, other: bytes) -> bool:
    """Whether two index files list the same entries; False where either is not understood."""
    try:
        return _listed(one) == _listed(other)
    except _DAMAGED:
        return False


def names_any(data: bytes, objects: Set[bytes]) -> bool:
    """Whether an index file names one of *objects*; with any objects, True if the index is not understood."""
    if not objects:
        return False
    try:
        entries, extensions = _whole_parts(data)
    except _DAMAGED:
        return True
    # An extension in small letters may refer to another file. Those in capitals may name trees.
    if any(not one[:1].isupper() for one in extensions) or any(entry.blob in objects for entry in entries):
        return True
    return any(one[at : at + _SHA1] in objects for one in extensions for at in range(len(one)))


def _listed(data: bytes) -> list[object]:
    """Return the content of an index, without extensions that do not change the meaning of its entries."""
    entries, extensions = _whole_parts(data)
    version = data[4:8]
    return [version, *entries, *(one for one in extensions if not one[:1].isupper())]


def _whole_parts(data: bytes) -> tuple[list[_Entry], list[bytes]]:
    """Return the entries and the extensions of an index whose digest, SHA-1, is right."""
    if hashlib.sha1(data[:-_SHA1], usedforsecurity=False).digest() != data[-_SHA1:]:
        raise UnreadableIndex("another digest than that of its content")
    return _parts(data, _SHA1)


def _parts(data: bytes, hash_size: int) -> tuple[list[_Entry], list[bytes]]:
    """Return the entries and the extensions of an index."""
    signature, version, count = _HEADER.unpack_from(data)
    if signature != b"DIRC" or version not in _VERSIONS:
        raise UnreadableIndex("not an index of version 2, 3 or 4")
    end = len(data) - hash_size
    layout = _ENTRIES[hash_size]
    entries: list[_Entry] = []
    at = _HEADER.size
    previous = b""
    for _ in range(count):
        mode, blob, flags = layout.unpack_from(data, at)
        start = at + layout.size
        extended = b""
        if flags & _EXTENDED:
            extended = data[start : start + 2]
            start += 2
        if version == 4:
            # A name is given by what differs from the name before.
            dropped, start = _number(data, start)
            name_end = data.index(b"\0", start, end)
            if dropped > len(previous):
                raise UnreadableIndex("a damaged entry")
            name = previous = previous[: len(previous) - dropped] + data[start:name_end]
            at = name_end + 1
        else:
            name_end = data.index(b"\0", start, end)
            name = data[start:name_end]
            # Entries are padded to a multiple of eight, with one zero at least.
            at += (name_end - at + 8) // 8 * 8
        if not name or name[0] == _SLASH or not mode & 0o170000:
            raise UnreadableIndex("a damaged entry")
        entries.append(_Entry(mode, blob, flags, extended, name))
    return entries, list(_extensions(data, at, end))


def _number(data: bytes, at: int) -> tuple[int, int]:
    """Read a number of variable length, as in pack files; return it, and where it ends."""
    value = data[at] & 0x7F
    while data[at] & 0x80:
        at += 1
        value = (value + 1 << 7) | data[at] & 0x7F
    return value, at + 1


def _extensions(data: bytes, at: int, end: int) -> Iterator[bytes]:
    while at < end:
        _, size = _EXTENSION.unpack_from(data, at)
        behind = at + _EXTENSION.size + size
        yield data[at:behind]
        at = behind
    if at != end:
        raise UnreadableIndex("a damaged extension")
