"""Which commits and discards are there, and which can be taken back?"""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from sandboxfs.changes.records import UNDO, Record, Records
from sandboxfs.cli import output
from sandboxfs.errors import SandboxError
from sandboxfs.layers.hostdir import HostDir
from sandboxfs.paths import quoted
from sandboxfs.state.locations import SandboxPlaces
from sandboxfs.state.lock import holder


@contextmanager
def opened_records(places: SandboxPlaces) -> Iterator[Records]:
    """Open the records of a sandbox, only to look at them."""
    with HostDir.at(places.home) as home:
        yield Records(home)


@dataclass(frozen=True)
class Unfinished:
    """A commit, discard or undo that is not over; *running* while the command is still there."""

    number: int
    kind: str
    running: bool

    @property
    def sentence(self) -> str:
        what = f"{self.kind} {self.number}"
        if self.running:
            return f"{what} is going on"
        return f"{what} was interrupted; the next commit, discard or undo brings it to its end"

    def as_json(self) -> dict[str, object]:
        return {"id": self.number, "kind": self.kind, "running": self.running}


def unfinished(places: SandboxPlaces) -> Unfinished | None:
    """Look whether something is not over; what cannot be read tells nothing."""
    try:
        # Asked first: afterwards the command may have come to its end.
        running = holder(places.review_lock) is not None
        with opened_records(places) as records:
            record = records.unfinished()
    except (OSError, SandboxError):
        return None
    if record is None:
        return None
    with record:
        return Unfinished(record.number, record.about.kind, running)


def interruption(places: SandboxPlaces) -> str | None:
    """Say that a command was interrupted, and nothing of one that is going on."""
    found = unfinished(places) if places.commits.is_dir() else None
    return None if found is None or found.running else found.sentence


def listed(name: str, records: Records, *, as_json: bool) -> None:
    """Show all records, newest first."""
    found = [described(record) for record in records.each() if record.about.kind != UNDO]
    if as_json:
        output.document({"name": name, "records": found})
        return
    if not found:
        output.note("nothing was committed or discarded yet")
        return
    # Imported here: `diff` asks this module too, and does without.
    from sandboxfs.cli.plans import changes

    rows = [[str(one[key] or "") for key in ("id", "kind", "created", "state")] for one in found]
    for row, one in zip(rows, found, strict=True):
        row += [changes(int(str(one["count"]))), _on_one_line(str(one["message"] or ""))]
    output.table(["ID", "WHAT", "WHEN", "STATE", "CHANGES", "MESSAGE"], rows)


def _on_one_line(message: str) -> str:
    """Show *message* plainly where that is safe on a terminal, quoted where it is not."""
    return message if message.isprintable() else quoted(message)


def described(record: Record) -> dict[str, object]:
    about = record.about
    return {
        "id": record.number,
        "kind": about.kind,
        "created": about.created,
        "message": about.message,
        "state": _state(record),
        "count": len(about.changes),
        "counts": dict(Counter(kind for _, kind in about.changes)),
    }


def _state(record: Record) -> str:
    if record.has("undone"):
        return "undone"
    if record.has("undone in part"):
        return "undone in part"
    if record.has("done"):
        return "done"
    return "taken back" if record.has("taken back") else "unfinished"


def unfinished_note(places: SandboxPlaces) -> str | None:
    """Say that a command was interrupted, or is going on; nothing is done about it, and nothing can fail."""
    found = unfinished(places)
    return None if found is None else found.sentence
