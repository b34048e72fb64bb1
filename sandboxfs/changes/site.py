"""What does a review change? The workspace, and the upper through whoever may settle it.

And how does it end: when the workspace has what it should, the upper follows, and the record is closed. That
part may be done by another process than the one that began.
"""

import errno
import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from sandboxfs.changes.records import COMMIT, UNDO, Record, Records
from sandboxfs.errors import UsageError
from sandboxfs.layers.hostdir import HostDir
from sandboxfs.layers.settlement import (
    CHANGED,
    WHITEOUT,
    Drop,
    Moved,
    Operation,
    Outcome,
    Prune,
    Put,
    Rebase,
    refused,
)
from sandboxfs.layers.settlement_json import (
    operation_from_json,
    operation_to_json,
    outcome_from_json,
    outcome_to_json,
)

# What may go well another time; an operation that is refused for any other reason is refused for good.
_FAILURES = {
    os.strerror(code)
    for code in (
        *(errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS, errno.EMFILE, errno.ENFILE, errno.ENOMEM),
    )
}


class Settler(Protocol):
    """Changes the upper, at once as far as programs in the view can tell."""

    def settle(self, record: int, operations: Sequence[Operation]) -> list[Outcome]: ...


@dataclass(frozen=True)
class Site:
    """The opened directories of one sandbox, its records, and its settler."""

    workspace: HostDir
    upper: HostDir
    index: HostDir
    baseline: HostDir | None
    records: Records
    settler: Settler


@dataclass(frozen=True)
class Result:
    """What came of it: the record's number, and the paths at which the sandbox changed something since."""

    number: int
    stayed: tuple[bytes, ...] = ()


def settle_plan(keeper: int, operations: Sequence[Operation]) -> dict[str, object]:
    """Write down what the upper is to do; *keeper* is the record that keeps what leaves it."""
    return {"keeper": keeper, "settle": [operation_to_json(operation) for operation in operations]}


def planned(record: Record) -> tuple[int, list[Operation]]:
    """Read what `settle_plan` wrote."""
    match record.last("staged"):
        case {"keeper": int(keeper), "settle": [*described]}:
            return keeper, [operation_from_json(one) for one in described]
        case _:
            raise UsageError(f"commits/{record.number}/journal: it does not say what was to be done")


def outcomes_of(record: Record, count: int) -> list[Outcome]:
    """What came of the operations of *record*; those that are not mentioned were plainly done."""
    outcomes = [Outcome(done=True)] * count
    found = record.last("settled")
    for number, described in found.items() if isinstance(found, dict) else ():
        outcomes[int(number)] = outcome_from_json(described)
    return outcomes


def finish(site: Site, record: Record) -> Result:
    """Have the upper follow, and close the record; done again it comes to the same."""
    keeper, operations = planned(record)
    # Everything else relies on moves, so each of those has to be over first.
    batches: list[list[Operation]] = [[one] for one in operations if isinstance(one, Moved)]
    put = {one.path for one in operations if isinstance(one, Put)} if record.about.kind == COMMIT else set()
    later = [one for one in operations if isinstance(one, Rebase) and one.path in put]
    apart = {id(one) for one in later}
    batches.append([one for one in operations if not isinstance(one, Moved) and id(one) not in apart])
    answers = {id(one): outcome for batch in batches for one, outcome in _settled(site, keeper, batch)}
    answers |= _rebased(site, keeper, later, _refused_puts(operations, answers))
    outcomes = _as_of_the_first_time(operations, [answers[id(operation)] for operation in operations])
    told = {str(n): outcome_to_json(one) for n, one in enumerate(outcomes) if one != Outcome(done=True)}
    undone = (one for one, outcome in zip(operations, outcomes, strict=True) if not outcome.done)
    stayed = [path for operation in undone if (path := _astray(operation)) is not None]
    if record.about.kind == COMMIT and (committed := [path for path in stayed if path not in put]):
        # What the sandbox has there now started from what was committed.
        site.settler.settle(keeper, [Rebase(path, path) for path in committed])
    record.write("settled", told, sync=False)
    if record.about.kind == UNDO:
        _close_original(site, record, keep=bool(stayed))
    record.write("done", value=True)
    return Result(record.number, tuple(stayed))


def _refused_puts(operations: Iterable[Operation], answers: Mapping[int, Outcome]) -> set[bytes]:
    puts = [one for one in operations if isinstance(one, Put)]
    return {one.path for one in puts if not answers[id(one)].done}


def _rebased(
    site: Site, keeper: int, rebases: Iterable[Rebase], refused_puts: Collection[bytes]
) -> dict[int, Outcome]:
    """Let texts that were put start from what they were made of; what was not put has not that in it."""
    kept_up = [one for one in rebases if one.path not in refused_puts]
    answers = {id(one): refused(CHANGED) for one in rebases}
    return answers | {id(one): outcome for one, outcome in _settled(site, keeper, kept_up)}


def _settled(site: Site, keeper: int, batch: Sequence[Operation]) -> Iterable[tuple[Operation, Outcome]]:
    outcomes = site.settler.settle(keeper, batch) if batch else []
    failed = next((outcome.why for outcome in outcomes if outcome.why in _FAILURES), None)
    if failed is not None:
        raise UsageError(
            f"the workspace is done, but the sandbox could not follow: {failed}",
            hint="the next commit, discard or undo goes on with it",
        )
    return zip(batch, outcomes, strict=True)


def _as_of_the_first_time(operations: Sequence[Operation], outcomes: list[Outcome]) -> list[Outcome]:
    """Tell what came of operations that may have been done before: a directory may be gone since."""
    done = zip(operations, outcomes, strict=True)
    pruned = {one.path for one, outcome in done if isinstance(one, Prune) and outcome.done}
    return [
        Outcome(done=True) if isinstance(one, Moved) and one.new in pruned else outcome
        for one, outcome in zip(operations, outcomes, strict=True)
    ]


def _astray(operation: Operation) -> bytes | None:
    """The path at which something of the sandbox's is not as it should be when *operation* is refused."""
    if isinstance(operation, Put) or (isinstance(operation, Drop) and operation.expect != WHITEOUT):
        return operation.path
    return None


def _close_original(site: Site, record: Record, *, keep: bool) -> None:
    """Note in the record that was undone what was; remove what came back out of it, and what it replaced."""
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
                # All of it is in the sandbox again.
                with record.folder(b"pre") as replaced:
                    for name in replaced.names():
                        replaced.remove_tree(name)
        case _:
            return


def undone_so_far(record: Record) -> tuple[list[int], list[int]]:
    """The steps and the operations of *record* that were taken back already."""
    match record.last("undone in part"):
        case {"spent": [*spent], "operations": [*operations]}:
            return [number for number in spent if isinstance(number, int)], [
                number for number in operations if isinstance(number, int)
            ]
        case _:
            return [], []
