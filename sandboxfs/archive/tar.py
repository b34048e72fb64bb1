"""Archive container: tar members and their bytes, going out and coming in.

The container is plain, or packed with gzip. An archive may be made to fill disk and memory: so it is unpacked
a piece at a time, never beyond the allowed size, and never at a rate that only a harmful archive has. An
archive that ends too early, or goes on after its end, is damaged.

Members are regular files. A plain header gives name and size where it can hold both, otherwise a PAX header
precedes it. Any tar program can list and unpack the members. Reading is strict where tar programs are
generous: links, devices, sparse files, GNU's extensions and unknown PAX keys are refused.
"""

import io
import zlib
from collections.abc import Callable
from dataclasses import dataclass

from sandboxfs.errors import UsageError
from sandboxfs.paths import quoted

CHUNK = 1 << 18
_GZIP = b"\x1f\x8b"
_GZIP_FORM = 31
# Text shrinks to a tenth; only long runs of one byte shrink to less than a hundredth.
_USUAL_RATE = 100
_RATE_COUNTS_FROM = 256 << 20
_FIRST = 32 << 20


class BadArchive(UsageError):
    """An archive that `sandboxfs export` cannot have written."""


class ArchiveSink:
    """The output of an archive."""

    def __init__(self, write: Callable[[bytes], object], *, gzip: bool) -> None:
        self._write = write
        self._gzip = zlib.compressobj(wbits=_GZIP_FORM) if gzip else None
        self.written = 0

    def write(self, data: bytes) -> None:
        self._out(data if self._gzip is None else self._gzip.compress(data))

    def finish(self) -> None:
        if self._gzip is not None:
            self._out(self._gzip.flush())

    def _out(self, data: bytes) -> None:
        if data:
            self._write(data)
            self.written += len(data)


class ArchiveSource:
    """The input of an archive; its first bytes tell whether it is packed with gzip."""

    def __init__(self, file: io.RawIOBase | io.BufferedIOBase, *, any_rate: bool = False) -> None:
        """Read *file*; with *any_rate* a small file may unpack to any size."""
        self._read = file.read
        self._limit = _FIRST
        self._any_rate = any_rate
        self._taken = self._given = 0
        self._ready, self._at = b"", 0
        first = self._raw()
        self._gzip = zlib.decompressobj(_GZIP_FORM) if first.startswith(_GZIP) else None
        self._packed = first

    def allow(self, size: int) -> None:
        """Allow *size* more unpacked bytes; without a call only as many as a manifest needs."""
        self._limit = self._given - (len(self._ready) - self._at) + size

    def exactly(self, size: int) -> bytes:
        """Return the next *size* bytes."""
        parts = []
        while size > 0:
            if self._at == len(self._ready) and not self._fill():
                raise BadArchive("it ends too early")
            part = self._ready[self._at : self._at + size]
            self._at += len(part)
            parts.append(part)
            size -= len(part)
        return b"".join(parts)

    def refuse_more(self) -> None:
        """Raise unless only zeros are left, with which tar fills its last record."""
        while self._at < len(self._ready) or self._fill():
            if self._ready[self._at :].strip(b"\0"):
                raise BadArchive("something follows its end")
            self._at = len(self._ready)

    def _fill(self) -> bool:
        """Get more bytes ready; return whether there were any."""
        self._ready, self._at = b"", 0
        while not self._ready:
            packed = self._packed or self._raw()
            self._packed = b""
            if self._gzip is None:
                self._ready = packed
                if not packed:
                    return False
            elif not self._inflate(self._gzip, packed):
                return False
        self._given += len(self._ready)
        self._check()
        return True

    def _inflate(self, gzip: "zlib._Decompress", packed: bytes) -> bool:
        if gzip.eof:
            if packed:
                raise BadArchive("something follows its end")
            return False
        if not packed:
            raise BadArchive("it ends too early")
        try:
            self._ready = gzip.decompress(packed, CHUNK)
        except zlib.error as error:
            raise BadArchive("it is damaged: gzip cannot unpack it") from error
        self._packed = gzip.unconsumed_tail or gzip.unused_data
        return True

    def _raw(self) -> bytes:
        data = self._read(CHUNK) or b""
        self._taken += len(data)
        return data

    def _check(self) -> None:
        if self._given > self._limit:
            raise BadArchive("it holds more than it says")
        used = self._taken - len(self._packed)
        if not self._any_rate and self._given > _RATE_COUNTS_FROM and self._given > used * _USUAL_RATE:
            raise BadArchive(
                f"it unpacks to more than {_USUAL_RATE} times its size",
                hint="if you trust it, say with --max-size how large it may become",
            )


BLOCK = 512
_LONGEST_NAME = 100
_LARGEST_SIZE = 8**11 - 1
_LONGEST_EXTENSION = 1 << 20
_FILE, _EXTENSION = b"0", b"x"
_CHECKSUM = slice(148, 156)


@dataclass(frozen=True)
class Member:
    """A member as announced by its header."""

    name: bytes
    size: int


# Writing


def header(name: bytes, size: int, mode: int = 0o600, mtime: int = 0) -> bytes:
    """Return the blocks that announce a member; *mode* and *mtime* are for other programs."""
    extension = b""
    if len(name) > _LONGEST_NAME:
        if not _is_text(name):
            extension += _pair(b"hdrcharset", b"BINARY")
        extension += _pair(b"path", name)
    if size > _LARGEST_SIZE:
        extension += _pair(b"size", b"%d" % size)
    mtime = min(max(mtime, 0), _LARGEST_SIZE)
    plain = _block(name[:_LONGEST_NAME], min(size, _LARGEST_SIZE), mode & 0o777, mtime, _FILE)
    if not extension:
        return plain
    announced = _block(b"././@PaxHeader", len(extension), 0o600, 0, _EXTENSION)
    return announced + extension + padding(len(extension)) + plain


def padding(size: int) -> bytes:
    """Return the zeros that fill up the last block of *size* bytes."""
    return b"\0" * (-size % BLOCK)


def finish(sink: ArchiveSink) -> None:
    """Write the end of the archive."""
    sink.write(b"\0" * (2 * BLOCK))
    sink.finish()


def _is_text(name: bytes) -> bool:
    try:
        name.decode()
    except UnicodeDecodeError:
        return False
    return True


def _pair(key: bytes, value: bytes) -> bytes:
    """Return a line of a PAX header, which begins with its own length."""
    rest = len(key) + len(value) + 3
    length = rest + len(str(rest))
    length = rest + len(str(length))
    return b"%d %s=%s\n" % (length, key, value)


def _block(name: bytes, size: int, mode: int, mtime: int, kind: bytes) -> bytes:
    block = bytearray(BLOCK)
    block[0 : len(name)] = name
    block[100:157] = b"%07o\0%07o\0%07o\0%011o\0%011o\0        %s" % (mode, 0, 0, size, mtime, kind)
    block[257:265] = b"ustar\x0000"
    block[_CHECKSUM] = b"%06o\0 " % sum(block)
    return bytes(block)


# Reading


class Members:
    """The members of an archive, one after the other."""

    def __init__(self, source: ArchiveSource) -> None:
        self._source = source
        self._left = 0
        self._padding = 0

    def next(self) -> Member | None:
        """Return the next member, after the previous one was read to its end; None after the last."""
        if self._left:
            raise AssertionError("the member before was not read")
        self._source.exactly(self._padding)
        self._padding = 0
        block = self._source.exactly(BLOCK)
        if not block.strip(b"\0"):
            if self._source.exactly(BLOCK).strip(b"\0"):
                raise BadArchive("it is damaged: its end is not one")
            self._source.refuse_more()
            return None
        member = _read_block(block)
        if block[156:157] == _EXTENSION:
            member = self._extended(member.size)
        elif block[156:157] != _FILE:
            raise BadArchive(f"its member {quoted(member.name)} is not a plain file")
        self._left, self._padding = member.size, -member.size % BLOCK
        return member

    def read(self, size: int = CHUNK) -> bytes:
        """Return up to *size* bytes of the member, none at its end."""
        data = self._source.exactly(min(size, self._left, CHUNK))
        self._left -= len(data)
        return data

    def _extended(self, length: int) -> Member:
        if length > _LONGEST_EXTENSION:
            raise BadArchive("one of its headers is too long")
        values = _pairs(self._source.exactly(length + -length % BLOCK)[:length])
        block = self._source.exactly(BLOCK)
        member = _read_block(block)
        if block[156:157] != _FILE:
            raise BadArchive(f"its member {quoted(member.name)} is not a plain file")
        return Member(values.get(b"path", member.name), _size(values.get(b"size"), member.size))


def _read_block(block: bytes) -> Member:
    blank = bytearray(block)
    blank[_CHECKSUM] = b" " * 8
    if block[257:265] != b"ustar\x0000" or _octal(block[_CHECKSUM]) != sum(blank):
        raise BadArchive("it is damaged, or no archive of sandboxfs")
    return Member(block[:_LONGEST_NAME].rstrip(b"\0"), _octal(block[124:136]))


def _octal(field: bytes) -> int:
    digits = field.rstrip(b"\0 ")
    if not digits or digits.strip(b"01234567"):
        raise BadArchive("it is damaged: a header makes no sense")
    return int(digits, 8)


def _pairs(extension: bytes) -> dict[bytes, bytes]:
    """Return the keys and values of a PAX header."""
    values: dict[bytes, bytes] = {}
    while extension:
        digits, _, _ = extension.partition(b" ")
        length = int(digits) if digits.isdigit() and len(digits) < 8 else 0
        pair = extension[len(digits) + 1 : length]
        key, equals, value = pair.partition(b"=")
        if not equals or not pair.endswith(b"\n") or key in values or length > len(extension):
            raise BadArchive("it is damaged: a header makes no sense")
        if key not in (b"path", b"size", b"hdrcharset"):
            raise BadArchive(f"one of its headers has the unknown key {quoted(key)}")
        values[key] = value[:-1]
        extension = extension[length:]
    return values


def _size(given: bytes | None, plain: int) -> int:
    if given is None:
        return plain
    if not given.isdigit() or len(given) > 18:
        raise BadArchive("it is damaged: a header makes no sense")
    return int(given)
