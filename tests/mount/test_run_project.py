"""One project, one sandbox: which one a run uses, and what it leaves behind."""

import json
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from sandboxfs import Sandbox
from tests.support import runs
from tests.support.mount_driver import run_sandboxfs
from tests.support.terminal import Terminal
from tests.support.tree import build

pytestmark = pytest.mark.any_user

# Of this process's tests alone: others may run beside it.
MARK = f"sleep 27182{os.getpid()}.5"


@pytest.fixture
def workspace(tmp_path: Path) -> Iterator[Path]:
    yield build(tmp_path / "app", {"file": "text\n", "dir/inner": "inner\n"})
    runs.check_nothing_left(MARK)


@pytest.fixture
def view(workspace: Path, tmp_path: Path) -> Iterator[Path]:
    """The view of the workspace, mounted by `mount`."""
    place = tmp_path / "view"
    place.mkdir()
    done("mount", workspace, place)
    yield place
    run_sandboxfs("unmount", "--lazy", place)


def done(*words: str | Path, status: int = 0) -> str:
    result = run_sandboxfs(*words)
    assert result.returncode == status, f"{result.returncode}: {result.stdout}{result.stderr}"
    return result.stdout


def sandboxes() -> list[str]:
    return sorted(os.listdir(Path(os.environ["SANDBOXFS_STATE_DIR"], "sandboxes")))


@contextmanager
def another_run(workspace: Path, *words: str) -> Iterator[None]:
    """A run that is going on meanwhile."""
    words = ("--quiet", *words, "--", "sh", "-c", f"echo here; exec {MARK}")
    other = subprocess.Popen(
        runs.run_words(*words), cwd=workspace, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True
    )
    assert other.stdout is not None
    with other.stdout:
        try:
            assert other.stdout.readline() == "here\n"
            yield
        finally:
            other.terminate()
            other.wait(runs.PATIENCE)


# Which sandbox


def test_mount_and_run_of_one_project_share_its_sandbox(workspace: Path, tmp_path: Path) -> None:
    runs.run("sh", "-c", "echo one > made", cwd=workspace)
    (tmp_path / "view").mkdir()
    done("mount", workspace, tmp_path / "view")
    assert (tmp_path / "view" / "made").read_text() == "one\n"
    done("unmount", tmp_path / "view")
    assert runs.run("cat", "made", cwd=workspace).stdout == "one\n"
    assert sandboxes() == ["app"]


def test_a_run_joins_the_mounted_sandbox_of_its_project_and_says_so(
    workspace: Path, view: Path, confinement: str
) -> None:
    result = runs.run("--confine", confinement, "sh", "-c", "echo joined > made", cwd=workspace)
    assert (view / "made").read_text() == "joined\n"
    assert f"goes on in sandbox 'app', mounted at '{view}'" in result.stderr
    assert sandboxes() == ["app"]


def test_standing_in_a_view_a_run_means_its_sandbox(workspace: Path, view: Path) -> None:
    runs.require("bubblewrap")
    result = runs.run("sh", "-c", "pwd; echo joined > made", cwd=view / "dir")
    assert result.stdout == f"{workspace}/dir\n"
    assert (view / "dir" / "made").read_text() == "joined\n"
    assert sandboxes() == ["app"]


def test_options_about_policy_do_not_go_with_a_sandbox_that_is_mounted(workspace: Path, view: Path) -> None:
    refused = runs.run("--rule", "x=hide", "true", cwd=workspace, status=125)
    assert "its policy is that of its mount" in refused.stderr
    assert "--new" in refused.stderr
    runs.run("--new", "--rule", "x=hide", "true", cwd=workspace)


@pytest.mark.parametrize("mounted", [False, True])
def test_while_another_run_is_going_on_a_run_has_another_sandbox_and_says_so(
    workspace: Path, mounted: bool, request: pytest.FixtureRequest
) -> None:
    if mounted:
        request.getfixturevalue("view")
    with another_run(workspace):
        result = runs.run("sh", "-c", "echo two > made", cwd=workspace)
        assert "another run is going on in sandbox 'app'" in result.stderr
        assert sandboxes() == ["app", "app-2"]
        joined = runs.run("-s", "app", "ls", cwd=workspace)
        assert "made" not in joined.stdout, "-s names the one that is in use"
    assert "going on" not in runs.run("true", cwd=workspace).stderr


def test_a_run_that_was_named_into_a_sandbox_keeps_others_out_of_it_until_it_ends(workspace: Path) -> None:
    runs.run("touch", "made", cwd=workspace)
    with another_run(workspace, "-s", "app"):
        result = runs.run("true", cwd=workspace)
        assert "another run is going on in sandbox 'app'" in result.stderr


def test_a_killed_run_leaves_its_sandbox_to_the_next(workspace: Path) -> None:
    runs.run("touch", "made", cwd=workspace)
    words = ("--quiet", "--", "sh", "-c", f"echo here; exec {MARK}")
    other = subprocess.Popen(
        runs.run_words(*words), cwd=workspace, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True
    )
    assert other.stdout is not None
    with other.stdout:
        assert other.stdout.readline() == "here\n"
        other.kill()
        other.wait()
    runs.check_nothing_left(MARK)
    assert "goes on in sandbox 'app'" in runs.run("true", cwd=workspace).stderr
    assert sandboxes() == ["app"]


def test_a_new_sandbox_is_made_when_it_is_asked_for(workspace: Path) -> None:
    for name in ("one", "two"):
        runs.run("--new", "touch", name, cwd=workspace)
    assert sandboxes() == ["app", "app-2"]


def test_a_run_goes_on_in_the_sandbox_that_the_environment_names_but_in_no_other_project(
    workspace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs.run("touch", "first", cwd=workspace)
    runs.run("--new", "touch", "second", cwd=workspace)
    assert sandboxes() == ["app", "app-2"]
    monkeypatch.setenv("SANDBOXFS_SANDBOX", "app")
    listed = runs.run("sh", "-c", "pwd; ls ..", cwd=workspace / "dir")
    assert listed.stdout.split() == [str(workspace / "dir"), "dir", "file", "first"]
    assert "$SANDBOXFS_SANDBOX" not in listed.stderr
    other = build(tmp_path / "other", {"elsewhere": ""})
    elsewhere = runs.run("ls", cwd=other)
    assert elsewhere.stdout == "elsewhere\n"
    assert "$SANDBOXFS_SANDBOX names sandbox 'app'" in elsewhere.stderr
    assert f"this run in '{other}' does not use" in elsewhere.stderr
    assert "$SANDBOXFS_SANDBOX" not in runs.run("--quiet", "ls", cwd=other).stderr
    # What is said on the command line comes first.
    assert "second" in runs.run("-s", "app-2", "ls", cwd=workspace).stdout
    assert runs.run("--workspace", other, "ls", cwd=workspace).stdout == "elsewhere\n"
    monkeypatch.setenv("SANDBOXFS_SANDBOX", "gone")
    assert "no sandbox" in runs.run("true", cwd=workspace, status=125).stderr


# What is left


def test_a_run_that_leaves_nothing_leaves_no_sandbox(workspace: Path, confinement: str) -> None:
    words = ("--confine", confinement)
    result = runs.run(*words, "sh", "-c", "echo x > made; rm made; mkdir dir/a; rmdir dir/a", cwd=workspace)
    assert "no sandbox is kept" in result.stderr
    assert sandboxes() == []
    runs.run(*words, "--home", "cow", "true", cwd=workspace)
    assert sandboxes() == []
    # 126 where a directory of $PATH cannot be entered.
    assert runs.run(*words, "no-such-program", cwd=workspace, status=None).returncode in (126, 127)
    assert sandboxes() == []


def test_a_run_that_is_refused_leaves_no_sandbox(workspace: Path, tmp_path: Path) -> None:
    runs.run("--commit", "--commit-also", tmp_path, "true", cwd=workspace, status=125)
    runs.run("--env", "NO_SUCH_VARIABLE", "true", cwd=workspace, status=None)
    assert sandboxes() == []


def test_a_block_that_leaves_nothing_leaves_no_sandbox(workspace: Path) -> None:
    with Sandbox(workspace) as sandbox:
        assert sandbox.run(["cat", "file"], capture_output=True).stdout == "text\n"
        assert sandboxes() == ["app"]
    assert sandboxes() == []
    with Sandbox(workspace) as sandbox:
        sandbox.run(["touch", "made"])
    assert sandboxes() == ["app"]


@pytest.mark.parametrize(
    "inside",
    ["touch made", "touch ~/token", "mkdir -p ~/.config", "rm file", "cat secret || true"],
    ids=["a change", "a file in the home", "a directory in the home", "a deletion", "a denial"],
)
def test_a_run_that_leaves_something_leaves_its_sandbox(
    workspace: Path, confinement: str, inside: str
) -> None:
    words = ("--confine", confinement, "--rule", "secret=deny", "--")
    (workspace / "secret").write_text("secret")
    runs.run(*words, "sh", "-c", inside, cwd=workspace)
    assert sandboxes() == ["app"]


def test_a_run_that_changes_a_companion_leaves_its_sandboxes(workspace: Path) -> None:
    runs.run("--home", "cow", "sh", "-c", "touch ~/made", cwd=workspace)
    assert sandboxes() == ["app", "app.home"]


def test_a_run_that_changes_the_workspace_leaves_no_companion_without_changes(
    workspace: Path, confinement: str
) -> None:
    words = ("--confine", confinement, "--home", "cow")
    runs.run(*words, "sh", "-c", "touch made", cwd=workspace)
    assert sandboxes() == ["app"]
    runs.run(*words, "true", cwd=workspace)
    assert sandboxes() == ["app"]
    runs.run(*words, "sh", "-c", "touch ~/made", cwd=workspace)
    runs.run(*words, "true", cwd=workspace)
    assert sandboxes() == ["app", "app.home"]


def test_a_home_in_which_only_mounts_were_made_is_not_worth_keeping() -> None:
    runs.require("bubblewrap")
    home = Path(os.environ["HOME"])
    workspace = build(home / "projects" / "app", {"file": "text\n"})
    runs.run("ls", cwd=workspace)
    assert sandboxes() == []


def test_a_run_that_commits_keeps_what_undo_needs(workspace: Path) -> None:
    runs.run("--commit", "touch", "made", cwd=workspace)
    assert sandboxes() == ["app"]
    assert (workspace / "made").exists()


def test_a_sandbox_that_was_there_before_stays_when_a_run_leaves_nothing(workspace: Path, view: Path) -> None:
    runs.run("true", cwd=workspace)
    done("unmount", view)
    runs.run("true", cwd=workspace)
    assert sandboxes() == ["app"]


def test_the_report_says_whether_a_sandbox_was_kept(workspace: Path, tmp_path: Path) -> None:
    for command, kept in (("true", False), ("touch made", True)):
        runs.run("--json", tmp_path / "report", "sh", "-c", command, cwd=workspace)
        assert json.loads((tmp_path / "report").read_text())["kept"] is kept


# Changes from before


@pytest.mark.parametrize("option", ["--commit", "--discard"])
def test_changes_from_before_are_not_settled_without_a_question(workspace: Path, option: str) -> None:
    runs.run("touch", "before", cwd=workspace)
    refused = runs.run(option, "touch", "now", cwd=workspace, status=125)
    assert "sandbox 'app' holds 1 change from before" in refused.stderr
    assert not (workspace / "before").exists()
    assert done("diff", "-s", "app", "--name-status") == "A\tbefore\n"
    runs.run(option, "--new", "touch", "now", cwd=workspace)
    assert (workspace / "now").exists() is (option == "--commit")
    assert not (workspace / "before").exists()


@pytest.mark.parametrize(("answer", "status"), [("y", 0), ("n", 125)])
def test_on_a_terminal_a_person_is_asked_about_changes_from_before(
    workspace: Path, answer: str, status: int
) -> None:
    runs.run("touch", "before", cwd=workspace)
    terminal = Terminal(runs.run_words("--commit", "touch", "now"), cwd=workspace)
    try:
        terminal.wait_for("1 change from before", runs.PATIENCE)
        terminal.wait_for("[y/N]", runs.PATIENCE)
        terminal.type(f"{answer}\n")
        assert terminal.end(runs.PATIENCE) == status
    finally:
        terminal.close()
    assert [(workspace / name).exists() for name in ("before", "now")] == [status == 0] * 2


# Pruning


def test_prune_removes_what_is_empty_and_nothing_else(workspace: Path, view: Path, tmp_path: Path) -> None:
    for name, inside in (("kept", "touch made"), ("home", "touch ~/token"), ("empty", "true")):
        place = build(tmp_path / name, {"file": "text\n"})
        (tmp_path / "place").mkdir(exist_ok=True)
        done("mount", place, tmp_path / "place")
        done("unmount", tmp_path / "place")
        runs.run("sh", "-c", inside, cwd=place)
    before = sandboxes()
    assert done("prune", "--dry-run") == f"would remove sandbox 'empty' of '{tmp_path}/empty'\n"
    assert sandboxes() == before == ["app", "empty", "home", "kept"]
    found = json.loads(done("prune", "--json"))
    assert (found["dry_run"], found["removed"]) == (False, ["empty"])
    assert set(found["kept"]) == {"app", "home", "kept"}
    assert sandboxes() == ["app", "home", "kept"]
    done("unmount", view)
    assert done("prune") == f"removed sandbox 'app' of '{workspace}'\n"


def test_prune_leaves_a_sandbox_alone_in_which_a_run_is_going_on(workspace: Path) -> None:
    with another_run(workspace):
        assert done("prune") == ""
        assert sandboxes() == ["app"]
