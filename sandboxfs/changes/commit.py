"""How are changes applied to the workspace?

The workspace first, all or nothing; then they leave the upper, where the view shows the same from below.
"""

import os
from collections.abc import Callable, Iterator

from sandboxfs.changes.engine import Progress, Transaction
from sandboxfs.changes.leaving import Leaving
from sandboxfs.changes.patch import Kind
from sandboxfs.changes.plan import Plan
from sandboxfs.changes.records import COMMIT, About, Record
from sandboxfs.changes.replacing import SEEN, Rewrite, keep_start, replaced_parts, replacement
from sandboxfs.changes.site import Result, Site, finish, settle_plan
from sandboxfs.changes.stager import CHANGING
from sandboxfs.changes.steps import Moved, Surprise
from sandboxfs.changes.summary import without_implied
from sandboxfs.changes.wishing import INDEX, UPPER, Wishing
from sandboxfs.layers.settlement import Operation, Rebase
from sandboxfs.paths import quoted


def no_progress(done: int, total: int) -> None:
    """Tell nobody."""


def commit(
    site: Site,
    plan: Plan,
    *,
    message: str | None = None,
    progress: Progress = no_progress,
    between: Callable[[], None] = lambda: None,
) -> Result:
    """Do what *plan* says; `Surprise` or OSError when it cannot be done, and then nothing is.

    *between* is called when everything is staged and nothing is changed.
    """
    record = site.records.new(About.now(COMMIT, tuple(_changes(plan)), message))
    transaction = Transaction(
        site.workspace, record, {UPPER: site.upper, INDEX: site.index}, progress=progress
    )
    try:
        wishing = Wishing(plan.survey, plan.items, plan.mounts)
        transaction.prepare(wishing.wishes, _times(plan))
        operations = _operations(plan, transaction, wishing, record)
        starts = list(_starts(plan, wishing.moved, record))
        between()
        more = {"parts": replaced_parts(record, operations), "starts": starts} | _conflicts(plan)
        transaction.apply(settle_plan(record.number, operations) | more)
    except BaseException as error:
        give_up(site, record, transaction, error)
        raise
    with record:
        return finish(site, record)


def _conflicts(plan: Plan) -> dict[str, object]:
    """The places of conflicts that were decided: when they are taken back they are conflicts again."""
    found = [one for one in plan.findings if one.conflict is not None]
    places = dict.fromkeys(place for one in found for place in (one.path, one.lower_path))
    return {"conflicts": [os.fsdecode(place) for place in places]}


def _starts(plan: Plan, moved: Moved, record: Record) -> Iterator[list[str]]:
    """Keep what conflicts started from of which the baseline forgets all: what goes from the workspace."""
    for number, finding in enumerate(plan.findings):
        gone = finding.kind is Kind.DELETED or (finding.kind is Kind.RENAMED and not finding.is_dir)
        name = b"start-%d" % number
        if gone and finding.conflict is not None and keep_start(plan.survey, record, finding, name):
            yield [os.fsdecode(one) for one in (finding.path, moved(finding.lower_path), name + SEEN)]


def _changes(plan: Plan) -> Iterator[tuple[bytes, str]]:
    """What the record is about: what was applied, and what changed in the sandbox alone."""
    for finding in without_implied(plan.findings):
        yield finding.path, finding.kind.value
    for finding in without_implied(list(plan.drops)):
        yield finding.path, "dropped"
    for word, rewrites in (("trimmed", plan.trims), ("marked", plan.marks)):
        for rewrite in rewrites:
            yield rewrite.finding.path, word


def give_up(site: Site, record: Record, transaction: Transaction, error: BaseException) -> None:
    """Take back what was not applied; what is in the way of that is noted on the *error* that led to it."""
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
    """Directories in which names change get the times that the view shows for them."""
    upper = plan.survey.view.upper

    def times(path: bytes) -> tuple[int, int] | None:
        directory = upper.get(path)
        return None if directory is None else (directory.status.st_atime_ns, directory.status.st_mtime_ns)

    return times


def _operations(plan: Plan, transaction: Transaction, wishing: Wishing, record: Record) -> list[Operation]:
    partly = [item.finding for item in plan.items if not item.whole]
    copies = [twin for found in wishing.twins.values() for twin in found]
    applied = Leaving(plan.survey, plan.findings, transaction.originals)
    operations = applied.applied(partly, copies)
    operations += Leaving(plan.survey, plan.drops, besides=plan.findings).dropped()
    for number, mark in enumerate(plan.marks):
        operations += _marked(plan, mark, b"mark-%d" % number, wishing.moved, record)
    for number, rest in enumerate(plan.rests):
        operations += _kept_up(plan, rest, b"rest-%d" % number, record)
    for number, rest in enumerate(plan.trims):
        operations += replacement(plan.survey, record, rest, b"part-%d" % number)
    return operations


def _kept_up(plan: Plan, rest: Rewrite, name: bytes, record: Record) -> list[Operation]:
    """Have what is left of a text take the place of the whole, with what the workspace has in it."""
    put = replacement(plan.survey, record, rest, name)
    if not put:
        raise Surprise(rest.finding.path, CHANGING)
    keep_start(plan.survey, record, rest.finding, name)
    return put


def _marked(plan: Plan, mark: Rewrite, name: bytes, moved: Moved, record: Record) -> list[Operation]:
    """Have a text with conflict markers take the place of the sandbox's, starting from the workspace's."""
    put = replacement(plan.survey, record, mark, name)
    if not put:
        return []
    keep_start(plan.survey, record, mark.finding, name)
    return [*put, Rebase(mark.finding.path, moved(mark.finding.lower_path), marked=True)]
