"""How does a person change a hunk by hand, and does it still fit afterwards?

The text of a hunk is edited as any text and read back. One side of it must stay: the old lines, when the
hunk is to be carried out on the old text; the new lines, when it is to be taken back from the new one. The
other side may become anything: a line not to be touched is made common, a line not to be brought is left out.
What does not fit is refused with a reason for the person, never mended by a guess.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace

from sandboxfs.changes.hunks import Hunk, StaleHunk, apply_hunks, text_lines
from sandboxfs.paths import quoted

COMMENT = b"#"
_REMARK = b"\\"
_LONGEST_SHOWN = 60


class BadEdit(ValueError):
    """An edited hunk cannot be used; the message completes "it cannot be used: "."""


def reverse(hunk: Hunk) -> Hunk:
    """Return the hunk that takes *hunk* back: applied to the new text it gives the old one."""
    lines: list[bytes] = []
    removed: list[bytes] = []
    added: list[bytes] = []
    for line in (*hunk.lines, b" "):
        if line[:1] == b"+":
            removed.append(b"-" + line[1:])
        elif line[:1] == b"-":
            added.append(b"+" + line[1:])
        else:
            lines += [*removed, *added, line]
            removed, added = [], []
    return replace(
        hunk,
        old_start=hunk.new_start,
        old_count=hunk.new_count,
        new_start=hunk.old_start,
        new_count=hunk.old_count,
        lines=tuple(lines[:-1]),
    )


def edited(
    hunk: Hunk, text: bytes, base: bytes, others: Iterable[Hunk] = (), *, backwards: bool = False
) -> Hunk | None:
    """Read back what a person made of the text of *hunk*; None when they removed all of it.

    *base* is the text that the hunk is applied to: the old one or, *backwards*, the new one. It must be
    possible to choose the result together with any of the *others*. It keeps the id of the hunk it was made
    of. `BadEdit` is raised where it does not fit.
    """
    lines = tuple(_read(text))
    if not lines:
        return None
    if lines == hunk.lines:
        return hunk
    stays, gone = (b"+", b"-") if backwards else (b"-", b"+")
    before = _side(hunk.lines, gone)
    _compare(before, _side(lines, gone), "new" if backwards else "old")
    start = hunk.new_start if backwards else hunk.old_start
    _check_end(_side(lines, stays), reaches_end=start + len(before) == len(text_lines(base)))
    if all(line[:1] == b" " for line in lines):
        raise BadEdit("it changes nothing; answer 'n' to leave the hunk out")
    old_count, new_count = len(_side(lines, b"+")), len(_side(lines, b"-"))
    result = replace(hunk, lines=lines, old_count=old_count, new_count=new_count)
    every = [result, *others]
    try:
        apply_hunks(base, map(reverse, every) if backwards else every)
    except StaleHunk:
        raise BadEdit("it changes lines next to those of another hunk") from None
    return result


def without_comments(text: bytes) -> bytes:
    """Return *text* without its comments, and without the empty lines that editors leave after them."""
    kept: list[bytes] = []
    outside = False
    for line in text_lines(text):
        outside = line.startswith(COMMENT) or (outside and not line.strip(b"\r\n"))
        if not outside:
            kept.append(line if line.endswith(b"\n") else line + b"\n")
    return b"".join(kept)


def _read(text: bytes) -> list[bytes]:
    """Return the lines of the hunk in *text*."""
    lines: list[bytes] = []
    for line in text_lines(without_comments(text)):
        if line.startswith(_REMARK):
            if lines:
                lines[-1] = lines[-1].removesuffix(b"\n")
        elif not line.strip(b"\r\n"):
            # Editors that remove trailing blanks also remove the sign of an empty common line.
            lines.append(b" " + line)
        elif line[:1] in (b" ", b"-", b"+"):
            lines.append(line)
        elif not line.startswith(b"@@"):
            raise BadEdit(f"line {_shown(line)} starts with none of ' ', '-' and '+'")
    return lines


def _side(lines: Sequence[bytes], without: bytes) -> list[bytes]:
    """Return the lines that one side has: those *without* the other side's sign."""
    return [line[1:] for line in lines if line[:1] != without]


def _compare(expected: Sequence[bytes], found: Sequence[bytes], which: str) -> None:
    """Refuse *found* where the side that must stay did not."""
    for before, after in zip(expected, found, strict=False):
        if before == after:
            continue
        if before.removesuffix(b"\n") == after.removesuffix(b"\n"):
            end = "a newline" if before.endswith(b"\n") else "no newline"
            raise BadEdit(f"line {_shown(before)} of the {which} text has {end} at its end")
        raise BadEdit(f"it has {_shown(after)} where the {which} text has {_shown(before)}")
    if len(found) < len(expected):
        raise BadEdit(f"it lacks the line {_shown(expected[len(found)])} of the {which} text")
    if len(found) > len(expected):
        raise BadEdit(f"it has {_shown(found[len(expected)])}, which the {which} text does not have there")


def _check_end(lines: Sequence[bytes], *, reaches_end: bool) -> None:
    """Refuse a hunk whose result would join two lines into one."""
    last = len(lines) - 1
    for index, line in enumerate(lines):
        if not line.endswith(b"\n") and (index < last or not reaches_end):
            raise BadEdit(f"line {_shown(line)} needs a newline at its end: it would not be the last")


def _shown(line: bytes) -> str:
    line = line.removesuffix(b"\n")
    return quoted(line) if len(line) <= _LONGEST_SHOWN else quoted(line[:_LONGEST_SHOWN]) + "…"
