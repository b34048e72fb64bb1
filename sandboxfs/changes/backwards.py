"""What does taking a commit back ask of the workspace?

Its steps the other way round: what was put goes, what was replaced or removed comes back out of the record,
what moved moves back. A step whose object somebody changed since is left out, and named.
"""

import os
import stat
from collections.abc import Iterable, Iterator
from functools import partial
from typing import Protocol

from sandboxfs.changes.carrying import contents
from sandboxfs.changes.ground import Ground
from sandboxfs.changes.journal import Redress, Steps, Swap
from sandboxfs.changes.steps import (
    Change,
    Dress,
    Identity,
    Known,
    Move,
    Moved,
    Spot,
    Thing,
    Wishes,
    is_below,
    joined,
    parted,
)
from sandboxfs.layers.hostdir import HostDir

PRE = "pre"
CHANGED = "changed in the workspace since"
MADE = "made in the workspace since"
GONE = "its directory is gone from the workspace"
AGAIN = "changed in the sandbox since"


class Same(Protocol):
    """Whether what is at a name of a directory has the content that was committed at a path."""

    def __call__(self, path: bytes, directory: HostDir, name: bytes) -> bool: ...


class Backwards:
    """Finds the wishes that take *steps* back, but for those around *taken* places.

    *pre* has what was replaced. *left* says what is left out and why, *spent* the numbers of what is not.
    """

    def __init__(
        self, workspace: HostDir, pre: HostDir, steps: Steps, taken: Iterable[bytes], same: Same
    ) -> None:
        self._ground = Ground(workspace)
        self._pre = pre
        self._steps = steps
        self._same = same
        self._taken = tuple(taken)
        self.left: dict[bytes, str] = {}
        self.spent: list[int] = []
        # Files of any size that come back, by where they come.
        self.restored: list[tuple[bytes, os.stat_result]] = []
        with self._ground:
            self._put = {steps.path(swap): swap for swap in steps.swaps if swap.came is None and swap.new}
            moves = [swap for swap in steps.swaps if swap.came is not None]
            self._going = {steps.path(swap) for swap in moves}
            # What was put where a directory had been goes when that comes back.
            self._making_room: dict[bytes, Known | None] = {}
            moves = [swap for swap in moves if self._can_move(swap)]
            self._going = {steps.path(swap) for swap in moves}
            self.moved = Moved({steps.path(swap): self._came_from(swap) for swap in moves})
            made = [self._move(swap) for swap in moves]
            changes = [change for swap in steps.swaps for change in self._changes(swap)]
            dresses = [dress for redress in steps.redresses for dress in self._dress(redress)]
            existing = dict(self._existing())
        self.wishes = Wishes(tuple(changes), tuple(made), tuple(dresses), existing)

    def times(self) -> dict[bytes, tuple[int, int]]:
        """The times that directories had before, where nobody changed them since."""
        found = {}
        with self._ground:
            for place in self._steps.places:
                directory = None if place.made else self._ground.find(place.after)
                if directory is not None and directory.own_stat().st_mtime_ns == place.lasting[1]:
                    found[self.moved(place.after)] = place.times
        return found

    # Moves

    def _came_from(self, swap: Swap) -> bytes:
        number, name = swap.came or (swap.place, swap.name)
        return joined(self._steps.places[number].before, name)

    def _can_move(self, swap: Swap) -> bool:
        if swap.new is None or not swap.new.is_object(self._status(swap)):
            return self._leave(self._steps.path(swap), CHANGED)
        number, name = swap.came or (swap.place, swap.name)
        place = self._steps.places[number]
        # Another directory may be in its place, and goes when it comes back.
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

    def _move(self, swap: Swap) -> Move:
        number, name = swap.came or (swap.place, swap.name)
        place = self._steps.places[number]
        self.spent.append(swap.number)
        replaced = self._making_room.get(joined(place.after, name))
        target = Spot(place.after, place.before, name)
        return Move(self._spot(swap), target, swap.new or Identity(0, 0, 0, 0, 0), replaced)

    # Changes

    def _changes(self, swap: Swap) -> list[Change]:
        path = self._steps.path(swap)
        if swap.came is not None:
            if swap.old is None or swap.number not in self.spent:
                return []
            return [Change(self._spot(swap), None, self._thing(swap, path))]
        if path in self._making_room:
            self.spent.append(swap.number)
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
        self.spent.append(swap.number)
        thing = None if swap.old is None else self._thing(swap, path)
        return [Change(self._spot(swap), known, thing, swap.in_place)]

    def _known(self, swap: Swap, path: bytes) -> Known | None:
        """What is there, if it still is what was put there."""
        status = self._status(swap)
        if swap.new is None or status is None:
            return None
        folder = self._steps.places[swap.place].after
        if not swap.new.is_dir:
            same = swap.new.is_untouched(status) or self._ground.in_it(
                folder, lambda here: self._same(path, here, swap.name)
            )
            return Known(Identity.of(status)) if same else None
        if not swap.new.is_object(status):
            return None
        with self._ground.in_it(folder, lambda here: here.child(swap.name)) as top:
            below = self._below(swap, top, path)
        return None if below is None else Known(Identity.of(status), below)

    def _below(self, swap: Swap, top: HostDir, path: bytes) -> dict[bytes, Identity] | None:
        """What is in a directory that was put there, if it still is that and no more."""
        below: dict[bytes, Identity] = {}
        leaving = [going for going in self._going if is_below(going, path)]
        with Ground(top) as inside:
            for inner, found in contents(top):
                place = joined(path, inner)
                if any(is_below(place, going) for going in leaving):
                    continue
                put = swap.made.get(inner)
                folder, name = parted(inner)
                act = partial(self._same, place, name=name)
                if put is None or not (put.is_untouched(found) or inside.in_it(folder, act)):
                    return None
                below[inner] = Identity.of(found)
        return below if len(below) >= len(swap.made) else None

    def _thing(self, swap: Swap, path: bytes) -> Thing:
        """What comes back out of the record."""
        name = b"%d" % swap.number
        status = self._pre.stat(name)
        if status is None:
            raise FileNotFoundError(name)
        below: dict[bytes, Thing] = {}
        back = joined(self.moved(parted(path)[0]), parted(path)[1])
        self.restored.append((back, status))
        if stat.S_ISDIR(status.st_mode):
            with self._pre.child(name) as top:
                for inner, found in contents(top):
                    below[inner] = Thing(PRE, joined(name, inner), Identity.of(found), found.st_nlink)
                    self.restored.append((joined(back, inner), found))
        return Thing(PRE, name, Identity.of(status), status.st_nlink, below=below)

    def _existing(self) -> Iterator[tuple[tuple[int, int], tuple[bytes, Identity]]]:
        """Files that the record has copies of, and the workspace itself under names that they were given."""
        swaps = [swap for swap in self._steps.swaps if not swap.in_place]
        named: dict[int, tuple[bytes, Identity]] = {}
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
                yield (copy.st_dev, copy.st_ino), (kept[0], Identity.of(status))

    # Attributes

    def _dress(self, redress: Redress) -> list[Dress]:
        path = self._steps.path(redress)
        status = self._status(redress)
        if self._is_taken(path):
            return []
        if status is None or not redress.identity.is_object(status) or status.st_mode != redress.after.mode:
            self._leave(path, CHANGED)
            return []
        spot = self._spot(redress)
        self.spent.append(redress.number)
        if redress.came and path in self._going:
            back = self.moved(path)
            folder, name = parted(back)
            return [Dress(Spot(folder, folder, name), Identity.of(status), redress.before, spot)]
        return [Dress(spot, Identity.of(status), redress.before)]

    def _status(self, step: Swap | Redress) -> os.stat_result | None:
        """What is at the place of *step* now."""
        return self._stat(self._steps.places[step.place].after, step.name)

    def _stat(self, folder: bytes, name: bytes) -> os.stat_result | None:
        if self._ground.find(folder) is None:
            return None
        return self._ground.in_it(folder, lambda here: here.stat(name))

    def _spot(self, step: Swap | Redress) -> Spot:
        place = self._steps.places[step.place]
        return Spot(place.after, self.moved(place.after), step.name)

    def _is_taken(self, path: bytes) -> bool:
        """Whether the sandbox has something again at or below *path*."""
        return any(is_below(taken, path) for taken in self._taken) and not self._leave(path, AGAIN)

    def _leave(self, path: bytes, why: str) -> bool:
        self.left[path] = why
        return False
