"""Discard: changes leave the upper, and are kept in a commit record.

Where only a part of a file's change is dropped, the upper gets a text without that part.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass

from sandboxfs.commit.actions import IDENTITY, identity_seen
from sandboxfs.commit.finish import ReviewOutcome, ReviewTarget, edit_plan, finish
from sandboxfs.commit.records import DISCARD, RecordSummary
from sandboxfs.commit.selection import Choose, SelectedPart
from sandboxfs.commit.upper_edits import UpperFollower, replaced_parts, replacement, without_mode
from sandboxfs.review.change import PathChange
from sandboxfs.review.repositories import repositories_of
from sandboxfs.review.scan import ScanResult
from sandboxfs.review.scope import Dependencies, within
from sandboxfs.review.summary import without_implied


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
    asked = [number for number, finding in enumerate(survey.findings) if within(finding, paths)]
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
