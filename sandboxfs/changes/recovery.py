"""What becomes of a commit, discard or undo that did not come to its end?

As long as not everything was exchanged it is taken back; afterwards it is finished, unless there is no room
for what it replaced. Whoever wants to change the same sandbox does that first, and says so.
"""

from dataclasses import dataclass

from sandboxfs.changes.completion import Completion
from sandboxfs.changes.ground import Ground
from sandboxfs.changes.journal import Steps
from sandboxfs.changes.journal_json import from_json
from sandboxfs.changes.records import Record
from sandboxfs.changes.retreat import Kept, Retreat
from sandboxfs.changes.site import Site, finish
from sandboxfs.changes.steps import Surprise


@dataclass(frozen=True)
class Recovered:
    """What was done about a record; *kept* is what could not be taken back."""

    number: int
    kind: str
    finished: bool
    kept: tuple[Kept, ...] = ()


def recover(site: Site) -> Recovered | None:
    """Bring the record that is not over to its end, if there is one."""
    site.records.sweep()
    record = site.records.unfinished()
    return None if record is None else _recover(site, record)


def steps_of(record: Record) -> Steps | None:
    """The steps of *record*, as far as they were written down; None when it has none."""
    match record.last("staged"):
        case {"steps": described}:
            return from_json(described)
        case _:
            described = record.last("intent")
            return None if described is None else from_json(described)


def _recover(site: Site, record: Record) -> Recovered:
    kind, number = record.about.kind, record.number
    steps = steps_of(record)
    # What changes only the sandbox is decided as soon as it is written down.
    decided = record.is_applied or (steps is None and record.has("staged"))
    if decided and _completed(site, record, steps):
        with record:
            finish(site, record)
        return Recovered(number, kind, finished=True)
    kept = [] if steps is None else _taken_back(site, record, steps)
    if kept:
        record.write("taken back", [one.as_json() for one in kept])
        record.close()
    else:
        site.records.remove(record)
    return Recovered(number, kind, finished=False, kept=tuple(kept))


def _completed(site: Site, record: Record, steps: Steps | None) -> bool:
    """Complete the steps, if there are any; False when that is impossible and they are to be taken back."""
    if steps is None:
        return True
    try:
        with Ground(site.workspace) as ground:
            Completion(ground, steps, record).run()
    except (OSError, Surprise):
        if record.is_applied:
            raise
        return False
    return True


def _taken_back(site: Site, record: Record, steps: Steps) -> list[Kept]:
    with Ground(site.workspace) as ground:
        return Retreat(ground, steps, record).run()
