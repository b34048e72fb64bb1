"""What is done to an upper when changes are committed, discarded or taken back? The operations, as values.

Each is done at once as far as programs in the view can tell, and may be done again after a crash. Paths are
those of the view, where the upper has its entries, unless called lower paths, which are the workspace's. A
*keep* names an entry of the record's directory that takes what leaves the upper, so that it can come back.
`settlement_json` writes them down.
"""

import os
from dataclasses import dataclass
from typing import Final, Literal

WHITEOUT: Final = "whiteout"
CHANGED: Final = "changed"
ABSENT: Final = "absent"
BUSY: Final = "busy"


@dataclass(frozen=True, slots=True)
class Identity:
    """A state of an object of the upper, told from every other."""

    ino: int
    size: int
    mtime_ns: int
    ctime_ns: int

    @classmethod
    def of(cls, status: os.stat_result) -> "Identity":
        return cls(status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)


Expected = Identity | Literal["whiteout"]


@dataclass(frozen=True, slots=True)
class Drop:
    """Take what the upper has at *path*, no directory, out of it: the lower entry shows.

    A whiteout is removed, anything else is kept. *number* is that of a lower file with several names: for a
    whiteout, one of them shows again; for an indexed file of which the upper has none of the names, it says
    which. *whole*: it is the whiteout of a directory of which nothing has moved elsewhere in the view.
    """

    path: bytes
    expect: Expected
    keep: bytes
    number: int | None = None
    whole: bool = False


@dataclass(frozen=True, slots=True)
class Open:
    """Make a directory plainly merged, so that entries dropped from it show what is below.

    Nothing appears in it: the lower names that it lacks get whiteouts, and directories in it become opaque.
    Then its own opaque mark and redirect go. To be done from the top down.
    """

    path: bytes


@dataclass(frozen=True, slots=True)
class Close:
    """Undo an `Open`, as its outcome says; without *whiteouts* what the record noted counts."""

    path: bytes
    opaque: bool
    redirect: bytes | None
    whiteouts: tuple[bytes, ...] | None
    closed: tuple[bytes, ...] = ()


@dataclass(frozen=True, slots=True)
class Prune:
    """Take a directory out of the upper that has no entry left there."""

    path: bytes
    keep: bytes


@dataclass(frozen=True, slots=True)
class Put:
    """Bring back what was kept, or was put there for it, in place of what is expected.

    None expects nothing, or a whiteout. An entry that is replaced is kept under the same name and `.old`.
    *number* is the number that the lower file at *path* has now, where what comes back stands for a lower
    file with several names.
    """

    path: bytes
    keep: bytes
    expect: Expected | None = None
    number: int | None = None


@dataclass(frozen=True, slots=True)
class Whiteout:
    """Hide the lower entry at *path*, where the upper has nothing; *number* as in `Drop`."""

    path: bytes
    number: int | None = None


@dataclass(frozen=True, slots=True)
class Moved:
    """Follow the workspace, whose directory *old* has become *new*, where the view has it already."""

    old: bytes
    new: bytes


@dataclass(frozen=True, slots=True)
class Unmoved:
    """Follow the workspace, whose directory *new* has become *old* again; the view keeps it at *new*."""

    old: bytes
    new: bytes


@dataclass(frozen=True, slots=True)
class Rebase:
    """Let the upper's entry at *path* have started from what the workspace has now at the lower path.

    Both are empty for the root. Where the workspace has nothing, nothing is known of it any more. *own*: the
    lower object is known by its own number, not by that of the entry, which may have come from elsewhere.
    *marked*: a text with conflict markers was put there.
    """

    path: bytes
    lower: bytes
    own: bool = False
    marked: bool = False


@dataclass(frozen=True, slots=True)
class Resume:
    """Let the upper's entry at *path* have started from what it did before a `Rebase`.

    The record has that under *keep*, as `baseline_copy` writes it; *lower* is its path in the workspace.
    """

    path: bytes
    lower: bytes
    keep: bytes


@dataclass(frozen=True, slots=True)
class Redress:
    """Give a directory the mode, owner and attributes of the lower one, or with *back* those it had again.

    The path is empty for the root. Its times stay.
    """

    path: bytes
    back: bool = False


Operation = Drop | Open | Close | Prune | Put | Whiteout | Moved | Unmoved | Rebase | Resume | Redress


@dataclass(frozen=True, slots=True)
class Opened:
    """What `Open` did: the marks that went, the names that got whiteouts, the directories made opaque.

    *whiteouts* is None when they are too many to tell; the record has them.
    """

    opaque: bool = False
    redirect: bytes | None = None
    whiteouts: tuple[bytes, ...] | None = ()
    closed: tuple[bytes, ...] = ()


@dataclass(frozen=True, slots=True)
class Outcome:
    """Whether an operation was done, or *why* not: `changed`, `absent`, `busy`, or what the host said."""

    done: bool
    why: str | None = None
    opened: Opened | None = None


DONE: Final = Outcome(done=True)


def refused(why: str) -> Outcome:
    return Outcome(done=False, why=why)


def paths_of(operation: Operation) -> tuple[bytes, ...]:
    """The places of the view that an operation may change."""
    match operation:
        case Moved() | Unmoved():
            return operation.old, operation.new
        case Rebase() | Resume():
            return ()
        case Redress():
            return (operation.path,) if operation.path else ()
        case _:
            return (operation.path,)
