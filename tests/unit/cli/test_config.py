"""`sandboxfs config` shows, makes and checks; what a person wrote is never overwritten."""

import json
import os
import tomllib
from pathlib import Path

import pytest

from sandboxfs.cli.main import main
from sandboxfs.policy.config import UserConfig, read_user_config
from sandboxfs.service.config import problems

Captured = pytest.CaptureFixture[str]


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "conf" / "config.toml"
    monkeypatch.setenv("SANDBOXFS_CONFIG", str(path))
    return path


@pytest.fixture
def workspace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    workspace = tmp_path / "app"
    workspace.mkdir()
    monkeypatch.chdir(workspace)
    return workspace


def shown(capsys: Captured, *words: str) -> dict[str, object]:
    assert main(["config", "show", "--json", *words]) == 0
    found = json.loads(capsys.readouterr().out)
    assert isinstance(found, dict)
    return found


def written(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def test_the_path_is_printed_whether_the_file_is_there_or_not(config: Path, capsys: Captured) -> None:
    assert main(["config", "path"]) == 0
    assert capsys.readouterr().out == f"{config}\n"
    assert main(["config", "path", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {
        "version": 1,
        "path": str(config),
        "exists": False,
    }
    assert not config.parent.exists()


def test_init_writes_a_file_that_changes_nothing(config: Path, capsys: Captured) -> None:
    assert main(["config", "init"]) == 0
    assert capsys.readouterr().out == f"{config}\n"
    assert read_user_config(config) == UserConfig()
    assert config.stat().st_mode & 0o777 == 0o600
    assert main(["config", "check"]) == 0


@pytest.mark.parametrize("kind", ["file", "link", "directory"])
def test_init_never_overwrites(config: Path, capsys: Captured, kind: str) -> None:
    config.parent.mkdir()
    target = config.parent / "target"
    if kind == "file":
        config.write_text("# mine\n")
    elif kind == "link":
        config.symlink_to(target)
    else:
        config.mkdir()
    assert main(["config", "init"]) == 2
    assert "exists already" in capsys.readouterr().err
    assert kind != "file" or config.read_text() == "# mine\n"
    assert not target.exists()


def test_init_can_be_told_where(config: Path, tmp_path: Path) -> None:
    assert main(["config", "init", "--config", str(tmp_path / "other.toml")]) == 0
    assert (tmp_path / "other.toml").exists()
    assert not config.exists()


def test_init_that_cannot_write_says_so(config: Path, tmp_path: Path, capsys: Captured) -> None:
    (tmp_path / "conf").write_text("a file in the way")
    assert main(["config", "init"]) == 2
    assert "cannot write" in capsys.readouterr().err


def test_check_reports_every_problem_with_its_place(config: Path, capsys: Captured) -> None:
    written(
        config,
        """\
[workspace]
mood = "rw"
mode = "wr"
enabled = 1

[[rule]]
path = ""
mode = "ro"

[[rule]]
path = "good"
mode = "asks"

[[rule]]
pattern = "a"

[[rule]]
path = ["several",
  "lines"]
mode = "ro"

[logs]
level = "all"
""",
    )
    expected = [
        "2: 'workspace.mood'",
        "3: 'workspace.mode'",
        "4: 'workspace.enabled'",
        "7: 'rule.path'",
        "12: 'rule.mode'",
        "14: 'rule.mode'",
        "14: 'rule.path'",
        "15: 'rule.pattern'",
        "18: 'rule.path'",
        "22: 'logs'",
    ]
    assert main(["config", "check"]) == 2
    told = capsys.readouterr()
    assert told.out == ""
    found = [line.removeprefix(f"sandboxfs: {config}:") for line in told.err.splitlines()]
    assert sorted(line.rpartition("': ")[0] + "'" for line in found) == sorted(expected)
    assert any("did you mean 'log'?" in line for line in found)
    assert any("did you mean 'mode'?" in line for line in found)
    assert main(["config", "check", "--json"]) == 2
    error = json.loads(capsys.readouterr().err)["error"]
    assert error["problems"] == [f"{config}:{line}" for line in found]


def test_a_rule_whose_mode_is_wrong_is_not_also_told_to_have_none(config: Path) -> None:
    written(config, '[[rule]]\npath = "a"\nmode = "wr"\n')
    assert len(problems(config)) == 1


def test_a_rule_of_which_everything_is_wrong_has_every_mistake_told(config: Path) -> None:
    written(config, '[[rule]]\npath = ""\nmode = "wr"\nfoo = 1\n[[rule]]\npath = 3\n')
    found = [problem.removeprefix(f"{config}:").partition(":")[0] for problem in problems(config)]
    assert found == ["2", "3", "4", "5", "6"]


def test_mistakes_on_one_line_are_all_told(config: Path) -> None:
    written(config, '[workspace]\nallow = [{path = "", mode = "x"}, {path = 3}, 4, {y = 1, path = "/a"}]\n')
    assert len(problems(config)) == 5


def test_what_is_no_toml_does_not_hide_other_mistakes(config: Path) -> None:
    written(config, '[workspace]\nmood = "rw"\n[[rule\npath = "a"\n[log]\nlevel = \nkeep = 0\n')
    found = [problem.removeprefix(f"{config}:") for problem in problems(config)]
    assert [problem.partition(":")[0] for problem in found] == ["2", "3", "6", "7"]
    assert found[1].startswith("3: malformed TOML")
    assert found[2].startswith("6: malformed TOML")


def test_without_a_file_the_defaults_apply_and_that_is_right(config: Path, capsys: Captured) -> None:
    assert main(["config", "check"]) == 0
    assert capsys.readouterr().out == f"{config}: no such file; the defaults apply\n"
    assert main(["config", "check", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["exists"] is False
    assert main(["config", "check", str(config)]) == 2, "a file that is named must be there"


def test_checking_ends_however_much_is_wrong(config: Path) -> None:
    written(config, "".join(f'key{number} = "x"\n' for number in range(500)))
    assert len(problems(config)) == 50


def test_a_project_file_is_checked_as_one(workspace: Path, capsys: Captured) -> None:
    project = written(workspace / ".sandboxfs.toml", '[workspace]\nmode = "rw"\n')
    assert main(["config", "check", ".sandboxfs.toml"]) == 2
    assert "sandboxfs: .sandboxfs.toml:1: 'workspace': unknown key" in capsys.readouterr().err
    project.write_text('[[rule]]\npath = "src"\nmode = "rw"\n')
    assert main(["config", "check", str(project)]) == 0
    told = capsys.readouterr()
    assert "may only tighten" in told.err
    assert told.out.endswith(": 1 warning\n")
    project.write_text('[[rule]]\npath = "src"\nmode = "ro"\n')
    assert main(["config", "check", str(project)]) == 0
    assert capsys.readouterr().out.endswith(": no problems\n")


def test_what_may_not_be_meant_is_a_warning_and_no_problem(config: Path, capsys: Captured) -> None:
    written(config, '[[rule]]\npath = "a"\nmode = "ro"\n[[rule]]\npath = "a/b"\nmode = "rw"\n')
    assert main(["config", "check", "--json"]) == 0
    (warning,) = json.loads(capsys.readouterr().out)["warnings"]
    assert warning.startswith(f"{config}:4: rule 'a/b = rw' never applies: 'a = ro' ({config}:1)")


@pytest.mark.parametrize("name", ["nowhere.toml", "folder"])
def test_a_file_that_cannot_be_read_is_a_problem(tmp_path: Path, capsys: Captured, name: str) -> None:
    (tmp_path / "folder").mkdir()
    assert main(["config", "check", str(tmp_path / name)]) == 2
    assert "cannot read configuration" in capsys.readouterr().err


def test_show_lists_every_rule_in_order_with_where_it_came_from(
    config: Path, workspace: Path, capsys: Captured
) -> None:
    written(config, '[workspace]\nmode = "ro"\n[[rule]]\npath = "/elsewhere"\nmode = "rw"\n')
    written(workspace / ".sandboxfs.toml", '[[rule]]\npath = "src"\nmode = "deny"\n')
    found = shown(capsys)
    assert found["workspace"] == str(workspace)
    assert (found["mode"], found["mode_source"]) == ("ro", f"{config}:2")
    rules = found["rules"]
    assert isinstance(rules, list)
    assert [(rule["source"], rule["in_workspace"]) for rule in rules[:2]] == [
        (".sandboxfs.toml:1", True),
        (f"{config}:3", False),
    ]
    assert [rule["kind"] for rule in rules[2:]] == ["built-in"] * (len(rules) - 3) + ["workspace"]
    assert main(["config", "show"]) == 0
    text = capsys.readouterr().out
    assert f"# {config}:3, outside the workspace\n[[rule]]\n" in text
    assert tomllib.loads(text)["workspace"]["mode"] == "ro"


def test_show_is_about_the_workspace_that_the_environment_names(
    config: Path, workspace: Path, tmp_path: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = tmp_path / "other"
    other.mkdir()
    written(config, f'[workspace]\nroot = "{tmp_path / "app"}"\nmode = "ro"\n')
    monkeypatch.chdir("/")
    found = shown(capsys)
    assert (found["workspace"], found["mode"]) == (str(workspace), "ro")
    monkeypatch.setenv("SANDBOXFS_WORKSPACE", str(other))
    found = shown(capsys)
    assert (found["workspace"], found["mode"]) == (str(other), "rw")
    assert found["mode_source"] == "SANDBOXFS_WORKSPACE"
    found = shown(capsys, "--workspace", str(workspace))
    assert (found["workspace"], found["mode"]) == (str(workspace), "ro")


@pytest.mark.parametrize(
    "words", [["--workspace", "/nowhere"], ["--workspace", ""], ["--config", "/nowhere"]]
)
def test_show_refuses_what_is_not_there(workspace: Path, capsys: Captured, words: list[str]) -> None:
    assert main(["config", "show", *words]) == 2
    assert capsys.readouterr().out == ""


def test_looking_creates_nothing(workspace: Path, config: Path, capsys: Captured) -> None:
    for words in (["show"], ["path"], ["check"]):
        main(["config", *words])
    assert not Path(os.environ["SANDBOXFS_STATE_DIR"]).exists()
    assert not config.parent.exists()
