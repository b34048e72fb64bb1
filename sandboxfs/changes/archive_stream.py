"""How do the bytes of an archive go out and come in?

Plain, or through gzip. What comes in may be made to fill disk and memory: it is unpacked a piece at a time,
never beyond the size that was allowed, and never at a rate that only an archive made to harm has. An archive
that ends before its time, or goes on after it, is damaged.
"""

import io
import zlib
from collections.abc import Callable

from sandboxfs.errors import UsageError

CHUNK = 1 << 18
_GZIP = b"\x1f\x8b"
_GZIP_FORM = 31
# Text shrinks to a tenth; only long runs of one byte shrink to less than a hundredth.
_USUAL_RATE = 100
_RATE_COUNTS_FROM = 256 << 20
_FIRST = 32 << 20


class BadArchive(UsageError):
    """The archive cannot be what `sandboxfs export` wrote."""


class Sink:
    """Where an archive is written to."""

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


class Source:
    """Where an archive is read from; gzip is told by its first bytes."""

    def __init__(self, file: io.RawIOBase | io.BufferedIOBase, *, any_rate: bool = False) -> None:
        """Read *file*; with *any_rate* it may unpack to anything, however small it is."""
        self._read = file.read
        self._limit = _FIRST
        self._any_rate = any_rate
        self._taken = self._given = 0
        self._ready, self._at = b"", 0
        first = self._raw()
        self._gzip = zlib.decompressobj(_GZIP_FORM) if first.startswith(_GZIP) else None
        self._packed = first

    def allow(self, size: int) -> None:
        """Let *size* more bytes come, unpacked; without this it is as much as a manifest needs."""
        self._limit = self._given - (len(self._ready) - self._at) + size

    def exactly(self, size: int) -> bytes:
        """The next *size* bytes."""
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
        """Raise unless nothing but zeros is left, with which tar fills its last record."""
        while self._at < len(self._ready) or self._fill():
            if self._ready[self._at :].strip(b"\0"):
                raise BadArchive("something follows its end")
            self._at = len(self._ready)

    def _fill(self) -> bool:
        """Get more bytes ready; whether there were any."""
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
