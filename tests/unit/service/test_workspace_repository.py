"""The git work tree around a directory, and the directory that git needs beside one."""

import os
from pathlib import Path

import pytest

from sandboxfs.service.workspace import own_worktree, repository_outside
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


# The work tree around a directory


def environment(home: Path, ceilings: str = "") -> dict[str, str]:
    return {"HOME": str(home), "GIT_CEILING_DIRECTORIES": ceilings}


def test_the_work_tree_around_a_directory_is_lifted_to(tmp_path: Path, main: Path) -> None:
    deep = build(main, {"a/b/": ""}) / "a" / "b"
    assert own_worktree(deep, environment(tmp_path / "home")) == main
    assert own_worktree(main, environment(tmp_path / "home")) == main


def test_the_nearest_work_tree_is_meant(tmp_path: Path, main: Path) -> None:
    module = linked(main / "sub", main / ".git/modules/sub")
    deep = build(module, {"deep/": ""}) / "deep"
    assert own_worktree(deep, environment(tmp_path / "home")) == module


def test_what_only_is_called_like_a_repository_is_passed_over(tmp_path: Path, main: Path) -> None:
    deep = build(main, {"a/.git/": "", "a/b/": ""}) / "a" / "b"
    assert own_worktree(deep, environment(tmp_path / "home")) == main


@pytest.mark.parametrize("home", ["main", "main/home/me"])
def test_the_home_and_what_is_above_it_are_never_lifted_to(tmp_path: Path, main: Path, home: str) -> None:
    deep = build(main, {"home/me/project/": ""}) / "home/me/project"
    assert own_worktree(deep, environment(tmp_path / home)) is None


def test_nothing_is_lifted_to_at_or_above_a_ceiling(tmp_path: Path, main: Path) -> None:
    deep = build(main, {"a/b/": ""}) / "a" / "b"
    home = tmp_path / "home"
    for ceiling in (main, main / "a"):
        assert own_worktree(deep, environment(home, f"/nowhere:{ceiling}")) is None
    assert own_worktree(deep, environment(home, str(tmp_path))) == main
    # As git has it: one may stand on the ceiling.
    assert own_worktree(main, environment(home, str(main))) == main


@pytest.mark.parametrize("whose", [".", ".git"])
def test_somebody_elses_work_tree_is_never_lifted_to(
    tmp_path: Path, main: Path, whose: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    deep = build(main, {"a/": ""}) / "a"
    owner = os.lstat(main).st_uid
    monkeypatch.setattr("os.geteuid", lambda: owner + 1)
    assert own_worktree(deep, environment(tmp_path / "home")) is None
    if os.getuid() == 0:
        monkeypatch.undo()
        os.chown(main / whose, 65534, 65534)
        assert own_worktree(deep, environment(tmp_path / "home")) is None


def test_outside_of_every_work_tree_there_is_none(tmp_path: Path) -> None:
    assert own_worktree(tmp_path, environment(tmp_path / "home", str(tmp_path.parent))) is None
