"""The result of a verb that changes something names the sandbox and its workspace, for people and in JSON."""

import json
import os
import subprocess
from pathlib import Path

import pytest

from tests.support.mount_driver import run_sandboxfs
from tests.support.tree import build

pytestmark = pytest.mark.any_user

# One sandbox from the beginning to the end; `@change` has a program change the view.
SESSION = (
    ["mount", "WORKSPACE", "VIEW"],
    ["@change"],
    ["allow", "file"],
    ["ro", "-s", "app"],
    ["rw", "-s", "app"],
    ["disable", "-s", "app"],
    ["enable", "-s", "app"],
    ["commit", "--dry-run"],
    ["commit", "--yes"],
    ["commit", "--yes"],
    ["undo", "--dry-run"],
    ["undo", "--yes"],
    ["discard", "--all", "--dry-run"],
    ["discard", "--all", "--yes"],
    ["discard", "--all", "--yes"],
    ["gc"],
    ["gc", "--older-than", "0s"],
    ["unmount", "VIEW"],
    ["unmount", "-s", "app"],
    ["import", "ARCHIVE", "--name", "app2"],
    ["rm", "--force", "app2"],
    ["prune", "--dry-run"],
    ["prune"],
)


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    (tmp_path / "view").mkdir()
    return build(tmp_path / "app", {"file": "text\n"})


def said(workspace: Path, *words: str) -> "subprocess.CompletedProcess[str]":
    places = {
        "WORKSPACE": str(workspace),
        "VIEW": str(workspace.parent / "view"),
        "ARCHIVE": str(workspace.parent / "archive.tar"),
    }
    return run_sandboxfs(*(places.get(word, word) for word in words), cwd=workspace)


def carry_out(workspace: Path, words: list[str], *more: str) -> "subprocess.CompletedProcess[str] | None":
    if words == ["@change"]:
        (workspace.parent / "view/file").write_text("changed\n")
        exported = said(workspace, "export", "ARCHIVE", "--force")
        assert exported.returncode == 0, exported.stderr
        return None
    return said(workspace, *words, *more)


def _named(words: list[str]) -> str:
    return "app2" if words[-1] == "app2" else "app"


def test_every_result_tells_a_person_of_which_sandbox_and_workspace_it_is(workspace: Path) -> None:
    unnamed = []
    for words in SESSION:
        done = carry_out(workspace, words)
        if done is None:
            continue
        assert done.returncode == 0, (words, done.stderr)
        told = done.stdout + done.stderr
        if f"'{_named(words)}'" not in told or f"'{workspace}'" not in told:
            unnamed.append((words, told))
    assert unnamed == []


def test_every_result_tells_a_program_of_which_sandbox_and_workspace_it_is(workspace: Path) -> None:
    unnamed = []
    for words in SESSION:
        done = carry_out(workspace, words, "--json")
        if done is None:
            continue
        assert done.returncode == 0, (words, done.stderr)
        found = json.loads(done.stdout)
        about = found["sandboxes"][0] if words[0] in ("gc", "rm", "prune") else found
        if (about.get("name"), about.get("workspace")) != (_named(words), os.fspath(workspace)):
            unnamed.append((words, found))
    assert unnamed == []


@pytest.mark.parametrize("words", [["undo"], ["undo", "7"]], ids=["no record", "not this record"])
def test_what_cannot_be_taken_back_is_told_with_the_sandbox_and_its_workspace(
    workspace: Path, words: list[str]
) -> None:
    carry_out(workspace, SESSION[0])
    carry_out(workspace, ["unmount", "VIEW"])
    refused = said(workspace, *words)
    assert refused.returncode == 2
    assert f"'app' of '{workspace}' has no" in refused.stderr
