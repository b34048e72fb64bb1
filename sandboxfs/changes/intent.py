"""Which steps do wishes come to?

Every directory in which names change becomes a place, with its identity and times; every wish becomes a step
with a temporary name of its own. Nothing is changed here: what comes out is written down first.
"""

import os
import secrets
from collections.abc import Callable, Iterable
from dataclasses import replace

from sandboxfs.changes.ground import Ground
from sandboxfs.changes.journal import Place, Redress, Steps, Swap
from sandboxfs.changes.steps import (
    Change,
    Dress,
    Identity,
    Known,
    Move,
    Moved,
    Spot,
    Surprise,
    Thing,
    Wishes,
    joined,
    parted,
)
from sandboxfs.layers import replica
from sandboxfs.layers.temporary import temporary_name

GONE = "its directory is gone from the workspace"

Times = Callable[[bytes], tuple[int, int] | None]
"""The access and modification times that the directory at a path gets, None for those it has."""


class Intent:
    """Numbers places and steps. *steps* is what is to be done, *things* what is to be made, by step."""

    def __init__(self, ground: Ground, wishes: Wishes, times: Times) -> None:
        self._ground = ground
        self._times = times
        self._tag = secrets.token_hex(4).encode()
        self._places: list[Place] = []
        self._numbers: dict[tuple[bytes | None, bytes], int] = {}
        self._named: set[int] = set()
        self._count = 0
        self.things: dict[int, Thing] = {}
        self.expected: dict[int, Known] = {}
        # Directories that are made, by where they will be: their place until then.
        self._made: dict[bytes, bytes] = {}
        self._moved = Moved({move.source.path_now: move.target.path for move in wishes.moves})
        swaps = self._changes(wishes.changes) + [self._move(move) for move in wishes.moves]
        redresses = [self._redress(dress) for dress in wishes.dresses]
        self._set_times()
        swaps.sort(key=self._order)
        self.steps = Steps(self._tag, tuple(self._places), tuple(swaps), tuple(redresses))

    def _order(self, swap: Swap) -> tuple[bool, list[bytes]]:
        """From the top down, so that directories are there before what goes into them; removals last."""
        path = joined(self._places[swap.place].after, swap.name)
        return swap.new is None and swap.number not in self.things, path.split(b"/")

    # Steps

    def _changes(self, changes: Iterable[Change]) -> list[Swap]:
        # Those that make directories first: others may go into them.
        ordered = sorted(changes, key=lambda change: not (change.new and change.new.identity.is_dir))
        return [self._change(change) for change in ordered]

    def _change(self, change: Change) -> Swap:
        number = self._next()
        place = self._place(change.spot)
        if not (change.old and change.new):
            self._named.add(place)
        if change.new is not None:
            self.things[number] = change.new
            self._note_made(number, place, change.spot, change.new)
        if change.old is not None:
            self.expected[number] = change.old
        old = None if change.old is None else change.old.identity
        return Swap(number, place, change.spot.name, place, old, in_place=change.in_place)

    def _note_made(self, number: int, place: int, spot: Spot, thing: Thing) -> None:
        if not thing.identity.is_dir:
            return
        staged = joined(self._places[place].before, temporary_name(self._tag, number))
        self._made[spot.path] = staged
        for below, inner in thing.below.items():
            if inner.identity.is_dir:
                self._made[joined(spot.path, below)] = joined(staged, below)

    def _move(self, move: Move) -> Swap:
        number = self._next()
        source, target = self._place(move.source), self._place(move.target)
        self._named |= {source, target}
        if move.replaced is not None:
            self.expected[number] = move.replaced
        return Swap(
            number,
            target,
            move.target.name,
            self._refuge(move),
            None if move.replaced is None else move.replaced.identity,
            move.identity,
            came=(source, move.source.name),
        )

    def _redress(self, dress: Dress) -> Redress:
        place, now = self._place(dress.spot), dress.came or dress.spot
        here = self._ground.find(now.before)
        status = None if here is None else here.stat(now.name)
        as_seen = dress.identity.is_exactly(status) and dress.identity.mode == (status and status.st_mode)
        if here is None or status is None or not as_seen:
            raise Surprise(dress.spot.path, "changed in the workspace meanwhile")
        before = replica.attributes_at(here, now.name, status, replica.of_the_sandbox)
        came = dress.came is not None
        identity = Identity.of(status)
        return Redress(self._next(), place, dress.spot.name, identity, before, dress.attributes, came)

    def _next(self) -> int:
        self._count += 1
        return self._count

    # Places

    def _place(self, spot: Spot) -> int:
        return self._numbered(spot.before, spot.after)

    def _numbered(self, before: bytes, after: bytes) -> int:
        key = None if after in self._made else before, after
        number = self._numbers.get(key)
        if number is None:
            number = self._numbers[key] = len(self._places)
            self._places.append(self._found(before, after))
        return number

    def _found(self, before: bytes, after: bytes) -> Place:
        if after in self._made:
            # It is not there yet; what it becomes is known when it is staged.
            return Place(self._made[after], after, Identity(0, 0, 0, 0, 0), (0, 0), made=True)
        directory = self._ground.find(before)
        if directory is None:
            raise Surprise(after, GONE)
        status = directory.own_stat()
        return Place(before, after, Identity.of(status), (status.st_atime_ns, status.st_mtime_ns))

    def _refuge(self, move: Move) -> int:
        """The topmost directory on the filesystem of what moves: that one is neither moved nor removed."""
        before = move.source.before
        device = self._device(before)
        while before and self._device(parted(before)[0]) == device:
            before = parted(before)[0]
        return self._numbered(before, self._moved(before))

    def _device(self, path: bytes) -> int:
        directory = self._ground.find(path)
        if directory is None:
            raise Surprise(path, GONE)
        return directory.own_stat().st_dev

    def _set_times(self) -> None:
        """Directories whose names change get the times that were asked for."""
        for number in self._named:
            place = self._places[number]
            final = self._times(place.after)
            if final is not None:
                self._places[number] = replace(place, final=final)


def needs_unlocking(place: Place) -> bool:
    """Whether the directory keeps its owner, who is this user, from changing names in it."""
    return os.geteuid() != 0 and not place.made and place.identity.mode & 0o700 != 0o700
