"""How does what a record did to the upper come back?

Each operation that was done has an opposite, and they are done in the opposite order. What the sandbox has
changed since stays as it is: the operations say so by refusing, and what can be seen before is not asked for.
"""

import stat
from collections.abc import Callable, Iterable, Sequence
from functools import partial

from sandboxfs.changes.ground import Ground
from sandboxfs.changes.steps import is_below, parted
from sandboxfs.layers import settlement
from sandboxfs.layers.hostdir import HostDir
from sandboxfs.layers.settlement import (
    WHITEOUT,
    Close,
    Drop,
    Open,
    Operation,
    Outcome,
    Prune,
    Put,
    Unmoved,
    Whiteout,
)

NumberOf = Callable[[bytes], int | None]
"""The number of the file that the workspace has at a path, where it has several names."""
There = Callable[[bytes, bytes], settlement.Identity | None]
"""What the upper has at a path, if it still is what was put there from where the record kept it."""

# What the record keeps instead of something that was put.
OLD = b".old"


def reversed_operations(
    done: Sequence[tuple[Operation, Outcome]], number_of: NumberOf, there: There
) -> list[tuple[int, Operation]]:
    """The operations that take back what was *done*, as they are to be done, each with the other's number."""
    found: list[tuple[int, Operation]] = []
    hiding = _hidden_again(operation for operation, outcome in done if outcome.done)
    cycles = exchanged(operation for operation, _ in done)
    for number in reversed(range(len(done))):
        operation, outcome = done[number]
        if isinstance(operation, settlement.Moved) and operation.new in cycles and outcome.done:
            # Others lead to where this one leads away from: only its own mark is to change.
            found.append((number, Close(operation.new, opaque=False, redirect=operation.old, whiteouts=())))
            continue
        opposite = _opposite(operation, outcome, number_of, there) if outcome.done else None
        if opposite is not None:
            found.append((number, opposite))
        if isinstance(operation, Whiteout) and outcome.done:
            found += [(number, prune) for prune in _emptied(operation.path, hiding, number)]
    return found


def _hidden_again(operations: Iterable[Operation]) -> set[bytes]:
    """The places at which something comes back that is no directory."""
    return {operation.path for operation in operations if isinstance(operation, Drop)}


def _emptied(path: bytes, hiding: set[bytes], number: int) -> Iterable[Prune]:
    """Take out the directories that were made for the whiteout at *path*, where one is hidden again."""
    way = []
    while path := parted(path)[0]:
        way.append(path)
    tops = [at for at, above in enumerate(way) if above in hiding]
    for at, above in enumerate(way[: max(tops) + 1] if tops else ()):
        yield Prune(above, b"made-%d-%d" % (number, at))


def exchanged(operations: Iterable[Operation]) -> set[bytes]:
    """The directories that moved in a circle, or into one that took their place."""
    moves = [operation for operation in operations if isinstance(operation, settlement.Moved)]
    found: set[bytes] = set()
    for number, move in enumerate(moves):
        for later in moves[number + 1 :]:
            into = is_below(move.old, later.new) and is_below(move.new, later.new)
            if later.old == move.new or into:
                found |= {move.new, later.new}
    return found


def _opposite(operation: Operation, outcome: Outcome, number_of: NumberOf, there: There) -> Operation | None:
    match operation:
        case Drop(path, expect, keep, number):
            if expect == WHITEOUT:
                return Whiteout(path, number)
            return Put(path, keep, None, number_of(path))
        case Prune(path, keep):
            return Put(path, keep)
        case Open(path):
            opened = outcome.opened or settlement.Opened()
            if not opened.opaque and opened.redirect is None:
                return None
            return Close(path, opened.opaque, opened.redirect, None)
        case Whiteout(path, number):
            return Drop(path, WHITEOUT, b"whiteout", number)
        case settlement.Moved(old, new):
            return Unmoved(old, new)
        case settlement.Redress(path):
            return settlement.Redress(path, back=True)
        case Put(path, keep):
            expected = there(path, keep)
            return None if expected is None else Put(path, keep + OLD, expected)
        case _:
            # What the baseline has to note is found out when it is known what comes back.
            return None


def entries_of(operations: Iterable[Operation]) -> list[bytes]:
    """The paths at which something of the sandbox's comes back by *operations* where nothing is expected."""
    puts = [one.path for one in operations if isinstance(one, Put) and one.expect is None]
    return puts + [one.path for one in operations if isinstance(one, Whiteout)]


def taken_places(upper: HostDir, paths: Iterable[bytes]) -> set[bytes]:
    """Those of *paths* at which the upper has something, a directory excepted."""
    taken = set()
    with Ground(upper) as ground:
        for path in paths:
            folder, name = parted(path)
            directory = ground.find(folder)
            if directory is None:
                continue
            status = ground.in_it(folder, partial(HostDir.stat, name=name))
            if status is not None and not stat.S_ISDIR(status.st_mode):
                taken.add(path)
    return taken
