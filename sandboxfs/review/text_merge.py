"""Three-way merge of texts, by lines.

Changes with at least one untouched line between them are merged, and so are equal changes; others are a
conflict, as in git. Conflicting lines stand between markers; lines that both sides share are moved out of the
markers. Line ends stay as they are, also a missing one at the end of the text.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from sandboxfs.review.hunks import is_binary, text_lines
from sandboxfs.review.text_diff import Edit, diff_lines

OURS, THEIRS = b"sandbox", b"workspace"
_BEGIN, _END = b"<<<<<<< " + OURS, b">>>>>>> " + THEIRS
# Lines that no text has by chance.
_MARKERS = frozenset({_BEGIN, _END})
# Conflicts with so few lines between them are easier to read as one.
_NEAR = 3

Lines = Sequence[bytes]


@dataclass(frozen=True)
class MergeConflict:
    """Lines on which the sides disagree; `line`, from 0, is the place of their marker in the merged text."""

    line: int
    base: tuple[bytes, ...]
    ours: tuple[bytes, ...]
    theirs: tuple[bytes, ...]


@dataclass(frozen=True)
class Merged:
    """A merged text, and the conflicts left in it.

    Binary content gets no markers: on a conflict, `binary` is set and `text` is the sandbox's content.
    """

    text: bytes
    conflicts: tuple[MergeConflict, ...] = ()
    binary: bool = False

    @property
    def clean(self) -> bool:
        """Whether the text has both sides' changes, with nothing left to decide."""
        return not self.conflicts and not self.binary


def has_markers(text: bytes, before: bytes) -> bool:
    """Whether *text* has more lines that mark a conflict than *before*."""
    return _count_markers(text) > _count_markers(before)


def _count_markers(text: bytes) -> int:
    return sum(line.rstrip(b"\r\n") in _MARKERS for line in text_lines(text))


def merge(base: bytes, ours: bytes, theirs: bytes) -> Merged:
    """Merge the changes that *ours* (the sandbox) and *theirs* (the workspace) made to *base*."""
    if ours == theirs or theirs == base:
        return Merged(ours)
    if ours == base:
        return Merged(theirs)
    if any(map(is_binary, (base, ours, theirs))):
        return Merged(ours, binary=True)
    base_lines, our_lines, their_lines = map(text_lines, (base, ours, theirs))
    carriage_return = any(lines and lines[0].endswith(b"\r\n") for lines in (our_lines, their_lines))
    output = _Output(b"\r\n" if carriage_return else b"\n")
    at = 0
    for group in _groups(diff_lines(base_lines, our_lines), diff_lines(base_lines, their_lines)):
        output.lines += base_lines[at : group.start]
        mine, yours = group.slice(our_lines, group.ours), group.slice(their_lines, group.theirs)
        if not group.theirs or mine == yours:
            output.lines += mine
        elif not group.ours:
            output.lines += yours
        else:
            output.disagree(base_lines[group.start : group.end], mine, yours)
        at = group.end
    output.lines += base_lines[at:]
    return Merged(b"".join(output.lines), tuple(output.conflicts))


@dataclass(frozen=True)
class _Group:
    """Base lines `start:end`, and the edits of either side that touch one another there."""

    start: int
    end: int
    ours: tuple[Edit, ...]
    theirs: tuple[Edit, ...]

    def slice(self, lines: list[bytes], edits: tuple[Edit, ...]) -> list[bytes]:
        """Return the lines of a side with *edits* that replace the group's base lines."""
        if not edits:
            return []
        start = edits[0].new_start - (edits[0].old_start - self.start)
        return lines[start : edits[-1].new_end + (self.end - edits[-1].old_end)]


def _groups(ours: list[Edit], theirs: list[Edit]) -> Iterator[_Group]:
    edits = sorted([(edit, True) for edit in ours] + [(edit, False) for edit in theirs])
    index = 0
    while index < len(edits):
        first = index
        end = edits[index][0].old_end
        while index < len(edits) and edits[index][0].old_start <= end:
            end = max(end, edits[index][0].old_end)
            index += 1
        members = edits[first:index]
        yield _Group(
            edits[first][0].old_start,
            end,
            tuple(edit for edit, is_ours in members if is_ours),
            tuple(edit for edit, is_ours in members if not is_ours),
        )


class _Output:
    """The merged lines so far, and the writing of conflicts."""

    def __init__(self, line_end: bytes) -> None:
        self.lines: list[bytes] = []
        self.conflicts: list[MergeConflict] = []
        self._line_end = line_end

    def disagree(self, base: list[bytes], ours: list[bytes], theirs: list[bytes]) -> None:
        """Write one stretch of lines that each side changed in its own way."""
        at = 0
        for start, end, their_start, their_end in _joined(diff_lines(ours, theirs)):
            self.lines += ours[at:start]
            self._mark(base, ours[start:end], theirs[their_start:their_end])
            at = end
        self.lines += ours[at:]

    def _mark(self, base: Lines, ours: Lines, theirs: Lines) -> None:
        self.conflicts.append(MergeConflict(len(self.lines), tuple(base), tuple(ours), tuple(theirs)))
        self._marker(_BEGIN)
        self._section(ours)
        self._marker(b"=======")
        self._section(theirs)
        self._marker(_END)

    def _marker(self, text: bytes) -> None:
        self.lines.append(text + self._line_end)

    def _section(self, lines: Lines) -> None:
        self.lines += [line if line.endswith(b"\n") else line + self._line_end for line in lines]


def _joined(edits: list[Edit]) -> list[Edit]:
    joined: list[Edit] = []
    for edit in edits:
        if joined and edit.old_start - joined[-1].old_end <= _NEAR:
            last = joined.pop()
            joined.append(Edit(last.old_start, edit.old_end, last.new_start, edit.new_end))
        else:
            joined.append(edit)
    return joined
