"""How is one JSON object of an archive read when nothing in it can be believed?

Every key is taken once, must be there, of its type and in its range; what nobody took is refused. Paths
lead from a root down and nowhere else. Extended attributes in which layers write their marks, or this
machine its own labels, are never taken from elsewhere.
"""

import base64
import binascii
import json
from typing import TypeVar

from sandboxfs.changes.archive_stream import BadArchive
from sandboxfs.layers.baseline import LIMIT
from sandboxfs.layers.marks import is_private
from sandboxfs.paths import quoted

DIGEST_SIZE = 16
LARGEST = (1 << 63) - 1
LARGEST_ID = (1 << 32) - 2
_LONGEST_NAME = 255
_LONGEST_PATH = 1 << 16
_LONGEST_TARGET = 4095
_LARGEST_ATTRIBUTE = 1 << 16
_LABELS = (b"security.selinux", b"security.ima", b"security.evm", b"security.apparmor", b"trusted.")

T = TypeVar("T")


class Fields:
    """The keys of one object, each taken once, of its type and in its range."""

    def __init__(self, value: object, where: str) -> None:
        if not isinstance(value, dict):
            raise BadArchive(f"{where} makes no sense")
        self._fields: dict[str, object] = dict(value)
        self._where = where

    @classmethod
    def of_line(cls, line: bytes) -> "Fields":
        return cls.of_text(line, "one of its lines")

    @classmethod
    def of_text(cls, text: bytes, where: str) -> "Fields":
        try:
            return cls(json.loads(text), where)
        except (ValueError, RecursionError) as error:
            raise BadArchive(f"{where} makes no sense") from error

    def wrong(self, key: str) -> BadArchive:
        return BadArchive(f"{self._where} has no sensible {key!r}")

    def has(self, key: str) -> bool:
        return key in self._fields

    def take(self, key: str, kind: type[T]) -> T:
        value = self._fields.pop(key, None)
        # To isinstance a bool is an int.
        if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
            raise self.wrong(key)
        return value

    def inner(self, key: str) -> "Fields":
        return Fields(self.take(key, dict), f"{key!r} in {self._where}")

    def number(self, key: str, largest: int) -> int:
        value = self.take(key, int)
        if not 0 <= value <= largest:
            raise self.wrong(key)
        return value

    def time(self, key: str) -> int:
        value = self.take(key, int)
        if abs(value) > LARGEST:
            raise self.wrong(key)
        return value

    def flag(self, key: str) -> bool:
        return self.has(key) and self.take(key, bool)

    def raw(self, key: str) -> bytes:
        return self._encoded(key, self.take(key, str))

    def _encoded(self, key: str, text: str) -> bytes:
        try:
            return text.encode("utf-8", "surrogateescape")
        except UnicodeEncodeError as error:
            raise self.wrong(key) from error

    def path(self, key: str) -> bytes:
        """A path below the root; an empty one is the root."""
        path = self.raw(key)
        if path and not is_plain(path):
            raise BadArchive(f"it names {quoted(path[:200])}, which is no path inside a workspace")
        return path

    def target(self, key: str) -> bytes:
        target = self.raw(key)
        if not target or b"\0" in target or len(target) > _LONGEST_TARGET:
            raise self.wrong(key)
        return target

    def digest(self, key: str) -> bytes:
        digits = self.take(key, str)
        try:
            digest = bytes.fromhex(digits)
        except ValueError as error:
            raise self.wrong(key) from error
        if len(digest) != DIGEST_SIZE:
            raise self.wrong(key)
        return digest

    def saved(self, key: str) -> tuple[int, int]:
        match self.take(key, list):
            case [int(offset), int(length)] if 0 <= offset <= LARGEST and 0 <= length <= LIMIT:
                return offset, length
            case _:
                raise self.wrong(key)

    def attributes(self, key: str) -> tuple[tuple[bytes, bytes], ...]:
        if not self.has(key):
            return ()
        return tuple(self._attribute(key, *pair) for pair in self.take(key, dict).items())

    def _attribute(self, key: str, name: str, text: object) -> tuple[bytes, bytes]:
        attribute = self._encoded(key, name)
        if not travels(attribute) or not 0 < len(attribute) <= _LONGEST_NAME or b"\0" in attribute:
            raise BadArchive(f"it sets the extended attribute {quoted(attribute[:200])}")
        try:
            value = base64.b64decode(text if isinstance(text, str) else "?", validate=True)
        except (binascii.Error, ValueError) as error:
            raise self.wrong(key) from error
        if len(value) > _LARGEST_ATTRIBUTE:
            raise self.wrong(key)
        return attribute, value

    def finish(self) -> None:
        if self._fields:
            raise BadArchive(f"{self._where} has the unknown key {quoted(next(iter(self._fields)))}")


def travels(attribute: bytes) -> bool:
    """Whether an extended attribute goes into an archive: those of the layers and of this machine do not."""
    return not is_private(attribute) and not attribute.startswith(_LABELS)


def is_plain(path: bytes) -> bool:
    """Whether *path* leads from a root down and nowhere else."""
    names = path.split(b"/")
    return (
        b"\0" not in path
        and len(path) <= _LONGEST_PATH
        and all(0 < len(name) <= _LONGEST_NAME and name not in (b".", b"..") for name in names)
    )
