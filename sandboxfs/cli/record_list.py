"""Which commits and discards are there, and which can be taken back?"""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from sandboxfs.changes.records import UNDO, Record, Records
from sandboxfs.cli import output
from sandboxfs.errors import SandboxError
from sandboxfs.layers.hostdir import HostDir
from sandboxfs.state.locations import SandboxPlaces


@contextmanager
def opened_records(places: SandboxPlaces) -> Iterator[Records]:
    """Open the records of a sandbox, only to look at them."""
    with HostDir.at(places.home) as home:
        yield Records(home)


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
        row += [changes(int(str(one["count"]))), str(one["message"] or "")]
    output.table(["ID", "WHAT", "WHEN", "STATE", "CHANGES", "MESSAGE"], rows)


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
    """Say that a command was interrupted, if one was; nothing is done about it, and nothing can fail."""
    try:
        with opened_records(places) as records:
            record = records.unfinished()
    except (OSError, SandboxError):
        return None
    if record is None:
        return None
    with record:
        return (
            f"{record.about.kind} {record.number} was interrupted, or is going on; "
            "the next commit, discard or undo brings it to its end"
        )
