"""Finishing and recovery of a commit, discard or undo, also after `kill -9`; the target of a review.

When the workspace has all changes, the upper follows through its present editor, and the record is closed.
Another process than the one that began may do that part. The next command that wants to change the same
sandbox first brings what was interrupted to its end, and says so: before everything is exchanged the
transaction is taken back; afterwards it is finished, unless there is no room for the replaced objects.
"""

import errno
import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from sandboxfs.codec import decode
from sandboxfs.commit.actions import Steps
from sandboxfs.commit.exchange import Completion
from sandboxfs.commit.records import COMMIT, UNDO, CommitRecord, Records
from sandboxfs.commit.transaction import NotTakenBack, Rollback
from sandboxfs.errors import UsageError
from sandboxfs.hostfs.directory import HostDir
from sandboxfs.hostfs.identity import ConcurrentChange
from sandboxfs.hostfs.tree import OpenDirectories
from sandboxfs.upper.edits import (
    CHANGED,
    WHITEOUT,
    EditOutcome,
    FollowMove,
    Operation,
    Prune,
    Rebase,
    RemoveEntry,
    RestoreEntry,
    operation_from_json,
    operation_to_json,
    outcome_from_json,
    outcome_to_json,
    refused,
)

# Causes that may pass; an operation that is refused for any other reason is refused for good.
_FAILURES = {
    os.strerror(code)
    for code in (
        *(errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS, errno.EMFILE, errno.ENFILE, errno.ENOMEM),
    )
}


class UpperEditor(Protocol):
    """Changes the upper, at once as far as programs in the view can tell."""

    def edit(self, record: int, operations: Sequence[Operation]) -> list[EditOutcome]: ...


@dataclass(frozen=True)
class ReviewTarget:
    """The opened directories of one sandbox, its records, and the editor of its upper."""

    workspace: HostDir
    upper: HostDir
    index: HostDir
    baseline: HostDir | None
    records: Records
    editor: UpperEditor


@dataclass(frozen=True)
class ReviewOutcome:
    """The outcome: the record's number, and the paths at which the sandbox changed something since."""

    number: int
    stayed: tuple[bytes, ...] = ()


def edit_plan(keeper: int, operations: Sequence[Operation]) -> dict[str, object]:
    """The journal entry for *operations* on the upper; the record *keeper* keeps removed entries."""
    return {"keeper": keeper, "settle": [operation_to_json(operation) for operation in operations]}


def planned(record: CommitRecord) -> tuple[int, list[Operation]]:
    """Read the journal entry of `edit_plan`."""
    match record.last("staged"):
        case {"keeper": int(keeper), "settle": [*described]}:
            return keeper, [
                operation_from_json(one, f"staged.settle[{n}]") for n, one in enumerate(described)
            ]
        case _:
            raise UsageError(f"commits/{record.number}/journal: it does not say what was to be done")


def outcomes_of(record: CommitRecord, count: int) -> list[EditOutcome]:
    """The outcomes of the operations of *record*; an operation without a written outcome was plainly done."""
    outcomes = [EditOutcome(done=True)] * count
    found = record.last("settled")
    for number, described in found.items() if isinstance(found, dict) else ():
        outcomes[int(number)] = outcome_from_json(described)
    return outcomes


def finish(site: ReviewTarget, record: CommitRecord) -> ReviewOutcome:
    """Have the upper follow, and close the record; a second call has the same result."""
    keeper, operations = planned(record)
    # All other operations rely on moves, so each move has to be over first.
    batches: list[list[Operation]] = [[one] for one in operations if isinstance(one, FollowMove)]
    put = (
        {one.path for one in operations if isinstance(one, RestoreEntry)}
        if record.about.kind == COMMIT
        else set()
    )
    later = [one for one in operations if isinstance(one, Rebase) and one.path in put]
    apart = {id(one) for one in later}
    batches.append([one for one in operations if not isinstance(one, FollowMove) and id(one) not in apart])
    answers = {id(one): outcome for batch in batches for one, outcome in _edited(site, keeper, batch)}
    answers |= _rebased(site, keeper, later, _refused_puts(operations, answers))
    outcomes = _as_of_the_first_time(operations, [answers[id(operation)] for operation in operations])
    told = {str(n): outcome_to_json(one) for n, one in enumerate(outcomes) if one != EditOutcome(done=True)}
    undone = (one for one, outcome in zip(operations, outcomes, strict=True) if not outcome.done)
    stayed = [path for operation in undone if (path := _astray(operation)) is not None]
    if record.about.kind == COMMIT and (committed := [path for path in stayed if path not in put]):
        # The sandbox's present entry started from the committed one.
        site.editor.edit(keeper, [Rebase(path, path) for path in committed])
    record.write("settled", told, sync=False)
    if record.about.kind == UNDO:
        _close_original(site, record, keep=bool(stayed))
    record.write("done", value=True)
    return ReviewOutcome(record.number, tuple(stayed))


def _refused_puts(operations: Iterable[Operation], answers: Mapping[int, EditOutcome]) -> set[bytes]:
    puts = [one for one in operations if isinstance(one, RestoreEntry)]
    return {one.path for one in puts if not answers[id(one)].done}


def _rebased(
    site: ReviewTarget, keeper: int, rebases: Iterable[Rebase], refused_puts: Collection[bytes]
) -> dict[int, EditOutcome]:
    """Give texts that were put their new baseline; a refused put leaves the old baseline in force."""
    kept_up = [one for one in rebases if one.path not in refused_puts]
    answers = {id(one): refused(CHANGED) for one in rebases}
    return answers | {id(one): outcome for one, outcome in _edited(site, keeper, kept_up)}


def _edited(
    site: ReviewTarget, keeper: int, batch: Sequence[Operation]
) -> Iterable[tuple[Operation, EditOutcome]]:
    outcomes = site.editor.edit(keeper, batch) if batch else []
    failed = next((outcome.why for outcome in outcomes if outcome.why in _FAILURES), None)
    if failed is not None:
        raise UsageError(
            f"the workspace is done, but the sandbox could not follow: {failed}",
            hint="the next commit, discard or undo goes on with it",
        )
    return zip(batch, outcomes, strict=True)


def _as_of_the_first_time(operations: Sequence[Operation], outcomes: list[EditOutcome]) -> list[EditOutcome]:
    """The outcomes of operations that may be repeated here: a directory may have been pruned since."""
    done = zip(operations, outcomes, strict=True)
    pruned = {one.path for one, outcome in done if isinstance(one, Prune) and outcome.done}
    return [
        EditOutcome(done=True) if isinstance(one, FollowMove) and one.new in pruned else outcome
        for one, outcome in zip(operations, outcomes, strict=True)
    ]


def _astray(operation: Operation) -> bytes | None:
    """The path at which the sandbox's entry is not as planned when *operation* is refused."""
    if isinstance(operation, RestoreEntry) or (
        isinstance(operation, RemoveEntry) and operation.expect != WHITEOUT
    ):
        return operation.path
    return None


def _close_original(site: ReviewTarget, record: CommitRecord, *, keep: bool) -> None:
    """Note in the undone record what is undone; remove objects that came back, and those they replaced."""
    original = None if record.about.of is None else site.records.open(record.about.of)
    match record.last("staged"):
        case {"spent": [*spent], "undone": [*undone], "left": bool(left)} if original is not None:
            with original:
                with original.folder(b"pre") as pre:
                    for number in spent:
                        pre.remove_tree(b"%d" % number)
                if left:
                    earlier_spent, earlier_undone = undone_so_far(original)
                    done = {"spent": [*earlier_spent, *spent], "operations": [*earlier_undone, *undone]}
                    original.write("undone in part", done)
                else:
                    original.write("undone", record.number)
            if not keep:
                # The upper has all removed entries again.
                with record.folder(b"pre") as replaced:
                    for name in replaced.names():
                        replaced.remove_tree(name)
        case _:
            return


def undone_so_far(record: CommitRecord) -> tuple[list[int], list[int]]:
    """The steps and the operations of *record* that were taken back already."""
    match record.last("undone in part"):
        case {"spent": [*spent], "operations": [*operations]}:
            return [number for number in spent if isinstance(number, int)], [
                number for number in operations if isinstance(number, int)
            ]
        case _:
            return [], []


@dataclass(frozen=True)
class Recovered:
    """The outcome for an interrupted record; *kept* are the objects that could not be taken back."""

    number: int
    kind: str
    finished: bool
    kept: tuple[NotTakenBack, ...] = ()


def recover(site: ReviewTarget) -> Recovered | None:
    """Bring the unfinished record to its end, if there is one."""
    site.records.sweep()
    record = site.records.unfinished()
    return None if record is None else _recover(site, record)


def steps_of(record: CommitRecord) -> Steps | None:
    """The steps of *record*, as far as they were written down; None when it has none."""
    match record.last("staged"):
        case {"steps": described}:
            return decode(Steps, described, "steps")
        case _:
            described = record.last("intent")
            return None if described is None else decode(Steps, described, "intent")


def _recover(site: ReviewTarget, record: CommitRecord) -> Recovered:
    kind, number = record.about.kind, record.number
    steps = steps_of(record)
    # A record that changes only the sandbox is decided as soon as its operations are written.
    decided = record.is_applied or (steps is None and record.has("staged"))
    if decided and _completed(site, record, steps):
        with record:
            finish(site, record)
        return Recovered(number, kind, finished=True)
    kept = [] if steps is None else _taken_back(site, record, steps)
    if kept:
        record.write("taken back", [one.as_json() for one in kept])
        record.close()
    else:
        site.records.remove(record)
    return Recovered(number, kind, finished=False, kept=tuple(kept))


def _completed(site: ReviewTarget, record: CommitRecord, steps: Steps | None) -> bool:
    """Complete the *steps*, if there are any; False when that is impossible and a rollback is needed."""
    if steps is None:
        return True
    try:
        with OpenDirectories(site.workspace) as ground:
            Completion(ground, steps, record).run()
    except (OSError, ConcurrentChange):
        if record.is_applied:
            raise
        return False
    return True


def _taken_back(site: ReviewTarget, record: CommitRecord, steps: Steps) -> list[NotTakenBack]:
    with OpenDirectories(site.workspace) as ground:
        return Rollback(ground, steps, record).run()
