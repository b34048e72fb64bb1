"""What does a sandbox keep that nobody will ask for again, and how does it go?

Records of commits and discards about which nothing is left to be done, once they are old; and, when no record
is left and the sandbox holds no changes, what was noted of the workspace for changes that are gone. A record
disappears in one step, by losing its number: whoever looks for something to undo finds all of it or nothing.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime

from sandboxfs.changes.records import Record, Records
from sandboxfs.cli.holding import held_for_review
from sandboxfs.errors import UsageError
from sandboxfs.layers.baseline_writer import BaselineWriter
from sandboxfs.layers.hostdir import HostDir
from sandboxfs.state.locations import SandboxPlaces
from sandboxfs.state.lock import SandboxLock
from sandboxfs.state.tree import is_empty, measure_tree, remove_tree

_GOING = "going-"
# Measuring is a courtesy; more than this many files are not counted.
_MOST = 1_000_000


@dataclass(frozen=True)
class Old:
    """A record that may go, and what it takes on disk."""

    number: int
    kind: str
    created: str
    size: int

    def as_json(self) -> dict[str, object]:
        return {"id": self.number, "kind": self.kind, "created": self.created, "bytes": self.size}


@dataclass(frozen=True)
class Gathered:
    """What goes, or would go: records, and bytes of the baseline.

    *unfinished* are records that a crash left; *problems* say which cannot be read or brought to their end.
    All of them stay.
    """

    name: str
    old: tuple[Old, ...] = ()
    baseline: int = 0
    unfinished: tuple[int, ...] = ()
    problems: tuple[str, ...] = ()

    def with_problem(self, problem: str) -> "Gathered":
        return replace(self, problems=tuple(dict.fromkeys((problem, *self.problems))))

    @property
    def size(self) -> int:
        return self.baseline + sum(record.size for record in self.old)


def gather(
    places: SandboxPlaces, before: datetime, *, dry_run: bool, progress: Callable[[int], None]
) -> Gathered:
    """Remove what is older than *before* from a sandbox, unless it is a *dry_run*; say what."""
    with held_for_review(places), HostDir.at(places.home) as home:
        found = _look(places, home, before)
        if not dry_run:
            _sweep(places)
            if not found.problems:
                Records(home).sweep()
            for record in found.old:
                _remove(places, record)
                progress(record.size)
        left = len(Records(home).numbers()) - (len(found.old) if dry_run else 0)
        return found if left else replace(found, baseline=_forget(places, dry_run=dry_run))


def _look(places: SandboxPlaces, home: HostDir, before: datetime) -> Gathered:
    records = Records(home)
    old: list[Old] = []
    unfinished: list[int] = []
    needed: set[int | None] = set()
    problems: list[str] = []
    for number in records.numbers():
        try:
            record = records.open(number)
            if record is None:
                # One that never came to be.
                continue
            with record:
                if not record.is_over:
                    unfinished.append(number)
                    needed.add(record.about.of)
                elif _made(record) < before:
                    size = measure_tree(places.commits / str(number), _MOST).size
                    old.append(Old(number, record.about.kind, record.about.created, size))
        except UsageError as error:
            problems.append(error.message)
    # An undo that is not over takes back what another record keeps.
    old = [one for one in old if one.number not in needed]
    return Gathered(places.home.name, tuple(old), 0, tuple(unfinished), tuple(problems))


def _made(record: Record) -> datetime:
    try:
        return datetime.fromisoformat(record.about.created).astimezone()
    except ValueError as error:
        raise UsageError(f"commits/{record.number}/record.json: malformed time") from error


def _remove(places: SandboxPlaces, record: Old) -> None:
    going = places.commits / f"{_GOING}{record.number}"
    (places.commits / str(record.number)).rename(going)
    remove_tree(going)


def _sweep(places: SandboxPlaces) -> None:
    """Take away what a crash left of records that went."""
    if places.commits.is_dir():
        for path in list(places.commits.glob(f"{_GOING}*")):
            remove_tree(path)


def _forget(places: SandboxPlaces, *, dry_run: bool) -> int:
    """Empty the baseline of a sandbox that holds no changes and is not served; how many bytes that are."""
    if not is_empty(places.upper) or not places.baseline.is_dir():
        return 0
    lock = SandboxLock.acquire(places.lock)
    if lock is None:
        return 0
    try:
        # Looked at again: until now it may have been served.
        if not is_empty(places.upper):
            return 0
        size = measure_tree(places.baseline).size
        if size and not dry_run:
            with HostDir.at(places.baseline) as directory:
                writer = BaselineWriter(directory)
                writer.clear()
                writer.close()
        return size
    finally:
        lock.release()
