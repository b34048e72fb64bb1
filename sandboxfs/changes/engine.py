"""How do all the steps of a transaction come true, or none?

First everything new is made beside its target and reaches the disk. Then names are exchanged, one call each,
and what came out is looked at: if that is not what was expected, somebody else was faster, and everything is
taken back. A crash is dealt with by whoever comes next, who tells from the objects themselves what was done.
"""

import os
from collections.abc import Callable, Mapping
from dataclasses import replace

from sandboxfs.changes.carrying import copy_tree
from sandboxfs.changes.completion import Completion
from sandboxfs.changes.exchange import Exchange
from sandboxfs.changes.ground import Ground
from sandboxfs.changes.intent import Intent, Times, needs_unlocking
from sandboxfs.changes.journal import Place, Steps, Swap
from sandboxfs.changes.journal_json import to_json
from sandboxfs.changes.records import Record
from sandboxfs.changes.retreat import Kept, Retreat
from sandboxfs.changes.room import check_room
from sandboxfs.changes.stager import Existing, Stager
from sandboxfs.changes.steps import Known, Surprise, Wishes
from sandboxfs.layers.hostdir import HostDir

Progress = Callable[[int, int], None]
"""Told how much of how much is done."""


class Transaction:
    """One change of the workspace, written down in *record*."""

    def __init__(
        self,
        workspace: HostDir,
        record: Record,
        sources: Mapping[str, HostDir],
        *,
        adopt: bool = False,
        progress: Progress = lambda done, total: None,
    ) -> None:
        self._ground = Ground(workspace)
        self._record = record
        self._sources = sources
        self._adopt = adopt
        self._progress = progress
        self._work, self._worked = 0, 0
        self._expected: Mapping[int, Known] = {}
        self._steps: Steps | None = None
        # What could not be taken back.
        self.kept: list[Kept] = []
        # What was copied, as it was then, by source and path.
        self.originals: dict[tuple[str, bytes], os.stat_result] = {}

    def prepare(self, wishes: Wishes, times: Times) -> None:
        """Make everything new beside its target; when this fails, nothing is left of it."""
        try:
            intent = Intent(self._ground, wishes, times)
            check_room(self._ground, intent.steps, self._record)
            self._expected, self._steps = intent.expected, intent.steps
            self._work = sum(1 + len(thing.below) for thing in intent.things.values()) + len(wishes)
            self._record.write("intent", to_json(intent.steps))
            self._unlock(intent.steps)
            self._steps = self._stage(intent, wishes.existing)
            self._exchange(self._steps).verify()
        except BaseException:
            self.take_back()
            raise

    def apply(self, more: Mapping[str, object]) -> None:
        """Let everything change places; *more* is written down with the steps, for whoever has to go on.

        When this fails with a `Surprise`, or an error of the host, everything is as it was.
        """
        steps = self._steps
        if steps is None or not steps.staged:
            raise RuntimeError("nothing is staged")
        try:
            self._record.write("staged", {"steps": to_json(steps), **more})
            exchange = self._exchange(steps)
            exchange.run()
            exchange.sync()
            self._record.write("applied", value=True)
        except BaseException:
            self.take_back()
            raise
        try:
            Completion(self._ground, steps, self._record).run()
        except (OSError, Surprise):
            if not self._record.is_applied:
                self.take_back()
            raise
        self._ground.forget()

    def take_back(self) -> None:
        """Bring the workspace to where it was; what could not be is kept, and named."""
        self._ground.forget()
        if self._steps is not None and not self._record.is_over:
            self.kept = Retreat(self._ground, self._steps, self._record).run()
            self._ground.forget()
            self._record.write("taken back", [kept.as_json() for kept in self.kept])

    def _exchange(self, steps: Steps) -> Exchange:
        return Exchange(self._ground, steps, self._expected, self._advance)

    def _advance(self) -> None:
        self._worked += 1
        self._progress(self._worked, self._work)

    def _unlock(self, steps: Steps) -> None:
        for place in steps.places:
            if needs_unlocking(place):
                directory = self._ground.open(place.before, place.identity.ino)
                directory.chmod_own(place.identity.mode | 0o700)

    def _stage(self, intent: Intent, existing: Existing) -> Steps:
        stager = Stager(self._ground, self._sources, adopt=self._adopt, made=self._advance)
        steps = stager.stage(intent.steps, intent.things, existing)
        self.originals = stager.originals
        places = tuple(_identified(place, steps) for place in steps.places)
        swaps = tuple(self._saved(steps, swap) if swap.in_place else swap for swap in steps.swaps)
        return replace(steps, places=places, swaps=swaps)

    def _saved(self, steps: Steps, swap: Swap) -> Swap:
        """Keep what a file has that is about to be written over; it stays the object it is."""
        place = steps.places[swap.place]
        with self._record.folder(b"pre") as pre:
            copy_tree(
                self._ground.open(place.before, place.identity.ino), swap.name, pre, b"%d" % swap.number
            )
        if swap.old is None or swap.new is None:
            return swap
        return replace(swap, new=replace(swap.new, dev=swap.old.dev, ino=swap.old.ino))


def _identified(place: Place, steps: Steps) -> Place:
    """Say which directory a place is that was just made, and which times it was made with."""
    if not place.made:
        return place
    for swap in steps.swaps:
        top = steps.path(swap)
        made = swap.new if place.after == top else None
        if place.after.startswith(top + b"/"):
            made = swap.made.get(place.after[len(top) + 1 :])
        if made is not None:
            return replace(place, identity=made, times=(made.mtime_ns, made.mtime_ns))
    return place
