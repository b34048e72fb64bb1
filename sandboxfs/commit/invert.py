"""Inversion: the actions on the workspace and the edits of the upper that take a record back.

The actions are the commit's steps in reverse: an object that was put goes, an object that was replaced or
removed comes back out of the record, a directory that moved moves back. A step whose object was changed since
is left out, and named.

Each edit that was done has an opposite, and the opposites are done in the opposite order. Entries that the
sandbox has changed since stay as they are: the edits refuse them, and an edit that is sure to be refused is
not asked for.

The baseline may have forgotten its entries: it starts empty when a session begins with an empty upper. Where
the workspace has the same object again, or still, the baseline entry is written once more. Where it has
another one, or where there was a conflict before, no entry is written, so that a conflict shows: the old
baseline entry is brought back out of the record, if the baseline has forgotten it.
"""

import os
import stat
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Protocol

from sandboxfs.codec import decode
from sandboxfs.commit.actions import (
    IDENTITY,
    Actions,
    ActionTarget,
    AttributeStep,
    ChangeAttributes,
    ExchangeStep,
    Expected,
    MoveDirectory,
    NewObject,
    ReplaceObject,
    Steps,
)
from sandboxfs.commit.finish import ReviewTarget
from sandboxfs.commit.records import CommitRecord
from sandboxfs.commit.upper_edits import exchanged
from sandboxfs.hostfs.directory import HostDir
from sandboxfs.hostfs.identity import ObjectIdentity
from sandboxfs.hostfs.tree import OpenDirectories, contents
from sandboxfs.paths import MovedPaths, PathSet, is_below, joined, parted
from sandboxfs.upper import edits
from sandboxfs.upper.baseline import LIMIT, Baseline
from sandboxfs.upper.edits import (
    WHITEOUT,
    EditOutcome,
    Operation,
    Prune,
    Rebase,
    Rehide,
    RemoveEntry,
    RestoreEntry,
    Resume,
    UnfollowMove,
    Unhide,
    Whiteout,
    paths_of,
)
from sandboxfs.upper.marks import EITHER_ENCODING

PRE = "pre"
CHANGED = "changed in the workspace since"
MADE = "made in the workspace since"
GONE = "its directory is gone from the workspace"
AGAIN = "changed in the sandbox since"


class ContentComparison(Protocol):
    """Whether the object at a name of a directory has the content that was committed at a path."""

    def __call__(self, path: bytes, directory: HostDir, name: bytes) -> bool: ...


class Inverter:
    """Finds the actions that take *steps* back, but for those around *taken* places and *kept* directories.

    *pre* has the replaced objects. *left* has the paths that are left out and why, *spent* the numbers of the
    steps that are taken back.
    """

    def __init__(
        self,
        workspace: HostDir,
        pre: HostDir,
        steps: Steps,
        taken: Iterable[bytes],
        same: ContentComparison,
        kept: Iterable[bytes] = (),
    ) -> None:
        self._ground = OpenDirectories(workspace)
        self._pre = pre
        self._steps = steps
        self._same = same
        self._taken = PathSet(taken)
        self._kept = PathSet(kept)
        self.left: dict[bytes, str] = {}
        self.spent: set[int] = set()
        # Files of any size that come back, with the path that each comes back to.
        self.restored: list[tuple[bytes, os.stat_result]] = []
        with self._ground:
            self._put = {steps.path(swap): swap for swap in steps.swaps if swap.came is None and swap.new}
            moves = [swap for swap in steps.swaps if swap.came is not None]
            self._going = {steps.path(swap) for swap in moves}
            # An object put in place of a directory goes when that directory comes back.
            self._making_room: dict[bytes, Expected | None] = {}
            moves = [swap for swap in moves if self._can_move(swap)]
            self._going = {steps.path(swap) for swap in moves}
            self.moved = MovedPaths({steps.path(swap): self._came_from(swap) for swap in moves})
            made = [self._move(swap) for swap in moves]
            changes = [change for swap in steps.swaps for change in self._changes(swap)]
            dresses = [dress for redress in steps.redresses for dress in self._dress(redress)]
            existing = dict(self._existing())
        self.actions = Actions(tuple(changes), tuple(made), tuple(dresses), existing)

    def times(self) -> dict[bytes, tuple[int, int]]:
        """The times that directories had before, where they were not changed since."""
        found = {}
        with self._ground:
            for place in self._steps.places:
                directory = None if place.made else self._ground.find(place.after)
                if directory is not None and directory.own_stat().st_mtime_ns == place.lasting[1]:
                    found[self.moved(place.after)] = place.times
        return found

    # Moves

    def _came_from(self, swap: ExchangeStep) -> bytes:
        number, name = swap.came or (swap.place, swap.name)
        return joined(self._steps.places[number].before, name)

    def _can_move(self, swap: ExchangeStep) -> bool:
        if self._is_kept(self._steps.path(swap)) or self._is_kept(self._came_from(swap)):
            return False
        if swap.new is None or not swap.new.is_object(self._status(swap)):
            return self._leave(self._steps.path(swap), CHANGED)
        number, name = swap.came or (swap.place, swap.name)
        place = self._steps.places[number]
        # Another directory may be in its place, and goes when this one comes back.
        there = self._ground.find(place.after, place.identity.ino)
        room = joined(place.after, name)
        if there is None or self._stat(place.after, name) is None or room in self._going:
            return True
        put = self._put.get(room)
        known = None if put is None or self._is_taken(room) else self._known(put, room)
        if known is None:
            return self._leave(self._steps.path(swap), MADE)
        self._making_room[room] = known
        return True

    def _move(self, swap: ExchangeStep) -> MoveDirectory:
        number, name = swap.came or (swap.place, swap.name)
        place = self._steps.places[number]
        self.spent.add(swap.number)
        replaced = self._making_room.get(joined(place.after, name))
        target = ActionTarget(place.after, place.before, name)
        return MoveDirectory(self._spot(swap), target, swap.new or ObjectIdentity(0, 0, 0, 0, 0), replaced)

    # Changes

    def _changes(self, swap: ExchangeStep) -> list[ReplaceObject]:
        path = self._steps.path(swap)
        if swap.came is not None:
            if swap.old is None or swap.number not in self.spent:
                return []
            return [ReplaceObject(self._spot(swap), None, self._thing(swap, path))]
        if path in self._making_room:
            self.spent.add(swap.number)
            return []
        if self._is_taken(path):
            return []
        if self._ground.find(self._steps.places[swap.place].after) is None:
            self._leave(path, GONE)
            return []
        known = self._known(swap, path)
        if known is None and swap.new is not None:
            self._leave(path, CHANGED)
            return []
        if swap.new is None and self._status(swap) is not None and path not in self._going:
            self._leave(path, MADE)
            return []
        self.spent.add(swap.number)
        thing = None if swap.old is None else self._thing(swap, path)
        return [ReplaceObject(self._spot(swap), known, thing, swap.in_place)]

    def _known(self, swap: ExchangeStep, path: bytes) -> Expected | None:
        """The object at *path*, if it still is the one that was put there."""
        status = self._status(swap)
        if swap.new is None or status is None:
            return None
        folder = self._steps.places[swap.place].after
        if not swap.new.is_dir:
            same = swap.new.is_untouched(status) or self._ground.in_it(
                folder, lambda here: self._same(path, here, swap.name)
            )
            return Expected(ObjectIdentity.of(status)) if same else None
        if not swap.new.is_object(status):
            return None
        with self._ground.in_it(folder, lambda here: here.child(swap.name)) as top:
            below = self._below(swap, top, path)
        return None if below is None else Expected(ObjectIdentity.of(status), below)

    def _below(self, swap: ExchangeStep, top: HostDir, path: bytes) -> dict[bytes, ObjectIdentity] | None:
        """The content of a directory that was put at *path*, if it still is that and no more."""
        below: dict[bytes, ObjectIdentity] = {}
        # A move of a directory around this one takes this one along: only moves out of this one are skipped.
        leaving = PathSet(going for going in self._going if is_below(going, path))
        with OpenDirectories(top) as inside:
            for inner, found in contents(top):
                place = joined(path, inner)
                if leaving.hold(place):
                    continue
                put = swap.made.get(inner)
                folder, name = parted(inner)
                act = partial(self._same, place, name=name)
                if put is None or not (put.is_untouched(found) or inside.in_it(folder, act)):
                    return None
                below[inner] = ObjectIdentity.of(found)
        return below if len(below) >= len(swap.made) else None

    def _thing(self, swap: ExchangeStep, path: bytes) -> NewObject:
        """The object that comes back out of the record."""
        name = b"%d" % swap.number
        status = self._pre.stat(name)
        if status is None:
            raise FileNotFoundError(name)
        below: dict[bytes, NewObject] = {}
        back = joined(self.moved(parted(path)[0]), parted(path)[1])
        self.restored.append((back, status))
        if stat.S_ISDIR(status.st_mode):
            with self._pre.child(name) as top:
                for inner, found in contents(top):
                    below[inner] = NewObject(
                        PRE, joined(name, inner), ObjectIdentity.of(found), found.st_nlink
                    )
                    self.restored.append((joined(back, inner), found))
        return NewObject(PRE, name, ObjectIdentity.of(status), status.st_nlink, below=below)

    def _existing(self) -> Iterator[tuple[tuple[int, int], tuple[bytes, ObjectIdentity]]]:
        """Files of which the record has copies, and which the workspace has under names given to them."""
        swaps = [swap for swap in self._steps.swaps if not swap.in_place]
        named: dict[int, tuple[bytes, ObjectIdentity]] = {}
        for swap in swaps:
            path = self._steps.path(swap)
            inside = {joined(path, below): identity for below, identity in swap.made.items()}
            made = {path: swap.new, **inside} if swap.new is not None else {}
            named |= {one.ino: (at, one) for at, one in made.items() if not one.is_dir}
        for swap in swaps:
            kept = None if swap.old is None or swap.number not in self.spent else named.get(swap.old.ino)
            copy = None if kept is None else self._pre.stat(b"%d" % swap.number)
            if kept is None or copy is None:
                continue
            status = self._stat(*parted(kept[0]))
            if status is not None and kept[1].is_untouched(status):
                yield (copy.st_dev, copy.st_ino), (kept[0], ObjectIdentity.of(status))

    # Attributes

    def _dress(self, redress: AttributeStep) -> list[ChangeAttributes]:
        path = self._steps.path(redress)
        status = self._status(redress)
        if self._is_taken(path):
            return []
        mode = redress.after.mode
        # One that locks its owner out is unlocked while it is taken back, or was by an undo that died.
        modes = (mode, mode | 0o700) if stat.S_ISDIR(mode) else (mode,)
        if status is None or not redress.identity.is_object(status) or status.st_mode not in modes:
            self._leave(path, CHANGED)
            return []
        spot = self._spot(redress)
        self.spent.add(redress.number)
        if redress.came and path in self._going:
            back = self.moved(path)
            folder, name = parted(back)
            return [
                ChangeAttributes(
                    ActionTarget(folder, folder, name), ObjectIdentity.of(status), redress.before, spot
                )
            ]
        return [ChangeAttributes(spot, ObjectIdentity.of(status), redress.before)]

    def _status(self, step: ExchangeStep | AttributeStep) -> os.stat_result | None:
        """The status of the object at the place of *step* now."""
        return self._stat(self._steps.places[step.place].after, step.name)

    def _stat(self, folder: bytes, name: bytes) -> os.stat_result | None:
        if self._ground.find(folder) is None:
            return None
        return self._ground.in_it(folder, lambda here: here.stat(name))

    def _spot(self, step: ExchangeStep | AttributeStep) -> ActionTarget:
        place = self._steps.places[step.place]
        return ActionTarget(place.after, self.moved(place.after), step.name)

    def _is_taken(self, path: bytes) -> bool:
        """Whether the sandbox has a new entry at or below *path*, or *path* is kept as it is."""
        return self._is_kept(path) or (self._taken.reach_into(path) and not self._leave(path, AGAIN))

    def _is_kept(self, path: bytes) -> bool:
        return self._kept.hold(path) or self._kept.reach_into(path)

    def _leave(self, path: bytes, why: str) -> bool:
        self.left[path] = why
        return False


NumberOf = Callable[[bytes], int | None]
"""The inode number of the workspace's file at a path, where the file has several names."""
There = Callable[[bytes, bytes], edits.UpperIdentity | None]
"""The identity of the upper's entry at a path, if the entry still is the one put from the record's name."""

# Suffix of the object that the record keeps in place of one that was put.
OLD = b".old"


def reversed_operations(
    done: Sequence[tuple[Operation, EditOutcome]], number_of: NumberOf, there: There
) -> list[tuple[int, Operation]]:
    """The operations that take back those *done*, in order, each with the number of its original."""
    found: list[tuple[int, Operation]] = []
    hiding = _hidden_again(operation for operation, outcome in done if outcome.done)
    cycles = exchanged(operation for operation, _ in done)
    for number in reversed(range(len(done))):
        operation, outcome = done[number]
        if isinstance(operation, edits.FollowMove) and operation.new in cycles and outcome.done:
            # Redirects of other directories refer to this one: only its own mark is to change.
            found.append((number, Rehide(operation.new, opaque=False, redirect=operation.old, whiteouts=())))
            continue
        opposite = _opposite(operation, outcome, number_of, there) if outcome.done else None
        if opposite is not None:
            found.append((number, opposite))
        if isinstance(operation, Whiteout) and outcome.done:
            found += [(number, prune) for prune in _emptied(operation.path, hiding, number)]
    return found


def _hidden_again(operations: Iterable[Operation]) -> set[bytes]:
    """The paths at which an entry comes back that is no directory."""
    return {operation.path for operation in operations if isinstance(operation, RemoveEntry)}


def _emptied(path: bytes, hiding: set[bytes], number: int) -> Iterable[Prune]:
    """Remove the directories that were made for the whiteout at *path*, where one is hidden again."""
    way = []
    while path := parted(path)[0]:
        way.append(path)
    tops = [at for at, above in enumerate(way) if above in hiding]
    for at, above in enumerate(way[: max(tops) + 1] if tops else ()):
        yield Prune(above, b"made-%d-%d" % (number, at))


def _opposite(
    operation: Operation, outcome: EditOutcome, number_of: NumberOf, there: There
) -> Operation | None:
    match operation:
        case RemoveEntry(path, expect, keep, number):
            if expect == WHITEOUT:
                return Whiteout(path, number)
            return RestoreEntry(path, keep, None, number_of(path))
        case Prune(path, keep):
            return RestoreEntry(path, keep)
        case Unhide(path):
            opened = outcome.opened or edits.UnhideOutcome()
            if not opened.opaque and opened.redirect is None:
                return None
            return Rehide(path, opened.opaque, opened.redirect, None)
        case Whiteout(path, number):
            return RemoveEntry(path, WHITEOUT, b"whiteout", number)
        case edits.FollowMove(old, new):
            return UnfollowMove(old, new)
        case edits.SetAttributes(path):
            return edits.SetAttributes(path, back=True)
        case RestoreEntry(path, keep):
            expected = there(path, keep)
            return None if expected is None else RestoreEntry(path, keep + OLD, expected)
        case _:
            # Baseline updates are found when it is known which objects come back.
            return None


def _entries_of(operations: Iterable[Operation]) -> list[bytes]:
    """The paths at which *operations* bring an entry of the sandbox back where none is expected."""
    puts = [one.path for one in operations if isinstance(one, RestoreEntry) and one.expect is None]
    return puts + [one.path for one in operations if isinstance(one, Whiteout)]


def taken_places(upper: HostDir, operations: Sequence[Operation]) -> set[bytes]:
    """Paths where *operations* expect no entry, and the upper has one: no directory, no leaving whiteout."""
    taken = set()
    going = {one.path for one in operations if isinstance(one, RemoveEntry) and one.expect == WHITEOUT}
    with OpenDirectories(upper) as ground:
        for path in _entries_of(operations):
            folder, name = parted(path)
            directory = ground.find(folder)
            if directory is None:
                continue
            status = ground.in_it(folder, partial(HostDir.stat, name=name))
            if status is None or stat.S_ISDIR(status.st_mode):
                continue
            if path not in going or not EITHER_ENCODING.covers(directory, name, status):
                taken.add(path)
    return taken


class BaselineUpdates:
    """Finds the baseline entries to write; those at and below *exchanged* changed places with one another."""

    def __init__(self, site: ReviewTarget, record: CommitRecord, exchanged: Iterable[bytes]) -> None:
        self._site = site
        self._baseline = None if site.baseline is None else Baseline.load(site.baseline)
        self._exchanged = PathSet(exchanged)
        self._staged = record.last("staged")
        match self._staged:
            case {"conflicts": [*conflicts]}:
                self._conflicts = {os.fsencode(path) for path in conflicts if isinstance(path, str)}
            case _:
                self._conflicts = set()

    def after_commit(
        self,
        rebased: Iterable[Rebase],
        operations: Sequence[Operation],
        restored: Iterable[tuple[bytes, os.stat_result]],
        moved: MovedPaths,
    ) -> list[Rebase]:
        """The entries to write after *operations*, with *restored* back; *moved* maps paths to those of then.

        Paths that the commit itself had *rebased* get the baseline of before.
        """
        # The path in the view by that in the workspace.
        wanted = {moved(one.lower): one.path for one in rebased}
        for operation in operations:
            if isinstance(operation, RestoreEntry | Whiteout) and self._is_lost(operation.path):
                wanted[moved(operation.path)] = operation.path
        # A directory that came to a path made the baseline forget the entries there.
        came = PathSet(operation.new for operation in operations if isinstance(operation, UnfollowMove))
        for path, status in restored:
            # A file too large for a digest is recognised by its identity alone, and that is a new one.
            large = stat.S_ISREG(status.st_mode) and status.st_size > LIMIT
            if large or self._is_lost(path) or came.hold(path):
                wanted.setdefault(path, path)
        return [
            Rebase(path, lower, own=True)
            for lower, path in wanted.items()
            if path not in self._conflicts and lower not in self._conflicts
        ]

    def after_conflicts(self, back: Iterable[Operation], moved: MovedPaths) -> list[Resume]:
        """The baseline entries of conflicts that come *back*, where the baseline forgot them."""
        match self._staged:
            case {"starts": [*starts]}:
                places = {path for operation in back for path in paths_of(operation)}
                return [one for one in map(partial(_resumed, moved), starts) if one and one.path in places]
            case _:
                return []

    def after_discard(self, left: Iterable[bytes]) -> list[Rebase]:
        """The entries to write when dropped changes come back, but for those at and below *left*."""
        match self._staged:
            case {"seen": [*seen]}:
                places = PathSet(left)
                return [rebase for rebase in self._still_there(seen) if not places.hold(rebase.path)]
            case _:
                return []

    def _still_there(self, seen: Iterable[object]) -> Iterator[Rebase]:
        with OpenDirectories(self._site.workspace) as ground:
            for one in seen:
                match one:
                    case [str(path), str(lower), described]:
                        place = os.fsencode(lower)
                        folder, name = parted(place)
                        directory = ground.find(folder) if self._is_lost(place) else None
                        status = None if directory is None else directory.stat(name or b".")
                        if decode(IDENTITY, described).is_untouched(status):
                            yield Rebase(os.fsencode(path), place, own=True)
                    case _:
                        continue

    def _is_lost(self, path: bytes) -> bool:
        """Whether the baseline has no entry for *path* any more, or one for an object exchanged with it."""
        if self._baseline is None:
            return False
        known = self._baseline.get(path) is not None or self._baseline.is_aside(path)
        return self._exchanged.hold(path) or not known


def _resumed(moved: MovedPaths, described: object) -> Resume | None:
    match described:
        case [str(path), str(lower), str(keep)]:
            return Resume(os.fsencode(path), moved(os.fsencode(lower)), os.fsencode(keep))
        case _:
            return None
