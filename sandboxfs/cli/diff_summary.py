"""How is a review written in short? One line for each change, renamed directory, or directory put aside."""

import shutil
import stat
from collections.abc import Iterable
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import IO

from sandboxfs.changes.contents import change_flags, load
from sandboxfs.changes.files import FileChange, files_below
from sandboxfs.changes.finding import Side
from sandboxfs.changes.flags import Flag
from sandboxfs.changes.patch import Kind, quote_name
from sandboxfs.changes.stat import StatRow, format_stat, stat_row
from sandboxfs.changes.summary import GIT, Folded, Item, items
from sandboxfs.cli.diff_notes import counted, shown, tell, tell_conflicts, type_word
from sandboxfs.cli.painting import Painter
from sandboxfs.cli.reviewing import Review, divided

_LETTERS = {Kind.MODE: "M"}


def write_stat(review: Review, painter: Painter, place: AbstractContextManager[IO[bytes]]) -> None:
    """Write how much each path changed."""
    findings, folded = divided(review)
    remarks: list[str] = []
    rows = [_row(review, item, remarks) for item in items(review.survey, findings, renames=review.renames)]
    rows += [_folded_row(line) for line in folded]
    tell_conflicts(findings)
    tell(remarks)
    width = shutil.get_terminal_size().columns if painter.terminal else 80
    _write(place, (painter.stat(line) for line in format_stat(rows, width)))


def write_names(review: Review, _painter: Painter, place: AbstractContextManager[IO[bytes]]) -> None:
    """Write what kind of change each path has."""
    findings, folded = divided(review)
    tell_conflicts(findings)
    lines = [_named(review, item) for item in items(review.survey, findings, renames=review.renames)]
    lines += [f"!\t{_folded_name(line)}\t[{_folded_words(line)}]" for line in folded]
    _write(place, lines)


def _write(place: AbstractContextManager[IO[bytes]], lines: Iterable[str]) -> None:
    with place as stream:
        for line in lines:
            stream.write(line.encode(errors="surrogateescape") + b"\n")


# Rows


def _row(review: Review, item: Item, remarks: list[str]) -> StatRow:
    change = item.change
    if item.is_dir:
        return _directory_row(review, item)
    contents = load(change)
    mark = _mark(item, change_flags(change, contents, review.root))
    if contents.changing or item.changing:
        remarks.append(f"note: {shown(change.path)} is still changing")
    if contents.problem is not None:
        remarks.append(f"note: {shown(change.path)}: {contents.problem}")
        sizes = _size(change.old), _size(change.new)
        return StatRow(change.path, sizes=sizes, mark=mark)
    words = _words(change)
    row = stat_row(contents.change)
    if words is None and not mark and (change.old_path is None or change.kind is Kind.RENAMED):
        return row
    return replace(
        row, words=words, mark=mark, old_path=change.old_path if change.kind is Kind.RENAMED else None
    )


def _directory_row(review: Review, item: Item) -> StatRow:
    change = item.change
    old_path = None if change.old_path is None else change.old_path + b"/"
    words = {
        Kind.ADDED: "new directory",
        Kind.DELETED: "directory deleted",
        Kind.TYPE: f"was a {type_word(change.old)}, is a directory",
    }.get(change.kind)
    if change.kind is Kind.RENAMED:
        words = f"directory renamed, {counted(files_below(review.survey.view, change.path), 'file')}"
    elif words is None:
        words = "directory, " + _mode_words(change)
    mark = _mark(item, change_flags(change, None, review.root))
    return StatRow(change.path + b"/", old_path=old_path, words=words, mark=mark, files=0)


def _words(change: FileChange) -> str | None:
    """What there is to say of something that has no lines."""
    if change.kind is Kind.MODE:
        return _mode_words(change)
    side = change.new or change.old
    if side is None:
        return "not known to the sandbox"
    if change.kind is Kind.TYPE and change.old is not None and change.old.is_dir:
        return f"was a directory, is a {type_word(change.new)}"
    if stat.S_ISREG(side.mode) or stat.S_ISLNK(side.mode):
        return None
    return f"{type_word(side)} {change.kind.value}"


def _mode_words(change: FileChange) -> str:
    old, new = change.old, change.new
    if old is None or new is None:
        return ""
    if old.mode != new.mode:
        return f"mode {stat.S_IMODE(old.mode):03o} -> {stat.S_IMODE(new.mode):03o}"
    if (old.uid, old.gid) != (new.uid, new.gid):
        return f"owner {old.uid}:{old.gid} -> {new.uid}:{new.gid}"
    return "extended attributes"


def _size(side: Side | None) -> int:
    return 0 if side is None else side.size


def _folded_row(line: Folded) -> StatRow:
    return StatRow(_folded_path(line), words=_folded_words(line), files=0)


# Names


def _named(review: Review, item: Item) -> str:
    change = item.change
    end = "/" if item.is_dir else ""
    name = quote_name(change.path).decode() + end
    if change.kind is Kind.RENAMED and change.old_path is not None:
        name = f"{quote_name(change.old_path).decode()}{end}\t{name}"
    marks = _mark(item, change_flags(change, None, review.root))
    if change.kind is Kind.MODE:
        marks = ", ".join(filter(None, [_mode_words(change), marks]))
    letter = _LETTERS.get(change.kind, change.kind.value[0].upper())
    return f"{letter}\t{name}" + (f"\t[{marks}]" if marks else "")


def _mark(item: Item, flags: list[Flag]) -> str:
    return ", ".join([*(["conflict"] if item.conflict is not None else []), *(flag.value for flag in flags)])


def _folded_path(line: Folded) -> bytes:
    return line.directory + b"/" if line.directory else b"./"


def _folded_name(line: Folded) -> str:
    return quote_name(_folded_path(line)).decode()


def _folded_words(line: Folded) -> str:
    words = [counted(line.changes, "change" if line.reason == GIT else "ignored change")]
    if line.conflicts:
        words.append(counted(line.conflicts, "conflict"))
    return ", ".join([*words, *(f"{count:,} {flag.value}" for flag, count in sorted(line.flags.items()))])
