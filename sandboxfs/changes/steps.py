"""What is asked of the workspace? The values that a transaction starts from.

A transaction is a set of wishes: this object here instead of that one, this directory there, these
attributes. Each says what it expects to find, so that nothing is replaced that nobody looked at. Where
directories move, a spot has two addresses: its directory's path now, and its path afterwards.
"""

import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass, field

from sandboxfs.changes.finding import Side
from sandboxfs.layers.replica import Attributes


class Surprise(Exception):
    """Something is not as it was when the transaction was planned; *path* is where, *why* half a sentence."""

    def __init__(self, path: bytes, why: str) -> None:
        super().__init__(path, why)
        self.path = path
        self.why = why


@dataclass(frozen=True, slots=True)
class Identity:
    """Tells one state of one object. A directory is itself whatever is in it and whenever that changed."""

    dev: int
    ino: int
    mode: int
    size: int
    mtime_ns: int
    ctime_ns: int = 0

    @classmethod
    def of(cls, status: os.stat_result) -> "Identity":
        return cls(
            status.st_dev,
            status.st_ino,
            status.st_mode,
            status.st_size,
            status.st_mtime_ns,
            status.st_ctime_ns,
        )

    @classmethod
    def seen(cls, side: Side) -> "Identity":
        """The identity of one side of a change, as it was scanned."""
        return cls(side.dev, side.ino, side.mode, side.size, side.mtime_ns, side.ctime_ns)

    @property
    def is_dir(self) -> bool:
        return stat.S_ISDIR(self.mode)

    def is_object(self, status: os.stat_result | None) -> bool:
        """Whether *status* is of this very object, in whatever state.

        The device is not compared: its number may be another one after the machine was started anew.
        """
        return (
            status is not None
            and status.st_ino == self.ino
            and stat.S_IFMT(status.st_mode) == stat.S_IFMT(self.mode)
        )

    def is_untouched(self, status: os.stat_result | None) -> bool:
        """Whether *status* is of this object as it was, but for a rename, which changes only its ctime."""
        if status is None or not self.is_object(status):
            return False
        return self.is_dir or (
            status.st_size == self.size
            and status.st_mtime_ns == self.mtime_ns
            and status.st_mode == self.mode
        )

    def is_exactly(self, status: os.stat_result | None) -> bool:
        """Whether *status* is of this object and nothing at all happened to it."""
        if status is None or not self.is_untouched(status) or status.st_dev != self.dev:
            return False
        # A file that its owner may not read is unlocked for a moment whenever it is looked into.
        return self.is_dir or status.st_ctime_ns == self.ctime_ns or not self.mode & stat.S_IRUSR

    def is_as_seen(self, status: os.stat_result | None) -> bool:
        """Whether *status* is of this object as it was, to the last detail that we do not change ourselves.

        Whatever is done to another name of a file shows in its ctime.
        """
        if status is not None and status.st_nlink > 1 and not self.is_dir:
            return self.is_untouched(status)
        return self.is_exactly(status)


@dataclass(frozen=True, slots=True)
class Spot:
    """A name in a directory of the workspace that is at *before* now and at *after* in the end."""

    before: bytes
    after: bytes
    name: bytes

    @property
    def path(self) -> bytes:
        """Where it is in the end."""
        return joined(self.after, self.name)

    @property
    def path_now(self) -> bytes:
        return joined(self.before, self.name)


@dataclass(frozen=True, slots=True)
class Known:
    """What is expected to be found; of a directory that goes, *below* is all in it, by path from there."""

    identity: Identity
    below: Mapping[bytes, Identity] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Thing:
    """What is to be made: the replica of *path* in *source*, provided that it still is *identity*.

    With *content*, a file of these bytes and *attributes* instead. *below* is what a directory gets, by path
    from it, in an order in which directories come before what is in them.
    """

    source: str
    path: bytes
    identity: Identity
    links: int = 1
    content: bytes | None = None
    attributes: Attributes | None = None
    below: Mapping[bytes, "Thing"] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Change:
    """At *spot*: *new* instead of *old*; None stands for nothing.

    *in_place*: the file's content is to be rewritten, because something is mounted there.
    """

    spot: Spot
    old: Known | None
    new: Thing | None
    in_place: bool = False


@dataclass(frozen=True, slots=True)
class Move:
    """The directory *identity* goes from *source* to *target*, where *replaced* may be expected."""

    source: Spot
    target: Spot
    identity: Identity
    replaced: Known | None = None


@dataclass(frozen=True, slots=True)
class Dress:
    """The object at *spot* keeps its content and gets *attributes*, times excepted.

    A directory that moves there is now at the spot it *came* from.
    """

    spot: Spot
    identity: Identity
    attributes: Attributes
    came: Spot | None = None


@dataclass(frozen=True)
class Wishes:
    """All that one transaction is to do.

    *existing* tells which inodes of the sources the workspace has already, where, and as what: further names
    of those become further names of what is there.
    """

    changes: tuple[Change, ...] = ()
    moves: tuple[Move, ...] = ()
    dresses: tuple[Dress, ...] = ()
    existing: Mapping[tuple[int, int], tuple[bytes, Identity]] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.changes) + len(self.moves) + len(self.dresses)


def joined(directory: bytes, name: bytes) -> bytes:
    return directory + b"/" + name if directory else name


def parted(path: bytes) -> tuple[bytes, bytes]:
    """The directory and the name of *path*."""
    directory, _, name = path.rpartition(b"/")
    return directory, name


def is_below(place: bytes, path: bytes) -> bool:
    """Whether *place* is *path* or below it; everything is below the root."""
    return not path or place == path or place.startswith(path + b"/")


class Moved:
    """Where does a path lead when directories have moved? *moves* maps their old paths to their new ones."""

    def __init__(self, moves: Mapping[bytes, bytes]) -> None:
        self._moves = moves

    def __call__(self, path: bytes) -> bytes:
        """Where *path*, of something that is there before, is afterwards."""
        top = path if self._moves else b""
        while top:
            if top in self._moves:
                return self._moves[top] + path[len(top) :]
            top = parted(top)[0]
        return path
