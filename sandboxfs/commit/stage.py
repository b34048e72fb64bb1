"""Staging a transaction: actions become steps, and new objects are made beside their targets.

Every directory in which names change becomes a place, with its identity and times; every action becomes a
step with a temporary name of its own. Making steps changes nothing: they are written down first.

New objects are staged under temporary names, whole and on disk. Several names of one file become several
names of one replica. An object from the sandbox is copied, because programs may still write to the original;
an object from a record is hard-linked where the filesystem allows that, and so comes back as the same inode.
"""

import errno
import os
import secrets
import stat
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

from sandboxfs.commit.actions import (
    Actions,
    ActionTarget,
    AttributeStep,
    ChangeAttributes,
    ExchangeStep,
    Expected,
    MoveDirectory,
    NewObject,
    ReplaceObject,
    Steps,
    TargetDirectory,
)
from sandboxfs.hostfs import copy
from sandboxfs.hostfs.directory import HostDir
from sandboxfs.hostfs.durable import Syncer, temporary_name
from sandboxfs.hostfs.identity import ConcurrentChange, ObjectIdentity
from sandboxfs.hostfs.tree import OpenDirectories
from sandboxfs.paths import MovedPaths, joined, parted

GONE = "its directory is gone from the workspace"

Times = Callable[[bytes], tuple[int, int] | None]
"""The access and modification times that the directory at a path gets, None for those it has."""


class Intent:
    """Numbers places and steps. *steps* are to be done, *things* are the objects to be made, by step."""

    def __init__(self, ground: OpenDirectories, actions: Actions, times: Times) -> None:
        self._ground = ground
        self._times = times
        self._tag = secrets.token_hex(4).encode()
        self._places: list[TargetDirectory] = []
        self._numbers: dict[tuple[bytes | None, bytes], int] = {}
        self._named: set[int] = set()
        self._count = 0
        self.things: dict[int, NewObject] = {}
        self.expected: dict[int, Expected] = {}
        # Directories to be made, by final path, with their temporary path.
        self._made: dict[bytes, bytes] = {}
        self._moved = MovedPaths({move.source.path_now: move.target.path for move in actions.moves})
        swaps = self._changes(actions.changes) + [self._move(move) for move in actions.moves]
        redresses = [self._redress(dress) for dress in actions.dresses]
        self._set_times()
        swaps.sort(key=self._order)
        self.steps = Steps(self._tag, tuple(self._places), tuple(swaps), tuple(redresses))

    def _order(self, swap: ExchangeStep) -> tuple[bool, list[bytes]]:
        """From the top down, so that directories are there before their entries; removals last."""
        path = joined(self._places[swap.place].after, swap.name)
        return swap.new is None and swap.number not in self.things, path.split(b"/")

    # Steps

    def _changes(self, changes: Iterable[ReplaceObject]) -> list[ExchangeStep]:
        # Changes that make directories first: other steps may put objects into those.
        ordered = sorted(changes, key=lambda change: not (change.new and change.new.identity.is_dir))
        return [self._change(change) for change in ordered]

    def _change(self, change: ReplaceObject) -> ExchangeStep:
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
        return ExchangeStep(number, place, change.spot.name, place, old, in_place=change.in_place)

    def _note_made(self, number: int, place: int, spot: ActionTarget, thing: NewObject) -> None:
        if not thing.identity.is_dir:
            return
        staged = joined(self._places[place].before, temporary_name(self._tag, number))
        self._made[spot.path] = staged
        for below, inner in thing.below.items():
            if inner.identity.is_dir:
                self._made[joined(spot.path, below)] = joined(staged, below)

    def _move(self, move: MoveDirectory) -> ExchangeStep:
        number = self._next()
        source, target = self._place(move.source), self._place(move.target)
        self._named |= {source, target}
        if move.replaced is not None:
            self.expected[number] = move.replaced
        return ExchangeStep(
            number,
            target,
            move.target.name,
            self._refuge(move),
            None if move.replaced is None else move.replaced.identity,
            move.identity,
            came=(source, move.source.name),
        )

    def _redress(self, dress: ChangeAttributes) -> AttributeStep:
        place, now = self._place(dress.spot), dress.came or dress.spot
        here = self._ground.find(now.before)
        status = None if here is None else here.stat(now.name)
        as_seen = dress.identity.is_exactly(status) and dress.identity.mode == (status and status.st_mode)
        if here is None or status is None or not as_seen:
            raise ConcurrentChange(dress.spot.path, "changed in the workspace meanwhile")
        before = copy.attributes_at(here, now.name, status, copy.of_the_sandbox)
        came = dress.came is not None
        identity = ObjectIdentity.of(status)
        return AttributeStep(self._next(), place, dress.spot.name, identity, before, dress.attributes, came)

    def _next(self) -> int:
        self._count += 1
        return self._count

    # Places

    def _place(self, spot: ActionTarget) -> int:
        return self._numbered(spot.before, spot.after)

    def _numbered(self, before: bytes, after: bytes) -> int:
        key = None if after in self._made else before, after
        number = self._numbers.get(key)
        if number is None:
            number = self._numbers[key] = len(self._places)
            self._places.append(self._found(before, after))
        return number

    def _found(self, before: bytes, after: bytes) -> TargetDirectory:
        if after in self._made:
            # The directory is not there yet; its identity is known when it is staged.
            return TargetDirectory(self._made[after], after, ObjectIdentity(0, 0, 0, 0, 0), (0, 0), made=True)
        directory = self._ground.find(before)
        if directory is None:
            raise ConcurrentChange(after, GONE)
        status = directory.own_stat()
        return TargetDirectory(
            before, after, ObjectIdentity.of(status), (status.st_atime_ns, status.st_mtime_ns)
        )

    def _refuge(self, move: MoveDirectory) -> int:
        """The topmost directory on the moving directory's filesystem: no step moves or removes that one."""
        before = move.source.before
        device = self._device(before)
        while before and self._device(parted(before)[0]) == device:
            before = parted(before)[0]
        return self._numbered(before, self._moved(before))

    def _device(self, path: bytes) -> int:
        directory = self._ground.find(path)
        if directory is None:
            raise ConcurrentChange(path, GONE)
        return directory.own_stat().st_dev

    def _set_times(self) -> None:
        """Set the requested times for directories whose names change."""
        for number in self._named:
            place = self._places[number]
            final = self._times(place.after)
            if final is not None:
                self._places[number] = replace(place, final=final)


def needs_unlocking(place: TargetDirectory) -> bool:
    """Whether the mode of the directory keeps its owner, who is this user, from changing names in it."""
    return os.geteuid() != 0 and not place.made and place.identity.mode & 0o700 != 0o700


CHANGING = "still changing in the sandbox"
_NO_LINK = {errno.EXDEV, errno.EPERM, errno.EMLINK, errno.EACCES, errno.EOPNOTSUPP, errno.ENOSYS}

Existing = Mapping[tuple[int, int], tuple[bytes, ObjectIdentity]]
"""Inodes of the sources that the workspace has already: the path and identity there."""
Spot = tuple[bytes, int | None, bytes]
"""A directory's path, its inode number where known, and a name in it."""


class Stager:
    """Makes objects in the workspace from the *sources*, which have names."""

    def __init__(
        self,
        ground: OpenDirectories,
        sources: Mapping[str, HostDir],
        *,
        adopt: bool,
        made: Callable[[], None] = lambda: None,
    ) -> None:
        self._ground = ground
        self._sources = {name: OpenDirectories(directory) for name, directory in sources.items()}
        self._adopt = adopt
        self._keeps = copy.of_the_host if adopt else copy.of_the_sandbox
        # The place of the first name of each file with several names.
        self._first: dict[tuple[int, int], Spot] = {}
        # Copied originals, in the state in which they were copied.
        self.originals: dict[tuple[str, bytes], os.stat_result] = {}
        self._made = made
        self._syncer = Syncer()

    def stage(self, steps: Steps, things: Mapping[int, NewObject], existing: Existing) -> Steps:
        """Make the *things*, by the numbers of their swaps; return the steps with the new identities.

        Things with an *existing* inode become hard links to the workspace's file.
        """
        swaps: list[ExchangeStep] = []
        for inode, (path, identity) in existing.items():
            folder, name = parted(path)
            directory = self._ground.find(folder)
            if directory is not None and identity.is_exactly(directory.stat(name)):
                self._first[inode] = folder, None, name
        try:
            with self._syncer:
                for swap in steps.swaps:
                    thing = things.get(swap.number)
                    swaps.append(swap if thing is None else self._tried(steps, swap, thing))
        finally:
            for source in self._sources.values():
                source.forget()
        return replace(steps, swaps=tuple(swaps), staged=True)

    def _tried(self, steps: Steps, swap: ExchangeStep, thing: NewObject) -> ExchangeStep:
        try:
            return self._stage(steps, swap, thing)
        except (FileNotFoundError, NotADirectoryError) as error:
            raise ConcurrentChange(
                steps.path(swap), "gone, or its directory is, since it was looked at"
            ) from error

    def _stage(self, steps: Steps, swap: ExchangeStep, thing: NewObject) -> ExchangeStep:
        place = steps.places[swap.refuge]
        spot = place.before, place.identity.ino, steps.temporary(swap)
        path = steps.path(swap)
        if swap.in_place:
            # Never a hard link to the very file that is to be written over.
            copied = self._copied(spot, thing, path)
            self._made()
            return replace(swap, new=copied)
        if not thing.identity.is_dir:
            return replace(swap, new=self._object(spot, thing, path))
        made: dict[bytes, ObjectIdentity] = {}
        self._directory(spot)
        top = joined(place.before, spot[2])
        directories = [(b"", thing)]
        for below, inner in thing.below.items():
            folder, name = parted(below)
            at = joined(top, folder) if folder else top, None, name
            if inner.identity.is_dir:
                self._directory(at)
                directories.append((below, inner))
            else:
                made[below] = self._object(at, inner, joined(path, below))
        for below, inner in reversed(directories):
            made[below] = self._dress(joined(top, below) if below else top, inner, joined(path, below))
        return replace(swap, new=made.pop(b""), made=made)

    # Directories

    def _directory(self, spot: Spot) -> None:
        folder, ino, name = spot
        self._ground.open(folder, ino).mkdir(name, 0o700)

    def _dress(self, at: bytes, thing: NewObject, path: bytes) -> ObjectIdentity:
        """Give a directory its attributes, when all its entries are there."""
        source = self._sources[thing.source].open(thing.path)
        status = source.own_stat()
        self._check(thing, status, path)
        fd = self._ground.open(at).open_for_listing()
        try:
            copy.dress_file(fd, copy.own_attributes(source, b"", status, self._keeps))
            made = ObjectIdentity.of(os.fstat(fd))
        except BaseException:
            os.close(fd)
            raise
        self._syncer.take(fd)
        self._made()
        return made

    # Everything else

    def _object(self, spot: Spot, thing: NewObject, path: bytes) -> ObjectIdentity:
        made = self._linked(spot, thing, path) or self._copied(spot, thing, path)
        self._made()
        return made

    def _linked(self, spot: Spot, thing: NewObject, path: bytes) -> ObjectIdentity | None:
        """Give an existing file a further name; None where there is no such file."""
        if thing.content is not None:
            return None
        if self._adopt:
            folder, name = parted(thing.path)
            source = self._sources[thing.source].open(folder)
            self._check(thing, source.stat(name), path)
            made = self._link(source, name, spot)
            if made is not None:
                return made
        first = self._first.get((thing.identity.dev, thing.identity.ino))
        if first is None:
            return None
        folder, name = parted(thing.path)
        self._check(thing, self._sources[thing.source].in_it(folder, lambda source: source.stat(name)), path)
        return self._link(self._ground.open(first[0], first[1]), first[2], spot)

    def _link(self, source: HostDir, name: bytes, spot: Spot) -> ObjectIdentity | None:
        target = self._ground.open(spot[0], spot[1])
        try:
            source.link(name, target, spot[2])
        except OSError as error:
            if error.errno in _NO_LINK:
                return None
            raise
        status = target.stat(spot[2])
        return None if status is None else ObjectIdentity.of(status)

    def _copied(self, spot: Spot, thing: NewObject, path: bytes) -> ObjectIdentity:
        folder, name = parted(thing.path)
        target = self._ground.open(spot[0], spot[1])
        try:
            made = self._sources[thing.source].in_it(
                folder, lambda source: self._copy(source, name, target, spot[2], thing, path)
            )
        except copy.ChangedWhileCopied as error:
            raise ConcurrentChange(path, CHANGING) from error
        if made is None:
            raise ConcurrentChange(path, "its staged copy was removed")
        if thing.links > 1:
            self._first[thing.identity.dev, thing.identity.ino] = spot
        return ObjectIdentity.of(made)

    def _copy(
        self, source: HostDir, name: bytes, target: HostDir, new_name: bytes, thing: NewObject, path: bytes
    ) -> os.stat_result | None:
        if thing.content is not None and thing.attributes is not None:
            self._check(thing, source.stat(name), path)
            copy.write_file(thing.content, thing.attributes, target, new_name, self._syncer)
        elif stat.S_ISREG(thing.identity.mode):
            original, made = copy.copy_file(source, name, target, new_name, self._syncer, self._keeps)
            self._check(thing, original, path)
            return made
        else:
            self._check(thing, copy.make_other(source, name, target, new_name, self._keeps), path)
        return target.stat(new_name)

    def _check(self, thing: NewObject, status: os.stat_result | None, path: bytes) -> None:
        same = thing.identity.is_untouched(status) if self._adopt else thing.identity.is_exactly(status)
        if status is None or not same:
            raise ConcurrentChange(path, CHANGING)
        self.originals[thing.source, thing.path] = status
