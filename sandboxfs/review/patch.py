"""Patches for `git apply` and `patch -p1`, binary ones included, and the diffstat.

A patch has git's extended headers, then hunks. The patch says only what git can say: files, executable files
and symlinks. A directory or a special file counts as absent, and other mode bits are left out. A change of
type, and the rename of a symlink, is a deletion and an addition. Names are quoted as git quotes them, except
that printable letters in valid UTF-8 are kept and names with spaces are quoted, too.

A binary patch is git's: the whole new content, then the whole old one for the way back. Each is deflated and
written in base 85, up to 52 bytes on a line behind a letter for the number of bytes.

`patch` puts deletions off to its end, and so cannot exchange a file and a directory; `git apply` can.

Two failures of reading do not stop a review: the file is still being written, or its old content is not known
any more. Either is reported with the bytes that could be read. Very large files are never read, only
measured.

A row of the diffstat has the form of `diff --stat`: name, number of changed lines, and a bar in proportion to
the largest change. Binary files show their sizes instead, and special files the words for their type. A mark
at the end calls for a second look. Every row fits the given width.
"""

import base64
import hashlib
import re
import stat
import string
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, replace

from sandboxfs.hostfs.tree import ChangedWhileRead, Unreadable
from sandboxfs.paths import invisible_in
from sandboxfs.review.change import ChangeKind, PathChange, Version
from sandboxfs.review.hunks import Hunk, hunks, is_binary
from sandboxfs.review.text_diff import diff_lines

_BYTES_A_LINE = 52
_LETTERS = (string.ascii_uppercase + string.ascii_lowercase).encode()
_CHUNK = _BYTES_A_LINE // 4 * 5


def blob_id(data: bytes) -> bytes:
    """Return git's name of the blob *data*, in full."""
    digest = hashlib.sha1(b"blob %d\0" % len(data), usedforsecurity=False)
    digest.update(data)
    return digest.hexdigest().encode()


def binary_patch(old: bytes, new: bytes) -> bytes:
    """Return the `GIT binary patch` section that turns *old* into *new* and back."""
    return b"GIT binary patch\n" + _literal(new) + b"\n" + _literal(old) + b"\n"


def _literal(data: bytes) -> bytes:
    deflated = zlib.compress(data)
    encoded = base64.b85encode(deflated, pad=True)
    lines = [b"literal %d\n" % len(data)]
    for number, start in enumerate(range(0, len(encoded), _CHUNK)):
        size = min(_BYTES_A_LINE, len(deflated) - number * _BYTES_A_LINE)
        lines.append(_LETTERS[size - 1 : size] + encoded[start : start + _CHUNK] + b"\n")
    return b"".join(lines)


_ABBREVIATED = 7
_NO_BLOB = b"0" * 40
_ESCAPES = {ord(b): b"\\" + e.encode() for b, e in zip('\a\b\t\n\v\f\r"\\', 'abtnvfr"\\', strict=True)}
_ODD = re.compile(rb'[\x00-\x1f"\\\x7f-\xff]')


LARGEST = 128 << 20
"""Files above this size are only said to differ."""


@dataclass(frozen=True)
class FilePatch:
    """A change with its bytes; the content of a symlink is its target.

    Modes are whole `st_mode` values, None where the path is absent. `old_path` is set for a rename. Both
    contents are empty where the content did not change, and where *problem* says why the bytes are not known.
    *changing*: a program is still writing the file.
    """

    path: bytes
    kind: ChangeKind
    old_mode: int | None = None
    new_mode: int | None = None
    old: bytes = b""
    new: bytes = b""
    old_path: bytes | None = None
    changing: bool = False
    problem: str | None = None


def load(change: PathChange) -> FilePatch:
    """Read both versions of *change*, as far as the change needs them; each is read once."""
    old = new = b""
    changing, problem = False, None
    if not is_same_content(change):
        try:
            old, old_changing = _read(change.old)
            new, changing = _read(change.new)
            changing = changing or old_changing
        except Unreadable as error:
            old = new = b""
            problem = str(error)
    old_mode, new_mode = (None if side is None else side.mode for side in (change.old, change.new))
    return FilePatch(
        change.path, change.kind, old_mode, new_mode, old, new, change.moved_from, changing, problem
    )


def is_same_content(change: PathChange) -> bool:
    """Whether a change leaves the content of the file alone: its mode, attributes or name changed."""
    if change.old is None or change.new is None or not (change.old.is_file and change.new.is_file):
        return False
    return change.kind is ChangeKind.MODE or change.old is change.new


def _read(side: Version | None) -> tuple[bytes, bool]:
    """Return the content of *side*, and whether the file is still changing."""
    if side is None:
        return b"", False
    if not side.is_file:
        return side.target, False
    if side.size > LARGEST:
        raise Unreadable("too large to be compared")
    try:
        return side.read(), False
    except ChangedWhileRead as error:
        return error.data, True


@dataclass(frozen=True)
class _Side:
    """One side of a change as git sees it: a mode, 0 for an absent path, and bytes."""

    path: bytes
    mode: int
    data: bytes

    @property
    def blob(self) -> bytes:
        return blob_id(self.data) if self.mode else _NO_BLOB

    def label(self, prefix: bytes) -> bytes:
        return _header_name(self.path, prefix) if self.mode else b"/dev/null"


def patch(change: FilePatch, context: int = 3, *, binary: bool = False) -> bytes:
    """Return *change* as a patch, empty where a patch cannot say it.

    Without *binary*, a comment line without a header says that binary content differs. The line cannot be
    git's own: `git apply` refuses a whole patch when the content of one binary file is missing, and takes
    git's own `Binary files` line for the content of the header before it, when that header has none, as that
    of an empty file.
    """
    old, new = _sides(change)
    if not old.mode and not new.mode:
        return b""
    if not binary and _opaque(old, new) and old.data != new.data:
        return _differing(old, new)
    if old.mode and new.mode and _apart(old, new):
        gone, unmade = _Side(old.path, 0, b""), _Side(new.path, 0, b"")
        return _one(old, gone, context) + _one(unmade, new, context)
    return _one(old, new, context)


def differing(change: FilePatch) -> bytes:
    """Return only the line that content differs, for content that is not known."""
    old, new = _sides(replace(change, old=b"", new=b""))
    return _differing(old, new) if old.mode or new.mode else b""


def _differing(old: _Side, new: _Side) -> bytes:
    return b"# Binary files %s and %s differ\n" % (old.label(b"a/"), new.label(b"b/"))


def _opaque(old: _Side, new: _Side) -> bool:
    return is_binary(old.data) or is_binary(new.data)


def change_hunks(change: FilePatch, context: int = 3) -> list[Hunk]:
    """Return the hunks of *change*: none where either side is binary, or where the type changed."""
    old, new = _sides(change)
    if is_binary(old.data) or is_binary(new.data) or (old.mode and new.mode and _apart(old, new)):
        return []
    return hunks(old.data, new.data, context, new.path)


def contents(change: FilePatch) -> tuple[bytes, bytes]:
    """Return the old and the new bytes of *change* that git can tell."""
    old, new = _sides(change)
    return old.data, new.data


def quote_name(name: bytes, prefix: bytes = b"") -> bytes:
    """Write *prefix* and *name* as git does: odd names in quotes with C escapes, others unchanged.

    The result is one line of valid UTF-8 for every name.
    """
    if not _ODD.search(name):
        return prefix + name
    try:
        text = name.decode()
        printable = all(letter.isascii() or letter.isprintable() for letter in text) and not invisible_in(
            text
        )
    except UnicodeDecodeError:
        printable = False
    highest = 0x100 if printable else 0x80
    quoted = b"".join(_quoted_byte(byte, highest) for byte in name)
    return b'"' + prefix + quoted + b'"' if quoted != name else prefix + name


def _header_name(name: bytes, prefix: bytes = b"") -> bytes:
    """Write a name for the headers of a patch, in quotes also where the name has a space.

    Git itself leaves the quotes out. Without them `patch` cannot tell the end of a name, drops a space at the
    end of a name and refuses patches of empty files, and `git apply` refuses some.
    """
    quoted = quote_name(name, prefix)
    return b'"%s"' % quoted if b" " in quoted and not quoted.startswith(b'"') else quoted


def _quoted_byte(byte: int, highest: int) -> bytes:
    if byte in _ESCAPES:
        return _ESCAPES[byte]
    return b"\\%03o" % byte if byte < 0x20 or byte == 0x7F or byte >= highest else bytes((byte,))


def _sides(change: FilePatch) -> tuple[_Side, _Side]:
    old_mode, new_mode = _git_mode(change.old_mode), _git_mode(change.new_mode)
    old_path = change.path if change.old_path is None else change.old_path
    return (
        _Side(old_path, old_mode, change.old if old_mode else b""),
        _Side(change.path, new_mode, change.new if new_mode else b""),
    )


def _apart(old: _Side, new: _Side) -> bool:
    """Whether the change has to be written as a deletion and an addition."""
    # `patch` moves no symlink: the header of a rename does not tell `patch` that the path is a symlink.
    moved_link = stat.S_ISLNK(new.mode) and old.path != new.path
    return moved_link or stat.S_IFMT(old.mode) != stat.S_IFMT(new.mode)


def _git_mode(mode: int | None) -> int:
    if mode is not None and stat.S_ISLNK(mode):
        return 0o120000
    if mode is not None and stat.S_ISREG(mode):
        return 0o100755 if mode & stat.S_IXUSR else 0o100644
    return 0


def _one(old: _Side, new: _Side, context: int) -> bytes:
    opaque = _opaque(old, new)
    pieces = [] if opaque or old.data == new.data else hunks(old.data, new.data, context, new.path)
    header = _mode_lines(old, new)
    if old.path != new.path:
        header += _rename_lines(old, new, pieces)
    if old.data != new.data or not old.mode or not new.mode:
        length = len(_NO_BLOB) if opaque else _ABBREVIATED
        same_mode = b" %o" % new.mode if old.mode == new.mode else b""
        header.append(b"index %s..%s%s" % (old.blob[:length], new.blob[:length], same_mode))
    if not header:
        return b""
    first = b"diff --git %s %s" % (_header_name(old.path, b"a/"), _header_name(new.path, b"b/"))
    return b"\n".join([first, *header, b""]) + _content(old, new, pieces, opaque)


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
        b"rename from " + _header_name(old.path),
        b"rename to " + _header_name(new.path),
    ]


def _similarity(old: bytes, new: bytes, pieces: list[Hunk]) -> int:
    """Return the common part of the larger side, in percent; 100 only when both sides are equal."""
    if old == new:
        return 100
    pieces = pieces or hunks(old, new, 0)
    removed = sum(len(line) - 1 for piece in pieces for line in piece.lines if line[:1] == b"-")
    return min(99, (len(old) - removed) * 100 // max(len(old), len(new)))


def _content(old: _Side, new: _Side, pieces: list[Hunk], opaque: bool) -> bytes:
    if old.data == new.data:
        return b""
    if opaque:
        return binary_patch(old.data, new.data)
    text = b"".join(piece.text for piece in pieces)
    return b"--- %s\n+++ %s\n%s" % (old.label(b"a/"), new.label(b"b/"), text)


_NARROWEST_BAR = 5
_NARROWEST_NAME = 10


@dataclass(frozen=True)
class StatRow:
    """How much one path changed; `sizes`, old and new, replace the lines for binary content.

    `words` replace both; `files` is the number of files that the row stands for in the sum.
    """

    path: bytes
    added: int = 0
    removed: int = 0
    sizes: tuple[int, int] | None = None
    old_path: bytes | None = None
    words: str | None = None
    mark: str = ""
    files: int = 1

    @property
    def name(self) -> str:
        """The path as shown: odd names in quotes, and the old path in front after a rename."""
        shown = quote_name(self.path).decode()
        return shown if self.old_path is None else f"{quote_name(self.old_path).decode()} => {shown}"


def stat_row(change: FilePatch) -> StatRow:
    """Count the changed lines, or the bytes, of *change*."""
    old, new = contents(change)
    if is_binary(old) or is_binary(new):
        return StatRow(change.path, sizes=(len(old), len(new)), old_path=change.old_path)
    edits = diff_lines(_bare_lines(old), _bare_lines(new)) if old != new else []
    added = sum(edit.new_end - edit.new_start for edit in edits)
    removed = sum(edit.old_end - edit.old_start for edit in edits)
    return StatRow(change.path, added, removed, old_path=change.old_path)


def _bare_lines(data: bytes) -> list[bytes]:
    """Split *data* into lines without LF, which is faster; a last line that lacks LF gets one, to differ."""
    lines = data.split(b"\n")
    if lines[-1]:
        lines[-1] += b"\n"
    else:
        lines.pop()
    return lines


def format_stat(rows: Sequence[StatRow], width: int = 80) -> list[str]:
    """Return a line for each of *rows*, and one with the sums; no row is wider than *width* from 50 on."""
    if not rows:
        return []
    names, counts = [row.name for row in rows], [_count(row) for row in rows]
    count_width = max((len(c) for row, c in zip(rows, counts, strict=True) if _has_bar(row)), default=0)
    mark_width = max(len(row.mark) for row in rows)
    room = width - 4 - (mark_width + 2 if mark_width else 0)
    widest_name = max(_NARROWEST_NAME, room - max(map(len, counts)) - _NARROWEST_BAR)
    name_width = min(max(map(len, names)), widest_name)
    bar_width = max(_NARROWEST_BAR, room - name_width - count_width - 1)
    most = max(row.added + row.removed for row in rows)
    lines = []
    for row, name, count in zip(rows, names, counts, strict=True):
        shown = f"{count:>{count_width}} {_bar(row, most, bar_width)}" if _has_bar(row) else count
        mark = f"  {row.mark}" if row.mark else ""
        lines.append(f" {_fitted(name, name_width):<{name_width}} | {shown.rstrip()}{mark}")
    return [*lines, _total(rows)]


def _has_bar(row: StatRow) -> bool:
    return row.sizes is None and row.words is None


def _count(row: StatRow) -> str:
    if row.words is not None:
        return row.words
    if row.sizes is None:
        return str(row.added + row.removed)
    return f"Bin {row.sizes[0]} -> {row.sizes[1]} bytes"


def _fitted(name: str, width: int) -> str:
    return name if len(name) <= width else "..." + name[len(name) - width + 3 :]


def _bar(row: StatRow, most: int, width: int) -> str:
    added, removed = row.added, row.removed
    if most > width:
        # Any number of added or removed lines keeps at least one sign.
        added, removed = (count and max(1, count * (width - 1) // most) for count in (added, removed))
    return "+" * added + "-" * removed


def _total(rows: Sequence[StatRow]) -> str:
    added, removed = sum(row.added for row in rows), sum(row.removed for row in rows)
    files = sum(row.files for row in rows)
    parts = [f"{files} file{'' if files == 1 else 's'} changed"]
    if added:
        parts.append(f"{added} insertion{'' if added == 1 else 's'}(+)")
    if removed:
        parts.append(f"{removed} deletion{'' if removed == 1 else 's'}(-)")
    return " " + ", ".join(parts)
