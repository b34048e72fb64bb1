"""A sandbox whose changes are committed, discarded and taken back, in this process.

The view ends for the time: the upper is settled on disk, as a command does it where nobody serves it.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

from sandboxfs.changes.choosing import Choose, by_id, hunks_of
from sandboxfs.changes.commit import commit
from sandboxfs.changes.discard import discard, plan_discard
from sandboxfs.changes.plan import Options, Plan, plan_commit
from sandboxfs.changes.records import Records
from sandboxfs.changes.recovery import Recovered, recover
from sandboxfs.changes.resolving import OnConflict
from sandboxfs.changes.scan import survey
from sandboxfs.changes.site import Result, Site
from sandboxfs.changes.undo import UndoPlan, plan_undo, undo
from sandboxfs.layers.baseline_writer import BaselineWriter
from sandboxfs.layers.hostdir import HostDir
from sandboxfs.layers.index import Index
from sandboxfs.layers.marks import Whiteouts
from sandboxfs.layers.settlement import Operation, Outcome
from sandboxfs.layers.settling import Settling
from sandboxfs.layers.staging import Staging
from sandboxfs.layers.uppertree import UpperTree, numbering
from tests.support.reviewed import Reviewed


def nothing() -> None:
    """Do nothing between planning and applying."""


class Settler:
    """Settles the layers of *sandbox* on disk."""

    def __init__(self, sandbox: "Committed") -> None:
        self._sandbox = sandbox

    def settle(self, record: int, operations: Sequence[Operation]) -> list[Outcome]:
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
            tree = UpperTree(
                upper,
                workspace,
                staging,
                Index(index, staging),
                Whiteouts(devices=True),
                writer,
                numbering(workspace),
            )
            settling = Settling(tree, commits)
            opened.callback(settling.close)
            settling.use(record)
            return [settling.settle(operation) for operation in operations]


class Committed(Reviewed):
    """The core in process, with records."""

    @property
    def home(self) -> Path:
        return self.upper.parent

    @property
    def commits(self) -> Path:
        return self.home / "commits"

    @contextmanager
    def site(self) -> Iterator[Site]:
        """The opened sandbox; the view must not be served."""
        with ExitStack() as opened:
            workspace, upper, index, baseline, home = (
                opened.enter_context(HostDir.at(place))
                for place in (self.lower, self.upper, self.index, self.baseline, self.home)
            )
            yield Site(workspace, upper, index, baseline, Records(home), Settler(self))

    @contextmanager
    def paused(self) -> Iterator[Site]:
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
            return plan_commit(survey(layers), _options(paths, options))

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
    ) -> Result:
        """Commit; *meanwhile* happens after planning, *between* after staging."""
        with self.paused() as site, self.layers() as layers:
            found = survey(layers)
            chosen = _options(paths, options)
            if hunks:
                chosen = replace(chosen, choose=by_id(hunks, found.findings))
            plan = plan_commit(found, chosen)
            assert not plan.is_blocked, (plan.conflicts, plan.refusals)
            meanwhile()
            return commit(site, plan, between=between)

    def discard(self, *paths: str, choose: Choose | None = None) -> Result:
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


def _options(paths: Sequence[str], more: dict[str, object]) -> Options:
    how = OnConflict(str(more.get("on_conflict", "fail")))
    return Options(
        [os.fsencode(path) for path in paths],
        how,
        include_git=bool(more.get("include_git")),
        allow_special=bool(more.get("allow_special")),
    )
