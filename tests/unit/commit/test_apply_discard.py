"""Discards of a part: what stays deleted or moved away does not show where something else left."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.committed import Committed
from tests.support.reviewed import view_states
from tests.support.tree import Tree

TREE: Tree = {"a/a": "a\n", "b": "b\n", "d/inner/x": "x\n", "d/y": "y\n", "e/z": "z\n", "f": "f\n"}


@pytest.fixture
def sandbox(tmp_path: Path) -> Iterator[Committed]:
    made = Committed(tmp_path, TREE)
    yield made
    made.abandon()


def check_discard(sandbox: Committed, path: str, gone: str, stays: list[str]) -> None:
    """Discard *path*: *gone* is hidden and the changes *stays* are left, until an undo brings all back."""
    view, found = view_states(sandbox), sandbox.found()
    sandbox.discard(path)
    assert gone.encode() not in view_states(sandbox)
    assert sandbox.found() == stays
    plan = sandbox.undo()
    assert not plan.left
    assert view_states(sandbox) == view
    assert sandbox.found() == found


def test_a_deleted_file_stays_deleted_when_the_directory_renamed_to_its_place_goes_back(
    sandbox: Committed,
) -> None:
    sandbox.unlink("b")
    sandbox.rename("a", "b")
    assert sandbox.found() == ["deleted b", "renamed a -> b/"]
    check_discard(sandbox, "a", gone="b", stays=["deleted b"])


def test_a_renamed_directory_shows_once_when_the_directory_renamed_to_its_place_goes_back(
    sandbox: Committed,
) -> None:
    sandbox.rename("e", "c")
    sandbox.rename("a", "e")
    check_discard(sandbox, "a", gone="e", stays=["renamed e -> c/"])


def test_a_renamed_file_shows_once_when_the_directory_renamed_to_its_place_goes_back(
    sandbox: Committed,
) -> None:
    sandbox.rename("b", "c")
    sandbox.rename("a", "b")
    check_discard(sandbox, "a", gone="b", stays=["renamed b -> c"])


def test_a_file_renamed_to_the_place_of_a_renamed_directory_comes_back_by_undo(sandbox: Committed) -> None:
    sandbox.rename("e", "c")
    sandbox.rename("f", "e")
    check_discard(sandbox, "f", gone="e", stays=["renamed e -> c/"])


def test_a_directory_renamed_out_of_another_shows_once_when_the_other_goes_back(sandbox: Committed) -> None:
    sandbox.rename("d/inner", "c")
    sandbox.rename("d", "g")
    check_discard(sandbox, "g", gone="d/inner", stays=["renamed d/inner -> c/"])


def test_a_directory_renamed_out_of_a_deleted_one_shows_once_when_that_comes_back(sandbox: Committed) -> None:
    sandbox.rename("d/inner", "c")
    sandbox.unlink("d/y")
    sandbox.rmdir("d")
    check_discard(sandbox, "d/y", gone="d/inner", stays=["renamed d/inner -> c/"])


def test_what_is_made_where_a_discard_left_a_deletion_is_kept_by_undo(sandbox: Committed) -> None:
    sandbox.unlink("b")
    sandbox.rename("a", "b")
    sandbox.discard("a")
    sandbox.write("b", b"made since\n")
    plan = sandbox.undo()
    assert [path for path, _ in plan.left] == [b"b"]
    assert sandbox.read("b") == b"made since\n"
