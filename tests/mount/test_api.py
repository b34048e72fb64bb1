"""Does `sandboxfs.Sandbox` do from Python what the command line does?"""

import os
import threading
from pathlib import Path

import pytest

import sandboxfs
from sandboxfs import CommitConflict, Sandbox, SandboxError, TimedOut, UsageError
from tests.support import runs
from tests.support.tree import assert_same_tree, build, capture


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
    with Sandbox(workspace, name=name, resume=True) as sandbox:
        assert [change.fresh for change in sandbox.changes()] == [False]
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
        Sandbox(workspace, home="away")  # type: ignore[arg-type]
    sandbox = Sandbox(workspace)
    with pytest.raises(UsageError, match="not open"):
        sandbox.changes()
    with sandbox:
        assert sandbox.run(["no-such-program"], capture_output=True).returncode == 127
        sandbox.run(["sh", "-c", "echo ours > file"])
        (workspace / "file").write_text("theirs\n")
        with pytest.raises(CommitConflict) as caught:
            sandbox.commit()
        assert "'path': 'file'" in str(caught.value.details)
    assert (workspace / "file").read_text() == "theirs\n"


def test_changes_from_before_are_refused_unless_they_are_resumed(workspace: Path) -> None:
    def fail_half_way() -> None:
        with Sandbox(workspace) as sandbox:
            sandbox.run(["sh", "-c", "echo half > made"])
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail_half_way()
    with pytest.raises(UsageError, match="holds changes from before: 1") as caught, Sandbox(workspace):
        pass
    assert "resume=True" in (caught.value.hint or "")
    runs.check_nothing_left("no-such-mark")
    with Sandbox(workspace, resume=True) as sandbox:
        sandbox.run(["sh", "-c", "echo x > new"])
        assert [(change.path, change.fresh) for change in sandbox.changes()] == [
            ("made", False),
            ("new", True),
        ]
        sandbox.discard()
    with Sandbox(workspace) as sandbox:
        assert sandbox.changes() == ()


def test_committing_where_nothing_changed_is_nothing_to_do(workspace: Path) -> None:
    with Sandbox(workspace) as sandbox:
        sandbox.commit()
        sandbox.commit("dir")
        sandbox.discard("dir")
        sandbox.run(["sh", "-c", "echo more >> file; echo x > made"])
        sandbox.commit("dir", "file", workspace / "nowhere")
        assert [change.path for change in sandbox.changes()] == ["made"]
        with pytest.raises(UsageError, match="is not in the workspace"):
            sandbox.commit("/etc")
    assert (workspace / "file").read_text() == "text\nmore\n"


def test_a_program_that_takes_too_long_is_ended_and_what_it_wrote_is_kept(workspace: Path) -> None:
    command = ["sh", "-c", "echo begun; exec sleep 98761"]
    with Sandbox(workspace) as sandbox, pytest.raises(TimedOut, match=r"after 5 seconds") as caught:
        sandbox.run(command, capture_output=True, timeout=5)
    assert caught.value.details["timeout"] == 5
    assert caught.value.details["stdout"] == "begun\n"
    runs.check_nothing_left("98761")


def test_a_time_that_is_up_is_told_as_it_was_given(workspace: Path) -> None:
    with Sandbox(workspace) as sandbox, pytest.raises(TimedOut, match=r"after 0\.5 seconds") as caught:
        sandbox.run(["sleep", "98763"], timeout=0.5)
    assert caught.value.details == {"timeout": 0.5}
    runs.check_nothing_left("98763")


@pytest.mark.parametrize(
    "arguments",
    [
        {"workspace": None},
        {"workspace": "a\0b"},
        {"workspace": "~no-such-user/x"},
        {"workspace": 7},
        {"rules": "a=ro"},
        {"rules": [7]},
        {"rules": ["a=no"]},
        {"rules": None},
        {"allow": [None]},
        {"env": ["=x"]},
        {"env": "A"},
        {"env": ["NO_SUCH_VARIABLE"]},
        {"name": 7},
        {"name": "a/b"},
        {"mode": 7},
        {"mode": "all"},
        {"mode": "hide"},
        {"env": {"A": "1"}},
        {"rules": ["\ud800=ro"]},
        {"home": 7},
        {"confine": None},
    ],
    ids=str,
)
def test_a_bad_argument_of_a_sandbox_is_an_error_of_ours(
    workspace: Path, arguments: dict[str, object]
) -> None:
    def use() -> None:
        given = {"workspace": workspace} | arguments
        with Sandbox(**given) as sandbox:  # type: ignore[arg-type]
            sandbox.run(["true"], capture_output=True)

    with pytest.raises(SandboxError):
        use()


@pytest.mark.parametrize(
    "arguments",
    [
        {"command": [7]},
        {"command": ["a\0b"]},
        {"command": 7},
        {"command": ["true"], "input": b"bytes"},
        {"command": ["true"], "env": {"A": 7}},
        {"command": ["true"], "env": {7: "A"}},
        {"command": ["true"], "cwd": 7},
        {"command": ["true"], "cwd": "a\0b"},
        {"command": ["true"], "cwd": "a\ud800"},
        {"command": ["a\ud800"]},
        {"command": ["true"], "env": "A=1"},
        {"command": ["true"], "env": ["A"]},
        {"command": ["true"], "env": {"A": "\ud800"}},
        {"command": ["true"], "timeout": "x"},
        {"command": ["true"], "timeout": 1e30, "capture_output": True},
    ],
    ids=str,
)
def test_a_bad_argument_of_a_run_is_an_error_of_ours(workspace: Path, arguments: dict[str, object]) -> None:
    with Sandbox(workspace) as sandbox, pytest.raises(UsageError):
        sandbox.run(**arguments)  # type: ignore[arg-type]


def test_a_mode_that_there_is_not_is_answered_with_those_that_there_are(workspace: Path) -> None:
    with pytest.raises(UsageError, match=r"^mode: expected one of ro, rw, found 'xx'$"):
        Sandbox(workspace, mode="xx")  # type: ignore[arg-type]


def test_a_relative_path_without_a_current_directory_is_an_error_of_ours(
    workspace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    with pytest.raises(UsageError, match="the current directory is gone"):
        Sandbox("x")
    with Sandbox(workspace) as sandbox, pytest.raises(UsageError, match="cwd"):
        sandbox.run(["true"], cwd="x")


def test_a_verb_in_a_workspace_that_is_gone_names_it(workspace: Path, tmp_path: Path) -> None:
    with Sandbox(workspace) as sandbox:
        sandbox.run(["touch", "made"])
        workspace.rename(tmp_path / "away")
        with pytest.raises(SandboxError, match=str(workspace)):
            sandbox.commit()
        (tmp_path / "away").rename(workspace)
        sandbox.commit()
    assert (workspace / "made").exists()


def test_a_block_cannot_be_entered_twice(workspace: Path) -> None:
    with Sandbox(workspace) as sandbox:
        with pytest.raises(UsageError, match="entered twice"):
            sandbox.__enter__()
        assert sandbox.run(["true"]).returncode == 0
        for paths in ((7,), ("a\0b",)):
            with pytest.raises(UsageError):
                sandbox.commit(*paths)
        with pytest.raises(UsageError):
            sandbox.commit(on_conflict="whatever")  # type: ignore[arg-type]


def test_every_error_is_exported() -> None:
    kinds = {kind.__name__ for kind in SandboxError.__subclasses__()}
    assert kinds | {"Sandbox", "SandboxError", "Change", "Denied"} <= set(sandboxfs.__all__)
    assert all(getattr(sandboxfs, name) is not None for name in sandboxfs.__all__)
    with pytest.raises(AttributeError):
        sandboxfs.no_such_name  # noqa: B018
