"""Exchange: staged objects and their targets change places; completion keeps what was replaced.

The exchange of one name is one host call. Afterwards the object that came out is examined: only this tells
which object was really replaced, whatever happened between the check and the call. The first concurrent
change ends the exchange; a rollback takes it back.

Completion moves replaced objects to the record and gives directories their attributes and times. No step of
completion depends on a decision, so another process may do it, and doing it twice gives the same result. Only
the record may have no room for replaced objects. An object that must be copied there stays in the workspace
too until all of them are kept; until then a rollback is possible.
"""

import errno
import os
import stat
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import TypeVar

from sandboxfs.commit.actions import AttributeStep, ExchangeStep, Expected, Steps, TargetDirectory
from sandboxfs.commit.records import CommitRecord
from sandboxfs.commit.stage import needs_unlocking
from sandboxfs.hostfs import copy
from sandboxfs.hostfs.copy import rewrite
from sandboxfs.hostfs.directory import HostDir
from sandboxfs.hostfs.durable import Syncer, sync_directory
from sandboxfs.hostfs.identity import ConcurrentChange, ObjectIdentity
from sandboxfs.hostfs.tree import OpenDirectories, brought, first_difference, remove_copy
from sandboxfs.paths import joined


class Completion:
    """Completes the steps of an applied transaction."""

    def __init__(self, ground: OpenDirectories, steps: Steps, record: CommitRecord) -> None:
        self._ground = ground
        self._steps = steps
        self._record = record

    def run(self) -> None:
        """Complete all steps; after a failure that unsets `is_applied`, the steps are to be taken back."""
        with self._record.folder(b"pre") as pre:
            try:
                left = [swap for swap in self._steps.swaps if self._keep(swap, pre)]
                sync_directory(pre)
            except (OSError, ConcurrentChange):
                self._turn_round(pre)
                raise
        for swap in left:
            there = self._refuge(swap)
            if there is not None:
                there.remove_tree(self._steps.temporary(swap))
        self._settle_places()
        # The deepest first: a directory's final mode may deny access to those below it.
        directories = [one for one in self._steps.redresses if stat.S_ISDIR(one.identity.mode)]
        for redress in sorted(directories, key=self._depth, reverse=True):
            self._redress(redress)

    def _keep(self, swap: ExchangeStep, pre: HostDir) -> bool:
        """Move the replaced object to the record; whether anything is left under the temporary name."""
        there = self._found(swap)
        if there is None or swap.in_place:
            return there is not None
        try:
            return brought(there, self._steps.temporary(swap), pre, b"%d" % swap.number)
        except copy.ChangedWhileCopied as error:
            raise ConcurrentChange(self._steps.path(swap), "changed in the workspace meanwhile") from error

    def _turn_round(self, pre: HostDir) -> None:
        """Mark the steps to be taken back, if all replaced objects are still whole."""
        found = [swap for swap in self._steps.swaps if not swap.in_place and self._found(swap) is not None]
        if all(pre.stat(b"%d" % swap.number) is not None for swap in found):
            # Everything is kept, and the objects that are left may have been removed in part.
            return
        for swap in found:
            remove_copy(pre, b"%d" % swap.number)
        # Before anything goes back: from then on no process may complete the transaction.
        self._record.write("applied", value=False)

    def _found(self, swap: ExchangeStep) -> HostDir | None:
        """The directory that has the object replaced by *swap* under its temporary name, if there is one."""
        there = None if swap.old is None else self._refuge(swap)
        return None if there is None or there.stat(self._steps.temporary(swap)) is None else there

    def _refuge(self, swap: ExchangeStep) -> HostDir | None:
        refuge = self._steps.places[swap.refuge]
        return self._ground.find(refuge.after, refuge.identity.ino)

    def _settle_places(self) -> None:
        with Syncer() as syncer:
            # The deepest first, because the mode of a directory may deny access to those in it.
            for place in sorted(self._steps.places, key=lambda place: place.after.count(b"/"), reverse=True):
                directory = self._ground.find(place.after, place.identity.ino)
                if directory is not None:
                    syncer.take(directory.open_for_listing())
                    settle_place(place, directory, place.lasting)

    def _depth(self, redress: AttributeStep) -> int:
        path = self._steps.path(redress)
        return -1 if path == b"." else path.count(b"/")

    def _redress(self, redress: AttributeStep) -> None:
        place = self._steps.places[redress.place]
        here = self._ground.find(place.after, place.identity.ino)
        status = None if here is None else here.stat(redress.name)
        if here is None or status is None or not redress.identity.is_object(status):
            return
        if status.st_mode not in (redress.before.mode, redress.after.mode):
            # Somebody else changed the mode.
            return
        held = here.hold(redress.name)
        try:
            copy.change(held, redress.before, redress.after)
        finally:
            os.close(held)


T = TypeVar("T")

CHANGED = "changed in the workspace meanwhile"
DELETED = "deleted in the workspace meanwhile"
MADE = "made in the workspace meanwhile"
GONE = "its directory went away in the workspace meanwhile"

_IN_THE_WAY = {errno.EEXIST, errno.ENOTEMPTY, errno.EISDIR, errno.ENOTDIR}


class Exchange:
    """Carries the steps out on the workspace."""

    def __init__(
        self,
        ground: OpenDirectories,
        steps: Steps,
        expected: Mapping[int, Expected],
        done: Callable[[], None],
    ) -> None:
        self._ground = ground
        self._steps = steps
        self._expected = expected
        self._done = done

    # Before anything changes

    def verify(self) -> None:
        """Check all targets, most strictly, while this transaction has not yet touched their times."""
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
                raise ConcurrentChange(self._steps.path(redress), DELETED if found is None else CHANGED)

    def _check(self, swap: ExchangeStep, found: os.stat_result | None) -> None:
        path = self._steps.path(swap)
        if swap.old is None:
            if found is not None:
                raise ConcurrentChange(path, MADE)
        elif not swap.old.is_as_seen(found):
            raise ConcurrentChange(path, DELETED if found is None else CHANGED)

    # Changing

    def run(self) -> None:
        """Do every step; `ConcurrentChange` on the first that does not find the expected object."""
        for swap in self._steps.moving():
            self._out(swap)
        self._ground.forget()
        for swap in self._steps.swaps:
            self._swap(swap)
            self._done()
        for redress in self._steps.redresses:
            # A directory's new mode might deny access to it: directories get their modes last of all.
            if not stat.S_ISDIR(redress.identity.mode):
                self._redress(redress)

    def sync(self) -> None:
        """Sync all changed names to the disk."""
        with Syncer() as syncer:
            for place in self._steps.places:
                directory = self._ground.find(place.after, place.identity.ino)
                if directory is not None:
                    syncer.take(directory.open_for_listing())

    def _came(self, swap: ExchangeStep) -> tuple[bytes, bytes, TargetDirectory]:
        number, name = swap.came or (swap.place, swap.name)
        place = self._steps.places[number]
        return place.before, name, place

    def _out(self, swap: ExchangeStep) -> None:
        """Move a directory out of its place; directories inside others are moved before those."""
        before, name, place = self._came(swap)
        refuge = self._steps.places[swap.refuge]
        path = joined(before, name)
        there = self._at(refuge.before, refuge, path)
        temporary = self._steps.temporary(swap)
        self._named(path, lambda: self._at(before, place, path).move(name, there, temporary))
        if swap.new is None or not swap.new.is_object(there.stat(temporary)):
            raise ConcurrentChange(path, CHANGED)
        # The directory around it may go next, and is to be kept with its times.
        with suppress(PermissionError):
            self._at(before, place, path).set_own_times(*place.times)

    def _swap(self, swap: ExchangeStep) -> None:
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

    def _look(self, swap: ExchangeStep, there: HostDir, temporary: bytes, path: bytes) -> None:
        """Check that the object that came out is the expected one, and has nothing more in it."""
        if swap.old is None or not swap.old.is_untouched(there.stat(temporary)):
            raise ConcurrentChange(path, CHANGED)
        if swap.old.is_dir:
            with there.child(temporary) as top:
                other = first_difference(top, self._expected[swap.number].below, ObjectIdentity.is_as_seen)
            if other is not None:
                raise ConcurrentChange(joined(path, other), CHANGED)

    def _redress(self, redress: AttributeStep) -> None:
        path, place = self._steps.path(redress), self._steps.places[redress.place]
        held = self._named(path, lambda: self._at(place.after, place, path).hold(redress.name))
        try:
            if not redress.identity.is_untouched(os.fstat(held)):
                raise ConcurrentChange(path, CHANGED)
            copy.change(held, redress.before, redress.after)
        finally:
            os.close(held)

    # Host errors as concurrent changes

    def _at(self, path: bytes, place: TargetDirectory, meant: bytes) -> HostDir:
        directory = self._ground.find(path, place.identity.ino)
        if directory is None:
            raise ConcurrentChange(meant, GONE)
        return directory

    def _named(self, path: bytes, action: Callable[[], T]) -> T:
        try:
            return action()
        except FileNotFoundError as error:
            raise ConcurrentChange(path, DELETED) from error
        except OSError as error:
            if error.errno in _IN_THE_WAY:
                raise ConcurrentChange(path, MADE) from error
            raise


def settle_place(place: TargetDirectory, directory: HostDir, times: tuple[int, int]) -> None:
    """Give a place its mode back, if it was unlocked, and its times."""
    if needs_unlocking(place):
        directory.chmod_own(place.identity.mode)
    # A user who may change names in somebody else's directory may still not set its times.
    with suppress(PermissionError):
        directory.set_own_times(*times)
