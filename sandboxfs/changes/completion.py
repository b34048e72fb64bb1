"""What is left to do when all names are exchanged?

What was replaced goes to the record, directories get their attributes and times. Nothing of it can change its
mind, so it may be done by whoever comes next, and done twice it comes to the same.

Only the record may have no room for what was replaced. Where that must be copied it stays in the workspace
too until all of it is kept; as long as it is not, the way back is open.
"""

import os
import stat

from sandboxfs.changes.carrying import brought, remove_copy
from sandboxfs.changes.ground import Ground
from sandboxfs.changes.journal import Redress, Steps, Swap
from sandboxfs.changes.records import Record
from sandboxfs.changes.retreat import settle_place
from sandboxfs.changes.steps import Surprise
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
        """Do all of it; when this fails and the record is not applied any more, they are to be taken back."""
        with self._record.folder(b"pre") as pre:
            try:
                left = [swap for swap in self._steps.swaps if self._keep(swap, pre)]
                sync_directory(pre)
            except (OSError, Surprise):
                self._turn_round(pre)
                raise
        for swap in left:
            there = self._refuge(swap)
            if there is not None:
                there.remove_tree(self._steps.temporary(swap))
        self._settle_places()
        # The deepest first: afterwards their mode may keep us out.
        directories = [one for one in self._steps.redresses if stat.S_ISDIR(one.identity.mode)]
        for redress in sorted(directories, key=self._depth, reverse=True):
            self._redress(redress)

    def _keep(self, swap: Swap, pre: HostDir) -> bool:
        """Have the record keep what was replaced; whether something is left under the temporary name."""
        there = self._found(swap)
        if there is None or swap.in_place:
            return there is not None
        try:
            return brought(there, self._steps.temporary(swap), pre, b"%d" % swap.number)
        except replica.StillChanging as error:
            raise Surprise(self._steps.path(swap), "changed in the workspace meanwhile") from error

    def _turn_round(self, pre: HostDir) -> None:
        """Have the steps taken back, if all that was replaced is still whole."""
        found = [swap for swap in self._steps.swaps if not swap.in_place and self._found(swap) is not None]
        if all(pre.stat(b"%d" % swap.number) is not None for swap in found):
            # Everything is kept, and what is left may have been removed in part.
            return
        for swap in found:
            remove_copy(pre, b"%d" % swap.number)
        # Before anything goes back: from then on nobody may go forward.
        self._record.write("applied", value=False)

    def _found(self, swap: Swap) -> HostDir | None:
        """The directory in which something replaced by *swap* has its temporary name, if there is any."""
        there = None if swap.old is None else self._refuge(swap)
        return None if there is None or there.stat(self._steps.temporary(swap)) is None else there

    def _refuge(self, swap: Swap) -> HostDir | None:
        refuge = self._steps.places[swap.refuge]
        return self._ground.find(refuge.after, refuge.identity.ino)

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
