"""What is in the two sides of a change, read once?

Reading can fail in two ways that are no reason to stop: the file is still being written, or what it was is
not known any more. Either is told with what could be had. Very large files are never read, only measured.
"""

from dataclasses import dataclass

from sandboxfs.changes.files import FileChange
from sandboxfs.changes.finding import Side
from sandboxfs.changes.flags import HEAD, Flag, Look, flags
from sandboxfs.changes.patch import Change, Kind
from sandboxfs.changes.sides import head
from sandboxfs.changes.tree import StillChanging, Unreadable

LARGEST = 128 << 20
"""Files above this size are only said to differ."""


@dataclass(frozen=True)
class Contents:
    """A change with its bytes; *problem* says why they are not known, and then they are empty."""

    change: Change
    changing: bool = False
    problem: str | None = None


def load(found: FileChange) -> Contents:
    """Read both sides of *found*, as far as they matter."""
    old = new = b""
    changing, problem = False, None
    if not _is_same_content(found):
        try:
            old, old_changing = _read(found.old)
            new, changing = _read(found.new)
            changing = changing or old_changing
        except Unreadable as error:
            old = new = b""
            problem = str(error)
    change = Change(found.path, found.kind, _mode(found.old), _mode(found.new), old, new, found.old_path)
    return Contents(change, changing, problem)


def change_flags(found: FileChange, contents: Contents | None, root: bytes) -> list[Flag]:
    """Why *found* should be looked at twice; reads the start of files unless *contents* are there already."""
    same = _is_same_content(found)
    old, new = b"", b""
    if contents is not None and not same and contents.problem is None:
        old, new = _bytes(contents.change.old)[:HEAD], _bytes(contents.change.new)[:HEAD]
    elif not same:
        old, new = _head(found.old), _head(found.new)
    return flags(found.path, _look(found.old, old), _look(found.new, new), root)


def _is_same_content(found: FileChange) -> bool:
    """Whether only what is around the content of a file changed."""
    if found.old is None or found.new is None or not (found.old.is_file and found.new.is_file):
        return False
    return found.kind is Kind.MODE or found.old is found.new


def _mode(side: Side | None) -> int | None:
    return None if side is None else side.mode


def _read(side: Side | None) -> tuple[bytes, bool]:
    """Return the content of *side*, and whether it is still changing."""
    if side is None:
        return b"", False
    if not side.is_file:
        return side.target, False
    if side.size > LARGEST:
        raise Unreadable("too large to be compared")
    try:
        return side.read(), False
    except StillChanging as error:
        return error.data, True


def _bytes(content: object) -> bytes:
    return content if isinstance(content, bytes) else b""


def _head(side: Side | None) -> bytes:
    try:
        return b"" if side is None or not side.is_file else head(side, HEAD)
    except Unreadable:
        return b""


def _look(side: Side | None, start: bytes) -> Look | None:
    return None if side is None else Look(side.mode, side.size, start, side.target)
