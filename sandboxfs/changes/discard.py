"""How are changes dropped? They leave the upper, and are kept in a record until nobody needs it.

Of a file of which only a part is dropped, the upper gets a text without that part.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass

from sandboxfs.changes.choosing import Choose, Part
from sandboxfs.changes.finding import Finding
from sandboxfs.changes.journal_json import identity_out
from sandboxfs.changes.leaving import Leaving
from sandboxfs.changes.records import DISCARD, About
from sandboxfs.changes.replacing import Rewrite, replaced_parts, replacement, without_mode
from sandboxfs.changes.scan import Survey
from sandboxfs.changes.selection import Needs, within
from sandboxfs.changes.site import Result, Site, finish, settle_plan
from sandboxfs.changes.steps import Identity
from sandboxfs.changes.summary import without_implied


@dataclass(frozen=True)
class DiscardPlan:
    """The changes to drop: those that were asked for, and those that cannot be without them.

    Of *parts* only a part is dropped.
    """

    survey: Survey
    findings: tuple[Finding, ...] = ()
    parts: tuple[tuple[Finding, Part], ...] = ()
    asked: int = 0

    @property
    def is_empty(self) -> bool:
        return not self.findings and not self.parts

    @property
    def all(self) -> list[Finding]:
        return [*self.findings, *(finding for finding, _ in self.parts)]


def plan_discard(survey: Survey, paths: Sequence[bytes], choose: Choose | None = None) -> DiscardPlan:
    """Decide what is dropped with what is at and below *paths*; *choose*, if given, is asked about each."""
    asked = [number for number, finding in enumerate(survey.findings) if within(finding, paths)]
    taken: dict[int, Part | bool] = dict.fromkeys(asked, True)
    if choose is not None:
        taken = {number: choose(survey.findings[number]) for number in asked}
    whole = [number for number, one in taken.items() if one is True]
    dropped = Needs(survey.findings, survey.view.upper).dependents(whole)
    parts = [
        (survey.findings[number], one)
        for number, one in taken.items()
        if isinstance(one, Part) and number not in dropped
    ]
    findings = tuple(survey.findings[number] for number in sorted(dropped))
    return DiscardPlan(survey, findings, tuple(parts), len(whole) + len(parts))


def discard(site: Site, plan: DiscardPlan, *, message: str | None = None) -> Result:
    """Do what *plan* says; what the sandbox changed since stays, and is named."""
    changes = tuple((finding.path, finding.kind.value) for finding in without_implied(plan.all))
    with site.records.new(About.now(DISCARD, changes, message)) as record:
        operations = Leaving(plan.survey, plan.findings).dropped()
        for number, (finding, part) in enumerate(plan.parts):
            # What is left of a text takes the place of the whole.
            rest = Rewrite(finding, part.content, without_mode(finding, part))
            operations += replacement(plan.survey, record, rest, b"part-%d" % number)
        more: dict[str, object] = {
            "seen": [_seen(finding) for finding in plan.findings if _is_as_seen(finding)],
            "parts": replaced_parts(record, operations),
        }
        record.write("staged", settle_plan(record.number, operations) | more)
        return finish(site, record)


def _is_as_seen(finding: Finding) -> bool:
    """Whether the workspace has what the sandbox started from."""
    return finding.conflict is None and finding.old is not None and finding.lower is not None


def _seen(finding: Finding) -> list[object]:
    """Note what the sandbox started from: an undo may come when the baseline has forgotten it."""
    lower = None if finding.lower is None else Identity.seen(finding.lower)
    return [os.fsdecode(finding.path), os.fsdecode(finding.lower_path), identity_out(lower)]
