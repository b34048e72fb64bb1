"""How much did each path change, on one line each?

Rows as `diff --stat` shows them: name, number of changed lines, and a bar that is as long as the largest
change allows. Binary files show their sizes instead, and what is no file says what it is. A mark at the end
is for what to look at twice. Everything fits the width it is given.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from sandboxfs.changes.differ import diff_lines
from sandboxfs.changes.hunks import is_binary
from sandboxfs.changes.patch import Change, contents, quote_name

_NARROWEST_BAR = 5
_NARROWEST_NAME = 10


@dataclass(frozen=True)
class StatRow:
    """How much one path changed; `sizes`, old and new, are set instead of lines for binary content.

    `words` are what is said instead of all that; `files` is how many files the row counts for in the sum.
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
        """The path as shown: quoted where it is odd, with the old one in front after a rename."""
        shown = quote_name(self.path).decode()
        return shown if self.old_path is None else f"{quote_name(self.old_path).decode()} => {shown}"


def stat_row(change: Change) -> StatRow:
    """Measure *change*."""
    old, new = contents(change)
    if is_binary(old) or is_binary(new):
        return StatRow(change.path, sizes=(len(old), len(new)), old_path=change.old_path)
    edits = diff_lines(_bare_lines(old), _bare_lines(new)) if old != new else []
    added = sum(edit.new_end - edit.new_start for edit in edits)
    removed = sum(edit.old_end - edit.old_start for edit in edits)
    return StatRow(change.path, added, removed, old_path=change.old_path)


def _bare_lines(data: bytes) -> list[bytes]:
    """Split *data* into lines without their ends, which is faster; a last one that has none is another."""
    lines = data.split(b"\n")
    if lines[-1]:
        lines[-1] += b"\n"
    else:
        lines.pop()
    return lines


def format_stat(rows: Sequence[StatRow], width: int = 80) -> list[str]:
    """Return a line for each of *rows*, none wider than *width* from 50 on, and one that sums them up."""
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
        # Whatever changed at all keeps at least one sign.
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
