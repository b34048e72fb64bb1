"""Hunks: the pieces of a text's change that are shown, named and taken one by one.

A hunk is a run of edits with some common lines around, as in a patch. The id of a hunk is a digest of the
path, the removed and added lines, and the old lines next to them: the id survives edits elsewhere in the file
and changes with the hunk itself. Line numbers refer to the whole old and new text; lines end at LF only.
"""

import hashlib
import io
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from sandboxfs.review.text_diff import Edit, diff_lines

NO_NEWLINE = b"\\ No newline at end of file\n"
# Comparing two texts of so many lines takes some ten seconds; longer texts are not compared by line.
MOST_LINES = 1_000_000
_BINARY_LOOK = 8000
_SECTION_LENGTH = 80
_SECTION_STARTS = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz_$")
_NEARBY = 3
_ID_LENGTH = 8


class StaleHunk(ValueError):
    """A hunk that does not fit the text, or two hunks that claim the same lines."""


@dataclass(frozen=True)
class Hunk:
    """One piece of a change; starts count from 0, and lines begin with ' ', '-' or '+'.

    A line without LF at its end is the last of its text: `text` writes the usual remark after such a line.
    """

    id: str
    old_start: int
    old_count: int
    new_start: int
    new_count: int
    section: bytes
    lines: tuple[bytes, ...]
    path: bytes = b""

    @property
    def added(self) -> int:
        """The number of added lines."""
        return sum(line[:1] == b"+" for line in self.lines)

    @property
    def removed(self) -> int:
        """The number of removed lines."""
        return sum(line[:1] == b"-" for line in self.lines)

    @property
    def header(self) -> bytes:
        """The `@@` line, without LF: the line numbers of the hunk, and the section of the text around it."""
        old = _range(self.old_start, self.old_count)
        new = _range(self.new_start, self.new_count)
        return b"@@ -%s +%s @@%s" % (old, new, b" " + self.section if self.section else b"")

    @property
    def text(self) -> bytes:
        """The hunk in the form of a unified diff."""
        lines = (line if line.endswith(b"\n") else line + b"\n" + NO_NEWLINE for line in self.lines)
        return self.header + b"\n" + b"".join(lines)


def is_binary(data: bytes) -> bool:
    """Whether *data* is no text: a NUL is near its start, which is git's rule, or the lines are too many."""
    return data.find(b"\0", 0, _BINARY_LOOK) >= 0 or (
        len(data) > MOST_LINES and data.count(b"\n") > MOST_LINES
    )


def text_lines(data: bytes) -> list[bytes]:
    """Split *data* after every LF; only the last line may lack one."""
    return io.BytesIO(data).readlines()


def hunks(old: bytes, new: bytes, context: int = 3, path: bytes = b"") -> list[Hunk]:
    """Return the hunks that turn *old* into *new*, each with *context* common lines around it."""
    old_lines, new_lines = text_lines(old), text_lines(new)
    found: list[Hunk] = []
    seen: dict[str, int] = {}
    section, searched = b"", 0
    for edits in _grouped(diff_lines(old_lines, new_lines), context):
        start = max(0, edits[0].old_start - context)
        end = min(len(old_lines), edits[-1].old_end + context)
        section = _section(old_lines, searched, start) or section
        searched = start
        body = _body(old_lines, new_lines, edits)
        before = old_lines[max(0, edits[0].old_start - _NEARBY) : edits[0].old_start]
        after = old_lines[edits[-1].old_end : edits[-1].old_end + _NEARBY]
        lines = (
            *(b" " + line for line in old_lines[start : edits[0].old_start]),
            *body,
            *(b" " + line for line in old_lines[edits[-1].old_end : end]),
        )
        new_start = edits[0].new_start - (edits[0].old_start - start)
        new_end = edits[-1].new_end + (end - edits[-1].old_end)
        name = _identify(path, before, body, after, seen)
        found.append(Hunk(name, start, end - start, new_start, new_end - new_start, section, lines, path))
    return found


def split(hunk: Hunk) -> list[Hunk]:
    """Divide *hunk* at the common lines inside; a hunk that cannot be divided is returned alone.

    Neighbours share the common lines between them, so each piece can be read, and applied, by itself.
    """
    runs = _runs(hunk.lines)
    if len(runs) < 2:
        return [hunk]
    pieces = []
    seen: dict[str, int] = {}
    old_start, new_start = hunk.old_start, hunk.new_start
    for index, (first, last) in enumerate(runs):
        low = runs[index - 1][1] if index else 0
        high = runs[index + 1][0] if index + 1 < len(runs) else len(hunk.lines)
        before = [line[1:] for line in hunk.lines[low:first][-_NEARBY:]]
        after = [line[1:] for line in hunk.lines[last:high][:_NEARBY]]
        lines = hunk.lines[low:high]
        piece = replace(
            hunk,
            id=_identify(hunk.path, before, hunk.lines[first:last], after, seen),
            old_start=old_start,
            old_count=_count(lines, b"+"),
            new_start=new_start,
            new_count=_count(lines, b"-"),
            lines=lines,
        )
        pieces.append(piece)
        shared = high - last
        old_start, new_start = old_start + piece.old_count - shared, new_start + piece.new_count - shared
    return pieces


def apply_hunks(old: bytes, chosen: Iterable[Hunk]) -> bytes:
    """Return *old* with only the *chosen* hunks applied, in any order.

    The hunks must be hunks of *old*, or pieces that `split` made of those; otherwise `StaleHunk` is raised.
    """
    old_lines = text_lines(old)
    replacements = sorted({item for hunk in chosen for item in _replacements(hunk, old_lines)})
    for (_, end, _), (start, _, _) in pairwise(replacements):
        if start <= end:
            raise StaleHunk(f"two hunks change line {start + 1}")
    result: list[bytes] = []
    at = 0
    for start, end, lines in replacements:
        result += old_lines[at:start]
        result += lines
        at = end
    return b"".join(result + old_lines[at:])


def _replacements(hunk: Hunk, old_lines: list[bytes]) -> list[tuple[int, int, tuple[bytes, ...]]]:
    """Return, for each run of *hunk*, the old lines and their replacement; checks that the hunk fits."""
    expected = [line[1:] for line in hunk.lines if line[:1] != b"+"]
    if old_lines[hunk.old_start : hunk.old_start + hunk.old_count] != expected:
        raise StaleHunk(f"hunk {hunk.id} does not fit the text any more")
    replacements = []
    start, behind = hunk.old_start, 0
    for first, last in _runs(hunk.lines):
        run = hunk.lines[first:last]
        start += first - behind
        end = start + _count(run, b"+")
        replacements.append((start, end, tuple(line[1:] for line in run if line[:1] == b"+")))
        start, behind = end, last
    return replacements


def _runs(lines: Sequence[bytes]) -> list[tuple[int, int]]:
    """Return the starts and ends of the unbroken runs of changed lines."""
    runs = []
    start = -1
    for index, line in enumerate([*lines, b" "]):
        if line[:1] == b" ":
            if start >= 0:
                runs.append((start, index))
            start = -1
        elif start < 0:
            start = index
    return runs


def _count(lines: Sequence[bytes], without: bytes) -> int:
    """Count the lines of one side: those without the other side's sign."""
    return sum(line[:1] != without for line in lines)


def _range(start: int, count: int) -> bytes:
    # An empty range names the line before it; a range of one line leaves the count out.
    if count == 1:
        return b"%d" % (start + 1)
    return b"%d,%d" % (start + 1 if count else start, count)


def _grouped(edits: list[Edit], context: int) -> list[list[Edit]]:
    """Put edits whose context would touch or overlap into one group."""
    groups: list[list[Edit]] = []
    for edit in edits:
        if groups and edit.old_start - groups[-1][-1].old_end <= 2 * context:
            groups[-1].append(edit)
        else:
            groups.append([edit])
    return groups


def _body(old_lines: list[bytes], new_lines: list[bytes], edits: list[Edit]) -> list[bytes]:
    """Write the lines from the first change to the last."""
    body: list[bytes] = []
    at = edits[0].old_start
    for edit in edits:
        body += [b" " + line for line in old_lines[at : edit.old_start]]
        body += [b"-" + line for line in old_lines[edit.old_start : edit.old_end]]
        body += [b"+" + line for line in new_lines[edit.new_start : edit.new_end]]
        at = edit.old_end
    return body


def _section(lines: list[bytes], low: int, high: int) -> bytes:
    """Return the last line of `low:high` that looks like a heading: it starts with a letter, `_` or `$`."""
    for index in range(high - 1, low - 1, -1):
        if lines[index][0] in _SECTION_STARTS:
            return lines[index][:_SECTION_LENGTH].rstrip()
    return b""


def _identify(
    path: bytes, before: Sequence[bytes], body: Sequence[bytes], after: Sequence[bytes], seen: dict[str, int]
) -> str:
    """Return an id that no hunk before it in *seen* has; equal hunks are told apart by their order."""
    digest = hashlib.sha256()
    for part in ([path], before, body, after):
        digest.update(b"%d\0" % len(part))
        for line in part:
            digest.update(b"%d\0" % len(line))
            digest.update(line)
    name = digest.hexdigest()[:_ID_LENGTH]
    while name in seen:
        seen[name] += 1
        digest.update(b"again %d" % seen[name])
        name = digest.hexdigest()[:_ID_LENGTH]
    seen[name] = 0
    return name
