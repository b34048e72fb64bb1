"""How is a transaction taken back, however far it got?

By looking where its objects are, in the opposite order. The same for a step that failed a moment ago and for
a process that was killed last week: done twice it does nothing the second time. What somebody changed since
is left alone, and what it had replaced is kept in the record: nothing is lost that anybody made.
"""

import errno
import os
import stat
from contextlib import suppress
from dataclasses import dataclass

from sandboxfs.changes.carrying import carry, first_difference, remove_copy
from sandboxfs.changes.ground import Ground
from sandboxfs.changes.intent import needs_unlocking
from sandboxfs.changes.journal import Place, Redress, Steps, Swap
from sandboxfs.changes.records import Record
from sandboxfs.changes.rewriting import rewrite
from sandboxfs.changes.steps import joined
from sandboxfs.layers import replica
from sandboxfs.layers.durable import Syncer
from sandboxfs.layers.hostdir import HostDir, aside

NO_ROOM = {errno.ENOSPC, errno.EDQUOT}


@dataclass(frozen=True)
class Kept:
    """What could not be taken back at *path*; what it would have had again is in the record as *name*."""

    path: bytes
    name: bytes | None = None

    def as_json(self) -> dict[str, object]:
        return {
            "path": os.fsdecode(self.path),
            "kept": None if self.name is None else os.fsdecode(self.name),
        }


class Retreat:
    """Takes the steps back."""

    def __init__(self, ground: Ground, steps: Steps, record: Record) -> None:
        self._ground = ground
        self._steps = steps
        self._record = record
        self._kept: list[Kept] = []
        # Numbers of steps for whose objects the record has no room.
        self._stuck: set[int] = set()

    def run(self) -> list[Kept]:
        """Bring everything to where it was; return what could not be."""
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
        """Have what the record keeps already where it was before that."""
        with self._record.folder(b"pre") as pre:
            for swap in self._steps.swaps:
                kept, temporary = b"%d" % swap.number, self._steps.temporary(swap)
                if swap.in_place or swap.old is None or pre.stat(kept) is None:
                    continue
                refuge = self._steps.places[swap.refuge]
                there = self._ground.find(refuge.after, refuge.identity.ino)
                if there is None:
                    self._kept.append(Kept(self._steps.path(swap), kept))
                elif there.stat(temporary) is None:
                    carry(pre, kept, there, temporary)

    def _back(self, swap: Swap) -> None:
        place, refuge = self._steps.places[swap.place], self._steps.places[swap.refuge]
        here = self._ground.find(place.after, place.identity.ino)
        there = self._ground.find(refuge.after, refuge.identity.ino)
        if here is None or there is None:
            # Its directory is not where it would be if this step had been done.
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

    def _return(self, swap: Swap, here: HostDir, there: HostDir) -> None:
        """Give back what was taken away."""
        temporary = self._steps.temporary(swap)
        if there.stat(temporary) is None:
            return
        try:
            there.move(temporary, here, swap.name)
        except FileExistsError:
            self._keep(swap, there, temporary)

    def _withdraw(self, swap: Swap, here: HostDir, there: HostDir) -> None:
        """Take away what was put where nothing was."""
        found, temporary = here.stat(swap.name), self._steps.temporary(swap)
        if swap.new is None or not swap.new.is_object(found) or there.stat(temporary) is not None:
            return
        if not self._untouched(swap, here, swap.name):
            self._kept.append(Kept(self._steps.path(swap)))
            return
        here.move(swap.name, there, temporary)
        if not swap.new.is_object(there.stat(temporary)):
            # Somebody put another thing there in the very moment.
            there.move(temporary, here, swap.name)

    def _exchange(self, swap: Swap, here: HostDir, there: HostDir) -> None:
        """Let what was put and what it replaced change places again."""
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

    def _untouched(self, swap: Swap, directory: HostDir, name: bytes) -> bool:
        """Whether what was put is still as it was put."""
        if swap.new is None or not swap.new.is_untouched(directory.stat(name)):
            return False
        if not swap.new.is_dir or swap.came is not None:
            return True
        with directory.child(name) as top:
            return first_difference(top, swap.made) is None

    def _keep(self, swap: Swap, there: HostDir, name: bytes) -> None:
        """Put what cannot go back to its place into the record."""
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
                # It stays under its temporary name, which is in the workspace.
                self._stuck.add(swap.number)
                self._kept.append(Kept(joined(self._steps.places[swap.refuge].before, name)))
                return
        self._kept.append(Kept(self._steps.path(swap), kept))

    def _write_back(self, swap: Swap, here: HostDir) -> None:
        saved = b"%d" % swap.number
        with self._record.folder(b"pre") as pre:
            found = here.stat(swap.name)
            if swap.old is None or swap.old.is_untouched(found) or pre.stat(saved) is None:
                return
            if swap.old.is_object(found):
                rewrite(pre, saved, here, swap.name, None, self._steps.path(swap))
            else:
                self._kept.append(Kept(self._steps.path(swap), saved))

    # Directories that moved

    def _home(self, swap: Swap) -> None:
        """Bring a directory back to where it came from."""
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
        # It stays under its temporary name, which is in the workspace.
        self._kept.append(Kept(joined(refuge.before, temporary)))

    # Attributes

    def _redress(self, redress: Redress) -> None:
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
            # Another mode is neither ours nor what it was: somebody else gave it.
            ours = status.st_mode in (redress.before.mode, redress.after.mode)
            if ours and redress.identity.is_object(status):
                replica.change(held, redress.after, redress.before)
        finally:
            os.close(held)

    # Cleaning up

    def _clear(self, swap: Swap) -> None:
        """Remove what was staged and is in nobody's place."""
        refuge = self._steps.places[swap.refuge]
        there = self._ground.find(refuge.before, None if refuge.made else refuge.identity.ino)
        temporary = self._steps.temporary(swap)
        if there is None:
            if swap.new is not None and swap.came is None:
                # Somebody moved the directory away, with what was staged in it.
                self._kept.append(Kept(joined(refuge.before, temporary)))
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
        """Give the directories around it the modes and times that they had."""
        with Syncer() as syncer:
            for place in self._steps.places:
                directory = None if place.made else self._ground.find(place.before, place.identity.ino)
                if directory is not None:
                    syncer.take(directory.open_for_listing())
                    settle_place(place, directory, place.times)


def settle_place(place: Place, directory: HostDir, times: tuple[int, int]) -> None:
    """Give a place its mode back, if it was unlocked, and its times."""
    if needs_unlocking(place):
        directory.chmod_own(place.identity.mode)
    # Who may change names in a directory that is somebody else's may still not set its times.
    with suppress(PermissionError):
        directory.set_own_times(*times)
