"""Undo: a commit or a discard is taken back.

The workspace comes first, as in a commit: all that can be taken back, or nothing. Then the entries that left
the upper come back to it. An object changed since, in the workspace or the sandbox, is left alone and named.
"""

import os
import stat
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace

from sandboxfs.codec import decode
from sandboxfs.commit.actions import IDENTITY, Actions, Steps
from sandboxfs.commit.apply import give_up, no_progress
from sandboxfs.commit.finish import (
    ReviewOutcome,
    ReviewTarget,
    edit_plan,
    finish,
    outcomes_of,
    planned,
    steps_of,
    undone_so_far,
)
from sandboxfs.commit.invert import (
    AGAIN,
    CHANGED,
    PRE,
    BaselineUpdates,
    Inverter,
    reversed_operations,
    taken_places,
)
from sandboxfs.commit.records import UNDO, CommitRecord, RecordSummary
from sandboxfs.commit.transaction import Progress, Transaction
from sandboxfs.commit.upper_edits import SEEN, exchanged
from sandboxfs.hostfs.copy import same_content
from sandboxfs.hostfs.directory import HostDir
from sandboxfs.hostfs.identity import ObjectIdentity
from sandboxfs.hostfs.tree import OpenDirectories
from sandboxfs.paths import MovedPaths, PathSet, joined, parted, quoted
from sandboxfs.review.git_files import INDEX_NAME, LARGEST_INDEX, same_entries
from sandboxfs.review.repositories import Repositories, changed_since, in_tree, objects_at
from sandboxfs.upper import edits
from sandboxfs.upper.edits import (
    WHITEOUT,
    EditOutcome,
    Operation,
    Rebase,
    RemoveEntry,
    RestoreEntry,
    Resume,
    paths_of,
)


class KnownFiles:
    """Distinguishes files of the workspace that need no further look from others.

    Files of *own* steps are judged one by one; those of *later* steps are known if they are as they were put.
    """

    def __init__(self, own: Steps, later: Iterable[Steps]) -> None:
        self._own = {path for path, _ in _put(own)}
        self.objects = objects_at(path for path, put in _put(own) if put is not None and not put.is_dir)
        self._later: dict[bytes, list[ObjectIdentity]] = defaultdict(list)
        for path, identity in (one for steps in later for one in _put(steps)):
            if identity is not None:
                self._later[path].append(identity)

    def __call__(self, path: bytes, status: os.stat_result) -> bool:
        return path in self._own or any(put.is_untouched(status) for put in self._later.get(path, ()))


def _put(steps: Steps) -> Iterator[tuple[bytes, ObjectIdentity | None]]:
    """The identity that *steps* put at each path; None where an object was removed."""
    for swap in steps.swaps:
        path = steps.path(swap)
        yield path, swap.new
        for below, identity in swap.made.items():
            yield joined(path, below), identity
    for redress in steps.redresses:
        yield steps.path(redress), redress.identity


_LARGEST_NUMBER = 1 << 56


@dataclass(frozen=True)
class UndoPlan:
    """The plan of an undo; *left* are the paths left alone, and why. *changes* are the others.

    *spent* are the numbers of the steps, *undone* those of the operations that are taken back.
    """

    record: CommitRecord
    changes: tuple[tuple[bytes, str], ...] = ()
    left: tuple[tuple[bytes, str], ...] = ()
    actions: Actions = field(default_factory=Actions)
    times: Mapping[bytes, tuple[int, int]] = field(default_factory=dict)
    operations: tuple[Operation, ...] = ()
    spent: tuple[int, ...] = ()
    undone: tuple[int, ...] = ()
    has_steps: bool = False

    @property
    def is_empty(self) -> bool:
        return not len(self.actions) and not self.operations


def plan_undo(site: ReviewTarget, record: CommitRecord) -> UndoPlan:
    """Find the steps and operations of *record* that can be taken back."""
    _, operations = planned(record)
    spent_before, undone_before = undone_so_far(record)
    outcomes = outcomes_of(record, len(operations))
    for number in undone_before:
        outcomes[number] = EditOutcome(done=False)
    steps = _without(steps_of(record), spent_before)
    with record.folder(b"pre") as pre, record.folder(b"upper") as kept:
        numbers = _Numbers(site.workspace, pre, steps)
        done = list(zip(operations, outcomes, strict=True))
        replaced = _Replaced(site.upper, record)
        back = reversed_operations(done, numbers, replaced)
        taken = taken_places(site.upper, [operation for _, operation in back])
        left = dict.fromkeys(sorted(taken | replaced.changed), AGAIN)
        plan, restored, moved = UndoPlan(record), [], MovedPaths({})
        if steps is not None:
            around = taken | replaced.changed
            committed = _Committed(kept, operations)
            backwards, repositories = _backwards(site, record, pre, steps, around, committed)
            inside = PathSet(repositories)
            left = {path: why for path, why in (left | backwards.left).items() if not inside.hold(path)}
            left |= repositories
            restored, moved = backwards.restored, backwards.moved
            plan = UndoPlan(
                record,
                actions=backwards.actions,
                times=backwards.times(),
                spent=tuple(sorted(backwards.spent)),
                has_steps=True,
            )
        leaving = PathSet(left)
        back = [(number, operation) for number, operation in back if not _is_left(operation, leaving)]
        rebasing = BaselineUpdates(site, record, exchanged(operations))
        rebased = [one for one, outcome in done if isinstance(one, Rebase) and outcome.done]
        rebased = [one for one in rebased if not _is_left(one, leaving)]
        puts = [one for one in operations if isinstance(one, RestoreEntry)]
        restarts = {one.path: one.keep + SEEN for one in puts if kept.stat(one.keep + SEEN) is not None}
        lowers = {one.path: moved(one.lower) for one in rebased}
        resumes = [
            Resume(one.path, lowers[one.path], restarts[one.path])
            for _, one in back
            if isinstance(one, RestoreEntry) and one.path in restarts and one.path in lowers
        ]
        resumes += rebasing.after_conflicts([one for _, one in back], moved)
        rebased = [one for one in rebased if one.path not in restarts]
        rebases = rebasing.after_commit(rebased, [one for _, one in back], restored, moved)
        if steps is None:
            rebases = rebasing.after_discard(left)
    return replace(
        plan,
        changes=tuple(change for change in record.about.changes if not leaving.hold(change[0])),
        left=tuple(left.items()),
        operations=(*(operation for _, operation in back), *rebases, *resumes),
        undone=tuple(number for number, _ in back),
    )


def _backwards(
    site: ReviewTarget,
    record: CommitRecord,
    pre: HostDir,
    steps: Steps,
    around: set[bytes],
    same: "_Committed",
) -> tuple[Inverter, dict[bytes, str]]:
    """Find the actions that take *steps* back, and the repositories that are left as a whole, and why."""
    paths = [*map(steps.path, steps.swaps), *map(steps.path, steps.redresses)]
    repositories = Repositories(paths, in_tree(site.workspace))
    units = {unit for unit in map(repositories.of, paths) if unit is not None}
    kept = {unit: _as_a_whole(path, CHANGED) for unit, path in _moved_on(site, record, steps, units)}
    while True:
        backwards = Inverter(site.workspace, pre, steps, around, same, kept)
        found: dict[bytes, str] = {}
        for path, why in (dict.fromkeys(sorted(around), AGAIN) | backwards.left).items():
            unit = repositories.of(path)
            if unit is not None and unit not in kept:
                found.setdefault(unit, _as_a_whole(path, why))
        if not found:
            return backwards, kept
        kept |= found


def _as_a_whole(path: bytes, why: str) -> str:
    return f"{quoted(path)} {why}; a repository is taken back as a whole or not at all"


def _moved_on(
    site: ReviewTarget, record: CommitRecord, steps: Steps, units: Iterable[bytes]
) -> Iterator[tuple[bytes, bytes]]:
    """The *units* in which something that *record* did not touch changed since, and the path of that change.

    A branch that was made since may need the objects that an undo would remove.
    """
    if not units:
        return
    later = [steps_of(one) for one in site.records.each() if one.number > record.number]
    known = KnownFiles(steps, [one for one in later if one is not None])
    for unit in sorted(units):
        changed = changed_since(site.workspace, unit, record.began_ns, known, known.objects)
        if changed is not None:
            yield unit, changed


@contextmanager
def entered(site: ReviewTarget, record: CommitRecord) -> Iterator[None]:
    """Let the owner enter the directories that *record* locked, while it is taken back.

    A commit gives a directory of the workspace the mode that a program gave it in the view, 0 too. What still
    is unlocked at the end is locked again.
    """
    steps = steps_of(record)
    given = {} if steps is None else {steps.path(one): one.after.mode for one in steps.redresses}
    with ExitStack() as locking:
        for path, mode in sorted(given.items()):
            if stat.S_ISDIR(mode) and mode & 0o700 != 0o700:
                _unlock(site.workspace, b"" if path == b"." else path, mode, locking)
        yield


def _unlock(workspace: HostDir, path: bytes, mode: int, locking: ExitStack) -> None:
    try:
        directory = locking.enter_context(workspace.descend(path))
        if directory.own_stat().st_mode != mode:
            return
        directory.chmod_own(mode | 0o700)
    except OSError:
        # Not there, or not ours any more: what was planned says so.
        return
    locking.callback(_lock, directory, mode)


def _lock(directory: HostDir, mode: int) -> None:
    if directory.own_stat().st_mode == mode | 0o700:
        directory.chmod_own(mode)


def undo(
    site: ReviewTarget,
    plan: UndoPlan,
    *,
    progress: Progress = no_progress,
    between: Callable[[], None] = lambda: None,
) -> ReviewOutcome:
    """Carry out *plan*; on `ConcurrentChange` or OSError nothing is changed."""
    original = plan.record
    record = site.records.new(RecordSummary.now(UNDO, plan.changes, of=original.number))
    more: dict[str, object] = {
        "spent": list(plan.spent),
        "undone": list(plan.undone),
        "left": bool(plan.left),
    } | edit_plan(original.number, plan.operations)
    if not plan.has_steps:
        with record:
            record.write("staged", more)
            return finish(site, record)
    with original.folder(b"pre") as pre:
        transaction = Transaction(site.workspace, record, {PRE: pre}, adopt=True, progress=progress)
        try:
            transaction.prepare(plan.actions, plan.times.get)
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


def _is_left(operation: Operation, left: PathSet) -> bool:
    """Whether *operation* is about a path that is left alone."""
    paths = (operation.path,) if isinstance(operation, Rebase) else paths_of(operation)
    return any(map(left.hold, paths))


class _Numbers:
    """The inode numbers of files with several names that come back into the workspace, by path."""

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
    """Checks that a text put into the upper is still there; *changed* has the paths where it is not."""

    def __init__(self, upper: HostDir, record: CommitRecord) -> None:
        self._upper = upper
        self.changed: set[bytes] = set()
        self._parts: dict[bytes, ObjectIdentity] = {}
        match record.last("staged"):
            case {"parts": {**parts}}:
                self._parts = {os.fsencode(str(name)): decode(IDENTITY, one) for name, one in parts.items()}
            case _:
                pass

    def __call__(self, path: bytes, keep: bytes) -> edits.UpperIdentity | None:
        part = self._parts.get(keep)
        if part is None:
            # Records of earlier versions cannot tell the put text from a later edit.
            return None
        folder, name = parted(path)
        with OpenDirectories(self._upper) as ground:
            directory = ground.find(folder)
            status = None if directory is None else directory.stat(name)
        if status is None or not part.is_untouched(status):
            self.changed.add(path)
            return None
        return edits.UpperIdentity.of(status)


class _Committed:
    """Checks that an object still has the committed content, against the copy kept from the upper."""

    def __init__(self, kept: HostDir, operations: Iterable[Operation]) -> None:
        self._kept = kept
        self._names = {
            operation.path: operation.keep
            for operation in operations
            if isinstance(operation, RemoveEntry) and operation.expect != WHITEOUT
        }

    def __call__(self, path: bytes, directory: HostDir, name: bytes) -> bool:
        keep = self._names.get(path)
        one = None if keep is None else self._kept.stat(keep)
        other = directory.stat(name)
        if keep is None or one is None or other is None or one.st_mode != other.st_mode:
            return False
        if stat.S_ISLNK(one.st_mode):
            return self._kept.readlink(keep) == directory.readlink(name)
        if not stat.S_ISREG(one.st_mode):
            return False
        if one.st_size == other.st_size and same_content(self._kept, keep, directory, name):
            return True
        small = max(one.st_size, other.st_size) <= LARGEST_INDEX
        return name == INDEX_NAME and small and same_entries(self._kept.read(keep), directory.read(name))
