"""Transaction: all steps come true, or none; and rollback, which takes back one that did not.

First every new object is made beside its target and reaches the disk. Then names are exchanged, one call
each, and the object that came out is examined: if it is not the expected one, another program changed the
workspace meanwhile, and everything is taken back. After a crash the next command recovers; it learns from the
objects themselves how far the transaction got.

Write permission and disk space are checked before anything changes. On one filesystem a replaced object is
only renamed. From another one it is copied, and so is a file that is written over. The check of disk space is
a guess, because other programs write to the same disk.

Rollback looks where the objects are, in the opposite order of the steps. A step that failed a moment ago and
a process that was killed last week are treated alike; a second rollback changes nothing. An object that
was changed since is left alone, and the object it had replaced is kept in the record: nobody's work is lost.
"""

import errno
import os
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from sandboxfs.codec import encode
from sandboxfs.commit.actions import Actions, AttributeStep, ExchangeStep, Expected, Steps, TargetDirectory
from sandboxfs.commit.exchange import Completion, Exchange, settle_place
from sandboxfs.commit.records import COMMIT, CommitRecord
from sandboxfs.commit.stage import Existing, Intent, Stager, Times, needs_unlocking
from sandboxfs.errors import UsageError
from sandboxfs.hostfs import copy
from sandboxfs.hostfs.copy import rewrite
from sandboxfs.hostfs.directory import HostDir, aside
from sandboxfs.hostfs.durable import Syncer
from sandboxfs.hostfs.identity import ConcurrentChange
from sandboxfs.hostfs.probe import obstacle
from sandboxfs.hostfs.tree import OpenDirectories, carry, contents, copy_tree, first_difference, remove_copy
from sandboxfs.paths import PathSet, joined, quoted

Progress = Callable[[int, int], None]
"""Called with the work done and the total."""


class Transaction:
    """One change of the workspace, written down in *record*."""

    def __init__(
        self,
        workspace: HostDir,
        record: CommitRecord,
        sources: Mapping[str, HostDir],
        *,
        adopt: bool = False,
        progress: Progress = lambda done, total: None,
    ) -> None:
        self._ground = OpenDirectories(workspace)
        self._record = record
        self._sources = sources
        self._adopt = adopt
        self._progress = progress
        self._work, self._worked = 0, 0
        self._expected: Mapping[int, Expected] = {}
        self._steps: Steps | None = None
        # Objects that could not be taken back.
        self.kept: list[NotTakenBack] = []
        # The status of originals when they were copied, by source and path.
        self.originals: dict[tuple[str, bytes], os.stat_result] = {}

    def prepare(self, actions: Actions, times: Times) -> None:
        """Make every new object beside its target; a failure leaves nothing behind."""
        try:
            intent = Intent(self._ground, actions, times)
            check_permission(self._ground, intent.steps, self._record.about.kind)
            check_room(self._ground, intent.steps, self._record)
            self._expected, self._steps = intent.expected, intent.steps
            self._work = sum(1 + len(thing.below) for thing in intent.things.values()) + len(actions)
            self._record.write("intent", encode(intent.steps))
            self._unlock(intent.steps)
            self._steps = self._stage(intent, actions.existing)
            self._exchange(self._steps).verify()
        except BaseException:
            self.take_back()
            raise

    def apply(self, more: Mapping[str, object]) -> None:
        """Let all objects change places; *more* is written down with the steps, for recovery.

        A `ConcurrentChange`, or an error of the host, leaves everything as it was.
        """
        steps = self._steps
        if steps is None or not steps.staged:
            raise RuntimeError("nothing is staged")
        try:
            self._record.write("staged", {"steps": encode(steps), **more})
            exchange = self._exchange(steps)
            exchange.run()
            exchange.sync()
            self._record.write("applied", value=True)
        except BaseException:
            self.take_back()
            raise
        try:
            Completion(self._ground, steps, self._record).run()
        except (OSError, ConcurrentChange):
            if not self._record.is_applied:
                self.take_back()
            raise
        self._ground.forget()

    def take_back(self) -> None:
        """Bring the workspace back to its earlier state; `kept` names the objects that could not be."""
        self._ground.forget()
        if self._steps is not None and not self._record.is_over:
            self.kept = Rollback(self._ground, self._steps, self._record).run()
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

    def _saved(self, steps: Steps, swap: ExchangeStep) -> ExchangeStep:
        """Save the content of a file that is about to be written over; the file remains the same inode."""
        place = steps.places[swap.place]
        with self._record.folder(b"pre") as pre:
            copy_tree(
                self._ground.open(place.before, place.identity.ino), swap.name, pre, b"%d" % swap.number
            )
        if swap.old is None or swap.new is None:
            return swap
        return replace(swap, new=replace(swap.new, dev=swap.old.dev, ino=swap.old.ino))


def _identified(place: TargetDirectory, steps: Steps) -> TargetDirectory:
    """The identity and times of a place that was just made."""
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


def check_permission(ground: OpenDirectories, steps: Steps, verb: str) -> None:
    """Refuse *steps* if a directory in which they change names may not be written."""
    used = {swap.refuge for swap in steps.swaps} | {swap.place for swap in steps.swaps if not swap.in_place}
    for number in sorted(used):
        place = steps.places[number]
        directory = None if place.made else ground.find(place.before, place.identity.ino)
        why = None if directory is None else obstacle(directory)
        if why is not None:
            where = quoted(place.before) if place.before else "the workspace's top directory"
            raise UsageError(f"cannot {verb} into {where}: {why}", hint="nothing was changed")


# For the rest of the journal, the baseline and the directories themselves.
_MARGIN = 1 << 16


def check_room(ground: OpenDirectories, steps: Steps, record: CommitRecord) -> None:
    """Refuse *steps* if the objects they replace do not fit on the disk of *record*."""
    device = record.directory.own_stat().st_dev
    copied = [swap for swap in steps.swaps if _is_copied(swap, device)]
    if not copied:
        return
    disk = os.fstatvfs(record.directory.fd)
    # A directory that moves out of one that goes is not replaced.
    came = [swap.came for swap in steps.swaps if swap.came]
    moving = PathSet(joined(steps.places[place].before, name) for place, name in came)
    found = [size for swap in copied for path, size in _sizes(ground, steps, swap) if not moving.hold(path)]
    needed = _rounded(found, disk.f_frsize or 1) + _MARGIN
    free = disk.f_bavail * disk.f_frsize
    # Some filesystems do not know how large they are.
    if disk.f_blocks and needed > free:
        raise _no_room(record, f"{_size(needed)} needed, {_size(free)} free, {_size(needed - free)} missing")
    if disk.f_files and len(found) > disk.f_favail:
        raise _no_room(record, f"{len(found)} inodes needed, {disk.f_favail} free")


def _is_copied(swap: ExchangeStep, device: int) -> bool:
    return swap.in_place or (swap.old is not None and swap.old.dev != device)


def _sizes(ground: OpenDirectories, steps: Steps, swap: ExchangeStep) -> Iterator[tuple[bytes, int]]:
    """The size of each object that *swap* replaces, by its path now."""
    place = steps.places[swap.place]
    here = None if place.made else ground.find(place.before, place.identity.ino)
    status = None if here is None else here.stat(swap.name)
    if here is None or status is None:
        # A missing object is found out by the strict check before the exchange.
        return
    path = joined(place.before, swap.name)
    yield path, _taken(status)
    if stat.S_ISDIR(status.st_mode):
        with here.child(swap.name) as top:
            yield from ((joined(path, below), _taken(inner)) for below, inner in contents(top))


def _taken(status: os.stat_result) -> int:
    """How many bytes a copy takes: holes stay holes."""
    return min(status.st_size, status.st_blocks * 512) if stat.S_ISREG(status.st_mode) else status.st_size


def _rounded(sizes: Iterable[int], block: int) -> int:
    return sum(-(-size // block) * block for size in sizes)


def _no_room(record: CommitRecord, how_much: str) -> UsageError:
    where = Path(os.fsdecode(record.directory.own_path())).readlink().parent
    less = ", or commit less at a time" if record.about.kind == COMMIT else ""
    return UsageError(
        f"no room at {quoted(where)} for what the {record.about.kind} replaces: {how_much}",
        hint=f"nothing was changed; make room there{less}",
    )


def _size(size: int) -> str:
    return f"{size / (1 << 20):.1f} MiB"


# Rollback

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
