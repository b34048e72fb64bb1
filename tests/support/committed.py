"""A sandbox whose changes are committed, discarded and taken back, in this process.

The view ends for the time: the upper is edited on disk, as a command does it where nobody serves it.
"""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

from sandboxfs.commit.apply import apply_plan, discard, plan_discard
from sandboxfs.commit.finish import Recovered, ReviewOutcome, ReviewTarget, recover
from sandboxfs.commit.plan import OnConflict, Options, Plan, plan_commit
from sandboxfs.commit.records import Records
from sandboxfs.commit.selection import Choose, by_id, hunks_of
from sandboxfs.commit.undo import UndoPlan, plan_undo, undo
from sandboxfs.hostfs.directory import HostDir
from sandboxfs.review.held import HoldRules
from sandboxfs.review.scan import ScanResult, survey
from sandboxfs.review.scope import Scope, ScopeContext, ScopedChanges, select_changes
from sandboxfs.upper.baseline_log import BaselineWriter
from sandboxfs.upper.edits import EditOutcome, Operation
from sandboxfs.upper.marks import Index, Staging, Whiteouts
from sandboxfs.upper.unmounted import UnmountedUpper, numbering
from sandboxfs.upper.writer import UpperWriter
from tests.support.reviewed import Reviewed


def nothing() -> None:
    """Do nothing between planning and applying."""


class Settler:
    """Settles the layers of *sandbox* on disk."""

    def __init__(self, sandbox: "Committed") -> None:
        self._sandbox = sandbox

    def edit(self, record: int, operations: Sequence[Operation]) -> list[EditOutcome]:
        box = self._sandbox
        places = (box.upper, box.lower, box.work, box.index, box.baseline, box.commits)
        with ExitStack() as opened:
            upper, workspace, work, index, baseline, commits = (
                opened.enter_context(HostDir.at(place)) for place in places
            )
            staging = Staging(work)
            staging.clear()
            writer = BaselineWriter(baseline)
            opened.callback(writer.close)
            tree = UnmountedUpper(
                upper,
                workspace,
                staging,
                Index(index, staging),
                Whiteouts(devices=True),
                writer,
                numbering(workspace),
            )
            editor = UpperWriter(tree, commits)
            opened.callback(editor.close)
            editor.use(record)
            return [editor.edit(operation) for operation in operations]


class Committed(Reviewed):
    """The core in process, with records."""

    @property
    def home(self) -> Path:
        return self.upper.parent

    @property
    def commits(self) -> Path:
        return self.home / "commits"

    @contextmanager
    def site(self) -> Iterator[ReviewTarget]:
        """The opened sandbox; the view must not be served."""
        with ExitStack() as opened:
            workspace, upper, index, baseline, home = (
                opened.enter_context(HostDir.at(place))
                for place in (self.lower, self.upper, self.index, self.baseline, self.home)
            )
            yield ReviewTarget(workspace, upper, index, baseline, Records(home), Settler(self))

    @contextmanager
    def paused(self) -> Iterator[ReviewTarget]:
        """End the view for the time."""
        self.stop()
        try:
            with self.site() as site:
                yield site
        finally:
            self.start()

    def plan(self, *paths: str, **options: object) -> Plan:
        """What a commit would do; what is in it can be read as long as the layers stay as they are."""
        with self.layers() as layers:
            return plan_commit(self.selected(survey(layers), paths, options), _options(options))

    def selected(
        self,
        found: ScanResult,
        paths: Sequence[str] = (),
        more: Mapping[str, object] | None = None,
    ) -> ScopedChanges:
        """What *paths* mean, with the options `ignored`, `include_git`, `approve`, `excludes` in *more*.

        Its `holds` are the rules that hold changes.
        """
        more = more or {}
        places = tuple(os.fsencode(path) for path in paths)
        scope = Scope(
            places, bool(more.get("ignored")), bool(more.get("include_git")), bool(more.get("approve"))
        )
        excludes = str(more.get("excludes", "")).encode()
        holds = more.get("holds")
        assert holds is None or isinstance(holds, HoldRules)
        return select_changes(found, scope, ScopeContext(os.fsencode(self.lower), lambda: excludes, holds))

    def hunk_ids(self, path: str) -> list[str]:
        """The ids of the hunks that a file has changed by."""
        with self.layers() as layers:
            finding = next(f for f in survey(layers).findings if f.path == os.fsencode(path))
            return [hunk.id for hunk in hunks_of(finding)]

    def commit(
        self,
        *paths: str,
        between: Callable[[], None] = nothing,
        meanwhile: Callable[[], None] = nothing,
        hunks: Sequence[str] = (),
        **options: object,
    ) -> ReviewOutcome:
        """Commit; *meanwhile* happens after planning, *between* after staging."""
        with self.paused() as site, self.layers() as layers:
            found = survey(layers)
            chosen = _options(options)
            if hunks:
                chosen = replace(chosen, choose=by_id(hunks, found.findings))
            plan = plan_commit(self.selected(found, paths, options), chosen)
            assert not plan.is_blocked, (plan.conflicts, plan.refusals)
            meanwhile()
            return apply_plan(site, plan, between=between)

    def discard(self, *paths: str, choose: Choose | None = None) -> ReviewOutcome:
        with self.paused() as site, self.layers() as layers:
            places = [os.fsencode(path) for path in paths]
            return discard(site, plan_discard(survey(layers), places, choose))

    def undo(self, number: int | None = None, *, between: Callable[[], None] = nothing) -> UndoPlan:
        with self.paused() as site:
            standing = [record.number for record in site.records.each() if record.stands]
            record = site.records.open(standing[0] if number is None else number)
            assert record is not None
            with record:
                plan = plan_undo(site, record)
                undo(site, plan, between=between)
                return plan

    def recover(self) -> Recovered | None:
        with self.paused() as site:
            return recover(site)


def _options(more: Mapping[str, object]) -> Options:
    how = OnConflict(str(more.get("on_conflict", "fail")))
    choose = more.get("choose")
    assert choose is None or callable(choose)
    return Options(how, allow_special=bool(more.get("allow_special")), choose=choose)
