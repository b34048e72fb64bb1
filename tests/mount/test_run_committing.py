"""`run --commit`: what it writes to, and what it leaves alone unless that is named."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from sandboxfs import Sandbox
from tests.support import runs
from tests.support.terminal import Terminal
from tests.support.tree import Tree, build

pytestmark = pytest.mark.any_user

TREE: Tree = {"file": "text\n"}
ALIAS = "echo 'alias ls=evil' >> ~/.bashrc; echo more >> file"


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    return build(tmp_path / "workspace", TREE)


@pytest.fixture
def home() -> Path:
    return build(Path(os.environ["HOME"]), {".bashrc": "mine\n", ".profile": "mine\n"})


def command(*words: str, cwd: Path) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "sandboxfs", *words],
        cwd=cwd,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=runs.PATIENCE,
        check=False,
    )


def test_a_commit_at_the_end_leaves_the_home_alone_and_says_where_its_changes_are(
    workspace: Path, home: Path, confinement: str
) -> None:
    words = ("--confine", confinement, "--commit", "--home", "cow", "--", "sh", "-c", ALIAS)
    done = runs.run(*words, cwd=workspace)
    assert (workspace / "file").read_text() == "text\nmore\n"
    assert (home / ".bashrc").read_text() == "mine\n"
    assert f"committed 1 change of 'workspace' to '{workspace}'" in done.stderr
    assert "sandboxfs commit -s workspace.home" in done.stderr
    assert "sandboxfs commit -s workspace;" not in done.stderr


def test_a_home_that_is_named_is_committed_as_well(workspace: Path, home: Path) -> None:
    words = ("--commit", "--commit-also", home, "--home", "cow", "--", "sh", "-c", ALIAS)
    done = runs.run(*words, cwd=workspace)
    assert (home / ".bashrc").read_text() == "mine\nalias ls=evil\n"
    assert f"of 'workspace' to '{workspace}'" in done.stderr
    assert f"of 'workspace.home' to '{home}'" in done.stderr


def test_of_two_places_beside_the_workspace_only_the_named_one_is_committed(
    workspace: Path, home: Path, tmp_path: Path
) -> None:
    runs.require("bubblewrap")
    library = build(tmp_path / "library", {"code": "code\n"})
    inside = f"{ALIAS}; echo changed > {library}/code"
    words = ("--allow", library, "--home", "cow", "--commit", "--commit-also", "../library", "--")
    done = runs.run(*words, "sh", "-c", inside, cwd=workspace)
    assert (library / "code").read_text() == "changed\n"
    assert (home / ".bashrc").read_text() == "mine\n"
    for place, name in ((workspace, "workspace"), (library, "workspace.library")):
        assert f"of '{name}' to '{place}'" in done.stderr


def test_a_place_that_the_run_does_not_show_cannot_be_committed_and_nothing_is_run(
    workspace: Path, home: Path
) -> None:
    done = runs.run("--commit", "--commit-also", home, "--", "sh", "-c", ALIAS, cwd=workspace, status=125)
    assert "not a directory that this run shows" in done.stderr
    assert (workspace / "file").read_text() == "text\n"


def test_committing_also_without_committing_is_an_error(workspace: Path, home: Path) -> None:
    done = runs.run("--commit-also", home, "--home", "cow", "--", "true", cwd=workspace, status=125)
    assert "--commit-also goes with --commit" in done.stderr


def test_a_workspace_that_is_the_home_is_committed_only_when_it_is_named(home: Path) -> None:
    words = ("--home", "cow", "--commit")
    refused = runs.run(*words, "--", "touch", "new", cwd=home, status=125)
    assert f"add --commit-also '{home}'" in refused.stderr
    assert not (home / "new").exists()
    runs.run(*words, "--commit-also", "~", "--", "touch", "new", cwd=home)
    assert (home / "new").exists()


def test_a_python_program_that_named_the_home_commits_to_it(home: Path) -> None:
    with Sandbox(home, home="cow") as sandbox:
        sandbox.run(["touch", "new"])
        sandbox.commit()
    assert (home / "new").exists()


def test_in_a_repository_below_the_home_a_commit_does_not_mean_the_home(
    workspace: Path, home: Path, tmp_path: Path
) -> None:
    other = build(home / "other", {".git/HEAD": "ref: refs/heads/main\n"})
    runs.run("--home", "cow", "--", "sh", "-c", ALIAS, cwd=workspace)
    refused = command("commit", "--yes", cwd=other)
    assert refused.returncode == 2
    assert "which sandbox is meant?" in refused.stderr
    assert (home / ".bashrc").read_text() == "mine\n"


def test_a_homes_changes_are_not_committed_all_at_once_unless_that_is_said(
    workspace: Path, home: Path
) -> None:
    runs.run("--home", "cow", "--", "sh", "-c", "echo a >> ~/.bashrc; echo b >> ~/.profile", cwd=workspace)
    refused = command("commit", "-s", "workspace.home", "--yes", cwd=workspace)
    assert refused.returncode == 2
    assert "one by one" in refused.stderr
    assert (home / ".bashrc").read_text() == "mine\n"
    assert (
        command("commit", "-s", "workspace.home", "--yes", f"{home}/.profile", cwd=workspace).returncode == 0
    )
    assert (home / ".profile").read_text() == "mine\nb\n"
    assert (home / ".bashrc").read_text() == "mine\n"
    assert command("commit", "-s", "workspace.home", "--yes", "--all", cwd=workspace).returncode == 0
    assert (home / ".bashrc").read_text() == "mine\na\n"


def test_on_a_terminal_a_person_is_asked_about_each_change_of_a_home(workspace: Path, home: Path) -> None:
    runs.run("--home", "cow", "--", "sh", "-c", "echo a >> ~/.bashrc; echo b >> ~/.profile", cwd=workspace)
    words = [sys.executable, "-m", "sandboxfs", "commit", "-s", "workspace.home"]
    terminal = Terminal(words, cwd=workspace)
    try:
        terminal.wait_for(".bashrc", runs.PATIENCE)
        terminal.wait_for("[y,n", runs.PATIENCE)
        terminal.type("n\n")
        terminal.wait_for(".profile", runs.PATIENCE)
        terminal.wait_for("[y,n", runs.PATIENCE)
        terminal.type("y\n")
        assert terminal.end(runs.PATIENCE) == 0
    finally:
        terminal.close()
    assert (home / ".bashrc").read_text() == "mine\n"
    assert (home / ".profile").read_text() == "mine\nb\n"
