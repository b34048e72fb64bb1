"""How are the new things made beside their targets, before anything changes?

Under temporary names, whole and on disk. Several names of one file become several names of one replica. What
comes from the sandbox is copied, because programs may still write to the original; what comes back from a
record is given a second name where the filesystem allows that, so that it is the very object it was.
"""

import errno
import os
import stat
from collections.abc import Callable, Mapping
from dataclasses import replace

from sandboxfs.changes.ground import Ground
from sandboxfs.changes.journal import Steps, Swap
from sandboxfs.changes.steps import Identity, Surprise, Thing, joined, parted
from sandboxfs.layers import replica
from sandboxfs.layers.durable import Syncer
from sandboxfs.layers.hostdir import HostDir

CHANGING = "still changing in the sandbox"
_NO_LINK = {errno.EXDEV, errno.EPERM, errno.EMLINK, errno.EACCES, errno.EOPNOTSUPP, errno.ENOSYS}

Existing = Mapping[tuple[int, int], tuple[bytes, Identity]]
"""What the workspace has already of some inodes of the sources: a path, and what is there."""
Spot = tuple[bytes, int | None, bytes]
"""A directory's path, its inode number where known, and a name in it."""


class Stager:
    """Makes things in the workspace from the *sources* by their names."""

    def __init__(
        self,
        ground: Ground,
        sources: Mapping[str, HostDir],
        *,
        adopt: bool,
        made: Callable[[], None] = lambda: None,
    ) -> None:
        self._ground = ground
        self._sources = {name: Ground(directory) for name, directory in sources.items()}
        self._adopt = adopt
        self._keeps = replica.of_the_host if adopt else replica.of_the_sandbox
        # Where the first name of each file with several names was made.
        self._first: dict[tuple[int, int], Spot] = {}
        # What was copied, in the state in which it was copied.
        self.originals: dict[tuple[str, bytes], os.stat_result] = {}
        self._made = made
        self._syncer = Syncer()

    def stage(self, steps: Steps, things: Mapping[int, Thing], existing: Existing) -> Steps:
        """Make the *things*, by the numbers of the swaps they are for; the steps with what was made.

        Things with an *existing* inode become names of what the workspace has.
        """
        swaps: list[Swap] = []
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

    def _tried(self, steps: Steps, swap: Swap, thing: Thing) -> Swap:
        try:
            return self._stage(steps, swap, thing)
        except (FileNotFoundError, NotADirectoryError) as error:
            raise Surprise(steps.path(swap), "gone, or its directory is, since it was looked at") from error

    def _stage(self, steps: Steps, swap: Swap, thing: Thing) -> Swap:
        place = steps.places[swap.refuge]
        spot = place.before, place.identity.ino, steps.temporary(swap)
        path = steps.path(swap)
        if swap.in_place:
            # Never another name of the very file that is to be written over.
            copied = self._copied(spot, thing, path)
            self._made()
            return replace(swap, new=copied)
        if not thing.identity.is_dir:
            return replace(swap, new=self._object(spot, thing, path))
        made: dict[bytes, Identity] = {}
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

    def _dress(self, at: bytes, thing: Thing, path: bytes) -> Identity:
        """Give a directory its attributes, when everything is in it."""
        source = self._sources[thing.source].open(thing.path)
        status = source.own_stat()
        self._check(thing, status, path)
        fd = self._ground.open(at).open_for_listing()
        try:
            replica.dress_file(fd, replica.attributes_at(source, b"", status, self._keeps))
            made = Identity.of(os.fstat(fd))
        except BaseException:
            os.close(fd)
            raise
        self._syncer.take(fd)
        self._made()
        return made

    # Everything else

    def _object(self, spot: Spot, thing: Thing, path: bytes) -> Identity:
        made = self._linked(spot, thing, path) or self._copied(spot, thing, path)
        self._made()
        return made

    def _linked(self, spot: Spot, thing: Thing, path: bytes) -> Identity | None:
        """Give something that is there already a further name; None where there is no such thing."""
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

    def _link(self, source: HostDir, name: bytes, spot: Spot) -> Identity | None:
        target = self._ground.open(spot[0], spot[1])
        try:
            source.link(name, target, spot[2])
        except OSError as error:
            if error.errno in _NO_LINK:
                return None
            raise
        status = target.stat(spot[2])
        return None if status is None else Identity.of(status)

    def _copied(self, spot: Spot, thing: Thing, path: bytes) -> Identity:
        folder, name = parted(thing.path)
        target = self._ground.open(spot[0], spot[1])
        try:
            made = self._sources[thing.source].in_it(
                folder, lambda source: self._copy(source, name, target, spot[2], thing, path)
            )
        except replica.StillChanging as error:
            raise Surprise(path, CHANGING) from error
        if made is None:
            raise Surprise(path, "its staged copy was removed")
        if thing.links > 1:
            self._first[thing.identity.dev, thing.identity.ino] = spot
        return Identity.of(made)

    def _copy(
        self, source: HostDir, name: bytes, target: HostDir, new_name: bytes, thing: Thing, path: bytes
    ) -> os.stat_result | None:
        if thing.content is not None and thing.attributes is not None:
            self._check(thing, source.stat(name), path)
            replica.write_file(thing.content, thing.attributes, target, new_name, self._syncer)
        elif stat.S_ISREG(thing.identity.mode):
            original, made = replica.copy_file(source, name, target, new_name, self._syncer, self._keeps)
            self._check(thing, original, path)
            return made
        else:
            self._check(thing, replica.make_other(source, name, target, new_name, self._keeps), path)
        return target.stat(new_name)

    def _check(self, thing: Thing, status: os.stat_result | None, path: bytes) -> None:
        same = thing.identity.is_untouched(status) if self._adopt else thing.identity.is_exactly(status)
        if status is None or not same:
            raise Surprise(path, CHANGING)
        self.originals[thing.source, thing.path] = status
