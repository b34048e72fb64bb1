"""Which findings are the same file under several names?

Names that the upper has are told by the host's inode number. A lower file with several names is copied up
once, under the name it was changed by, and the index leads the others there: those are looked for in the
workspace, all of it, but only when such a file really changed and names of it are missing.
"""

import os
from collections import defaultdict
from dataclasses import dataclass, replace

from sandboxfs.changes.finding import Finding
from sandboxfs.changes.judging import changed
from sandboxfs.changes.sides import Place, indexed_side, lower_side
from sandboxfs.changes.view import View
from sandboxfs.layers import marks
from sandboxfs.layers.baseline import Sighting


@dataclass(frozen=True)
class _Indexed:
    """A lower file of several names that was copied up."""

    name: bytes
    status: os.stat_result
    seen: Sighting


def with_links(view: View, findings: list[Finding]) -> list[Finding]:
    """Add the findings of names that only the workspace has, and tell each name of the others."""
    findings = findings + _elsewhere(view)
    groups: dict[tuple[int, int], list[bytes]] = defaultdict(list)
    for finding in findings:
        if finding.new is not None and finding.new.is_file and finding.new.nlink > 1:
            groups[finding.new.dev, finding.new.ino].append(finding.path)
    if not groups:
        return findings
    return [_linked(finding, groups) for finding in findings]


def _linked(finding: Finding, groups: dict[tuple[int, int], list[bytes]]) -> Finding:
    if finding.new is None or not finding.new.is_file:
        return finding
    names = groups.get((finding.new.dev, finding.new.ino), [])
    others = tuple(sorted(name for name in names if name != finding.path))
    return replace(finding, links=others) if others else finding


def _elsewhere(view: View) -> list[Finding]:
    """The changes that show under names which the upper does not have."""
    wanted = {indexed.seen.ino: indexed for indexed in _incomplete(view)}
    if not wanted:
        return []
    found = []
    for shown in view.below(b""):
        indexed = wanted.get(shown.ino)
        if indexed is None or shown.upper is not None or shown.lower_path is None:
            continue
        lower = lower_side(view.layers, shown.lower_path)
        if lower is None or (lower.dev, lower.ino) != (indexed.seen.dev, indexed.seen.ino):
            continue
        new = indexed_side(view.layers, indexed.name, indexed.status)
        place = Place(view.layers.index, indexed.name)
        finding = changed(view.layers, shown.path, place, indexed.seen, new, lower, shown.lower_path)
        if finding is not None:
            found.append(finding)
    return found


def _incomplete(view: View) -> list[_Indexed]:
    """The changed files of which the view has more names than the upper."""
    layers = view.layers
    names = [name for entry in layers.index.entries(b"") if (name := os.fsencode(entry.name))[:1] == b"h"]
    if not names:
        return []
    by_number = {seen.number: seen for seen in layers.baseline.below(b"")}
    found = []
    for name in sorted(names):
        status = layers.index.stat(name)
        record = _record(view, name)
        seen = by_number.get(record.ino)
        if status is None or seen is None or record.nlink <= status.st_nlink - 1:
            continue
        new, lower = indexed_side(layers, name, status), lower_side(layers, seen.path)
        place = Place(layers.index, name)
        if changed(layers, seen.path, place, seen, new, lower, seen.path) is not None:
            found.append(_Indexed(name, status, seen))
    return found


def _record(view: View, name: bytes) -> marks.Record:
    try:
        return marks.read_record(view.layers.index.directory(b""), name)
    except FileNotFoundError:
        return marks.NO_RECORD
