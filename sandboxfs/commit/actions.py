"""Actions and steps: a transaction on the workspace as it is asked for, and as its journal has it.

A transaction is a set of actions: replace this object, move this directory, change these attributes. Each
action says which object it expects, so that nothing is replaced that no review has seen. Where directories
move, a target has two addresses: its directory's path now, and that path afterwards.

An action becomes a step when it is known where everything is. The steps are written to the journal twice, so
that another process can finish them or take them back: before anything is staged, and, with the identities of
the staged objects, before anything is exchanged. Recovery learns how far a transaction got from where the
objects are, never from the last line written.

The journal may come from another process, perhaps of another version: `codec` checks everything and refuses
unknown keys.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Final

from sandboxfs.codec import HEX, SPARSE, Form, decode, encode, pairs, row
from sandboxfs.hostfs.copy import Attributes
from sandboxfs.hostfs.durable import temporary_name
from sandboxfs.hostfs.identity import ObjectIdentity
from sandboxfs.paths import joined
from sandboxfs.review.change import Version


def identity_seen(side: Version) -> ObjectIdentity:
    """The identity of one version of a change, as it was scanned."""
    return ObjectIdentity(side.dev, side.ino, side.mode, side.size, side.mtime_ns, side.ctime_ns)


@dataclass(frozen=True, slots=True)
class ActionTarget:
    """A name in a directory of the workspace whose path is *before* now and *after* in the end."""

    before: bytes
    after: bytes
    name: bytes

    @property
    def path(self) -> bytes:
        """The target's path in the end."""
        return joined(self.after, self.name)

    @property
    def path_now(self) -> bytes:
        return joined(self.before, self.name)


@dataclass(frozen=True, slots=True)
class Expected:
    """The object expected at a target; of a directory that goes, *below* is all in it, by path from there."""

    identity: ObjectIdentity
    below: Mapping[bytes, ObjectIdentity] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class NewObject:
    """An object to make: the replica of *path* in *source*, provided that the source still is *identity*.

    With *content*, a file of these bytes and *attributes* instead. *below* is the content of a new directory,
    by path from it, in an order in which directories come before their entries.
    """

    source: str
    path: bytes
    identity: ObjectIdentity
    links: int = 1
    content: bytes | None = None
    attributes: Attributes | None = None
    below: Mapping[bytes, "NewObject"] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ReplaceObject:
    """At *spot*: *new* instead of *old*; None stands for nothing.

    *in_place*: the file's content is to be rewritten, because the file is a mountpoint.
    """

    spot: ActionTarget
    old: Expected | None
    new: NewObject | None
    in_place: bool = False


@dataclass(frozen=True, slots=True)
class MoveDirectory:
    """The directory *identity* moves from *source* to *target*, where *replaced* may be expected."""

    source: ActionTarget
    target: ActionTarget
    identity: ObjectIdentity
    replaced: Expected | None = None


@dataclass(frozen=True, slots=True)
class ChangeAttributes:
    """The object at *spot* keeps its content and gets *attributes*, times excepted.

    A directory that moves to *spot* is now at the target it *came* from.
    """

    spot: ActionTarget
    identity: ObjectIdentity
    attributes: Attributes
    came: ActionTarget | None = None


@dataclass(frozen=True)
class Actions:
    """All actions of one transaction.

    *existing* has the inodes of the sources that the workspace has already, with path and identity: further
    names of such an inode become hard links to the workspace's file.
    """

    changes: tuple[ReplaceObject, ...] = ()
    moves: tuple[MoveDirectory, ...] = ()
    dresses: tuple[ChangeAttributes, ...] = ()
    existing: Mapping[tuple[int, int], tuple[bytes, ObjectIdentity]] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.changes) + len(self.moves) + len(self.dresses)


# There may be a hundred thousand identities in one journal.
IDENTITY: Final = row(ObjectIdentity, "dev", "ino", "mode", "size", "mtime_ns")

_Identity = Annotated[ObjectIdentity, IDENTITY]


@dataclass(frozen=True, slots=True)
class _WrittenAttributes:
    mode: int
    owner: tuple[int, int]
    times: tuple[int, int]
    xattrs: Annotated[tuple[tuple[bytes, bytes], ...], pairs(bytes, Annotated[bytes, HEX])]


def _attributes_out(found: Attributes) -> object:
    owner, times = (found.uid, found.gid), (found.atime_ns, found.mtime_ns)
    return encode(_WrittenAttributes(found.mode, owner, times, found.xattrs))


def _attributes_in(found: object) -> Attributes:
    read = decode(_WrittenAttributes, found)
    return Attributes(read.mode, *read.owner, *read.times, read.xattrs)


_Attributes = Annotated[Attributes, Form(_attributes_out, _attributes_in)]


@dataclass(frozen=True, slots=True)
class TargetDirectory:
    """A directory of the workspace in which names are changed.

    *mode* and *times* (access and modification) are those found, *final* the times in the end, None for those
    found. *made*: the directory is staged itself, and is at *before* until then.
    """

    before: bytes
    after: bytes
    identity: _Identity
    times: tuple[int, int]
    final: tuple[int, int] | None = None
    made: bool = False

    @property
    def lasting(self) -> tuple[int, int]:
        return self.final or self.times


@dataclass(frozen=True, slots=True)
class ExchangeStep:
    """Step *number*: the objects at *name* in *place* and at the temporary name in *refuge* change places.

    *place* and *refuge* are numbers of places. *new* is staged under the temporary name, with *made* below
    it; if *new* *came* from a place and name, it is a directory that moves. *old* is expected at the name.
    *in_place*: nothing changes places, but the file at the name is given the content of the staged one.
    """

    number: int
    place: int
    name: bytes
    refuge: int
    old: _Identity | None = None
    new: _Identity | None = None
    came: tuple[int, bytes] | None = field(default=None, metadata=SPARSE)
    made: Mapping[bytes, _Identity] = field(default_factory=dict, metadata=SPARSE)
    in_place: bool = field(default=False, metadata=SPARSE)


@dataclass(frozen=True, slots=True)
class AttributeStep:
    """The object at *name* in *place* gets the attributes *after* instead of *before*.

    *came*: the object is a directory that moves there.
    """

    number: int
    place: int
    name: bytes
    identity: _Identity
    before: _Attributes
    after: _Attributes
    came: bool = False


@dataclass(frozen=True)
class Steps:
    """A whole transaction. *tag* distinguishes its temporary names from those of other transactions.

    The swaps stand in the order in which they are made. Without *staged*, the identities of new objects are
    missing, and nothing but staging can have begun.
    """

    tag: bytes
    places: tuple[TargetDirectory, ...]
    swaps: tuple[ExchangeStep, ...]
    redresses: tuple[AttributeStep, ...]
    staged: bool = False

    def temporary(self, swap: ExchangeStep) -> bytes:
        return temporary_name(self.tag, swap.number)

    def moving(self) -> list[ExchangeStep]:
        """The steps that move directories; a directory inside another one precedes that one."""
        moving = [swap for swap in self.swaps if swap.came is not None]
        return sorted(moving, key=lambda swap: self._depth(swap.came), reverse=True)

    def _depth(self, came: tuple[int, bytes] | None) -> int:
        return 0 if came is None else joined(self.places[came[0]].before, came[1]).count(b"/")

    def path(self, step: ExchangeStep | AttributeStep) -> bytes:
        """The path at which the step happens, in the end."""
        return joined(self.places[step.place].after, step.name)
