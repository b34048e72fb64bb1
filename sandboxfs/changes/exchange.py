"""How do staged things and their targets change places?

One host call each. Afterwards what came out is looked at: only that tells what was really replaced, whatever
happened between looking and acting. The first surprise ends it; taking back is somebody else's part.
"""

import errno
import os
import stat
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import TypeVar

from sandboxfs.changes.carrying import first_difference
from sandboxfs.changes.ground import Ground
from sandboxfs.changes.journal import Place, Redress, Steps, Swap
from sandboxfs.changes.rewriting import rewrite
from sandboxfs.changes.steps import Identity, Known, Surprise, joined
from sandboxfs.layers import replica
from sandboxfs.layers.durable import Syncer
from sandboxfs.layers.hostdir import HostDir

T = TypeVar("T")

CHANGED = "changed in the workspace meanwhile"
DELETED = "deleted in the workspace meanwhile"
MADE = "made in the workspace meanwhile"
GONE = "its directory went away in the workspace meanwhile"

_IN_THE_WAY = {errno.EEXIST, errno.ENOTEMPTY, errno.EISDIR, errno.ENOTDIR}


class Exchange:
    """Carries the steps out on the workspace."""

    def __init__(
        self, ground: Ground, steps: Steps, expected: Mapping[int, Known], done: Callable[[], None]
    ) -> None:
        self._ground = ground
        self._steps = steps
        self._expected = expected
        self._done = done

    # Before anything changes

    def verify(self) -> None:
        """Look at all targets, most closely, as long as their times are their own."""
        vacated = {self._came(swap)[:2] for swap in self._steps.moving()}
        for swap in self._steps.swaps:
            place = self._steps.places[swap.place]
            if place.made or (place.before, swap.name) in vacated:
                continue
            found = self._at(place.before, place, self._steps.path(swap)).stat(swap.name)
            self._check(swap, found)
        for redress in self._steps.redresses:
            place = self._steps.places[redress.place]
            if redress.came:
                continue
            found = self._at(place.before, place, self._steps.path(redress)).stat(redress.name)
            if not redress.identity.is_exactly(found):
                raise Surprise(self._steps.path(redress), DELETED if found is None else CHANGED)

    def _check(self, swap: Swap, found: os.stat_result | None) -> None:
        path = self._steps.path(swap)
        if swap.old is None:
            if found is not None:
                raise Surprise(path, MADE)
        elif not swap.old.is_as_seen(found):
            raise Surprise(path, DELETED if found is None else CHANGED)

    # Changing

    def run(self) -> None:
        """Do every step; `Surprise` on the first that does not find what it expected."""
        for swap in self._steps.moving():
            self._out(swap)
        self._ground.forget()
        for swap in self._steps.swaps:
            self._swap(swap)
            self._done()
        for redress in self._steps.redresses:
            # A directory's new mode might keep us out of it: that comes last of all.
            if not stat.S_ISDIR(redress.identity.mode):
                self._redress(redress)

    def sync(self) -> None:
        """Have all names reach the disk."""
        with Syncer() as syncer:
            for place in self._steps.places:
                directory = self._ground.find(place.after, place.identity.ino)
                if directory is not None:
                    syncer.take(directory.open_for_listing())

    def _came(self, swap: Swap) -> tuple[bytes, bytes, Place]:
        number, name = swap.came or (swap.place, swap.name)
        place = self._steps.places[number]
        return place.before, name, place

    def _out(self, swap: Swap) -> None:
        """Take a directory that moves out of its place; those inside others are taken before them."""
        before, name, place = self._came(swap)
        refuge = self._steps.places[swap.refuge]
        path = joined(before, name)
        there = self._at(refuge.before, refuge, path)
        temporary = self._steps.temporary(swap)
        self._named(path, lambda: self._at(before, place, path).move(name, there, temporary))
        if swap.new is None or not swap.new.is_object(there.stat(temporary)):
            raise Surprise(path, CHANGED)
        # The directory it was in may go next, and is to be kept as it was.
        with suppress(PermissionError):
            self._at(before, place, path).set_own_times(*place.times)

    def _swap(self, swap: Swap) -> None:
        path, temporary = self._steps.path(swap), self._steps.temporary(swap)
        place, refuge = self._steps.places[swap.place], self._steps.places[swap.refuge]
        here = self._at(place.after, place, path)
        there = self._at(refuge.after, refuge, path)
        if swap.old is not None:
            self._check(swap, here.stat(swap.name))
        if swap.in_place:
            rewrite(there, temporary, here, swap.name, swap.old, path)
        elif swap.new is None:
            self._named(path, lambda: here.move(swap.name, there, temporary))
        elif swap.old is None:
            self._named(path, lambda: there.move(temporary, here, swap.name))
        else:
            self._named(path, lambda: there.exchange(temporary, here, swap.name))
        if swap.old is not None and not swap.in_place:
            self._look(swap, there, temporary, path)

    def _look(self, swap: Swap, there: HostDir, temporary: bytes, path: bytes) -> None:
        """See whether what came out is what was expected, and nothing more."""
        if swap.old is None or not swap.old.is_untouched(there.stat(temporary)):
            raise Surprise(path, CHANGED)
        if swap.old.is_dir:
            with there.child(temporary) as top:
                other = first_difference(top, self._expected[swap.number].below, Identity.is_as_seen)
            if other is not None:
                raise Surprise(joined(path, other), CHANGED)

    def _redress(self, redress: Redress) -> None:
        path, place = self._steps.path(redress), self._steps.places[redress.place]
        held = self._named(path, lambda: self._at(place.after, place, path).hold(redress.name))
        try:
            if not redress.identity.is_untouched(os.fstat(held)):
                raise Surprise(path, CHANGED)
            replica.change(held, redress.before, redress.after)
        finally:
            os.close(held)

    # Telling what went wrong

    def _at(self, path: bytes, place: Place, meant: bytes) -> HostDir:
        directory = self._ground.find(path, place.identity.ino)
        if directory is None:
            raise Surprise(meant, GONE)
        return directory

    def _named(self, path: bytes, action: Callable[[], T]) -> T:
        try:
            return action()
        except FileNotFoundError as error:
            raise Surprise(path, DELETED) from error
        except OSError as error:
            if error.errno in _IN_THE_WAY:
                raise Surprise(path, MADE) from error
            raise
