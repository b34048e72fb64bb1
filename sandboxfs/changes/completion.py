"""What is left to do when all names are exchanged?

What was replaced goes to the record, directories get their attributes and times. Nothing of it can change its
mind, so it may be done by whoever comes next, and done twice it comes to the same.
"""

import os
import stat

from sandboxfs.changes.carrying import carry
from sandboxfs.changes.ground import Ground
from sandboxfs.changes.journal import Redress, Steps, Swap
from sandboxfs.changes.records import Record
from sandboxfs.changes.retreat import settle_place
from sandboxfs.layers import replica
from sandboxfs.layers.durable import Syncer, sync_directory
from sandboxfs.layers.hostdir import HostDir


class Completion:
    """Completes steps that are applied."""

    def __init__(self, ground: Ground, steps: Steps, record: Record) -> None:
        self._ground = ground
        self._steps = steps
        self._record = record

    def run(self) -> None:
        with self._record.folder(b"pre") as pre:
            for swap in self._steps.swaps:
                self._put_away(swap, pre)
            sync_directory(pre)
        self._settle_places()
        # The deepest first: afterwards their mode may keep us out.
        directories = [one for one in self._steps.redresses if stat.S_ISDIR(one.identity.mode)]
        for redress in sorted(directories, key=self._depth, reverse=True):
            self._redress(redress)

    def _put_away(self, swap: Swap, pre: HostDir) -> None:
        refuge = self._steps.places[swap.refuge]
        there = self._ground.find(refuge.after, refuge.identity.ino)
        temporary = self._steps.temporary(swap)
        if there is None or there.stat(temporary) is None:
            return
        if swap.in_place:
            there.unlink(temporary)
        elif swap.old is not None:
            carry(there, temporary, pre, b"%d" % swap.number)

    def _settle_places(self) -> None:
        with Syncer() as syncer:
            # The deepest first, because the mode of one may keep us from those in it.
            for place in sorted(self._steps.places, key=lambda place: place.after.count(b"/"), reverse=True):
                directory = self._ground.find(place.after, place.identity.ino)
                if directory is not None:
                    syncer.take(directory.open_for_listing())
                    settle_place(place, directory, place.lasting)

    def _depth(self, redress: Redress) -> int:
        path = self._steps.path(redress)
        return -1 if path == b"." else path.count(b"/")

    def _redress(self, redress: Redress) -> None:
        place = self._steps.places[redress.place]
        here = self._ground.find(place.after, place.identity.ino)
        status = None if here is None else here.stat(redress.name)
        if here is None or status is None or not redress.identity.is_object(status):
            return
        if status.st_mode not in (redress.before.mode, redress.after.mode):
            # Somebody else gave it another one.
            return
        held = here.hold(redress.name)
        try:
            replica.change(held, redress.before, redress.after)
        finally:
            os.close(held)
