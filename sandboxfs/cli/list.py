"""`sandboxfs list`: all sandboxes, one line each, the last used first, with the work that is in them."""

import argparse
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from sandboxfs.cli import output
from sandboxfs.cli.parser import Parser, verb_parser
from sandboxfs.cli.terminal import caller_context
from sandboxfs.service.listing import Counts, MeasuredSandbox, home_of, list_sandboxes

DESCRIPTION = """\
Show all sandboxes, the last used first, with their companions under them: whether they
are mounted, unmounted or dead (the daemon died and left its mount behind), how many
changes they hold and how many of these are in conflict with the workspace, what they take
on disk, how old they are and when they were last used. Never waits for a mount."""

EXAMPLES = ["sandboxfs list", "sandboxfs list --json"]

HEADER = ("NAME", "STATE", "CHANGES", "CONFLICTS", "SIZE", "AGE", "USED", "WORKSPACE", "MOUNTPOINT")
# A name and a workspace are shortened to no less than this.
_SHORTEST = 12
# What is done, in this order, until the table fits: a column is left out, and some are shortened.
_STEPS = (
    ("MOUNTPOINT", ("WORKSPACE",)),
    ("AGE", ("WORKSPACE",)),
    ("SIZE", ("WORKSPACE",)),
    ("CONFLICTS", ("WORKSPACE",)),
    ("", ("WORKSPACE", "NAME")),
    ("USED", ("WORKSPACE", "NAME")),
    ("WORKSPACE", ("NAME",)),
)


class Arguments(argparse.Namespace):
    json: bool


def parser() -> Parser:
    return verb_parser("list", DESCRIPTION, EXAMPLES, [])


def run(words: list[str]) -> int:
    arguments = parser().parse_args(words, namespace=Arguments())
    here = caller_context(as_json=arguments.json)
    found = list_sandboxes(here)
    for name, reason in found.unreadable:
        output.note(f"sandboxfs: cannot read sandbox '{name}': {reason}")
    if arguments.json:
        output.document({"sandboxes": [one.as_json() for one in found.sandboxes]})
    elif not found.sandboxes:
        output.note("no sandboxes")
    else:
        now, home = time.time(), home_of(here)
        width = output.terminal_width() if sys.stdout.isatty() else None
        header, rows = fitted(HEADER, [_row(one, now, home) for one in found.sandboxes], width)
        output.table(header, rows)
    return 0


def _row(one: MeasuredSandbox, now: float, home: Path) -> list[str]:
    record, counts = one.record, one.counts
    indent = "" if record.companion_of is None else "  "
    at_least = "" if one.size.complete else ">"
    return [
        indent + record.name,
        one.status.state,
        "?" if counts is None else _changes(counts),
        "?" if counts is None else str(counts.conflicts or "-"),
        at_least + output.human_size(one.size.size).replace(" ", ""),
        _ago(now - record.created.timestamp()),
        "now" if one.status.held else _ago(now - one.used.timestamp()),
        _short(record.workspace, home),
        _short(record.mountpoint, home) if one.status.state != "unmounted" else "-",
    ]


def _changes(counts: Counts) -> str:
    if counts.held:
        return f"{counts.changes:,}+{counts.held:,} held"
    left_out = counts.ignored + counts.git
    if counts.changes or not left_out:
        return f"{counts.changes:,}" if counts.changes else "-"
    return f"{left_out:,} left out"


def _ago(seconds: float) -> str:
    """Write a length of time for a person, by its largest unit."""
    return output.human_duration(max(0.0, seconds)).split()[0]


def _short(path: Path, home: Path) -> str:
    """Show *path* with `~` for the home."""
    if home != Path("/") and path.is_relative_to(home):
        return output.shown(Path("~", path.relative_to(home)))
    return output.shown(path)


def fitted(
    header: tuple[str, ...], rows: list[list[str]], width: int | None
) -> tuple[tuple[str, ...], list[list[str]]]:
    """Make a table fit in *width* characters: without columns that can be missed, others shortened."""
    if width is None:
        return header, rows
    columns = {cells[0]: list(cells[1:]) for cells in zip(header, *rows, strict=True)}
    for left_out, shortened in _STEPS:
        excess = _width(columns) - width
        if excess <= 0:
            break
        if left_out == "CONFLICTS" and any(cell != "-" for cell in columns[left_out]):
            continue
        columns.pop(left_out, None)
        excess = _width(columns) - width
        if excess <= sum(max(0, _widest(columns, word) - _SHORTEST) for word in shortened):
            for word in shortened:
                room = max(_SHORTEST, _widest(columns, word) - max(0, _width(columns) - width))
                columns[word] = [_ending(cell, room) for cell in columns[word]]
            break
    return tuple(columns), [list(row) for row in zip(*columns.values(), strict=True)]


def _widest(columns: Mapping[str, list[str]], word: str) -> int:
    return max(map(len, (word, *columns[word])))


def _width(columns: Mapping[str, list[str]]) -> int:
    return sum(_widest(columns, word) + 2 for word in columns) - 2


def _ending(text: str, room: int) -> str:
    """Return *text* with its beginning left out where it is longer than *room*; an indent stays."""
    if len(text) <= room:
        return text
    indent = " " * (len(text) - len(text.lstrip(" ")))
    return f"{indent}…{text[len(text) - room + len(indent) + 1 :]}"
