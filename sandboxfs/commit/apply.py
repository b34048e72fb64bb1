"""Carrying out a commit or a discard: staged, exchanged with the workspace's, finished; or dropped and kept.

Of a commit the workspace comes first, all or nothing. Then the changes leave the upper; the view shows the
same content from the workspace. `between` is the point from which no interruption counts: everything is
staged, nothing is changed yet, and the caller holds interruptions back from there.

What is discarded leaves the upper, and is kept in a commit record. Where only a part of a file's change is
dropped, the upper gets a text without that part.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from sandboxfs.commit.actions import IDENTITY, identity_seen
from sandboxfs.commit.build import INDEX, UPPER, ActionBuilder
from sandboxfs.commit.finish import ReviewOutcome, ReviewTarget, edit_plan, finish
from sandboxfs.commit.plan import Plan, Resolution
from sandboxfs.commit.records import COMMIT, DISCARD, CommitRecord, RecordSummary
from sandboxfs.commit.selection import Choose, SelectedPart
from sandboxfs.commit.stage import CHANGING
from sandboxfs.commit.transaction import Progress, Transaction
from sandboxfs.commit.upper_edits import (
    SEEN,
    UpperFollower,
    keep_start,
    merged_mode,
    replaced_parts,
    replacement,
    without_mode,
)
from sandboxfs.hostfs.identity import ConcurrentChange
from sandboxfs.paths import MovedPaths, quoted
from sandboxfs.review.change import ChangeKind, PathChange
from sandboxfs.review.repositories import repositories_of
from sandboxfs.review.scan import ScanResult
from sandboxfs.review.scope import Dependencies
from sandboxfs.review.summary import without_implied
from sandboxfs.upper.edits import Operation, Rebase


def no_progress(done: int, total: int) -> None:
    """Report no progress."""


def apply_plan(
    site: ReviewTarget,
    plan: Plan,
    *,
    message: str | None = None,
    progress: Progress = no_progress,
    between: Callable[[], None] = lambda: None,
) -> ReviewOutcome:
    """Carry out *plan*; on `ConcurrentChange` or OSError nothing is changed.

    *between* is called when everything is staged and nothing is changed.
    """
    record = site.records.new(RecordSummary.now(COMMIT, tuple(_changes(plan)), message))
    transaction = Transaction(
        site.workspace, record, {UPPER: site.upper, INDEX: site.index}, progress=progress
    )
    try:
        builder = ActionBuilder(plan.survey, plan.items, plan.mounts)
        transaction.prepare(builder.actions, _times(plan))
        operations = _operations(plan, transaction, builder, record)
        starts = list(_starts(plan, builder.moved, record))
        between()
        more = {"parts": replaced_parts(record, operations), "starts": starts} | _conflicts(plan)
        transaction.apply(edit_plan(record.number, operations) | more)
    except BaseException as error:
        give_up(site, record, transaction, error)
        raise
    with record:
        return finish(site, record)


def _conflicts(plan: Plan) -> dict[str, object]:
    """The places of conflicts that were decided: an undo makes them conflicts again."""
    found = [one for one in plan.findings if one.conflict is not None]
    places = dict.fromkeys(place for one in found for place in (one.path, one.lower_path))
    return {"conflicts": [os.fsdecode(place) for place in places]}


def _starts(plan: Plan, moved: MovedPaths, record: CommitRecord) -> Iterator[list[str]]:
    """Keep the baseline entries of conflicts whose path leaves the workspace: the baseline forgets them."""
    for number, finding in enumerate(plan.findings):
        gone = finding.kind is ChangeKind.DELETED or (
            finding.kind is ChangeKind.RENAMED and not finding.is_dir
        )
        name = b"start-%d" % number
        if gone and finding.conflict is not None and keep_start(plan.survey, record, finding, name):
            yield [os.fsdecode(one) for one in (finding.path, moved(finding.lower_path), name + SEEN)]


def _changes(plan: Plan) -> Iterator[tuple[bytes, str]]:
    """The changes that the record lists: those applied, and those made in the sandbox alone."""
    for finding in without_implied(plan.findings):
        yield finding.path, finding.kind.value
    for finding in without_implied(list(plan.drops)):
        yield finding.path, "dropped"
    for word, resolutions in (("trimmed", plan.trims), ("marked", plan.marks)):
        for resolution in resolutions:
            yield resolution.finding.path, word


def give_up(site: ReviewTarget, record: CommitRecord, transaction: Transaction, error: BaseException) -> None:
    """Take back an unapplied transaction; note paths left alone on the *error* that led to this."""
    if record.is_applied:
        record.close()
        error.add_note("the workspace is done; the next commit, discard or undo finishes the rest")
        return
    transaction.take_back()
    for kept in transaction.kept:
        where = "" if kept.name is None else f"; what it had is in commits/{record.number}/pre"
        error.add_note(f"left alone: {quoted(kept.path)}, which changed meanwhile{where}")
    if transaction.kept:
        record.close()
    else:
        site.records.remove(record)


def _times(plan: Plan) -> Callable[[bytes], tuple[int, int] | None]:
    """The times of directories in which names change: those that the view shows for them."""
    upper = plan.survey.view.upper

    def times(path: bytes) -> tuple[int, int] | None:
        directory = upper.get(path)
        return None if directory is None else (directory.status.st_atime_ns, directory.status.st_mtime_ns)

    return times


def _operations(
    plan: Plan, transaction: Transaction, builder: ActionBuilder, record: CommitRecord
) -> list[Operation]:
    partly = [item.finding for item in plan.items if not item.whole]
    copies = [twin for found in builder.twins.values() for twin in found]
    applied = UpperFollower(plan.survey, plan.findings, transaction.originals)
    operations = applied.applied(partly, copies)
    operations += UpperFollower(plan.survey, plan.drops, besides=plan.findings).dropped()
    for number, mark in enumerate(plan.marks):
        operations += _marked(plan, mark, b"mark-%d" % number, builder.moved, record)
    for number, item in enumerate(item for item in plan.items if item.rest is not None):
        operations += _kept_up(plan, item, b"rest-%d" % number, record)
    for number, trim in enumerate(plan.trims):
        mode = without_mode(trim.finding, trim.part)
        operations += replacement(
            plan.survey, record, trim.finding, _text(trim.rest), mode, b"part-%d" % number
        )
    return operations


def _kept_up(plan: Plan, item: Resolution, name: bytes, record: CommitRecord) -> list[Operation]:
    """Replace the whole text in the upper by the rest of it, which has the workspace's edits merged in."""
    finding = item.finding
    put = replacement(plan.survey, record, finding, _text(item.rest), merged_mode(finding), name)
    if not put:
        raise ConcurrentChange(finding.path, CHANGING)
    keep_start(plan.survey, record, finding, name)
    return put


def _marked(
    plan: Plan, mark: Resolution, name: bytes, moved: MovedPaths, record: CommitRecord
) -> list[Operation]:
    """Replace the sandbox's text by one with conflict markers, whose baseline is the workspace's text."""
    finding = mark.finding
    put = replacement(plan.survey, record, finding, _text(mark.content), merged_mode(finding), name)
    if not put:
        return []
    keep_start(plan.survey, record, finding, name)
    return [*put, Rebase(finding.path, moved(finding.lower_path), marked=True)]


def _text(resolved: bytes | None) -> bytes:
    if resolved is None:
        raise ValueError("nothing was merged")
    return resolved


# Discard


@dataclass(frozen=True)
class DiscardPlan:
    """The changes to drop: those that were asked for, and those that depend on them.

    Of *parts* only a part is dropped.
    """

    survey: ScanResult
    findings: tuple[PathChange, ...] = ()
    parts: tuple[tuple[PathChange, SelectedPart], ...] = ()
    asked: int = 0

    @property
    def is_empty(self) -> bool:
        return not self.findings and not self.parts

    @property
    def all(self) -> list[PathChange]:
        return [*self.findings, *(finding for finding, _ in self.parts)]


def plan_discard(survey: ScanResult, paths: Sequence[bytes], choose: Choose | None = None) -> DiscardPlan:
    """Decide which changes at and below *paths*, and with them, are dropped; *choose* is asked about each."""
    asked = [number for number, finding in enumerate(survey.findings) if finding.is_within(paths)]
    taken: dict[int, SelectedPart | bool] = dict.fromkeys(asked, True)
    if choose is not None:
        taken = {number: choose(survey.findings[number]) for number in asked}
    # A repository is dropped as a whole, and not at all where a part of it is to stay.
    units = repositories_of(survey.view.layers, survey.findings).groups(survey.findings)
    for unit in units:
        if any(taken.get(number, True) is not True for number in unit):
            taken |= dict.fromkeys(unit, False)
    whole = [number for number, one in taken.items() if one is True]
    dropped = Dependencies(survey.findings, survey.view.upper, units).dependents(whole)
    parts = [
        (survey.findings[number], one)
        for number, one in taken.items()
        if isinstance(one, SelectedPart) and number not in dropped
    ]
    findings = tuple(survey.findings[number] for number in sorted(dropped))
    return DiscardPlan(survey, findings, tuple(parts), len(whole) + len(parts))


def discard(site: ReviewTarget, plan: DiscardPlan, *, message: str | None = None) -> ReviewOutcome:
    """Carry out *plan*; paths that the sandbox changed since the scan stay, and are named."""
    changes = tuple((finding.path, finding.kind.value) for finding in without_implied(plan.all))
    with site.records.new(RecordSummary.now(DISCARD, changes, message)) as record:
        operations = UpperFollower(plan.survey, plan.findings).dropped()
        for number, (finding, part) in enumerate(plan.parts):
            # The rest of the text takes the place of the whole.
            mode = without_mode(finding, part)
            operations += replacement(plan.survey, record, finding, part.content, mode, b"part-%d" % number)
        more: dict[str, object] = {
            "seen": [_seen(finding) for finding in plan.findings if _is_as_seen(finding)],
            "parts": replaced_parts(record, operations),
        }
        record.write("staged", edit_plan(record.number, operations) | more)
        return finish(site, record)


def _is_as_seen(finding: PathChange) -> bool:
    """Whether the workspace still agrees with the baseline."""
    return finding.conflict is None and finding.old is not None and finding.lower is not None


def _seen(finding: PathChange) -> list[object]:
    """Note the baseline entry: an undo may come after the baseline has forgotten it."""
    lower = None if finding.lower is None else IDENTITY.encode(identity_seen(finding.lower))
    return [os.fsdecode(finding.path), os.fsdecode(finding.lower_path), lower]
