"""Discard of changes: the plan as a value, the question about it, and the result.

A record keeps what leaves the sandbox, so that undo can bring it back. On a full disk the reserve gives the
room that the record needs.
"""

import os
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from sandboxfs.commit.apply import DiscardPlan, plan_discard
from sandboxfs.commit.apply import discard as drop
from sandboxfs.commit.selection import Choose
from sandboxfs.errors import UsageError
from sandboxfs.paths import quoted
from sandboxfs.review.change import PathChange
from sandboxfs.review.scan import ScanResult, survey
from sandboxfs.review.summary import without_implied
from sandboxfs.service.events import YES, CallerContext, Events, Prompt, check_cancelled
from sandboxfs.service.review import check_touched, counts_json, described
from sandboxfs.service.review_session import (
    ReviewSession,
    chosen_status,
    review_session,
    told,
)
from sandboxfs.service.workspace import named_paths
from sandboxfs.state.disk import is_full, released_reserve
from sandboxfs.upper.sandbox_layers import Layers

if TYPE_CHECKING:
    from sandboxfs.service.pick import AskByHunk


@dataclass(frozen=True)
class DiscardRequest:
    """What is to be dropped: what is at and below *paths*, as a person typed them, or everything without any.

    *by_hunk* has a person pick. Nothing is asked of one who *confirmed*, and nothing is done in a *dry_run*.
    *only* gives the numbers of the only changes that may be dropped.
    """

    sandbox: str | None = None
    paths: tuple[str, ...] = ()
    by_hunk: bool = False
    message: str | None = None
    dry_run: bool = False
    confirmed: bool = False
    only: Callable[[ReviewSession, ScanResult], Collection[int]] | None = None


@dataclass(frozen=True)
class DiscardPreview:
    """The *changes* that leave the sandbox called *name*, wholly or in part."""

    name: str
    workspace: Path
    changes: tuple[PathChange, ...] = ()


@dataclass(frozen=True)
class DiscardPrompt(Prompt):
    """Whether what *preview* tells is to be done."""

    preview: DiscardPreview | None = None


@dataclass(frozen=True)
class DiscardResult:
    """What a discard came to; *record* is its number, None where nothing was done.

    What *stayed* changed meanwhile. *declined* says that the person did not confirm, *disk_full* that what
    was discarded still takes room which is needed.
    """

    preview: DiscardPreview
    record: int | None = None
    stayed: tuple[bytes, ...] = ()
    dry_run: bool = False
    declined: bool = False
    disk_full: bool = False

    def as_json(self) -> dict[str, object]:
        preview = self.preview
        # As people are told: a directory that comes or goes with its entries is no change of its own.
        changes = without_implied(list(preview.changes))
        about: dict[str, object] = {
            "name": preview.name,
            "workspace": str(preview.workspace),
            "record": self.record,
            "changes": [described(finding, {}) for finding in changes],
            "counts": counts_json(changes),
            "dry_run": self.dry_run,
        }
        return about if self.dry_run else about | {"stayed": [os.fsdecode(path) for path in self.stayed]}


def discard(
    request: DiscardRequest, caller: CallerContext, events: Events, ask: "AskByHunk | None" = None
) -> DiscardResult:
    """Drop changes of a sandbox; *ask* takes a person through what is picked by hunk."""
    if request.by_hunk and ask is None:
        raise UsageError("there is nobody to pick hunks")
    store, sandbox = chosen_status(request.sandbox, caller, events)
    paths = named_paths(sandbox.record, request.paths, caller)
    with (
        released_reserve(store.locations),
        review_session(store, sandbox, events) as session,
        told("discard", caller.environment),
        session.layers() as layers,
    ):
        plan = _planned(session, layers, request, paths, events, ask if request.by_hunk else None)
        return _carried_out(session, request, plan, events)


def _planned(
    session: ReviewSession,
    layers: Layers,
    request: DiscardRequest,
    paths: Mapping[bytes, str],
    events: Events,
    ask: "AskByHunk | None",
) -> DiscardPlan:
    found = survey(layers)
    check_touched(paths, found.findings)
    choose: Choose | None = None
    if request.only is not None:
        only = {id(found.findings[number]) for number in request.only(session, found)}

        def choose(finding: PathChange) -> bool:
            return id(finding) in only

    elif ask is not None:
        # Imported here: most discards do without.
        from sandboxfs.service.pick import picked_by_hunk

        asked = [finding for finding in found.findings if finding.is_within(list(paths))]
        choose = picked_by_hunk("discard", asked, session.flag_context().flags, ask, events)

    return plan_discard(found, list(paths), choose)


def _carried_out(
    session: ReviewSession, request: DiscardRequest, plan: DiscardPlan, events: Events
) -> DiscardResult:
    record = session.sandbox.record
    preview = DiscardPreview(record.name, record.workspace, tuple(plan.all))
    if request.dry_run or plan.is_empty:
        return DiscardResult(preview, dry_run=request.dry_run)
    if not (request.confirmed or request.by_hunk):
        whose = f"'{record.name}' of {quoted(record.workspace)}"
        prompt = DiscardPrompt(f"Discard from sandbox {whose}?", preview=preview)
        if events.ask(prompt) != YES:
            return DiscardResult(preview, declined=True)
    check_cancelled(events)

    with events.interruptible() as interruptible:
        interruptible.hold()
        done = drop(session.site, plan, message=request.message)
    return DiscardResult(preview, done.number, done.stayed, disk_full=is_full(session.store.locations.state))
