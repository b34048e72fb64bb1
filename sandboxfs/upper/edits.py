"""Edits of an upper, as values and as JSON: what commit, discard and undo do to it.

Each edit is done at once as far as programs in the view can tell, and may be repeated after a crash. Paths
are those of the view, where the upper has its entries, unless called lower paths, which are the workspace's.
A *keep* names an entry of the record's directory, which takes removed upper entries, so that they can come
back.

Edits are read from other processes: `codec` checks everything, and a path that could lead out of its
directory is refused.
"""

import os
from dataclasses import dataclass, field, replace
from typing import Annotated, Final, Literal

from sandboxfs.codec import APART, OPTIONAL, SPARSE, Check, Variants, decode, encode

WHITEOUT: Final = "whiteout"
CHANGED: Final = "changed"
ABSENT: Final = "absent"
BUSY: Final = "busy"


def text(path: bytes) -> str:
    return path.decode("utf-8", "surrogateescape")


def path_bytes(path: str) -> bytes:
    """The reverse of `text`."""
    try:
        return path.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError as error:
        raise ValueError("not a path: it has surrogates that stand for no byte") from error


def _checked_path(path: bytes) -> bytes:
    """Give *path* back if it leads below a root without any detour; ValueError otherwise."""
    if b"\0" in path or any(name in (b"", b".", b"..") for name in path.split(b"/")):
        raise ValueError(f"not a path inside the view: {text(path)!r}")
    return path


def _checked_path_or_root(path: bytes) -> bytes:
    return path and _checked_path(path)


def _checked_name(name: bytes) -> bytes:
    """Give *name* back if it may be a name in a directory; ValueError otherwise."""
    if b"/" in name:
        raise ValueError(f"not a name: {text(name)!r}")
    return _checked_path(name)


def _checked_keep(name: bytes) -> bytes:
    """Give *name* back if it may name a kept entry; names with a dot in front are the records' own."""
    if not name or b"/" in name or b"\0" in name or name.startswith(b"."):
        raise ValueError(f"not a name to keep something under: {text(name)!r}")
    return name


_Path = Annotated[bytes, Check(_checked_path)]
_PathOrRoot = Annotated[bytes, Check(_checked_path_or_root)]
_Name = Annotated[bytes, Check(_checked_name)]
_Keep = Annotated[bytes, Check(_checked_keep)]


@dataclass(frozen=True, slots=True)
class UpperIdentity:
    """One state of an upper object, distinct from all its other states."""

    ino: int
    size: int
    mtime_ns: int
    ctime_ns: int

    @classmethod
    def of(cls, status: os.stat_result) -> "UpperIdentity":
        return cls(status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)


Expected = UpperIdentity | Literal["whiteout"]


@dataclass(frozen=True, slots=True)
class RemoveEntry:
    """Remove the upper's entry at *path*, which is no directory: the lower entry shows.

    A whiteout is removed, any other entry is kept. *number* is that of a lower file with several names: for a
    whiteout, one of the names shows again; an indexed file without a name in the upper is found by it.
    *whole*: the whiteout is of a directory of which nothing has moved elsewhere in the view.
    """

    path: _Path
    expect: Expected
    keep: _Keep
    number: int | None = field(default=None, metadata=OPTIONAL)
    whole: bool = field(default=False, metadata=SPARSE)


@dataclass(frozen=True, slots=True)
class Unhide:
    """Make a directory plainly merged, so that entries removed from it show those below.

    No name appears in it: the lower names that it lacks get whiteouts, and directories in it become opaque.
    Then its own opaque mark and redirect go. To be done from the top down.
    """

    path: _Path


@dataclass(frozen=True, slots=True)
class Rehide:
    """Undo an `Unhide`, as its outcome says; without *whiteouts* the record's note counts."""

    path: _Path
    opaque: bool
    redirect: _Path | None = field(default=None, metadata=OPTIONAL)
    whiteouts: tuple[_Name, ...] | None = field(default=None, metadata=OPTIONAL)
    closed: tuple[_Name, ...] = field(default=(), metadata=OPTIONAL)


@dataclass(frozen=True, slots=True)
class Prune:
    """Remove a directory that has no entry left in the upper, or with *whole* together with its content."""

    path: _Path
    keep: _Keep
    whole: bool = field(default=False, metadata=SPARSE)


@dataclass(frozen=True, slots=True)
class RestoreEntry:
    """Put a kept entry, or one written for this purpose, in place of the expected one.

    None expects no entry, or a whiteout. A replaced entry is kept under the same name and `.old`. *number* is
    the present number of the lower file at *path*, where the entry stands for a lower file with several
    names.
    """

    path: _Path
    keep: _Keep
    expect: Expected | None = field(default=None, metadata=OPTIONAL)
    number: int | None = field(default=None, metadata=OPTIONAL)


@dataclass(frozen=True, slots=True)
class Whiteout:
    """Hide the lower entry at *path*, where the upper has no entry; *number* as in `RemoveEntry`."""

    path: _Path
    number: int | None = field(default=None, metadata=OPTIONAL)


@dataclass(frozen=True, slots=True)
class FollowMove:
    """Follow the workspace, whose directory *old* has become *new*, where the view has it already."""

    old: _Path
    new: _Path


@dataclass(frozen=True, slots=True)
class UnfollowMove:
    """Follow the workspace, whose directory *new* has become *old* again; the view keeps it at *new*."""

    old: _Path
    new: _Path


@dataclass(frozen=True, slots=True)
class Rebase:
    """Give the upper's entry at *path* a new baseline: the workspace's present object at the lower path.

    Both paths are empty for the root. Where the workspace has no object, the baseline entry is forgotten.
    *own*: the lower object is known by its own number, not by that of the entry, which may have come from
    elsewhere. *marked*: a text with conflict markers was put there.
    """

    path: _PathOrRoot
    lower: _PathOrRoot
    own: bool = field(default=False, metadata=OPTIONAL)
    marked: bool = field(default=False, metadata=OPTIONAL)


@dataclass(frozen=True, slots=True)
class Resume:
    """Give the upper's entry at *path* the baseline of before a `Rebase`.

    The record has that baseline entry under *keep*, as `baseline_log.write_alone` writes it; *lower* is its
    path in the workspace.
    """

    path: _Path
    lower: _Path
    keep: _Keep


@dataclass(frozen=True, slots=True)
class SetAttributes:
    """Give a directory the mode, owner and attributes of the lower one, or with *back* its former ones again.

    The path is empty for the root. The times of the directory stay.
    """

    path: _PathOrRoot
    back: bool = False


Operation = (
    RemoveEntry
    | Unhide
    | Rehide
    | Prune
    | RestoreEntry
    | Whiteout
    | FollowMove
    | UnfollowMove
    | Rebase
    | Resume
    | SetAttributes
)


@dataclass(frozen=True, slots=True)
class UnhideOutcome:
    """The effects of `Unhide`: marks that went, names that got whiteouts, directories made opaque.

    *whiteouts* is None when they are too many to tell; the record has them.
    """

    opaque: bool = False
    redirect: _Path | None = None
    whiteouts: tuple[_Name, ...] | None = ()
    closed: tuple[_Name, ...] = ()


@dataclass(frozen=True, slots=True)
class EditOutcome:
    """Whether an operation was done, or *why* not: `changed`, `absent`, `busy`, or the host's error."""

    done: bool
    why: str | None = field(default=None, metadata=SPARSE)
    opened: UnhideOutcome | None = field(default=None, metadata=APART)


DONE: Final = EditOutcome(done=True)


def refused(why: str) -> EditOutcome:
    return EditOutcome(done=False, why=why)


def paths_of(operation: Operation) -> tuple[bytes, ...]:
    """The paths of the view that an operation may change."""
    match operation:
        case FollowMove() | UnfollowMove():
            return operation.old, operation.new
        case Rebase() | Resume():
            return ()
        case SetAttributes():
            return (operation.path,) if operation.path else ()
        case _:
            return (operation.path,)


def entered_by(operation: Operation) -> tuple[bytes, ...]:
    """The paths whose directories, all those on the way to each included, an operation enters."""
    if isinstance(operation, SetAttributes):
        # The directory itself stays as it is until it gets the attributes: a mode is noted before.
        return (os.path.dirname(operation.path),) if operation.path else ()
    return paths_of(operation)


_OPERATION: Final[Variants[Operation]] = Variants(
    "op",
    {
        "drop": RemoveEntry,
        "open": Unhide,
        "close": Rehide,
        "prune": Prune,
        "put": RestoreEntry,
        "whiteout": Whiteout,
        "moved": FollowMove,
        "unmoved": UnfollowMove,
        "rebase": Rebase,
        "resume": Resume,
        "redress": SetAttributes,
    },
)


def operation_to_json(operation: Operation) -> dict[str, object]:
    """Describe an operation; *op* is its kind."""
    return _OPERATION.written(operation)


def operation_from_json(described: object, where: str = "") -> Operation:
    """Read a description of `operation_to_json`; `Malformed` for any other value, or an improper path."""
    return decode(_OPERATION, described, where)


def outcome_to_json(outcome: EditOutcome) -> dict[str, object]:
    """Describe an outcome; the fields of *opened* are its own."""
    return encode(outcome) | (encode(outcome.opened) if outcome.opened else {})


def outcome_from_json(described: object) -> EditOutcome:
    """Read a description of `outcome_to_json`, among other keys; `Malformed` for any other value."""
    outcome = decode(EditOutcome, described, lenient=True)
    if isinstance(described, dict) and "opaque" in described:
        return replace(outcome, opened=decode(UnhideOutcome, described, lenient=True))
    return outcome
