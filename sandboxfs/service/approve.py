"""Held changes: which wait for a person, approving them, and rejecting them.

A held change is in the view and stays out of commits (`review/held`). An approval is kept with the sandbox
and is good for exactly this change; rejecting a change discards it. Neither touches the workspace.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from sandboxfs.errors import UsageError
from sandboxfs.policy.model import Rule
from sandboxfs.review.change import PathChange
from sandboxfs.review.held import Approvals, approved
from sandboxfs.review.scan import ScanResult, survey
from sandboxfs.review.scope import Scope, ScopedChanges, select_changes
from sandboxfs.review.summary import without_implied
from sandboxfs.service.discard import DiscardRequest, DiscardResult, discard
from sandboxfs.service.events import CallerContext, Events
from sandboxfs.service.review import hold_rules, paths_json, reviewed, scope_context
from sandboxfs.service.review_session import ReviewSession, chosen_status, held_for_review
from sandboxfs.service.select import chosen_sandbox
from sandboxfs.service.workspace import named_paths
from sandboxfs.state.approvals import read_approvals, write_approvals
from sandboxfs.state.store import SandboxRecord, Store
from sandboxfs.upper.sandbox_layers import Layers

# What is ignored, or git's own, can be held as well.
_EVERYTHING = Scope(ignored=True, include_git=True)


@dataclass(frozen=True)
class HeldRequest:
    """Which held changes are meant: at and below *paths*, of one *rule* by its number, or *everything*."""

    sandbox: str | None = None
    paths: tuple[str, ...] = ()
    rule: int | None = None
    everything: bool = False

    @property
    def is_open(self) -> bool:
        """Whether nothing says which changes are meant."""
        return not (self.paths or self.everything or self.rule is not None)


@dataclass(frozen=True)
class HeldByRule:
    """The held changes of one *rule*, whose *number* names it to `approve` and `reject`."""

    number: int
    rule: Rule
    changes: tuple[PathChange, ...]

    def as_json(self) -> dict[str, object]:
        return {
            "number": self.number,
            "rule": str(self.rule),
            "source": str(self.rule.source),
            "paths": paths_json(self.changes),
        }


@dataclass(frozen=True)
class HeldResult:
    """The held changes of the sandbox called *name*, by rule; *approved* of them are so now."""

    name: str
    workspace: Path
    held: tuple[HeldByRule, ...] = ()
    approved: tuple[PathChange, ...] = ()

    def as_json(self) -> dict[str, object]:
        return {
            "name": self.name,
            "workspace": str(self.workspace),
            "held": [one.as_json() for one in self.held],
            "approved": paths_json(self.approved),
        }


def held_changes(request: HeldRequest, caller: CallerContext, events: Events) -> HeldResult:
    """List the changes that wait for an approval."""
    store, record = chosen_sandbox(request.sandbox, caller, events, changing=False)
    with reviewed(store, record) as layers:
        return _result(store, record, _selected(store, record, layers, caller))


def approve(request: HeldRequest, caller: CallerContext, events: Events) -> HeldResult:
    """Approve held changes, as they are now."""
    if request.is_open:
        raise UsageError("which changes are approved? name paths, a rule, or everything")
    store, sandbox = chosen_status(request.sandbox, caller, events)
    record = sandbox.record
    paths = named_paths(record, request.paths, caller)
    home = store.places(record.name).home
    with held_for_review(store.places(record.name)), reviewed(store, record) as layers:
        before = _selected(store, record, layers, caller)
        meant = sorted(before.approved_with(_meant(request, store, record, before, paths)))
        changes = [before.survey.findings[number] for number in meant]
        made = approved(before.survey, changes)
        unread = [change for change in changes if change.path not in made]
        if unread:
            raise UsageError(f"cannot read {paths_json(unread)[0]!r}, so it cannot be approved")
        known = _still_good(before, read_approvals(home))
        together = {path: known.get(path, frozenset()) | digests for path, digests in made.items()}
        write_approvals(home, known | together)
        after = _selected(store, record, layers, caller)
    return replace(_result(store, record, after), approved=tuple(without_implied(changes)))


def reject(
    request: HeldRequest,
    caller: CallerContext,
    events: Events,
    *,
    confirmed: bool = False,
    dry_run: bool = False,
) -> DiscardResult:
    """Discard held changes, and what cannot be without them."""
    if request.is_open:
        raise UsageError("which changes are rejected? name paths, a rule, or everything")

    def only(session: ReviewSession, found: ScanResult) -> Collection[int]:
        record = session.sandbox.record
        selection = select_changes(found, _EVERYTHING, scope_context(session.store, record))
        return _meant(request, session.store, record, selection, named_paths(record, request.paths, caller))

    dropping = DiscardRequest(request.sandbox, confirmed=confirmed, dry_run=dry_run, only=only)
    return discard(dropping, caller, events)


def _selected(store: Store, record: SandboxRecord, layers: Layers, caller: CallerContext) -> ScopedChanges:
    layers.look_again()
    context = scope_context(store, record, caller.environment)
    return select_changes(survey(layers), _EVERYTHING, context)


def _rules(store: Store, record: SandboxRecord) -> list[Rule]:
    """The rules that hold changes, in their order: a rule's number is its place among them."""
    holds = hold_rules(store, record)
    if holds is None:
        return []
    return [rule for rule in (*holds.policy.rules, holds.policy.root_rule) if rule.may_hold]


def _meant(
    request: HeldRequest,
    store: Store,
    record: SandboxRecord,
    selection: ScopedChanges,
    paths: Mapping[bytes, str],
) -> list[int]:
    """The numbers of the held changes that are meant; refuses a path or a rule without any."""
    held = selection.held
    if request.rule is not None:
        rules = _rules(store, record)
        if not 1 <= request.rule <= len(rules):
            raise UsageError(
                f"no rule {request.rule} holds changes", hint="'sandboxfs approve' lists those that do"
            )
        return [number for number, one in held.items() if one.rule == rules[request.rule - 1]]
    for path, given in paths.items():
        if not any(one.change.is_within([path]) for one in held.values()):
            raise UsageError(f"nothing is held at {given!r}", hint="'sandboxfs approve' lists what is held")
    return [number for number, one in held.items() if one.change.is_within(list(paths))]


def _still_good(selection: ScopedChanges, approvals: Approvals) -> dict[bytes, frozenset[str]]:
    """The approvals of changes that are still there; all others can go."""
    there = {change.path for change in selection.survey.findings}
    return {path: digests for path, digests in approvals.items() if path in there}


def _result(store: Store, record: SandboxRecord, selection: ScopedChanges) -> HeldResult:
    by_rule: dict[Rule, list[PathChange]] = {}
    for one in selection.held.values():
        by_rule.setdefault(one.rule, []).append(one.change)
    held = tuple(
        HeldByRule(number, rule, tuple(without_implied(by_rule[rule])))
        for number, rule in enumerate(_rules(store, record), start=1)
        if rule in by_rule
    )
    return HeldResult(record.name, record.workspace, held)
