"""How is a commit or a discard taken back?

The workspace first, as in a commit: all that can be taken back, or nothing. Then what left the upper comes
back to it. What somebody changed since, in the workspace or in the sandbox, is left alone and named.
"""

import os
import stat
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace

from sandboxfs.changes.backwards import AGAIN, PRE, Backwards
from sandboxfs.changes.commit import give_up, no_progress
from sandboxfs.changes.engine import Progress, Transaction
from sandboxfs.changes.ground import Ground
from sandboxfs.changes.journal import Steps
from sandboxfs.changes.journal_json import identity_in
from sandboxfs.changes.rebasing import Rebasing
from sandboxfs.changes.records import UNDO, About, Record
from sandboxfs.changes.recovery import steps_of
from sandboxfs.changes.replacing import SEEN
from sandboxfs.changes.reversing import entries_of, exchanged, reversed_operations, taken_places
from sandboxfs.changes.site import Result, Site, finish, outcomes_of, planned, settle_plan, undone_so_far
from sandboxfs.changes.steps import Identity, Moved, Wishes, is_below, parted
from sandboxfs.layers import settlement
from sandboxfs.layers.hostdir import HostDir
from sandboxfs.layers.replica import same_content
from sandboxfs.layers.settlement import WHITEOUT, Drop, Operation, Outcome, Put, Rebase, Resume, paths_of

_LARGEST_NUMBER = 1 << 56


@dataclass(frozen=True)
class UndoPlan:
    """What is to be done; *left* are the paths that are left alone, and why. *changes* are the others.

    *spent* are the numbers of the steps, *undone* those of the operations that are taken back.
    """

    record: Record
    changes: tuple[tuple[bytes, str], ...] = ()
    left: tuple[tuple[bytes, str], ...] = ()
    wishes: Wishes = field(default_factory=Wishes)
    times: Mapping[bytes, tuple[int, int]] = field(default_factory=dict)
    operations: tuple[Operation, ...] = ()
    spent: tuple[int, ...] = ()
    undone: tuple[int, ...] = ()
    has_steps: bool = False

    @property
    def is_empty(self) -> bool:
        return not len(self.wishes) and not self.operations


def plan_undo(site: Site, record: Record) -> UndoPlan:
    """Find out what of *record* can be taken back."""
    _, operations = planned(record)
    spent_before, undone_before = undone_so_far(record)
    outcomes = outcomes_of(record, len(operations))
    for number in undone_before:
        outcomes[number] = Outcome(done=False)
    steps = _without(steps_of(record), spent_before)
    with record.folder(b"pre") as pre, record.folder(b"upper") as kept:
        numbers = _Numbers(site.workspace, pre, steps)
        done = list(zip(operations, outcomes, strict=True))
        replaced = _Replaced(site.upper, record)
        back = reversed_operations(done, numbers, replaced)
        taken = taken_places(site.upper, entries_of([operation for _, operation in back]))
        left = dict.fromkeys(sorted(taken | replaced.changed), AGAIN)
        plan, restored, moved = UndoPlan(record), [], Moved({})
        if steps is not None:
            around = taken | replaced.changed
            backwards = Backwards(site.workspace, pre, steps, around, _Committed(kept, operations))
            left |= backwards.left
            restored, moved = backwards.restored, backwards.moved
            plan = UndoPlan(
                record,
                wishes=backwards.wishes,
                times=backwards.times(),
                spent=tuple(backwards.spent),
                has_steps=True,
            )
        back = [(number, operation) for number, operation in back if not _is_left(operation, left)]
        rebasing = Rebasing(site, record, exchanged(operations))
        rebased = [one for one, outcome in done if isinstance(one, Rebase) and outcome.done]
        rebased = [one for one in rebased if not _is_left(one, left)]
        puts = [one for one in operations if isinstance(one, Put)]
        restarts = {one.path: one.keep + SEEN for one in puts if kept.stat(one.keep + SEEN) is not None}
        lowers = {one.path: moved(one.lower) for one in rebased}
        resumes = [
            Resume(one.path, lowers[one.path], restarts[one.path])
            for _, one in back
            if isinstance(one, Put) and one.path in restarts and one.path in lowers
        ]
        resumes += rebasing.after_conflicts([one for _, one in back], moved)
        rebased = [one for one in rebased if one.path not in restarts]
        rebases = rebasing.after_commit(rebased, [one for _, one in back], restored, moved)
        if steps is None:
            rebases = rebasing.after_discard(left)
    return replace(
        plan,
        changes=tuple(change for change in record.about.changes if not _within(change[0], left)),
        left=tuple(left.items()),
        operations=(*(operation for _, operation in back), *rebases, *resumes),
        undone=tuple(number for number, _ in back),
    )


def undo(
    site: Site,
    plan: UndoPlan,
    *,
    progress: Progress = no_progress,
    between: Callable[[], None] = lambda: None,
) -> Result:
    """Do what *plan* says; `Surprise` or OSError when it cannot be done, and then nothing is."""
    original = plan.record
    record = site.records.new(About.now(UNDO, plan.changes, of=original.number))
    more: dict[str, object] = {
        "spent": list(plan.spent),
        "undone": list(plan.undone),
        "left": bool(plan.left),
    } | settle_plan(original.number, plan.operations)
    if not plan.has_steps:
        with record:
            record.write("staged", more)
            return finish(site, record)
    with original.folder(b"pre") as pre:
        transaction = Transaction(site.workspace, record, {PRE: pre}, adopt=True, progress=progress)
        try:
            transaction.prepare(plan.wishes, plan.times.get)
            between()
            transaction.apply(more)
        except BaseException as error:
            give_up(site, record, transaction, error)
            raise
    with record:
        return finish(site, record)


def _without(steps: Steps | None, spent: Iterable[int]) -> Steps | None:
    if steps is None:
        return None
    over = set(spent)
    return replace(
        steps,
        swaps=tuple(swap for swap in steps.swaps if swap.number not in over),
        redresses=tuple(redress for redress in steps.redresses if redress.number not in over),
    )


def _within(path: bytes, left: Iterable[bytes]) -> bool:
    return any(is_below(path, one) for one in left)


def _is_left(operation: Operation, left: Iterable[bytes]) -> bool:
    """Whether *operation* is about something that is left alone."""
    paths = (operation.path,) if isinstance(operation, Rebase) else paths_of(operation)
    return any(_within(path, left) for path in paths)


class _Numbers:
    """The numbers of files with several names that come back into the workspace, by their paths."""

    def __init__(self, workspace: HostDir, pre: HostDir, steps: Steps | None) -> None:
        self._device = workspace.own_stat().st_dev
        self._pre = pre
        self._swaps = {} if steps is None else {steps.path(swap): swap.number for swap in steps.swaps}

    def __call__(self, path: bytes) -> int | None:
        number = self._swaps.get(path)
        status = None if number is None else self._pre.stat(b"%d" % number)
        if status is None or not stat.S_ISREG(status.st_mode) or status.st_nlink < 2:
            return None
        if status.st_dev != self._device:
            return None
        return status.st_ino if status.st_ino < _LARGEST_NUMBER else None


class _Replaced:
    """Tells whether a text that took another's place in the upper is still there; *changed* are those not."""

    def __init__(self, upper: HostDir, record: Record) -> None:
        self._upper = upper
        self.changed: set[bytes] = set()
        self._parts: dict[bytes, Identity] = {}
        match record.last("staged"):
            case {"parts": {**parts}}:
                self._parts = {os.fsencode(str(name)): identity_in(one) for name, one in parts.items()}
            case _:
                pass

    def __call__(self, path: bytes, keep: bytes) -> settlement.Identity | None:
        part = self._parts.get(keep)
        if part is None:
            # Records of earlier versions do not tell it from what its user made of it.
            return None
        folder, name = parted(path)
        with Ground(self._upper) as ground:
            directory = ground.find(folder)
            status = None if directory is None else directory.stat(name)
        if status is None or not part.is_untouched(status):
            self.changed.add(path)
            return None
        return settlement.Identity.of(status)


class _Committed:
    """Tells whether something still has the content that was committed, by what the upper had then."""

    def __init__(self, kept: HostDir, operations: Iterable[Operation]) -> None:
        self._kept = kept
        self._names = {
            operation.path: operation.keep
            for operation in operations
            if isinstance(operation, Drop) and operation.expect != WHITEOUT
        }

    def __call__(self, path: bytes, directory: HostDir, name: bytes) -> bool:
        keep = self._names.get(path)
        one = None if keep is None else self._kept.stat(keep)
        other = directory.stat(name)
        if keep is None or one is None or other is None or one.st_mode != other.st_mode:
            return False
        if stat.S_ISLNK(one.st_mode):
            return self._kept.readlink(keep) == directory.readlink(name)
        if not stat.S_ISREG(one.st_mode) or one.st_size != other.st_size:
            return False
        return same_content(self._kept, keep, directory, name)
