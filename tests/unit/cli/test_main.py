"""Errors become messages and exit codes in one place; every verb explains itself."""

import argparse
import json
import re
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest

from sandboxfs import __version__
from sandboxfs.cli import main as command_line
from sandboxfs.cli import run
from sandboxfs.cli.main import VERBS, main, parser_of
from sandboxfs.control.prestart import WaitingDaemon
from sandboxfs.errors import SandboxError, error_from_json
from sandboxfs.state.locations import Locations
from sandboxfs.state.store import SandboxRecord, Store

ROOT = Path(__file__).parents[3]


def test_the_version_is_printed_on_stdout(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"sandboxfs {__version__}\n"


def test_help_names_every_verb(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert all(verb in shown and summary in shown for verb, summary in VERBS.items())


@pytest.mark.parametrize("verb", VERBS)
def test_the_help_of_a_verb_has_examples_and_exit_status(
    verb: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([verb, "--help"]) == 0
    shown = capsys.readouterr().out
    assert f"\n  sandboxfs {verb}" in shown
    if verb in ("run", "shell"):
        # They pass the status of a program on.
        assert re.search(r"exit status:\n    0  COMMAND's own .+\n    1  .+\n  125  ", shown)
    else:
        assert re.search(r"exit status:\n    0  done\n(    1  .+\n)?    2  ", shown)


@pytest.mark.parametrize("verb", VERBS)
def test_every_option_of_a_verb_is_in_its_section_of_the_cli_document(verb: str) -> None:
    text = (ROOT / "docs" / "cli.md").read_text()
    section = re.search(rf"^## `{verb}`$(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL)
    assert section is not None
    actions: list[argparse.Action] = parser_of(verb)._actions
    for option in (word for action in actions for word in action.option_strings):
        if option not in ("-h", "--help"):
            assert option in section[1], f"{option} of {verb} is not documented"


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["fly"],
        ["--fly"],
        ["mount", "--fly"],
        ["mount", "a", "b", "c"],
        ["mount", "--read"],
        ["unmount", "--lazy", "--wait"],
        ["unmount", "-s", "x", "/mnt"],
        ["rm"],
        ["list", "x"],
        ["status", "x"],
        ["doctor", "x"],
        ["mount", "--mode", "hide"],
        ["mount", "--preset", "all"],
        ["mount", "--symlinks", "follow"],
        ["mount", "--log-level", "none"],
        ["mount", "--rule"],
        ["why"],
        ["why", "a", "look"],
        ["allow"],
        ["allow", "a", "maybe"],
        ["ro", "x"],
        ["rules", "x"],
        ["config"],
        ["config", "fly"],
        ["config", "init", "x"],
        ["config", "path", "-s", "x"],
        ["config", "show", "-s", "x", "--workspace", "/"],
        ["log", "--path", "a["],
        ["log", "--path", ""],
    ],
)
def test_a_command_line_that_means_nothing_is_refused(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == 2
    told = capsys.readouterr()
    assert told.out == ""
    assert told.err


@pytest.mark.parametrize("verb", [None, *VERBS])
@pytest.mark.parametrize("columns", [60, 80, 100, 132])
def test_no_line_of_help_is_wider_than_the_terminal(
    verb: str | None, columns: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    assert main(["--help"] if verb is None else [verb, "--help"]) == 0
    shown = capsys.readouterr().out.splitlines()
    assert [line for line in shown if len(line) > columns] == []


@pytest.mark.parametrize("columns", ["0", "-7", "wide", ""])
def test_help_is_shown_whatever_columns_says(
    columns: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    assert main(["commit", "--help"]) == 0
    assert max(map(len, capsys.readouterr().out.splitlines())) <= 80


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        (["comit"], "commit"),
        (["statsu"], "status"),
        (["umonut"], "umount"),
        (["helpp"], "help"),
        (["help", "comit"], "commit"),
        (["run", "--netwrok", "true"], "--network"),
        (["commit", "--include_git", "x"], "--include-git"),
        (["diff", "--name-stat"], "--name-status"),
        (["run", "--home", "cwo", "true"], "cow"),
        (["config", "chek"], "check"),
    ],
)
def test_what_was_probably_meant_is_said(
    words: list[str], meant: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) in (2, 125)
    assert f"did you mean '{meant}'?" in capsys.readouterr().err


def test_a_sandbox_whose_name_is_misspelt_is_probably_another(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    record = SandboxRecord("project", tmp_path, tmp_path / "m", datetime(2026, 1, 2, tzinfo=UTC))
    Store(Locations.from_environment()).create(record).release()
    assert main(["status", "-s", "porject"]) == 3
    assert "hint: did you mean 'project'? there is project\n" in capsys.readouterr().err


def test_help_on_help_is_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    shown = capsys.readouterr().out
    assert main(["help", "help"]) == 0
    assert capsys.readouterr().out == shown


@pytest.mark.parametrize(
    "words", [["-s", "app", "diff"], ["--dry-run", "prune"], ["--sandbox=app", "status"]]
)
def test_the_option_of_a_verb_goes_after_it(capsys: pytest.CaptureFixture[str], words: list[str]) -> None:
    assert main(words) == 2
    option = words[0].partition("=")[0]
    assert f"hint: {option} goes after the verb: sandboxfs {words[-1]} {option} …" in capsys.readouterr().err


def test_an_option_of_no_verb_is_not_said_to_go_after_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--bogus", "diff"]) == 2
    assert "goes after" not in capsys.readouterr().err


def test_what_looks_like_nothing_that_exists_is_not_guessed_at(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["xyzzy"]) == 2
    assert "did you mean" not in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "same"),
    [
        (["-V"], ["--version"]),
        (["help"], ["--help"]),
        (["help", "commit"], ["commit", "--help"]),
        (["help", "ls"], ["list", "--help"]),
        (["ls", "--json"], ["list", "--json"]),
        (["umount", "--help"], ["unmount", "--help"]),
    ],
)
def test_what_people_know_from_elsewhere_works(
    words: list[str], same: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == 0
    first = capsys.readouterr()
    assert main(same) == 0
    assert capsys.readouterr() == first
    assert first.out


def test_an_error_is_a_message_and_a_hint_on_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["status"]) == 3
    told = capsys.readouterr()
    assert told.out == ""
    assert re.fullmatch(r"sandboxfs: there is no sandbox yet\nhint: .+\n", told.err)


def test_an_error_is_one_line_of_json_on_stderr_when_json_is_asked_for(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["status", "--json", "-s", "nowhere"]) == 3
    told = capsys.readouterr()
    assert told.out == ""
    assert json.loads(told.err) == {
        "version": 1,
        "error": {
            "code": "no-such-sandbox",
            "exit": 3,
            "message": "no sandbox called 'nowhere'",
            "hint": None,
        },
    }


def test_a_bad_option_is_json_too(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list", "--json", "--fly"]) == 2
    assert json.loads(capsys.readouterr().err)["error"]["code"] == "usage"


def test_a_bug_ends_with_70_and_a_traceback(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: list[str]) -> int:
        raise ZeroDivisionError("by zero")

    monkeypatch.setattr(command_line, "_run", fail)
    assert main(["list"]) == 70
    told = capsys.readouterr().err
    assert "Traceback" in told
    assert told.endswith("sandboxfs: bug: ZeroDivisionError: by zero\n")
    assert main(["list", "--json"]) == 70
    assert json.loads(capsys.readouterr().err)["error"]["exit"] == 70


def test_an_interruption_ends_with_130(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(_: list[str]) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(command_line, "_run", interrupt)
    assert main(["list"]) == 130
    assert capsys.readouterr().err == "sandboxfs: interrupted\n"
    assert main(["list", "--json"]) == 130
    assert json.loads(capsys.readouterr().err)["error"]["code"] == "interrupted"


@pytest.mark.parametrize("verb", VERBS)
def test_no_verb_imports_what_only_a_daemon_needs(verb: str) -> None:
    script = (
        f"import sys; from sandboxfs.cli.main import module_of; module_of('{verb}');"
        "print([m for m in ('trio', 'pyfuse3') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


@pytest.mark.parametrize("kind", SandboxError.__subclasses__())
def test_every_error_survives_the_way_from_the_daemon(kind: type[SandboxError]) -> None:
    sent = kind("what happened", hint="what to do")
    received = error_from_json(sent.as_json())
    assert type(received) is kind
    assert (received.message, received.hint) == (sent.message, sent.hint)


def test_every_error_has_a_row_in_the_table_of_the_cli_document() -> None:
    text = (ROOT / "docs" / "cli.md").read_text()
    for kind in SandboxError.__subclasses__():
        assert f"| {kind.exit_code} | `{kind.code}` | {kind.meaning} |" in text


def imported_by(code: str) -> set[str]:
    """What a Python that executes *code* has imported in the end."""
    code += "; import sys; sys.stderr.write(' '.join(sys.modules))"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(ended.stderr.split())


def test_the_version_is_told_without_importing_any_verb() -> None:
    loaded = imported_by("from sandboxfs.cli.main import main; main(['--version'])")
    assert not loaded & {"argparse", "dataclasses", "pathlib", "sandboxfs.cli.parser"}


def test_a_run_imports_little_before_it_has_started_its_daemon() -> None:
    loaded = imported_by("import sandboxfs.cli.main, sandboxfs.cli.run")
    assert not loaded & {"argparse", "dataclasses", "subprocess", "tomllib", "trio"}


def test_a_run_that_joins_another_imports_nothing_that_is_for_starting_one() -> None:
    loaded = imported_by("import sandboxfs.cli.run_command")
    assert not loaded & {
        "hashlib",
        "shutil",
        "subprocess",
        "sandboxfs.cli.run_report",
        "sandboxfs.service.mount_plan",
        "sandboxfs.service.mount",
        "sandboxfs.control.start_daemon",
    }


@pytest.mark.parametrize(
    ("words", "verb", "needed"),
    [
        (["--", "ls", "-s"], "run", True),
        (["ls"], "run", True),
        ([], "shell", True),
        ([], "run", False),
        (["--help"], "run", False),
        (["-s", "app", "--", "ls"], "run", False),
        (["--quiet", "--sandbox=app", "--", "ls"], "run", False),
        (["--quiet", "-s", "app"], "shell", False),
    ],
)
def test_a_daemon_is_started_at_once_where_it_looks_as_if_one_is_needed(
    words: list[str], verb: str, needed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[str] = []

    def start() -> WaitingDaemon:
        started.append(verb)
        raise OSError

    monkeypatch.setattr(WaitingDaemon, "start", start)
    monkeypatch.setattr(run, "_reported", lambda words, verb, waiting: 0)
    run.run(words, verb)
    assert bool(started) is needed
