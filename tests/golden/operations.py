"""Every operation on an upper and every outcome, as `v1/settlement.json` has them, in the same order."""

from typing import Final

from sandboxfs.upper.edits import (
    WHITEOUT,
    EditOutcome,
    FollowMove,
    Operation,
    Prune,
    Rebase,
    Rehide,
    RemoveEntry,
    RestoreEntry,
    Resume,
    SetAttributes,
    UnfollowMove,
    Unhide,
    UnhideOutcome,
    UpperIdentity,
    Whiteout,
)

_SEEN: Final = UpperIdentity(12345, 6, 1_500_000_000_123_456_789, 1_500_000_000_123_456_790)
_ODD: Final = b"odd\xff\n'name\xc3\xa4"

OPERATIONS: Final[list[Operation]] = [
    RemoveEntry(b"dir/file", _SEEN, b"1"),
    RemoveEntry(_ODD, WHITEOUT, _ODD, 1 << 62),
    RemoveEntry(b"dir", WHITEOUT, b"2", None, whole=True),
    Unhide(b"dir"),
    Rehide(b"dir", opaque=True, redirect=None, whiteouts=(b"one", _ODD), closed=(b"sub",)),
    Rehide(b"dir", opaque=False, redirect=b"other/dir", whiteouts=None),
    Prune(b"dir/" + _ODD, b"3"),
    Prune(b"dir", b"4", whole=True),
    RestoreEntry(b"file", b"1"),
    RestoreEntry(b"file", b"1", WHITEOUT),
    RestoreEntry(b"file", b"1", _SEEN, 17),
    Whiteout(b"file"),
    Whiteout(b"file", 17),
    FollowMove(b"old", b"new/" + _ODD),
    UnfollowMove(b"old", b"new"),
    Rebase(b"file", b"other"),
    Rebase(b"", b"", own=True),
    Rebase(b"file", b"other", marked=True),
    Resume(b"file", b"other", b"mark-0.seen"),
    SetAttributes(b"", back=False),
    SetAttributes(b"dir", back=True),
]
OUTCOMES: Final[list[EditOutcome]] = [
    EditOutcome(done=True),
    EditOutcome(done=False, why="changed"),
    EditOutcome(done=False, why="absent"),
    EditOutcome(done=False, why="busy"),
    EditOutcome(done=True, opened=UnhideOutcome()),
    EditOutcome(
        done=True,
        opened=UnhideOutcome(opaque=True, redirect=_ODD, whiteouts=(_ODD, b"two"), closed=(b"sub",)),
    ),
    EditOutcome(done=True, opened=UnhideOutcome(opaque=True, whiteouts=None)),
]
