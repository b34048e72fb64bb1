"""Is a person told why a program failed in a run, and what helps? And what does sandboxfs say inside one?"""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import sandboxfs
from tests.support import runs
from tests.support.tree import File, build

pytestmark = pytest.mark.any_user

TRIED = "the program tried to use the network, which is off\nhint: sandboxfs run --network"
# Addresses that nobody has.
CONNECT = "import socket; socket.create_connection(('192.0.2.1', 80), 5)"
CONNECT_6 = "import socket; socket.create_connection(('2001:db8::1', 80), 5)"
RESOLVE = "import socket; socket.getaddrinfo('example.invalid', 80)"


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    return build(tmp_path / "workspace", {"file": "text\n", "codex": File("#!/bin/sh\n", mode=0o755)})


@pytest.mark.parametrize("script", [CONNECT, CONNECT_6, RESOLVE])
def test_a_program_that_failed_for_want_of_the_network_is_told_the_option(
    workspace: Path, script: str
) -> None:
    runs.require("bubblewrap")
    words = ("--confine", "bubblewrap", "--", runs.PYTHON, "-I", "-c", script)
    assert TRIED in runs.run(*words, cwd=workspace, status=1).stderr


@pytest.mark.parametrize(
    "words",
    [
        ("--", "false"),
        ("--quiet", "--", runs.PYTHON, "-I", "-c", CONNECT),
        ("--", runs.PYTHON, "-I", "-c", "import socket; socket.create_connection(('127.0.0.1', 1), 5)"),
        ("--network", "--", "sh", "-c", "exit 1"),
    ],
    ids=["it did not try", "quiet", "it tried this machine only", "the network is on"],
)
def test_a_program_that_failed_for_another_reason_is_told_nothing_of_the_network(
    workspace: Path, words: tuple[str, ...]
) -> None:
    runs.require("bubblewrap")
    done = runs.run("--confine", "bubblewrap", *words, cwd=workspace, status=1)
    assert "hint: sandboxfs run --network" not in done.stderr


def test_a_program_that_tried_the_network_and_succeeded_is_told_nothing_of_it(workspace: Path) -> None:
    script = f"try:\n    {CONNECT}\nexcept OSError:\n    print('went on')"
    done = runs.run("--", runs.PYTHON, "-I", "-c", script, cwd=workspace)
    assert done.stdout == "went on\n"
    assert "hint: sandboxfs run --network" not in done.stderr


def test_under_landlock_every_program_that_failed_is_told_of_the_network(workspace: Path) -> None:
    runs.require("landlock")
    hint = (
        "the program failed, and the network was off\nhint: if it needs the network, sandboxfs run --network"
    )
    assert hint in runs.run("--confine", "landlock", "--", "false", cwd=workspace, status=1).stderr
    words = ("--confine", "landlock", "--network", "--", "false")
    assert hint not in runs.run(*words, cwd=workspace, status=1).stderr


def test_a_program_with_a_sandbox_of_its_own_is_told_the_option_that_helps(
    workspace: Path, confinement: str
) -> None:
    hint = "hint: codex --sandbox danger-full-access\n"
    for command in (
        ["./codex", "exec"],
        ["env", "A=1", "nice", "-n", "1", "./codex"],
        ["sh", "-c", "./codex exec"],
    ):
        done = runs.run("--confine", confinement, "--", *command, cwd=workspace)
        assert "codex cannot make a sandbox of its own in a run" in done.stderr
        assert hint in done.stderr
    for command in (
        ["./codex", "--sandbox", "danger-full-access"],
        ["ls", "codex"],
        ["echo", "a", "b", "codex"],
    ):
        assert hint not in runs.run("--confine", confinement, "--", *command, cwd=workspace).stderr


def test_a_program_that_was_not_found_is_told_nothing_of_the_network(workspace: Path) -> None:
    runs.require("landlock")
    done = runs.run("--confine", "landlock", "--", "no-such-program", cwd=workspace, status=None)
    assert done.returncode in (126, 127)
    assert "the network was off" not in done.stderr


@pytest.mark.parametrize(
    ("option", "fate"),
    [(None, "kept for review"), ("--discard", "dropped"), ("--commit", "committed")],
)
def test_a_shell_says_what_becomes_of_its_changes(workspace: Path, option: str | None, fate: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "sandboxfs", "shell", *([option] if option else [])],
        cwd=workspace,
        env=os.environ | {"SHELL": "/bin/sh"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=True,
    )
    assert f"and what it changed is {fate}" in done.stderr


def test_sandboxfs_that_is_out_of_reach_inside_has_a_stand_in_that_tells_where_one_is(
    workspace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, confinement: str
) -> None:
    build(tmp_path / "bin", {"sandboxfs": File("#!/bin/sh\n", mode=0o755)})
    (workspace / 'a "b').mkdir()
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    script = """
        cd 'a "b' && sandboxfs status; sandboxfs; sandboxfs diff; echo $?; sandboxfs run x; echo $?
        cd / && sandboxfs status | tail -n 1
        cd - > /dev/null && sandboxfs status --json
    """
    done = runs.run("--confine", confinement, "--", "sh", "-c", script, cwd=workspace)
    *status, described = done.stdout.splitlines()
    first = "you are inside sandbox 'workspace'; the network is off"
    found = json.loads(described)
    assert (found["version"], found["inside"], found["network"]) == (1, "workspace", False)
    top = Path(found["files"]["policy"]).parents[1]
    files = [
        f"{top}/.sandboxfs/changes: what has changed so far",
        f"{top}/.sandboxfs/denials: what was refused",
        f"{top}/.sandboxfs/policy: the rules in force",
    ]
    nowhere = "the top directory of the workspace has, in .sandboxfs/: changes, denials, policy"
    assert status == [first, *files, first, *files, "2", "125", nowhere]
    assert "you are inside sandbox 'workspace', where 'sandboxfs diff' cannot work" in done.stderr
    assert "you are inside sandbox 'workspace', where 'sandboxfs run' cannot work" in done.stderr
    alone = runs.run("--confine", confinement, "--", "sandboxfs", "status", cwd=workspace)
    assert alone.stdout.splitlines()[0] == first


def test_a_program_that_is_found_goes_before_the_stand_in(workspace: Path, confinement: str) -> None:
    build(workspace / "bin", {"sandboxfs": File("#!/bin/sh\necho the real one\n", mode=0o755)})
    script = "PATH=$PWD/bin:$PATH sandboxfs status; echo $PATH"
    done = runs.run("--confine", confinement, "--", "sh", "-c", script, cwd=workspace)
    real, path = done.stdout.splitlines()
    assert real == "the real one"
    assert path.startswith(f"{os.environ['PATH']}:/")


def test_without_any_environment_sandboxfs_is_not_found_and_told_of(workspace: Path) -> None:
    done = runs.run("--clear-env", "--", "sandboxfs", "status", cwd=workspace, status=None)
    assert done.returncode in (126, 127)
    assert "you are inside sandbox 'workspace'" in done.stderr
    assert ".sandboxfs/ has what can be read of it" in done.stderr


@pytest.mark.parametrize("shown", ["repository", "repository/.git"])
def test_a_linked_worktree_is_told_what_git_lacks_until_that_is_shown(tmp_path: Path, shown: str) -> None:
    runs.require("bubblewrap")
    repository, tree = tmp_path / "repository", tmp_path / "tree"
    for command in (
        f"git init -q -b main {repository}",
        f"git -C {repository} -c user.name=u -c user.email=u@example.org commit -q --allow-empty -m first",
        f"git -C {repository} worktree add -q {tree}",
    ):
        subprocess.run(command.split(), check=True)
    words = ("--confine", "bubblewrap")
    assert "git finds no repository" in runs.run(*words, "true", cwd=tree).stderr
    done = runs.run(*words, "--allow", tmp_path / shown, "git", "log", "--format=%s", cwd=tree)
    assert done.stdout == "first\n"
    assert "git finds no repository" not in done.stderr


def test_inside_a_run_status_says_where_one_is_and_what_can_be_read(
    workspace: Path, confinement: str
) -> None:
    shutil.copytree(
        Path(sandboxfs.__file__).parent,
        workspace / "sandboxfs",
        ignore=shutil.ignore_patterns("__pycache__"),
    )
    ask = (f"{runs.PYTHON} -m sandboxfs {words}" for words in ("status", "diff", "run true", "status --json"))
    script = "; echo $?; ".join(ask) + "; cat .sandboxfs/policy > /dev/null"
    done = runs.run("--confine", confinement, "--", "sh", "-c", script, cwd=workspace)
    status, _, rest = done.stdout.partition("\n0\n")
    first, *files = status.splitlines()
    assert first == "you are inside sandbox 'workspace'; the network is off"
    assert [line.partition(": ")[2] for line in files] == [
        "what has changed so far",
        "what was refused",
        "the rules in force",
    ]
    assert rest.startswith("2\n125\n")
    described = json.loads(rest.removeprefix("2\n125\n"))
    assert described["inside"] == "workspace"
    assert all(f"{described['files'][name]}: " in status for name in ("changes", "denials", "policy"))
    assert "you are inside sandbox 'workspace', where 'sandboxfs diff' cannot work" in done.stderr
    assert "you are inside sandbox 'workspace', where 'sandboxfs run' cannot work" in done.stderr
