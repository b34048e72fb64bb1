"""How is an archive cut into members? A tar, of which only what is needed is written, and only that is read.

Members are regular files, called by a plain header where that can hold name and size, else by a PAX header
before it. Any tar program can list and unpack them. Reading is strict where such programs are generous:
links, devices, sparse files, GNU's extensions and unknown PAX keys are no part of an archive of ours.
"""

from dataclasses import dataclass

from sandboxfs.changes.archive_stream import CHUNK, BadArchive, Sink, Source
from sandboxfs.paths import quoted

BLOCK = 512
_LONGEST_NAME = 100
_LARGEST_SIZE = 8**11 - 1
_LONGEST_EXTENSION = 1 << 20
_FILE, _EXTENSION = b"0", b"x"
_CHECKSUM = slice(148, 156)


@dataclass(frozen=True)
class Member:
    """A member as its header announces it."""

    name: bytes
    size: int


# Writing


def header(name: bytes, size: int, mode: int = 0o600, mtime: int = 0) -> bytes:
    """The blocks that announce a member; *mode* and *mtime* are for other programs."""
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
    """What fills up the last block of *size* bytes."""
    return b"\0" * (-size % BLOCK)


def finish(sink: Sink) -> None:
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
    """A line of a PAX header, which begins with its own length."""
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

    def __init__(self, source: Source) -> None:
        self._source = source
        self._left = 0
        self._padding = 0

    def next(self) -> Member | None:
        """The next member, the one before having been read to its end; None after the last."""
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
        """Up to *size* bytes of the member, none at its end."""
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
    """The keys and values of a PAX header."""
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
