"""Records of commits and discards: listing, the unfinished one, and gc of the old ones.

A record goes when nothing is left to be done about it, once it is old. When no record is left and the sandbox
holds no changes, what was noted of the workspace for changes that are gone goes as well. A record disappears
in one step, by losing its number: whoever looks for something to undo finds all of it or nothing.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path

from sandboxfs.commit.records import UNDO, CommitRecord, Records
from sandboxfs.control.mount_table import MountTable, observe
from sandboxfs.errors import SandboxBusy, SandboxError, UsageError
from sandboxfs.hostfs.directory import HostDir
from sandboxfs.service.events import ByteProgress, CallerContext, Events
from sandboxfs.state.disk import NO_ROOM, is_empty, measure_tree, released_reserve, remove_tree
from sandboxfs.state.locations import Locations, SandboxPlaces
from sandboxfs.state.lock import SandboxLock, holder
from sandboxfs.state.store import Store


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


@dataclass(frozen=True)
class ListedRecord:
    """A commit or discard; *counts* says how many changes of each kind it is about."""

    number: int
    kind: str
    created: str
    message: str | None
    state: str
    counts: Mapping[str, int]

    @property
    def count(self) -> int:
        return sum(self.counts.values())

    def as_json(self) -> dict[str, object]:
        return {
            "id": self.number,
            "kind": self.kind,
            "created": self.created,
            "message": self.message,
            "state": self.state,
            "count": self.count,
            "counts": dict(self.counts),
        }


@dataclass(frozen=True)
class RecordList:
    """All commits and discards of a sandbox, newest first."""

    name: str
    records: tuple[ListedRecord, ...]

    def as_json(self) -> dict[str, object]:
        return {"name": self.name, "records": [record.as_json() for record in self.records]}


def records(sandbox: str | None, caller: CallerContext, events: Events) -> RecordList:
    """List what was committed and discarded."""
    # Imported here: a run that asks about interruptions does without.
    from sandboxfs.service.select import chosen_sandbox

    store, chosen = chosen_sandbox(sandbox, caller, events, changing=False)
    with opened_records(store.places(chosen.name)) as found:
        return RecordList(
            chosen.name, tuple(_listed(record) for record in found.each() if record.about.kind != UNDO)
        )


def _listed(record: CommitRecord) -> ListedRecord:
    about = record.about
    counts = Counter(kind for _, kind in about.changes)
    return ListedRecord(record.number, about.kind, about.created, about.message, _state(record), dict(counts))


def _state(record: CommitRecord) -> str:
    if record.has("undone"):
        return "undone"
    if record.has("undone in part"):
        return "undone in part"
    if record.has("done"):
        return "done"
    return "taken back" if record.has("taken back") else "unfinished"


# Garbage

_GOING = "going-"
# Measuring is a courtesy; more than this many files are not counted.
_MOST = 1_000_000


@dataclass(frozen=True)
class OldRecord:
    """A record that may go, and what it takes on disk."""

    number: int
    kind: str
    created: str
    size: int

    def as_json(self) -> dict[str, object]:
        return {"id": self.number, "kind": self.kind, "created": self.created, "bytes": self.size}


@dataclass(frozen=True)
class Garbage:
    """What goes, or would go: records, and bytes of the baseline.

    *unfinished* are records that a crash left; *problems* say which cannot be read or brought to their end.
    All of them stay. The *workspace* is None where the record of the sandbox cannot be read.
    """

    name: str
    workspace: Path | None = None
    old: tuple[OldRecord, ...] = ()
    baseline: int = 0
    unfinished: tuple[int, ...] = ()
    problems: tuple[str, ...] = ()

    def with_problem(self, problem: str) -> "Garbage":
        return replace(self, problems=tuple(dict.fromkeys((problem, *self.problems))))

    @property
    def size(self) -> int:
        return self.baseline + sum(record.size for record in self.old)

    def as_json(self) -> dict[str, object]:
        return {
            "name": self.name,
            "workspace": None if self.workspace is None else str(self.workspace),
            "records": [record.as_json() for record in self.old],
            "baseline_bytes": self.baseline,
            "unfinished": list(self.unfinished),
            "problems": list(self.problems),
        }


@dataclass(frozen=True)
class GarbageRequest:
    """What is to be removed: what is *older_than* a length of time or a time.

    Of one sandbox, or *everywhere*.
    """

    sandbox: str | None = None
    everywhere: bool = False
    older_than: str = "24h"
    dry_run: bool = False


@dataclass(frozen=True)
class GarbageResult:
    """What went, or would go, from each sandbox; of the *skipped* ones, why nothing did."""

    sandboxes: tuple[Garbage, ...]
    skipped: Mapping[str, str] = field(default_factory=dict)
    dry_run: bool = False

    @property
    def size(self) -> int:
        return sum(one.size for one in self.sandboxes)

    def as_json(self) -> dict[str, object]:
        return {
            "dry_run": self.dry_run,
            "bytes": self.size,
            "sandboxes": [one.as_json() for one in self.sandboxes],
            "skipped": dict(self.skipped),
        }


def collect_garbage(request: GarbageRequest, caller: CallerContext, events: Events) -> GarbageResult:
    """Remove what nobody will ask for again; of several sandboxes, whose garbage can be removed."""
    if request.everywhere and request.sandbox is not None:
        raise UsageError("--all and -s exclude each other")
    # Imported here, as all that removes records: most who look at them remove none.
    from sandboxfs.service.select import chosen_sandbox
    from sandboxfs.state.audit_reader import parse_since

    before = datetime.fromisoformat(parse_since(request.older_than, datetime.now(UTC)))
    if request.everywhere:
        store = Store(Locations.from_environment(caller.environment))
        names = store.names()
    else:
        store, record = chosen_sandbox(request.sandbox, caller, events, changing=True)
        names = [record.name]
    found: list[Garbage] = []
    skipped: dict[str, str] = {}
    progress = ByteProgress(events, "removing")
    with released_reserve(store.locations):
        for name in names:
            try:
                problem = None if request.dry_run else _recovered(store, name, events)
                one = gather(store.places(name), before, dry_run=request.dry_run, progress=progress.advance)
                one = replace(one, workspace=_workspace(store, name))
                found.append(one if problem is None else one.with_problem(problem))
            except (SandboxError, OSError) as error:
                if not request.everywhere:
                    raise _told(name, error) from error
                skipped[name] = _told(name, error).message
    if not request.dry_run:
        store.sweep()
    return GarbageResult(tuple(found), skipped, request.dry_run)


def _recovered(store: Store, name: str, events: Events) -> str | None:
    """Bring to its end what was interrupted; say why not where that is impossible."""
    from sandboxfs.service.review_session import bring_to_end, interrupted

    try:
        if interrupted(store.places(name)) is not None:
            bring_to_end(store, observe(store, store.load(name), MountTable.read()), events)
    except SandboxBusy:
        raise
    except SandboxError as error:
        return error.message
    return None


def _workspace(store: Store, name: str) -> Path | None:
    try:
        return store.load(name).workspace
    except SandboxError:
        return None


def _told(name: str, error: SandboxError | OSError) -> SandboxError:
    if isinstance(error, SandboxError):
        return error
    hint = "'sandboxfs rm NAME' gives room back" if error.errno in NO_ROOM else None
    return UsageError(f"cannot clean up sandbox '{name}': {error.strerror}", hint=hint)


def gather(
    places: SandboxPlaces, before: datetime, *, dry_run: bool, progress: Callable[[int], None]
) -> Garbage:
    """Remove what is older than *before* from a sandbox, unless it is a *dry_run*; say what."""
    from sandboxfs.service.review_session import held_for_review

    with held_for_review(places, used=False), HostDir.at(places.home) as home:
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


def _look(places: SandboxPlaces, home: HostDir, before: datetime) -> Garbage:
    records = Records(home)
    old: list[OldRecord] = []
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
                    old.append(OldRecord(number, record.about.kind, record.about.created, size))
        except UsageError as error:
            problems.append(error.message)
    # An undo that is not over takes back what another record keeps.
    old = [one for one in old if one.number not in needed]
    return Garbage(places.home.name, old=tuple(old), unfinished=tuple(unfinished), problems=tuple(problems))


def _made(record: CommitRecord) -> datetime:
    try:
        return datetime.fromisoformat(record.about.created).astimezone()
    except ValueError as error:
        raise UsageError(f"commits/{record.number}/record.json: malformed time") from error


def _remove(places: SandboxPlaces, record: OldRecord) -> None:
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
            from sandboxfs.upper.baseline_log import BaselineWriter

            with HostDir.at(places.baseline) as directory:
                writer = BaselineWriter(directory)
                writer.clear()
                writer.close()
        return size
    finally:
        lock.release(used=False)
