"""How is a review written for programs? One document, written change by change."""

import json
import os
import sys

from sandboxfs.changes.contents import Contents, change_flags, load
from sandboxfs.changes.finding import Side
from sandboxfs.changes.hunks import Hunk, is_binary
from sandboxfs.changes.patch import change_hunks, contents
from sandboxfs.changes.summary import Item, items, plain_flags, without_implied
from sandboxfs.cli.reviewing import Review


def write_json(review: Review, name: str, context: int) -> None:
    """Write the whole review to stdout; no more than one file is in memory at a time."""
    write = sys.stdout.write
    write(f'{{\n  "name": {json.dumps(name)},\n  "changes": [')
    separator = "\n    "
    findings = without_implied(review.findings)
    for item in items(review.survey, findings, renames=review.renames):
        write(separator + json.dumps(_described(review, item, context)))
        separator = ",\n    "
    write("]\n}\n" if separator.startswith("\n") else "\n  ]\n}\n")
    sys.stdout.flush()


def _described(review: Review, item: Item, context: int) -> dict[str, object]:
    change = item.change
    ignored = review.aside is not None and review.aside.group(change.path, is_dir=item.is_dir) is not None
    # What is ignored is named and not read: there may be very much of it.
    loaded = None if ignored or item.is_dir else load(change)
    raised = plain_flags(change, review.root) if loaded is None else change_flags(change, loaded, review.root)
    return {
        "path": os.fsdecode(change.path),
        "kind": change.kind.value,
        "old_path": None if change.old_path is None else os.fsdecode(change.old_path),
        "old_mode": _mode(change.old),
        "new_mode": _mode(change.new),
        "old_size": _size(change.old),
        "new_size": _size(change.new),
        "conflict": item.conflict,
        "flags": [flag.value for flag in raised],
        "directory": item.is_dir,
        "ignored": ignored,
        "changing": item.changing or (loaded is not None and loaded.changing),
        "problem": None if loaded is None else loaded.problem,
        "binary": loaded is not None and any(map(is_binary, contents(loaded.change))),
        "hunks": [_hunk(hunk) for hunk in _hunks(loaded, context)],
    }


def _hunks(loaded: Contents | None, context: int) -> list[Hunk]:
    if loaded is None or loaded.problem is not None:
        return []
    return change_hunks(loaded.change, context)


def _hunk(hunk: Hunk) -> dict[str, object]:
    return {
        "id": hunk.id,
        "header": os.fsdecode(hunk.header),
        "lines": [os.fsdecode(line) for line in hunk.lines],
    }


def _mode(side: Side | None) -> str | None:
    return None if side is None else f"{side.mode:o}"


def _size(side: Side | None) -> int | None:
    return None if side is None or side.is_dir else side.size
