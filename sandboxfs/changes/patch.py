"""How is one change written so that `git apply` and `patch -p1` can carry it out?

Git's extended headers, then hunks. Only what git can say is said: files, executable files and symlinks; a
directory or a special file counts as absent, and other mode bits are left out. A change of type, and the
rename of a symlink, is a deletion and an addition. Names are quoted as git quotes them, except that printable
letters in valid UTF-8 are kept.

`patch` puts deletions off to its end, and so cannot exchange a file and a directory; `git apply` can.
"""

import re
import stat
from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import StrEnum

from sandboxfs.changes.binary import binary_patch, blob_id
from sandboxfs.changes.hunks import Hunk, hunks, is_binary

_ABBREVIATED = 7
_NO_BLOB = b"0" * 40
_ESCAPES = {ord(b): b"\\" + e.encode() for b, e in zip('\a\b\t\n\v\f\r"\\', 'abtnvfr"\\', strict=True)}
_ODD = re.compile(rb'[\x00-\x1f"\\\x7f-\xff]')

Content = bytes | Callable[[], bytes]


class Kind(StrEnum):
    """What happened to a path."""

    ADDED = "added"
    DELETED = "deleted"
    MODIFIED = "modified"
    RENAMED = "renamed"
    MODE = "mode"
    TYPE = "type"


@dataclass(frozen=True)
class Change:
    """One path where the sandbox differs; the content of a symlink is its target.

    Modes are whole `st_mode` values, None where the path is absent. `old_path` is set when it was renamed.
    Contents may be functions, called only when needed: not for files of kind `mode`, whose content did not
    change, and not for files that have the same object on both sides.
    """

    path: bytes
    kind: Kind
    old_mode: int | None = None
    new_mode: int | None = None
    old: Content = b""
    new: Content = b""
    old_path: bytes | None = None


@dataclass(frozen=True)
class _Side:
    """What git sees on one side of a change: a mode, 0 for nothing, and bytes."""

    path: bytes
    mode: int
    data: bytes

    @property
    def blob(self) -> bytes:
        return blob_id(self.data) if self.mode else _NO_BLOB

    def label(self, prefix: bytes) -> bytes:
        return quote_name(self.path, prefix) if self.mode else b"/dev/null"


def patch(change: Change, context: int = 3, *, binary: bool = False) -> bytes:
    """Return *change* as a patch, empty where git has no words for it.

    Binary content is only said to differ, unless *binary* asks for a patch that carries it.
    """
    old, new = _sides(change)
    if not old.mode and not new.mode:
        return b""
    if old.mode and new.mode and _apart(old, new):
        gone, unmade = _Side(old.path, 0, b""), _Side(new.path, 0, b"")
        return _one(old, gone, context, binary) + _one(unmade, new, context, binary)
    return _one(old, new, context, binary)


def differing(change: Change) -> bytes:
    """Say of *change* no more than that the content differs: for content that is not known."""
    old, new = _sides(replace(change, old=b"", new=b""))
    if not old.mode and not new.mode:
        return b""
    header = _mode_lines(old, new) + ([] if old.path == new.path else _rename_lines(old, new, [])[1:])
    first = b"diff --git %s %s" % (quote_name(old.path, b"a/"), quote_name(new.path, b"b/"))
    last = b"Binary files %s and %s differ" % (old.label(b"a/"), new.label(b"b/"))
    return b"\n".join([first, *header, last, b""])


def change_hunks(change: Change, context: int = 3) -> list[Hunk]:
    """Return the hunks of *change*: none where either side is binary, or where its type changed."""
    old, new = _sides(change)
    if is_binary(old.data) or is_binary(new.data) or (old.mode and new.mode and _apart(old, new)):
        return []
    return hunks(old.data, new.data, context, new.path)


def contents(change: Change) -> tuple[bytes, bytes]:
    """Return the old and the new bytes of *change*; both are empty where they are not read."""
    old_mode, new_mode = _git_mode(change.old_mode), _git_mode(change.new_mode)
    return _contents(change, old_mode, new_mode)


def quote_name(name: bytes, prefix: bytes = b"") -> bytes:
    """Write *prefix* and *name* as git does: as they are or, where they are odd, in quotes with C escapes.

    The result is one line of valid UTF-8 whatever the name is.
    """
    if not _ODD.search(name):
        return prefix + name
    try:
        printable = all(letter.isascii() or letter.isprintable() for letter in name.decode())
    except UnicodeDecodeError:
        printable = False
    highest = 0x100 if printable else 0x80
    quoted = b"".join(_quoted_byte(byte, highest) for byte in name)
    return b'"' + prefix + quoted + b'"' if quoted != name else prefix + name


def _quoted_byte(byte: int, highest: int) -> bytes:
    if byte in _ESCAPES:
        return _ESCAPES[byte]
    return b"\\%03o" % byte if byte < 0x20 or byte == 0x7F or byte >= highest else bytes((byte,))


def _sides(change: Change) -> tuple[_Side, _Side]:
    old_mode, new_mode = _git_mode(change.old_mode), _git_mode(change.new_mode)
    old, new = _contents(change, old_mode, new_mode)
    old_path = change.path if change.old_path is None else change.old_path
    return _Side(old_path, old_mode, old), _Side(change.path, new_mode, new)


def _contents(change: Change, old_mode: int, new_mode: int) -> tuple[bytes, bytes]:
    # What did not change need not be read, however large it is.
    same = change.kind is Kind.MODE or change.old is change.new
    if same and stat.S_ISREG(old_mode) and stat.S_ISREG(new_mode):
        return b"", b""
    return _read(change.old) if old_mode else b"", _read(change.new) if new_mode else b""


def _apart(old: _Side, new: _Side) -> bool:
    """Whether the change has to be written as a deletion and an addition."""
    # `patch` moves no symlink: the header of a rename does not tell it that there is one.
    moved_link = stat.S_ISLNK(new.mode) and old.path != new.path
    return moved_link or stat.S_IFMT(old.mode) != stat.S_IFMT(new.mode)


def _read(content: Content) -> bytes:
    return content if isinstance(content, bytes) else content()


def _git_mode(mode: int | None) -> int:
    if mode is not None and stat.S_ISLNK(mode):
        return 0o120000
    if mode is not None and stat.S_ISREG(mode):
        return 0o100755 if mode & stat.S_IXUSR else 0o100644
    return 0


def _one(old: _Side, new: _Side, context: int, binary: bool) -> bytes:
    opaque = is_binary(old.data) or is_binary(new.data)
    pieces = [] if opaque or old.data == new.data else hunks(old.data, new.data, context, new.path)
    header = _mode_lines(old, new)
    if old.path != new.path:
        header += _rename_lines(old, new, pieces)
    if old.data != new.data or not old.mode or not new.mode:
        length = len(_NO_BLOB) if opaque and binary else _ABBREVIATED
        same_mode = b" %o" % new.mode if old.mode == new.mode else b""
        header.append(b"index %s..%s%s" % (old.blob[:length], new.blob[:length], same_mode))
    if not header:
        return b""
    first = b"diff --git %s %s" % (quote_name(old.path, b"a/"), quote_name(new.path, b"b/"))
    return b"\n".join([first, *header, b""]) + _content(old, new, pieces, opaque, binary)


def _mode_lines(old: _Side, new: _Side) -> list[bytes]:
    if not old.mode:
        return [b"new file mode %o" % new.mode]
    if not new.mode:
        return [b"deleted file mode %o" % old.mode]
    if old.mode != new.mode:
        return [b"old mode %o" % old.mode, b"new mode %o" % new.mode]
    return []


def _rename_lines(old: _Side, new: _Side, pieces: list[Hunk]) -> list[bytes]:
    return [
        b"similarity index %d%%" % _similarity(old.data, new.data, pieces),
        b"rename from " + quote_name(old.path),
        b"rename to " + quote_name(new.path),
    ]


def _similarity(old: bytes, new: bytes, pieces: list[Hunk]) -> int:
    """Return how much of the larger side is common, in percent; 100 only when both are equal."""
    if old == new:
        return 100
    pieces = pieces or hunks(old, new, 0)
    removed = sum(len(line) - 1 for piece in pieces for line in piece.lines if line[:1] == b"-")
    return min(99, (len(old) - removed) * 100 // max(len(old), len(new)))


def _content(old: _Side, new: _Side, pieces: list[Hunk], opaque: bool, binary: bool) -> bytes:
    if old.data == new.data:
        return b""
    if opaque and binary:
        return binary_patch(old.data, new.data)
    old_label, new_label = old.label(b"a/"), new.label(b"b/")
    if opaque:
        return b"Binary files %s and %s differ\n" % (old_label, new_label)
    # A tab ends a name with spaces, lest other tools take its second word for a date.
    old_end, new_end = (b"\t\n" if b" " in label else b"\n" for label in (old_label, new_label))
    text = b"".join(piece.text for piece in pieces)
    return b"--- %s%s+++ %s%s%s" % (old_label, old_end, new_label, new_end, text)
