"""What did a run do, and what was asserted about it?

Read after the program has ended: changes from the layers, in the form that `diff` has for them, and decisions
from the end of the audit log, which was remembered when the run began.
"""

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from sandboxfs.cli.output import shown
from sandboxfs.cli.views import Beginning, View
from sandboxfs.paths import quoted
from sandboxfs.policy.model import Access
from sandboxfs.state.audit_reader import read_lines
from sandboxfs.state.audit_record import parse_line
from sandboxfs.state.audit_selection import matches
from sandboxfs.state.tree import is_empty

if TYPE_CHECKING:
    from sandboxfs.changes.summary import Item

_CHANGING = (Access.WRITE.value, Access.DELETE.value)
_MODES = {"hide": "hidden", "deny": "denied", "ro": "read-only"}


@dataclass(frozen=True)
class Change:
    """One change as it is told: a letter, a path, perhaps where it came from, and remarks."""

    letter: str
    path: str
    old_path: str | None = None
    marks: str = ""
    # Made by the run that has just ended, and not by one before it.
    fresh: bool = True

    def __str__(self) -> str:
        name = shown(Path(self.path)) + ("/" if self.path.endswith("/") else "")
        if self.old_path is not None:
            name = f"{shown(Path(self.old_path))} => {name}"
        return f"{self.letter} {name}" + (f"  [{self.marks}]" if self.marks else "")

    def as_json(self) -> dict[str, object]:
        return {
            "change": self.letter,
            "path": self.path,
            "old_path": self.old_path,
            "marks": self.marks,
            "fresh": self.fresh,
        }


@dataclass(frozen=True)
class Denied:
    """One thing that was refused, and how often."""

    sentence: str
    times: int
    path: str
    access: str

    def as_json(self) -> dict[str, object]:
        return {"sentence": self.sentence, "times": self.times, "path": self.path, "access": self.access}


@dataclass(frozen=True)
class Deeds:
    """What happened in one view: its changes, the *folded* ones in one line each, and what was decided."""

    name: str
    workspace: Path
    changes: tuple[Change, ...] = ()
    folded: tuple[str, ...] = ()
    denials: tuple[Denied, ...] = ()
    # Everything that was written or deleted, also where nothing of it is left.
    written: frozenset[str] = frozenset()

    def as_json(self) -> dict[str, object]:
        return {
            "name": self.name,
            "workspace": str(self.workspace),
            "changes": [change.as_json() for change in self.changes],
            "folded": list(self.folded),
            "denials": [denied.as_json() for denied in self.denials],
        }


def deeds(beginning: Beginning) -> Deeds:
    """Say what happened in a view since *beginning*."""
    view = beginning.view
    records = list(_records(beginning))
    found = _find(view, beginning.when)
    return Deeds(
        view.record.name,
        view.record.workspace,
        found.changes,
        found.folded,
        tuple(_denials(records)),
        frozenset(_written(records)) | found.fresh,
    )


def _records(beginning: Beginning) -> Iterator[dict[str, object]]:
    """The decisions since *beginning*."""
    for line in _new_lines(beginning):
        record = parse_line(line)
        if record is not None and "op" in record:
            yield record


def _new_lines(beginning: Beginning) -> Iterator[bytes]:
    path = beginning.view.audit_log
    if beginning.log is not None:
        try:
            with path.open("rb") as stream:
                if os.fstat(stream.fileno()).st_ino == beginning.log[0]:
                    stream.seek(beginning.log[1])
                    yield from stream
                    return
        except OSError:
            return
    # It was begun anew, or changed places, meanwhile.
    for line in read_lines(path):
        record = parse_line(line.text)
        if record is not None and _nanoseconds(record) >= beginning.when:
            yield line.text


def _nanoseconds(record: dict[str, object]) -> float:
    from datetime import datetime

    try:
        return datetime.fromisoformat(str(record["time"])).timestamp() * 1e9
    except ValueError:
        return 0


def _denials(records: Sequence[dict[str, object]]) -> Iterator[Denied]:
    counts: dict[tuple[str, str, str], int] = {}
    for record in records:
        if record.get("allowed") is False:
            key = (_sentence(record), str(record.get("path")), str(record.get("access")))
            counts[key] = counts.get(key, 0) + 1
    for (sentence, path, access), times in counts.items():
        yield Denied(sentence, times, path, access)


def _sentence(record: dict[str, object]) -> str:
    mode = str(record.get("decision"))
    path = quoted(str(record.get("path")) or ".")
    rule = f"by rule {quoted(str(record.get('rule')))} ({record.get('source')})"
    return f"{record.get('access')} denied for {path}: {_MODES.get(mode, mode)} {rule}"


def _written(records: Sequence[dict[str, object]]) -> Iterator[str]:
    for record in records:
        if record.get("allowed") and record.get("access") in _CHANGING:
            yield from (str(record[key]) for key in ("path", "to") if key in record)


@dataclass(frozen=True)
class _Found:
    """The changes of a view: those shown one by one, those in one line, and paths changed lately."""

    changes: tuple[Change, ...] = ()
    folded: tuple[str, ...] = ()
    fresh: frozenset[str] = frozenset()


def _find(view: View, when: int) -> _Found:
    if is_empty(view.store.places(view.record.name).upper):
        return _Found()
    # Imported late: a run that changed nothing does without.
    from sandboxfs.changes.scan import survey
    from sandboxfs.changes.summary import Aside, items
    from sandboxfs.cli.reviewing import Review, divided, reviewed

    with reviewed(view.store, view.record) as layers:
        found = survey(layers)
        root = os.fsencode(view.record.workspace)
        fresh = frozenset(finding.path for finding in found.findings if finding.changed_ns >= when)
        shown, folded = divided(Review(found, found.findings, Aside(found.view), root, renames=True))
        changes = tuple(
            _change(item, item.change.path in fresh, root) for item in items(found, shown, renames=True)
        )
    lines = tuple(f"{_text(line.directory)}/: {line.changes:,} {line.reason}" for line in folded)
    return _Found(changes, lines, frozenset(map(os.fsdecode, fresh)))


def _change(item: "Item", fresh: bool, root: bytes) -> Change:
    from sandboxfs.changes.contents import change_flags
    from sandboxfs.changes.patch import Kind

    change = item.change
    marks = [] if item.conflict is None else ["conflict"]
    marks += [] if item.is_dir else [flag.value for flag in change_flags(change, None, root)]
    end = "/" if item.is_dir else ""
    renamed = change.kind is Kind.RENAMED and change.old_path is not None
    return Change(
        "M" if change.kind is Kind.MODE else change.kind.value[0].upper(),
        os.fsdecode(change.path) + end,
        os.fsdecode(change.old_path or b"") + end if renamed else None,
        ", ".join(marks),
        fresh,
    )


def _text(path: bytes) -> str:
    return os.fsdecode(path) or "."


# Assertions


@dataclass(frozen=True)
class Assertions:
    """What must hold of a run; patterns are those of rules."""

    no_writes: tuple[str, ...] = ()
    writes_only: tuple[str, ...] = ()
    no_denials: bool = False

    @property
    def any(self) -> bool:
        return bool(self.no_writes or self.writes_only or self.no_denials)

    def check(self) -> None:
        """Raise `UsageError` for a bad pattern, before anything is run."""
        for pattern in (*self.no_writes, *self.writes_only):
            matches(pattern, "")

    def broken(self, happened: Sequence[Deeds]) -> list[str]:
        """Say, a line each, what does not hold."""
        lines = []
        for one in happened:
            for path in sorted(one.written):
                name = quoted(path or ".") if one is happened[0] else quoted(one.workspace / path)
                lines += [f"{name} was written: {why}" for why in self._objections(path, str(one.workspace))]
            if self.no_denials:
                lines += [f"{denied.sentence}: --assert-no-denials" for denied in one.denials]
        return lines

    def _objections(self, path: str, root: str) -> Iterator[str]:
        for pattern in self.no_writes:
            if matches(pattern, path, root):
                yield f"--assert-no-writes {quoted(pattern)}"
        # A directory in which everything may be written may be made as well.
        allowed = any(
            matches(pattern, place, root) for pattern in self.writes_only for place in (path, f"{path}/any")
        )
        if self.writes_only and not allowed:
            yield f"--assert-writes-only {', '.join(map(quoted, self.writes_only))}"
