"""Does `sandboxfs.Sandbox` do from Python what the command line does?"""

import os
import threading
from pathlib import Path

import pytest

from sandboxfs import Sandbox
from sandboxfs.errors import CommitConflict, SandboxError, UsageError
from tests.support import runs
from tests.support.tree import assert_same_tree, build, capture

pytestmark = pytest.mark.mount


class Watched:
    """Looks, while its block runs, for processes with a word in their command line."""

    def __init__(self, *words: str) -> None:
        self.seen: list[str] = []
        self._words = words
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._look)

    def __enter__(self) -> "Watched":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _look(self) -> None:
        while not self._ended.wait(0.02):
            self.seen += [line for word in self._words for line in runs.processes_with(word)]


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    return build(tmp_path / "workspace", {"file": "text\n", ".env": "secret", "dir/inner": "inner\n"})


def test_the_example_of_the_documentation(workspace: Path) -> None:
    before = capture(workspace)
    with Sandbox(workspace, rules=["**/.env*=hide"]) as sandbox:
        done = sandbox.run(
            ["sh", "-c", "ls -A; echo more >> file; echo x > made; cat .env"], capture_output=True
        )
        assert done.returncode == 1
        assert done.stdout == "dir\nfile\n"
        assert_same_tree(capture(workspace), before, what="the workspace")
        assert [str(change) for change in sandbox.changes()] == ["M file", "A made"]
        assert "hidden by rule '**/.env* = hide'" in sandbox.denials()[0].sentence
        sandbox.commit("file")
        assert (workspace / "file").read_text() == "text\nmore\n"
        assert [change.path for change in sandbox.changes()] == ["made"]
        sandbox.discard()
        assert sandbox.changes() == ()
        sandbox.undo()
        assert [change.path for change in sandbox.changes()] == ["made"]
    assert not (workspace / "made").exists()
    runs.check_nothing_left("no-such-mark")


def test_programs_share_the_view_of_the_block_and_its_options(workspace: Path) -> None:
    with Sandbox(workspace, env=["GIVEN=1"], network=False) as sandbox:
        sandbox.run(["sh", "-c", "echo 1 > made"])
        assert (sandbox.view / "made").read_text() == "1\n"
        command = ["sh", "-c", "cat inner; cat; echo $GIVEN $MORE"]
        done = sandbox.run(
            command, input="in\n", env={"MORE": "2"}, cwd=workspace / "dir", capture_output=True
        )
        assert done.stdout == "inner\nin\n1 2\n"
        name = sandbox.name
    with Sandbox(workspace, name=name) as sandbox:
        assert sandbox.run(["cat", "made"], capture_output=True).stdout == "1\n"


def test_values_of_variables_are_seen_by_the_program_alone(workspace: Path) -> None:
    with Sandbox(workspace, env=["FIRST=first-value"]) as sandbox:
        script = "echo $FIRST $MY_SECRET $PATH; env | grep -c SANDBOXFS_ENV; cat; exit 3"
        variables = {"MY_SECRET": "second-value", "PATH": os.environ["PATH"] + ":/inside"}
        before = dict(os.environ)
        with Watched("first-value", "second-value", ":/inside") as watched:
            done = sandbox.run(["sh", "-c", script], env=variables, capture_output=True)
        assert done.stdout == f"first-value second-value {variables['PATH']}\n0\n"
        assert done.returncode == 3
        assert dict(os.environ) == before
        assert watched.seen == []


def test_a_program_starts_where_it_is_told_or_not_at_all(workspace: Path) -> None:
    with Sandbox(workspace) as sandbox:
        for shown in (workspace / "dir", sandbox.view / "dir"):
            assert sandbox.run(["cat", "inner"], cwd=shown, capture_output=True).stdout == "inner\n"
        sandbox.run(["mkdir", "made"])
        assert sandbox.run(["pwd"], cwd=sandbox.view / "made", capture_output=True).stdout.endswith("/made\n")
        for place in ("/etc", workspace / "file", workspace / "missing"):
            with pytest.raises(UsageError, match="no directory of the workspace"):
                sandbox.run(["true"], cwd=place)


@pytest.mark.parametrize("command", [[], "true", ""])
def test_what_is_no_command_is_refused(workspace: Path, command: list[str]) -> None:
    with Sandbox(workspace) as sandbox, pytest.raises(UsageError, match="expected a program"):
        sandbox.run(command)


@pytest.mark.parametrize("variables", [{"": "x"}, {"A=B": "x"}, {"A": "x\0"}])
def test_a_bad_variable_is_refused(workspace: Path, variables: dict[str, str]) -> None:
    with Sandbox(workspace) as sandbox, pytest.raises(UsageError, match="bad variable"):
        sandbox.run(["true"], env=variables)


def test_failures_are_told_as_errors(workspace: Path) -> None:
    with pytest.raises(SandboxError, match="no such directory"), Sandbox(workspace / "missing"):
        pass
    with pytest.raises(UsageError, match="expected one of"):
        Sandbox(workspace, home="away")
    sandbox = Sandbox(workspace)
    with pytest.raises(UsageError, match="not open"):
        sandbox.changes()
    with sandbox:
        assert sandbox.run(["no-such-program"], capture_output=True).returncode == 127
        sandbox.run(["sh", "-c", "echo ours > file"])
        (workspace / "file").write_text("theirs\n")
        with pytest.raises(CommitConflict):
            sandbox.commit()
    assert (workspace / "file").read_text() == "theirs\n"
