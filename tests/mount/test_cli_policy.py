"""The policy, as a user sets, changes and asks for it."""

import errno
import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from sandboxfs.cli.main import main
from tests.support.claims import Limit
from tests.support.mount_driver import run_sandboxfs
from tests.support.mounts import detach_mount, mountpoints, new_mounts
from tests.support.tree import capture

pytestmark = pytest.mark.any_user


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    workspace = tmp_path / "app"
    (workspace / "src").mkdir(parents=True)
    (workspace / "src" / "main.py").write_text("lower\n")
    (workspace / ".env").write_text("SECRET\n")
    (workspace / "docs").mkdir()
    (workspace / "docs" / "page").write_text("lower\n")
    return workspace


@pytest.fixture
def view(tmp_path: Path) -> Path:
    view = tmp_path / "view"
    view.mkdir()
    return view


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "config.toml"
    monkeypatch.setenv("SANDBOXFS_CONFIG", str(path))
    return path


@pytest.fixture(autouse=True)
def _nothing_stays_mounted_and_the_workspace_is_untouched(
    workspace: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> Iterator[None]:
    monkeypatch.chdir(workspace)
    # Not the whole: some tests give the project a file of its own.
    before = [capture(workspace / part) for part in ("src", "docs")]
    mounted = mountpoints()
    yield
    left = new_mounts(tmp_path_factory.getbasetemp(), mounted)
    for place in reversed(left):
        detach_mount(place)
    assert [capture(workspace / part) for part in ("src", "docs")] == before
    assert (workspace / ".env").read_text() == "SECRET\n"


def done(*arguments: str | Path, status: int = 0) -> str:
    """Run a command that must end with *status*; return what it wrote on stdout."""
    result = run_sandboxfs(*arguments)
    assert result.returncode == status, f"{result.returncode}: {result.stdout}{result.stderr}"
    assert "Traceback" not in result.stderr
    return result.stdout


def refused(status: int, *arguments: str | Path) -> str:
    result = run_sandboxfs(*arguments)
    assert result.returncode == status, f"{result.returncode}: {result.stdout}{result.stderr}"
    assert result.stdout == ""
    assert "Traceback" not in result.stderr
    return result.stderr


def answer(*arguments: str | Path, status: int = 0) -> dict[str, object]:
    found = json.loads(done(*arguments, "--json", status=status))
    assert isinstance(found, dict)
    return found


def rules(found: dict[str, object]) -> list[tuple[str, str, str]]:
    listed = found["rules"]
    assert isinstance(listed, list)
    return [(rule["pattern"], rule["mode"], rule["source"]) for rule in listed if rule["kind"] != "built-in"]


def error_of(path: Path, flags: int = os.O_WRONLY) -> int | None:
    try:
        os.close(os.open(path, flags))
    except OSError as error:
        return error.errno
    return None


# mount


def test_rules_of_the_command_line_are_in_force_in_the_order_given(workspace: Path, view: Path) -> None:
    options = [
        "--rule",
        "src/main.py=rw",
        "--rule",
        "src=ro",
        "--rule",
        "**/.env*=hide",
        "--rule",
        "docs=deny",
    ]
    done("mount", *options, workspace, view)
    assert sorted(os.listdir(view)) == ["docs", "src"]
    assert error_of(view / "src" / "main.py") is None
    assert error_of(view / "src" / "new", os.O_WRONLY | os.O_CREAT) == errno.EROFS
    assert error_of(view / ".env", os.O_RDONLY) == errno.ENOENT
    assert error_of(view / ".env.new", os.O_WRONLY | os.O_CREAT) == errno.EACCES
    assert error_of(view / "docs" / "page", os.O_RDONLY) == errno.EACCES
    assert rules(answer("rules")) == [
        ("src/main.py", "rw", "--rule"),
        ("src", "ro", "--rule"),
        ("**/.env*", "hide", "--rule"),
        ("docs", "deny", "--rule"),
        ("**", "rw", "workspace mode"),
    ]


def test_a_mode_is_for_what_no_rule_names_and_a_path_can_be_allowed(workspace: Path, view: Path) -> None:
    done("mount", "--mode", "ro", "--allow", "docs", "--allow", f"{workspace}/.env:hide", workspace, view)
    assert error_of(view / "src" / "main.py") == errno.EROFS
    assert error_of(view / "docs" / "page") is None
    assert not (view / ".env").exists()
    assert answer("status")["mode"] == "ro"
    assert rules(answer("rules")) == [
        ("./docs", "rw", "--allow"),
        ("./.env", "hide", "--allow"),
        ("**", "ro", "--mode"),
    ]


def test_a_preset_is_a_policy_in_one_word(workspace: Path, view: Path, config: Path) -> None:
    config.write_text('[[rule]]\npath = ".env"\nmode = "hide"\n')
    for preset, mode, written, hidden in (
        ("read-only", "ro", errno.EROFS, True),
        ("workspace-write", "rw", None, True),
        ("full-access", "rw", None, False),
    ):
        done("mount", "--replace-policy", "--preset", preset, workspace, view)
        assert error_of(view / "src" / "main.py") == written
        assert (view / ".env").exists() is not hidden
        assert answer("status")["mode"] == mode
        done("unmount", view)


def test_rules_that_are_given_and_not_enforced_are_told(workspace: Path, view: Path) -> None:
    result = run_sandboxfs("mount", "--preset", "full-access", "--rule", ".env=hide", workspace, view)
    assert "sandboxfs: warning: rules are off" in result.stderr
    assert (view / ".env").exists()
    done("enable")
    assert not (view / ".env").exists()


def test_the_configuration_is_read_anew_at_every_mount_and_options_are_kept(
    workspace: Path, view: Path, config: Path
) -> None:
    done("mount", "--rule", "src=ro", workspace, view)
    done("unmount", view)
    config.write_text('[[rule]]\npath = "docs"\nmode = "ro"\n')
    done("mount", workspace, view)
    assert error_of(view / "src" / "main.py") == errno.EROFS
    assert error_of(view / "docs" / "page") == errno.EROFS
    assert rules(answer("rules"))[:2] == [("src", "ro", "--rule"), ("docs", "ro", f"{config}:1")]


def test_another_configuration_can_be_named(
    workspace: Path, view: Path, tmp_path: Path, config: Path
) -> None:
    config.write_text('[[rule]]\npath = "docs"\nmode = "ro"\n')
    other = tmp_path / "other.toml"
    other.write_text('[workspace]\nmode = "ro"\n')
    done("mount", "--config", other, workspace, view)
    assert rules(answer("rules")) == [("**", "ro", f"{other}:2")]


def test_a_project_may_tighten_and_is_ignored_with_a_warning_where_it_loosens(
    workspace: Path, view: Path
) -> None:
    (workspace / ".sandboxfs.toml").write_text(
        '[[rule]]\npath = "src"\nmode = "rw"\n\n[[rule]]\npath = "docs"\nmode = "ro"\n'
    )
    result = run_sandboxfs("mount", "--mode", "ro", workspace, view)
    assert result.returncode == 0
    assert (
        "sandboxfs: warning: .sandboxfs.toml:1: rule 'src = rw' is ignored: "
        "a project's own rules may only tighten" in result.stderr
    )
    assert rules(answer("rules")) == [("docs", "ro", ".sandboxfs.toml:5"), ("**", "ro", "--mode")]
    assert error_of(view / "src" / "main.py") == errno.EROFS


def test_a_shadowed_rule_is_told_with_the_line_that_shadows_it(
    workspace: Path, view: Path, config: Path
) -> None:
    config.write_text('[[rule]]\npath = "src"\nmode = "ro"\n\n[[rule]]\npath = "src/a"\nmode = "rw"\n')
    warning = f"{config}:5: rule 'src/a = rw' never applies: 'src = ro' ({config}:1) decides before it"
    result = run_sandboxfs("mount", workspace, view)
    assert f"sandboxfs: warning: {warning}\n" in result.stderr
    done("unmount", view)
    result = run_sandboxfs("mount", "--json", workspace, view)
    assert json.loads(result.stdout)["warnings"] == [warning]
    assert result.stderr == ""


def test_a_kernel_read_only_mount_cannot_be_loosened(workspace: Path, view: Path) -> None:
    done("mount", "--read-only", workspace, view)
    result = run_sandboxfs("rw")
    assert result.returncode == 0
    assert "--read-only" in result.stderr
    assert error_of(view / "src" / "main.py") == errno.EROFS
    found = answer("why", "src/main.py", "write", status=1)
    assert "--read-only" in str(found["sentence"])
    assert answer("status")["mode"] == "ro"


CONFIG = "[[rule]]\npath = {}\nmode = {}\n"


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        ('[workspace]\nmood = "rw"\n', ":2: 'workspace.mood': unknown key; did you mean 'mode'?"),
        ('[wrokspace]\nmode = "rw"\n', ":1: 'wrokspace': unknown key; did you mean 'workspace'?"),
        ("[workspace]\nmode = 3\n", ":2: 'workspace.mode': expected 'ro' or 'rw', found a number"),
        ('[workspace]\nmode = "hide"\n', ":2: 'workspace.mode': expected 'ro' or 'rw', found 'hide'"),
        ('[workspace]\nenabled = "yes"\n', ":2: 'workspace.enabled': expected true or false"),
        (CONFIG.format('""', '"ro"'), ":2: 'rule.path': the pattern is empty"),
        (CONFIG.format('"a/../b"', '"ro"'), ":2: 'rule.path': '..' cannot be part"),
        (CONFIG.format('"!a"', '"ro"'), ":2: 'rule.path': a leading '!'"),
        (CONFIG.format("[]", '"ro"'), ":2: 'rule.path': expected a string, found an array"),
        (CONFIG.format('"a"', '"asks"'), ":3: 'rule.mode': expected"),
        (CONFIG.format('"a"', '"wr"'), ":3: 'rule.mode': expected"),
        ('[[rule]]\npath = "a"\n', ":1: 'rule.mode': missing"),
        ("rule = 3\n", ":1: 'rule': expected [[rule]] tables"),
        ('[[workspace.allow]]\npath = ""\n', ":2: 'workspace.allow.path': expected a path"),
        ('[log]\nlevel = "some"\n', ":2: 'log.level': expected 'denials', 'writes' or 'all'"),
        ("[workspace\n", ":1: malformed TOML"),
        ("# " + "x" * (10 << 20), ": configuration is larger than 1024 KiB"),
    ],
    ids=lambda value: value[:40] if value.startswith(":") else "",
)
def test_a_policy_that_is_not_understood_starts_nothing(
    workspace: Path, view: Path, config: Path, content: str, complaint: str
) -> None:
    config.write_text(content)
    assert f"sandboxfs: {config}{complaint}" in refused(2, "mount", workspace, view)
    assert not Path(os.environ["SANDBOXFS_STATE_DIR"]).exists()
    assert str(config) in refused(2, "config", "check", config)


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        ('[workspace]\nmode = "rw"\n', ".sandboxfs.toml:1: 'workspace': unknown key; expected 'rule'"),
        ('[[rule]]\npath = "[b-a]"\nmode = "ro"\n', ".sandboxfs.toml:2: 'rule.path': "),
        ("[[rule]]\npath = 1\n", ".sandboxfs.toml:2: 'rule.path': expected a string"),
    ],
)
def test_a_project_file_that_is_not_understood_starts_nothing(
    workspace: Path, view: Path, content: str, complaint: str
) -> None:
    (workspace / ".sandboxfs.toml").write_text(content)
    assert f"sandboxfs: {complaint}" in refused(2, "mount", workspace, view)
    assert not Path(os.environ["SANDBOXFS_STATE_DIR"]).exists()


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (["--rule", "src"], "--rule 'src': expected PATTERN=MODE"),
        (["--rule", "=ro"], "--rule '=ro': the pattern is empty"),
        (["--rule", "src=wr"], "--rule 'src=wr': expected mode"),
        (["--rule", "src=asks"], "--rule 'src=asks': expected mode"),
        (["--rule", "/elsewhere=ro"], "it names nothing in the workspace"),
        (["--allow", ""], "--allow '': expected PATH"),
        (["--allow", ":ro"], "--allow ':ro': expected PATH"),
        (["--allow", "/elsewhere"], "'sandboxfs run' serves other places as well"),
        (["--allow", "../elsewhere"], "'sandboxfs run' serves other places as well"),
        (["--mode", "hide"], "argument --mode: invalid choice: 'hide'"),
        (["--preset", "all"], "argument --preset: invalid choice: 'all' (choose from 'read-only'"),
        (["--config", "/nowhere/config.toml"], "no such file"),
        (["--config", ""], "the configuration file's name is empty"),
    ],
)
def test_options_that_mean_nothing_start_nothing(
    workspace: Path, view: Path, options: list[str], complaint: str
) -> None:
    assert complaint in refused(2, "mount", *options, workspace, view).splitlines()[0]
    assert not Path(os.environ["SANDBOXFS_STATE_DIR"]).exists()


def test_an_environment_that_names_no_place_starts_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SANDBOXFS_WORKSPACE", "~nobody-at-all/x")
    assert "no such user" in refused(2, "mount")
    assert "no such user" in refused(2, "config", "show")
    assert not Path(os.environ["SANDBOXFS_STATE_DIR"]).exists()


def test_a_configuration_that_cannot_be_read_starts_nothing(
    workspace: Path, view: Path, config: Path
) -> None:
    config.mkdir()
    assert f"cannot read configuration '{config}': Is a directory" in refused(2, "mount", workspace, view)
    assert not Path(os.environ["SANDBOXFS_STATE_DIR"]).exists()


# The running policy


def test_the_running_policy_changes_at_once_and_for_the_session_only(workspace: Path, view: Path) -> None:
    done("mount", workspace, view)
    file, whose = view / "src" / "main.py", f"sandbox 'app' of '{workspace}'"
    assert done("ro").startswith(f"{whose}: mode ro: what no rule names is read-only")
    assert error_of(file) == errno.EROFS
    assert done("allow", "src") == f"{whose}: './src = rw' decides first\n"
    assert error_of(file) is None
    assert done("allow", file.relative_to(view), "hide") == f"{whose}: 'src/main.py = hide' decides first\n"
    assert os.listdir(view / "src") == []
    assert done("disable").startswith(f"{whose}: rules are off")
    assert error_of(file) is None
    assert done("enable").startswith(f"{whose}: mode ro")
    assert not file.exists()
    assert done("rw").startswith(f"{whose}: mode rw")
    assert rules(answer("rules")) == [
        ("src/main.py", "hide", "runtime"),
        ("./src", "rw", "runtime"),
        ("**", "rw", "runtime"),
    ]
    done("unmount", view)
    done("mount", workspace, view)
    assert rules(answer("rules")) == [("**", "rw", "workspace mode")]


def test_a_change_is_answered_in_json_with_the_policy_in_force(workspace: Path, view: Path) -> None:
    done("mount", workspace, view)
    found = answer("allow", workspace / "docs", "ro")
    assert (found["name"], found["mode"], found["enabled"]) == ("app", "rw", True)
    assert found["rule"] == {
        "pattern": "./docs",
        "mode": "ro",
        "source": "runtime",
        "kind": "runtime",
        "hits": 0,
    }
    assert rules(answer("ro")) == [("./docs", "ro", "runtime"), ("**", "ro", "runtime")]
    assert answer("disable")["enabled"] is False


def test_a_path_is_meant_as_it_is_called_where_one_stands(
    workspace: Path, view: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done("mount", workspace, view)
    for folder, called in (
        (workspace / "src", "main.py"),
        (workspace / "docs", "../src/main.py"),
        (tmp_path, "src/main.py"),
        (tmp_path, "app/src/main.py"),
        (tmp_path, f"{view}/src/main.py"),
        (Path("/"), f"{workspace}/src/main.py"),
        (view / "src", "main.py"),
    ):
        monkeypatch.chdir(folder)
        assert answer("why", called)["path"] == "src/main.py"
    monkeypatch.chdir(workspace)
    for elsewhere in ("../view2", "/etc/passwd", "~nobody-at-all/x", ""):
        assert refused(2, "allow", elsewhere)


def test_allowing_what_lies_in_a_hidden_directory_is_told_to_change_nothing(
    workspace: Path, view: Path
) -> None:
    done("mount", "--rule", "src=hide", workspace, view)
    told = run_sandboxfs("allow", "src/main.py").stderr
    assert told == "note: still write denied for 'src/main.py': hidden by rule 'src = hide' (--rule)\n"
    assert run_sandboxfs("allow", "src").stderr == ""
    assert (view / "src" / "main.py").read_text() == "lower\n"


def test_a_process_in_the_view_may_ask_and_may_not_change(
    workspace: Path, view: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done("mount", "--rule", "src=ro", workspace, view)
    monkeypatch.chdir(view)
    assert "inside the view" in refused(2, "allow", "src")
    assert "inside the view" in refused(2, "disable")
    assert answer("why", "src/main.py", "write", status=1)["allowed"] is False
    assert rules(answer("rules"))[0] == ("src", "ro", "--rule")
    assert answer("status")["answering"] is True


@pytest.mark.parametrize("verb", ["allow", "ro", "rw", "enable", "disable", "rules"])
def test_a_sandbox_that_is_not_mounted_has_no_running_policy(workspace: Path, view: Path, verb: str) -> None:
    done("mount", workspace, view)
    done("unmount", view)
    told = refused(2, verb, *(["src"] if verb == "allow" else []))
    assert told.startswith("sandboxfs: sandbox 'app' is not mounted")
    assert "hint: mount it first" in told


def test_a_daemon_that_died_is_told_apart(workspace: Path, view: Path) -> None:
    done("mount", workspace, view)
    pid = int(Path(os.environ["SANDBOXFS_STATE_DIR"], "sandboxes", "app", "lock").read_text())
    descriptor = os.pidfd_open(pid)
    os.kill(pid, signal.SIGKILL)
    assert select.select([descriptor], [], [], 30)[0]
    os.close(descriptor)
    assert "died" in refused(7, "ro")
    assert answer("status")["state"] == "dead"


def test_a_daemon_that_hangs_keeps_nobody_waiting(
    workspace: Path, view: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    done("mount", "--rule", "src=ro", workspace, view)
    pid = int(Path(os.environ["SANDBOXFS_STATE_DIR"], "sandboxes", "app", "lock").read_text())
    os.kill(pid, signal.SIGSTOP)
    try:
        found = answer("status")
        # In this process, which can tell what it waits for the daemon from what it waits for a processor.
        four_seconds = Limit(4.0)
        assert main(["status"]) == 0
        assert not four_seconds.is_over
        assert "does not answer" in capsys.readouterr().err
        assert (found["answering"], found["state"], found["counters"]) == (False, "mounted", {})
        assert rules(found)[0] == ("src", "ro", "--rule")
        assert "does not answer" in refused(7, "ro")
    finally:
        os.kill(pid, signal.SIGCONT)


def test_status_counts_what_was_done_and_refused(workspace: Path, view: Path) -> None:
    done("mount", "--rule", "src=ro", "--log-level", "all", workspace, view)
    error_of(view / "src" / "main.py")
    (view / "docs" / "page").read_text()
    (view / "new").write_text("x")
    found = answer("status")
    counters = found["counters"]
    assert isinstance(counters, dict)
    assert counters["denials"] == 1
    assert counters["reads"] >= 1
    assert counters["writes"] >= 1
    listed = found["rules"]
    assert isinstance(listed, list)
    assert listed[0]["hits"] >= 1
    shown = done("status")
    assert "denials 1\n" in shown
    assert "built-in rules that decided nothing" in shown


# why


def test_why_names_the_rule_its_place_and_what_would_allow_it(
    workspace: Path, view: Path, config: Path
) -> None:
    config.write_text('[[rule]]\npath = "docs"\nmode = "deny"\n\n[[rule]]\npath = "src/**"\nmode = "ro"\n')
    done("mount", workspace, view)
    shown = done("why", "src/main.py", "write", status=1)
    sentence = f"write denied for 'src/main.py': read-only by rule 'src/** = ro' ({config}:5)\n"
    assert shown.startswith(sentence)
    assert f"'docs = deny' ({config}:1)" in shown
    assert "sandboxfs allow src/main.py rw" in shown
    assert done("why", "src/main.py").startswith("read allowed for 'src/main.py': read-only by rule")
    done("allow", "src/main.py", "rw")
    assert "(runtime)" in done("why", "src/main.py", "write")
    done("unmount", view)
    assert done("why", "src/main.py", "write", status=1).startswith(sentence)


@pytest.mark.parametrize("mounted", [True, False])
def test_why_tells_the_rule_for_the_place_that_a_moved_directory_comes_from(
    workspace: Path, view: Path, mounted: bool
) -> None:
    done("mount", workspace, view)
    (view / "src").rename(view / "moved")
    assert answer("why", "moved/main.py", "write")["came_from"] is None
    done("unmount", view)
    done("mount", "--replace-policy", "--rule", "src/main.py=ro", workspace, view)
    with pytest.raises(OSError, match="Read-only"):
        (view / "moved/main.py").write_text("changed")
    if not mounted:
        done("unmount", view)
    found = answer("why", "moved/main.py", "write", status=1)
    assert (found["path"], found["came_from"], found["mode"]) == ("moved/main.py", "src/main.py", "ro")
    shown = done("why", "moved/main.py", "write", status=1)
    assert shown.startswith("write denied for 'src/main.py': read-only by rule 'src/main.py = ro' (--rule)\n")
    assert "'moved/main.py' comes from 'src/main.py'" in shown


@pytest.mark.parametrize("mounted", [True, False])
def test_why_explains_what_is_not_there_yet(workspace: Path, view: Path, mounted: bool) -> None:
    done("mount", "--rule", "build/=ro", "--rule", "**/*.pem=hide", workspace, view)
    if not mounted:
        done("unmount", view)
    found = answer("why", "deep/down/key.pem", "write", status=1)
    assert found["state"] == ("mounted" if mounted else "unmounted")
    assert found["rule"] == {
        "pattern": "**/*.pem",
        "mode": "hide",
        "source": "--rule",
        "kind": "command line",
    }
    assert found["remedies"]
    assert answer("why", "build", "write")["allowed"] is True
    assert answer("why", "build/", "write", status=1)["decided_at"] == "build"
    assert answer("why", "build/x", "delete", status=1)["errno"] == "EROFS"
    assert answer("why", ".", "write")["path"] == "."
    # What the sandbox makes anew, the built-in rules leave alone.
    assert answer("why", "new/.git/hooks/x", "write")["allowed"] is True


def test_the_remedy_that_why_gives_works_when_typed(
    workspace: Path, view: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done("mount", "--rule", "**/.env=hide", "--rule", "src=ro", workspace, view)
    monkeypatch.chdir(workspace)
    for path, access in ((".env", "read"), ("src/main.py", "write"), ("src/a b'c", "write")):
        remedies = answer("why", path, access, status=1)["remedies"]
        assert isinstance(remedies, list)
        command = remedies[0]["text"]
        typed = command.replace("sandboxfs", f"{sys.executable} -m sandboxfs", 1)
        subprocess.run(["sh", "-c", typed], check=True, capture_output=True)
        assert answer("why", path, access)["allowed"] is True


# Telling


def test_a_foreground_mount_tells_of_denials_and_folds_repeated_ones(workspace: Path, view: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "sandboxfs",
        "mount",
        "-f",
        "--rule",
        "src=ro",
        str(workspace),
        str(view),
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == f"{view}\n"
        for _ in range(13):
            assert error_of(view / "src" / "main.py") == errno.EROFS
        assert error_of(view / "src" / "new", os.O_WRONLY | os.O_CREAT) == errno.EROFS
        process.send_signal(signal.SIGINT)
        _, told = process.communicate(timeout=30)
    assert process.returncode == 0
    lines = [line for line in told.splitlines() if line.startswith("sandboxfs: ")]
    assert lines == [
        "sandboxfs: write denied for 'src/main.py': read-only by rule 'src = ro' (--rule)",
        "sandboxfs: 12 more of these",
        "sandboxfs: write denied for 'src/new': read-only by rule 'src = ro' (--rule)",
    ]


def test_the_log_has_what_was_refused_by_the_patterns_of_the_policy(workspace: Path, view: Path) -> None:
    done("mount", "--rule", "src=ro", "--rule", "docs=ro", workspace, view)
    error_of(view / "src" / "main.py")
    error_of(view / "docs" / "page")
    (view / "new").write_text("x")
    done("unmount", view)

    def paths(*options: str) -> list[str]:
        lines = done("log", "--json", *options).splitlines()
        return [record["path"] for line in lines if "path" in (record := json.loads(line))]

    assert paths("--denied") == ["src/main.py", "docs/page"]
    assert paths("--denied", "--path", "*.py") == ["src/main.py"]
    assert paths("--denied", "--path", f"{workspace}/docs/") == ["docs/page"]
    assert set(paths("--path", "./new")) == {"new"}
    assert "bad pattern" in refused(2, "log", "--path", "a[")


# config


def test_config_show_is_what_the_next_mount_has(
    workspace: Path, view: Path, config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config.write_text('[workspace]\nmode = "ro"\n\n[[rule]]\npath = "docs"\nmode = "rw"\n')
    done("mount", workspace, view)
    monkeypatch.chdir(workspace / "src")
    shown = answer("config", "show")
    assert shown["workspace"] == str(workspace)
    assert rules(shown) == rules(answer("rules"))
    monkeypatch.chdir("/")
    assert answer("config", "show", "-s", "app") == shown
    assert answer("config", "show", "--workspace", workspace) == shown


def policy_changes() -> list[dict[str, object]]:
    lines = run_sandboxfs("log", "-s", "app", "--json").stdout.splitlines()
    return [record for record in map(json.loads, lines) if record.get("event") == "policy changed"]


@pytest.mark.parametrize("level", ["denials", "all"])
def test_every_change_of_the_policy_is_in_the_log_with_whoever_asked_for_it(
    workspace: Path, view: Path, level: str
) -> None:
    def do(*words: str | Path) -> None:
        done = run_sandboxfs(*words)
        assert done.returncode == 0, done.stderr

    do("mount", "--name", "app", "--log-level", level, workspace, view)
    do("allow", "-s", "app", "docs/page", "ro")
    for verb in ("ro", "rw", "disable", "enable"):
        do(verb, "-s", "app")
    # What changes nothing is no change.
    do("enable", "-s", "app")
    do("unmount", "-s", "app")
    found = policy_changes()
    assert [(one["change"], one["mode"], one["enabled"]) for one in found] == [
        ("allow", "rw", True),
        ("ro", "ro", True),
        ("rw", "rw", True),
        ("disable", "rw", False),
        ("enable", "rw", True),
    ]
    assert [one["rule"] for one in found] == ["docs/page = ro", None, None, None, None]
    for one in found:
        assert one["uid"] == os.getuid()
        assert isinstance(one["pid"], int)
        assert str(one["command"]).startswith(("python", "sandboxfs"))
    assert len({one["pid"] for one in found}) == 5


def test_a_mount_under_another_policy_than_the_last_is_in_the_log(workspace: Path, view: Path) -> None:
    rounds: list[list[str]] = [[], [], ["--rule", "docs=hide"], ["--rule", "docs=hide"], ["--mode", "ro"]]
    counts = []
    for options in rounds:
        done = run_sandboxfs("mount", "--name", "app", *options, workspace, view)
        assert done.returncode == 0, done.stderr
        assert run_sandboxfs("unmount", "-s", "app").returncode == 0
        counts.append(len(policy_changes()))
    assert counts == [0, 0, 1, 1, 2]
    assert [(one["change"], one["mode"]) for one in policy_changes()] == [("mount", "rw"), ("mount", "ro")]


def test_a_mount_with_other_symlinks_or_now_read_only_is_in_the_log(workspace: Path, view: Path) -> None:
    for options in ([], ["--symlinks", "deny"], ["--symlinks", "deny", "--read-only"], []):
        done = run_sandboxfs("mount", "--name", "app", "--replace-policy", *options, workspace, view)
        assert done.returncode == 0, done.stderr
        assert run_sandboxfs("unmount", "-s", "app").returncode == 0
    assert [(one["change"], one["symlinks"], one["read_only"]) for one in policy_changes()] == [
        ("mount", "deny", False),
        ("mount", "deny", True),
        ("mount", "guard", False),
    ]
