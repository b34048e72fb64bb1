"""Rollback: a transaction is taken back, however far it got.

Rollback looks where the objects are, in the opposite order of the steps. A step that failed a moment ago and
a process that was killed last week are treated alike; a second rollback changes nothing. An object that
was changed since is left alone, and the object it had replaced is kept in the record: nobody's work is lost.
"""

import errno
import os
import stat
from dataclasses import dataclass

from sandboxfs.commit.actions import AttributeStep, ExchangeStep, Steps
from sandboxfs.commit.exchange import settle_place
from sandboxfs.commit.records import CommitRecord
from sandboxfs.hostfs import copy
from sandboxfs.hostfs.copy import rewrite
from sandboxfs.hostfs.directory import HostDir, aside
from sandboxfs.hostfs.durable import Syncer
from sandboxfs.hostfs.tree import OpenDirectories, carry, first_difference, remove_copy
from sandboxfs.paths import joined

NO_ROOM = {errno.ENOSPC, errno.EDQUOT}


@dataclass(frozen=True)
class NotTakenBack:
    """An object at *path* that could not be taken back; the record has its predecessor as *name*."""

    path: bytes
    name: bytes | None = None

    def as_json(self) -> dict[str, object]:
        return {
            "path": os.fsdecode(self.path),
            "kept": None if self.name is None else os.fsdecode(self.name),
        }


class Rollback:
    """Takes the steps back."""

    def __init__(self, ground: OpenDirectories, steps: Steps, record: CommitRecord) -> None:
        self._ground = ground
        self._steps = steps
        self._record = record
        self._kept: list[NotTakenBack] = []
        # Numbers of steps for whose objects the record has no room.
        self._stuck: set[int] = set()

    def run(self) -> list[NotTakenBack]:
        """Bring everything back to its place; return the objects that could not be brought back."""
        steps = self._steps
        if steps.staged:
            self._fetch()
            for redress in reversed(steps.redresses):
                self._redress(redress)
            for swap in reversed(steps.swaps):
                self._back(swap)
            self._ground.forget()
            for swap in reversed(steps.moving()):
                self._home(swap)
            self._ground.forget()
        for swap in steps.swaps:
            self._clear(swap)
        self._restore()
        return self._kept

    # Swaps

    def _fetch(self) -> None:
        """Bring objects that the record keeps already back to their temporary names."""
        with self._record.folder(b"pre") as pre:
            for swap in self._steps.swaps:
                kept, temporary = b"%d" % swap.number, self._steps.temporary(swap)
                if swap.in_place or swap.old is None or pre.stat(kept) is None:
                    continue
                refuge = self._steps.places[swap.refuge]
                there = self._ground.find(refuge.after, refuge.identity.ino)
                if there is None:
                    self._kept.append(NotTakenBack(self._steps.path(swap), kept))
                elif there.stat(temporary) is None:
                    carry(pre, kept, there, temporary)

    def _back(self, swap: ExchangeStep) -> None:
        place, refuge = self._steps.places[swap.place], self._steps.places[swap.refuge]
        here = self._ground.find(place.after, place.identity.ino)
        there = self._ground.find(refuge.after, refuge.identity.ino)
        if here is None or there is None:
            # The directory is not at the path where this step would have used it: the step was not done.
            return
        if swap.in_place:
            self._write_back(swap, here)
            return
        there.settle_exchange(self._steps.temporary(swap), here, swap.name)
        if swap.new is None:
            self._return(swap, here, there)
        elif swap.old is None:
            self._withdraw(swap, here, there)
        else:
            self._exchange(swap, here, there)

    def _return(self, swap: ExchangeStep, here: HostDir, there: HostDir) -> None:
        """Bring back an object that was taken away."""
        temporary = self._steps.temporary(swap)
        if there.stat(temporary) is None:
            return
        try:
            there.move(temporary, here, swap.name)
        except FileExistsError:
            self._keep(swap, there, temporary)

    def _withdraw(self, swap: ExchangeStep, here: HostDir, there: HostDir) -> None:
        """Take away an object that was put where there was none."""
        found, temporary = here.stat(swap.name), self._steps.temporary(swap)
        if swap.new is None or not swap.new.is_object(found) or there.stat(temporary) is not None:
            return
        if not self._untouched(swap, here, swap.name):
            self._kept.append(NotTakenBack(self._steps.path(swap)))
            return
        here.move(swap.name, there, temporary)
        if not swap.new.is_object(there.stat(temporary)):
            # Another process put another object there at that very moment.
            there.move(temporary, here, swap.name)

    def _exchange(self, swap: ExchangeStep, here: HostDir, there: HostDir) -> None:
        """Let the new object and the replaced one change places again."""
        temporary, new = self._steps.temporary(swap), swap.new
        found, out = here.stat(swap.name), there.stat(temporary)
        if new is None or out is None or new.is_object(out):
            return
        if found is None:
            there.move(temporary, here, swap.name)
        elif not self._untouched(swap, here, swap.name):
            self._keep(swap, there, temporary)
        else:
            there.exchange(temporary, here, swap.name)
            if not new.is_object(there.stat(temporary)):
                there.exchange(temporary, here, swap.name)
                self._keep(swap, there, temporary)

    def _untouched(self, swap: ExchangeStep, directory: HostDir, name: bytes) -> bool:
        """Whether the new object is still as it was put."""
        if swap.new is None or not swap.new.is_untouched(directory.stat(name)):
            return False
        if not swap.new.is_dir or swap.came is not None:
            return True
        with directory.child(name) as top:
            return first_difference(top, swap.made) is None

    def _keep(self, swap: ExchangeStep, there: HostDir, name: bytes) -> None:
        """Put an object that cannot go back to its place into the record."""
        if swap.number in self._stuck:
            return
        kept = b"kept-%d" % swap.number
        with self._record.folder(b"pre") as pre:
            try:
                carry(there, name, pre, kept)
            except OSError as error:
                if error.errno not in NO_ROOM:
                    raise
                remove_copy(pre, kept)
                # The object stays under its temporary name, which is in the workspace.
                self._stuck.add(swap.number)
                self._kept.append(NotTakenBack(joined(self._steps.places[swap.refuge].before, name)))
                return
        self._kept.append(NotTakenBack(self._steps.path(swap), kept))

    def _write_back(self, swap: ExchangeStep, here: HostDir) -> None:
        saved = b"%d" % swap.number
        with self._record.folder(b"pre") as pre:
            found = here.stat(swap.name)
            if swap.old is None or swap.old.is_untouched(found) or pre.stat(saved) is None:
                return
            if swap.old.is_object(found):
                rewrite(pre, saved, here, swap.name, None, self._steps.path(swap))
            else:
                self._kept.append(NotTakenBack(self._steps.path(swap), saved))

    # Directories that moved

    def _home(self, swap: ExchangeStep) -> None:
        """Bring a directory back to its old place."""
        if swap.came is None or swap.new is None:
            return
        place, refuge = self._steps.places[swap.came[0]], self._steps.places[swap.refuge]
        there = self._ground.find(refuge.before, refuge.identity.ino)
        temporary = self._steps.temporary(swap)
        if there is None or not swap.new.is_object(there.stat(temporary)):
            return
        here = self._ground.find(place.before, place.identity.ino)
        try:
            if here is not None:
                there.move(temporary, here, swap.came[1])
                return
        except FileExistsError:
            pass
        # The directory stays under its temporary name, which is in the workspace.
        self._kept.append(NotTakenBack(joined(refuge.before, temporary)))

    # Attributes

    def _redress(self, redress: AttributeStep) -> None:
        place = self._steps.places[redress.place]
        here = self._ground.find(place.after, place.identity.ino)
        if here is None or stat.S_ISDIR(redress.identity.mode):
            return
        try:
            held = here.hold(redress.name)
        except FileNotFoundError:
            return
        try:
            status = os.fstat(held)
            # A mode that is neither the old nor the new one was set by another program.
            ours = status.st_mode in (redress.before.mode, redress.after.mode)
            if ours and redress.identity.is_object(status):
                copy.change(held, redress.after, redress.before)
        finally:
            os.close(held)

    # Cleaning up

    def _clear(self, swap: ExchangeStep) -> None:
        """Remove a staged object that took no place."""
        refuge = self._steps.places[swap.refuge]
        there = self._ground.find(refuge.before, None if refuge.made else refuge.identity.ino)
        temporary = self._steps.temporary(swap)
        if there is None:
            if swap.new is not None and swap.came is None:
                # The directory was moved away meanwhile, with the staged object in it.
                self._kept.append(NotTakenBack(joined(refuge.before, temporary)))
            return
        if there.stat(aside(temporary)) is not None:
            self._keep(swap, there, aside(temporary))
        if swap.came is not None or there.stat(temporary) is None:
            return
        if swap.in_place or not self._steps.staged or self._untouched(swap, there, temporary):
            there.remove_tree(temporary)
        else:
            self._keep(swap, there, temporary)

    def _restore(self) -> None:
        """Give the directories of the steps back their modes and times."""
        with Syncer() as syncer:
            for place in self._steps.places:
                directory = None if place.made else self._ground.find(place.before, place.identity.ino)
                if directory is not None:
                    syncer.take(directory.open_for_listing())
                    settle_place(place, directory, place.times)
