"""Operations and outcomes survive being written as JSON; what could do harm is refused when it is read."""

import json

import pytest

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
    UnfollowMove,
    Unhide,
    UnhideOutcome,
    UpperIdentity,
    Whiteout,
    operation_from_json,
    operation_to_json,
    outcome_from_json,
    outcome_to_json,
    paths_of,
    refused,
)

IDENTITY = UpperIdentity(12345, 6, 1_500_000_000_123_456_789, 1_500_000_000_123_456_790)
ODD = b"odd\xff\n'name\xc3\xa4"
OPERATIONS: list[Operation] = [
    RemoveEntry(b"dir/file", IDENTITY, b"1"),
    RemoveEntry(ODD, WHITEOUT, ODD, 1 << 62),
    Unhide(b"dir"),
    Rehide(b"dir", opaque=True, redirect=None, whiteouts=(b"one", ODD), closed=(b"sub",)),
    Rehide(b"dir", opaque=False, redirect=b"other/dir", whiteouts=None),
    Prune(b"dir/" + ODD, b"2"),
    RestoreEntry(b"file", b"1"),
    RestoreEntry(b"file", b"1", WHITEOUT),
    RestoreEntry(b"file", b"1", IDENTITY, 17),
    Whiteout(b"file"),
    Whiteout(b"file", 17),
    FollowMove(b"old", b"new/" + ODD),
    UnfollowMove(b"old", b"new"),
    Rebase(b"file", b"other"),
    Rebase(b"", b""),
    Rebase(b"file", b"other", marked=True),
    Resume(b"file", b"other", b"mark-0.seen"),
]
OUTCOMES = [
    EditOutcome(done=True),
    refused("changed"),
    EditOutcome(done=True, opened=UnhideOutcome()),
    EditOutcome(
        done=True, opened=UnhideOutcome(opaque=True, redirect=ODD, whiteouts=(ODD, b"two"), closed=(b"sub",))
    ),
    EditOutcome(done=True, opened=UnhideOutcome(opaque=True, whiteouts=None)),
]


@pytest.mark.parametrize("operation", OPERATIONS, ids=repr)
def test_an_operation_is_read_as_it_was_written(operation: Operation) -> None:
    assert operation_from_json(json.loads(json.dumps(operation_to_json(operation)))) == operation


@pytest.mark.parametrize("outcome", OUTCOMES, ids=repr)
def test_an_outcome_is_read_as_it_was_written(outcome: EditOutcome) -> None:
    assert outcome_from_json(json.loads(json.dumps(outcome_to_json(outcome)))) == outcome


@pytest.mark.parametrize(
    "path", ["", "/", "/etc", "a//b", "a/", ".", "..", "../a", "a/../b", "a/.", "a\0b", "\ud800"]
)
def test_a_path_that_could_lead_elsewhere_is_refused(path: str) -> None:
    for described in (
        {"op": "open", "path": path},
        {"op": "moved", "old": path, "new": "a"},
        {"op": "moved", "old": "a", "new": path},
        {"op": "close", "path": "a", "opaque": True, "whiteouts": [path]},
        {"op": "close", "path": "a", "opaque": True, "redirect": path, "whiteouts": []},
    ):
        with pytest.raises(ValueError):
            operation_from_json(described)


@pytest.mark.parametrize("name", ["", "a/b", ".hidden", "..", "a\0b"])
def test_a_name_that_must_not_be_kept_under_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="not a name to keep"):
        operation_from_json({"op": "prune", "path": "a", "keep": name})


@pytest.mark.parametrize(
    "described",
    [
        None,
        [],
        {},
        {"op": "explode"},
        {"op": 1, "path": "a"},
        {"op": "drop", "path": "a", "keep": "1"},
        {"op": "drop", "path": "a", "keep": "1", "expect": "anything"},
        {"op": "drop", "path": "a", "keep": "1", "expect": {"ino": 1}},
        {"op": "drop", "path": "a", "keep": "1", "expect": "whiteout", "number": "1"},
        {"op": "drop", "path": "a", "keep": "1", "expect": "whiteout", "number": True},
        {"op": "whiteout", "path": "a", "number": 1 << 70},
        {"op": "close", "path": "a", "opaque": 1, "whiteouts": []},
        {"op": "close", "path": "a", "opaque": True, "whiteouts": "a"},
        {"op": "close", "path": "a", "opaque": True, "whiteouts": ["a/b"]},
        {"op": "rebase", "path": "a"},
    ],
    ids=str,
)
def test_what_is_no_operation_is_refused(described: object) -> None:
    with pytest.raises(ValueError):
        operation_from_json(described)


@pytest.mark.parametrize(
    "described", [None, {}, {"done": 1}, {"done": True, "why": 1}, {"done": True, "opaque": 1}]
)
def test_what_is_no_outcome_is_refused(described: object) -> None:
    with pytest.raises(ValueError):
        outcome_from_json(described)


def test_an_operation_says_which_places_it_may_change() -> None:
    assert paths_of(FollowMove(b"old", b"new")) == (b"old", b"new")
    assert paths_of(Prune(b"dir", b"1")) == (b"dir",)
    assert paths_of(Rebase(b"file", b"file")) == ()
