"""Approvals on disk: what was approved is read again, and a file that is not understood approves nothing."""

import json
from pathlib import Path

import pytest

from sandboxfs.state.approvals import read_approvals, write_approvals

APPROVALS = {
    b"src/a.py": frozenset({"a" * 64}),
    b"odd \xff\n": frozenset({"b" * 64, "c" * 64}),
    "caf\u00e9/100%".encode(): frozenset({"d" * 64}),
}
NAME = "approvals.json"


def test_approvals_survive_being_written_and_read(tmp_path: Path) -> None:
    write_approvals(tmp_path, APPROVALS)
    assert read_approvals(tmp_path) == APPROVALS
    write_approvals(tmp_path, {b"other": frozenset({"e"})})
    assert read_approvals(tmp_path) == {b"other": frozenset({"e"})}


def test_only_the_user_can_read_approvals(tmp_path: Path) -> None:
    write_approvals(tmp_path, APPROVALS)
    assert (tmp_path / NAME).stat().st_mode & 0o077 == 0
    assert [path.name for path in tmp_path.iterdir()] == [NAME]


def test_without_a_file_nothing_is_approved(tmp_path: Path) -> None:
    assert read_approvals(tmp_path) == {}


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[]",
        b"\xff",
        b"[" * 100_000,
        b'{"version": 1}',
        b'{"version": 2, "approvals": []}',
        b'{"version": true, "approvals": []}',
        b'{"version": 1, "approvals": [{"path": "a"}]}',
        b'{"version": 1, "approvals": [{"path": 1, "digest": "b"}]}',
        b'{"version": 1, "approvals": [], "more": 1}',
    ],
)
def test_a_file_that_is_not_understood_approves_nothing(tmp_path: Path, content: bytes) -> None:
    (tmp_path / NAME).write_bytes(content)
    assert read_approvals(tmp_path) == {}


def test_one_damaged_approval_makes_all_of_them_void(tmp_path: Path) -> None:
    write_approvals(tmp_path, APPROVALS)
    document = json.loads((tmp_path / NAME).read_text())
    document["approvals"][0]["digest"] = None
    (tmp_path / NAME).write_text(json.dumps(document))
    assert read_approvals(tmp_path) == {}
