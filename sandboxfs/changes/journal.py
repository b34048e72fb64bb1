"""Which steps is a transaction made of, once it is known where everything is?

They are written down twice, so that another process can finish them or take them back: before anything is
staged, and, with the identities of what was staged, before anything is exchanged. What has been done is told
by looking where the objects are, never by what was written last. `journal_json` says how they are written.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from sandboxfs.changes.steps import Identity, joined
from sandboxfs.layers.replica import Attributes
from sandboxfs.layers.temporary import temporary_name


@dataclass(frozen=True, slots=True)
class Place:
    """A directory of the workspace in which names are changed.

    *mode* and *times* (access and modification) are those it was found with, *final* the times it gets in
    the end, None for those it was found with. *made*: it is staged itself, and is at *before* until then.
    """

    before: bytes
    after: bytes
    identity: Identity
    times: tuple[int, int]
    final: tuple[int, int] | None = None
    made: bool = False

    @property
    def lasting(self) -> tuple[int, int]:
        return self.final or self.times


@dataclass(frozen=True, slots=True)
class Swap:
    """Step *number*: what is at *name* in *place* and at the temporary name in *refuge* change places.

    Both are numbers of places. *new* is staged under the temporary name, with *made* below it, or, if it
    *came* from a place and name, is a directory that moves. *old* is expected at the name. *in_place*:
    nothing changes places, but the file at the name is given the content of the staged one.
    """

    number: int
    place: int
    name: bytes
    refuge: int
    old: Identity | None = None
    new: Identity | None = None
    came: tuple[int, bytes] | None = None
    made: Mapping[bytes, Identity] = field(default_factory=dict)
    in_place: bool = False


@dataclass(frozen=True, slots=True)
class Redress:
    """What is at *name* in *place* gets the attributes *after* instead of *before*.

    *came*: it is a directory that moves there.
    """

    number: int
    place: int
    name: bytes
    identity: Identity
    before: Attributes
    after: Attributes
    came: bool = False


@dataclass(frozen=True)
class Steps:
    """A whole transaction. *tag* makes its temporary names its own.

    The swaps stand in the order in which they are made. Without *staged*, identities of what is new are
    missing, and nothing but staging can have begun.
    """

    tag: bytes
    places: tuple[Place, ...]
    swaps: tuple[Swap, ...]
    redresses: tuple[Redress, ...]
    staged: bool = False

    def temporary(self, swap: Swap) -> bytes:
        return temporary_name(self.tag, swap.number)

    def moving(self) -> list[Swap]:
        """The steps that move directories, those that are now inside others before them."""
        moving = [swap for swap in self.swaps if swap.came is not None]
        return sorted(moving, key=lambda swap: self._depth(swap.came), reverse=True)

    def _depth(self, came: tuple[int, bytes] | None) -> int:
        return 0 if came is None else joined(self.places[came[0]].before, came[1]).count(b"/")

    def path(self, step: Swap | Redress) -> bytes:
        """Where the step happens, in the end."""
        return joined(self.places[step.place].after, step.name)
