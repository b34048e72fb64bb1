"""Which directory does git need beside a work tree?"""

from pathlib import Path

import pytest

from sandboxfs.cli.repository import repository_outside
from tests.support.tree import Tree, build


def repository(at: str) -> Tree:
    return {f"{at}/HEAD": "ref: refs/heads/main\n", f"{at}/objects/": ""}


def linked(place: Path, gitdir: Path) -> Path:
    """A work tree whose `.git` is a file."""
    return build(place, {".git": f"gitdir: {gitdir}\n", "file": "text"})


@pytest.fixture
def main(tmp_path: Path) -> Path:
    """A repository with a further work tree."""
    tree: Tree = {".git/worktrees/side/HEAD": "ref: x\n", ".git/worktrees/side/commondir": "../..\n"}
    return build(tmp_path / "main", {**repository(".git"), **tree})


def test_a_linked_work_tree_wants_the_main_one(tmp_path: Path, main: Path) -> None:
    assert repository_outside(linked(tmp_path / "side", main / ".git/worktrees/side")) == main


def test_inside_the_main_work_tree_it_wants_the_repository_alone(main: Path) -> None:
    assert repository_outside(linked(main / "trees/side", main / ".git/worktrees/side")) == main / ".git"


def test_a_submodule_wants_its_own(tmp_path: Path) -> None:
    main = build(tmp_path / "main", repository(".git/modules/sub"))
    module = main / ".git/modules/sub"
    assert repository_outside(linked(main / "sub", module)) == module


def test_a_repository_that_is_there_wants_nothing(tmp_path: Path, main: Path) -> None:
    assert repository_outside(main) is None
    assert repository_outside(build(tmp_path / "plain", {"file": "text"})) is None
    assert repository_outside(linked(tmp_path, main / ".git/worktrees/side")) is None


@pytest.mark.parametrize(
    "text", ["", "gitdir:", "gitdir: /no/such/place", "gitdir: /etc", "x" * 9000, "gitdir: a\0b"]
)
def test_what_names_no_repository_is_not_believed(tmp_path: Path, text: str) -> None:
    assert repository_outside(build(tmp_path / "workspace", {".git": text})) is None
