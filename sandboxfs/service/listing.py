"""Sandboxes as they are listed and described: state, changes, policy, disk use; and their JSON.

Nothing here waits for a mount. What only the daemon of a sandbox knows is asked of it, for a short while.
Programs may rely on the keys of the JSON forms; a list and a description have those of the short one in
common.
"""

from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from sandboxfs.control.mount_table import MountTable, SandboxStatus, last_use, observe
from sandboxfs.errors import SandboxError, UsageError
from sandboxfs.review.scan import survey
from sandboxfs.review.scope import Reason, Scope, ScopedChanges, select_changes
from sandboxfs.review.summary import without_implied
from sandboxfs.service.events import CallerContext, Events
from sandboxfs.service.policy import LivePolicy, look
from sandboxfs.service.responder import ResponderState, responder_state
from sandboxfs.service.review import reviewed, scope_context
from sandboxfs.service.select import select_observed
from sandboxfs.state.disk import TreeSize, is_empty, measure_tree
from sandboxfs.state.locations import Locations, home_directory
from sandboxfs.state.store import SandboxRecord, Store

if TYPE_CHECKING:
    from sandboxfs.service.records import Unfinished

# The changes of a sandbox with more entries are not counted for a list: somebody waits.
_MOST = 20_000
# How long a daemon may take to tell what only it knows, in seconds.
_PATIENCE = 2.0


@dataclass(frozen=True)
class Counts:
    """How many changes a commit would take, how many of them are in conflict, and how many it leaves out.

    *held* counts those that wait for an approval, and those that need one that does.
    """

    changes: int
    conflicts: int
    ignored: int
    git: int
    held: int = 0

    @classmethod
    def of(cls, selection: ScopedChanges) -> "Counts":
        found = without_implied(selection.taken)
        return cls(
            len(found),
            sum(finding.conflict is not None for finding in found),
            selection.count(Reason.IGNORED),
            selection.count(Reason.GIT),
            len(selection.held_back),
        )


def count_changes(store: Store, record: SandboxRecord) -> Counts:
    """Count the changes of a sandbox as every verb does."""
    with reviewed(store, record) as layers:
        return Counts.of(select_changes(survey(layers), Scope(), scope_context(store, record)))


Uncounted = Literal["locked", "many", "view", "unreadable"]
"""Why changes were not counted for a list.

A program locked its user out of directories; there are too many entries; the workspace lies in a view, whose
daemon may be hung; or the sandbox or its workspace cannot be read.
"""


@dataclass(frozen=True)
class MeasuredSandbox:
    """A sandbox with what is in it; *uncounted* says why *counts* are None, if they are."""

    status: SandboxStatus
    counts: Counts | None
    size: TreeSize
    used: datetime
    uncounted: Uncounted | None = None

    @property
    def name(self) -> str:
        return self.status.name

    @property
    def record(self) -> SandboxRecord:
        return self.status.record

    def as_json(self) -> dict[str, object]:
        return (
            _short_json(self.status)
            | _counts_json(self.counts)
            | {"uncounted": self.uncounted}
            | _extent_json(self.size, self.used)
        )


@dataclass(frozen=True)
class SandboxList:
    """All sandboxes, the last used first, with companions under the sandbox beside which they serve.

    *unreadable* has the names of those whose record cannot be read, each with the reason.
    """

    sandboxes: tuple[MeasuredSandbox, ...]
    unreadable: tuple[tuple[str, str], ...]


def list_sandboxes(caller: CallerContext) -> SandboxList:
    """Look at all sandboxes of *caller*."""
    store = Store(Locations.from_environment(caller.environment))
    table = MountTable.read()
    found: list[MeasuredSandbox] = []
    unreadable: list[tuple[str, str]] = []
    for name in store.names():
        try:
            found.append(_listed(store, store.load(name), table))
        except SandboxError as error:
            unreadable.append((name, error.message))
    return SandboxList(tuple(_in_order(found)), tuple(unreadable))


def home_of(caller: CallerContext) -> Path:
    """Return the home of *caller*, below which paths may be shown short."""
    return home_directory(caller.environment)


def _listed(store: Store, record: SandboxRecord, table: MountTable) -> MeasuredSandbox:
    places = store.places(record.name)
    counts = _counts_in_time(store, record, table)
    return MeasuredSandbox(
        observe(store, record, table),
        counts if isinstance(counts, Counts) else None,
        measure_tree(places.home),
        last_use(store, record),
        None if isinstance(counts, Counts) else counts,
    )


def _counts_in_time(store: Store, record: SandboxRecord, table: MountTable) -> Counts | Uncounted:
    upper = store.places(record.name).upper
    if is_empty(upper):
        return Counts(0, 0, 0, 0)
    if table.on_ours(record.workspace):
        return "view"
    size = measure_tree(upper, _MOST)
    if not size.complete:
        return "many" if size.entries == _MOST else "locked"
    try:
        return count_changes(store, record)
    except SandboxError:
        return "unreadable"


def _in_order(found: list[MeasuredSandbox]) -> list[MeasuredSandbox]:
    """Put the last used first, and companions under the sandbox beside which they serve."""
    newest = sorted(found, key=lambda one: one.used, reverse=True)
    names = {one.name for one in newest}

    def above(one: MeasuredSandbox) -> str | None:
        """Return the sandbox under which one stands, where that is there."""
        return one.record.companion_of if one.record.companion_of in names else None

    return [
        one
        for top in newest
        if above(top) is None
        for one in (top, *(other for other in newest if above(other) == top.name))
    ]


@dataclass(frozen=True)
class SandboxDescription:
    """One sandbox in full.

    *counts* are None where the workspace or the sandbox cannot be read. *size* is that of the whole sandbox
    on disk, None where it was not asked for. *unfinished* is a commit, discard or undo that is not over.
    *responder* asks a command or a webhook; None where none is configured, or nothing is served.
    """

    status: SandboxStatus
    live: LivePolicy
    upper: TreeSize
    counts: Counts | None
    unfinished: "Unfinished | None"
    size: TreeSize | None
    used: datetime
    responder: ResponderState | None = None

    @property
    def name(self) -> str:
        return self.status.name

    @property
    def record(self) -> SandboxRecord:
        return self.status.record

    @property
    def mode(self) -> str:
        """What may be done with paths that no rule names, whoever says so."""
        return "ro" if self.record.read_only else self.live.policy.mode

    def as_json(self) -> dict[str, object]:
        policy = self.live.policy
        uptime = self.status.uptime
        return (
            _short_json(self.status)
            | {
                "mode": self.mode,
                "enabled": policy.enabled,
                "rules": [rule.as_json() for rule in policy.rules],
                "counters": self.live.counters,
            }
            | _counts_json(self.counts)
            | {
                "answering": self.live.answering,
                "read_only": self.record.read_only,
                "allow_other": self.record.allow_other,
                "uptime": None if uptime is None else round(uptime, 1),
                "upper_bytes": self.upper.size,
                "upper_entries": self.upper.entries,
                "upper_complete": self.upper.complete,
            }
            | ({} if self.size is None else _extent_json(self.size, self.used))
            | {"unfinished": None if self.unfinished is None else self.unfinished.as_json()}
            | ({} if self.responder is None else {"responder": self.responder.as_json()})
        )


def describe_sandbox(
    name: str | None, caller: CallerContext, events: Events, *, sized: bool
) -> SandboxDescription:
    """Describe the sandbox that *caller* means, with what it takes on disk where *sized* is true."""
    # Imported here: a list says nothing of unfinished commits.
    from sandboxfs.service.records import unfinished

    store, status = select_observed(name, caller, events, changing=False)
    live = look(store, status, _PATIENCE)
    places = store.places(status.name)
    upper = measure_tree(places.upper)
    try:
        counts = count_changes(store, status.record)
    except UsageError:
        counts = None
    begun = unfinished(places)
    size = measure_tree(places.home) if sized else None
    responder = responder_state(places, status.record) if status.held else None
    used = last_use(store, status.record)
    return SandboxDescription(status, live, upper, counts, begun, size, used, responder)


# For programs


def _short_json(sandbox: SandboxStatus) -> dict[str, object]:
    """Describe *sandbox* without looking at its files."""
    record = sandbox.record
    return {
        "name": record.name,
        "workspace": str(record.workspace),
        "mountpoint": str(record.mountpoint),
        "state": sandbox.state,
        "pid": sandbox.pid,
        "mode": record.mode,
        "created": _in_utc(record.created),
        "companion_of": record.companion_of,
    }


def _counts_json(counts: Counts | None) -> dict[str, object]:
    return {
        "changes": None if counts is None else counts.changes,
        "conflicts": None if counts is None else counts.conflicts,
        "held": None if counts is None else counts.held,
        "left_out": None if counts is None else {"ignored": counts.ignored, "git": counts.git},
    }


def _extent_json(size: TreeSize, used: datetime) -> dict[str, object]:
    """Describe what a sandbox takes on disk, and when it was last used."""
    return {"bytes": size.size, "bytes_complete": size.complete, "last_used": _in_utc(used)}


def _in_utc(when: datetime) -> str:
    return when.astimezone(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
