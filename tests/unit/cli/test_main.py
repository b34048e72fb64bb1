"""Errors become messages and exit codes in one place; every verb explains itself."""

import argparse
import importlib
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from sandboxfs import __version__
from sandboxfs.cli import main as command_line
from sandboxfs.cli import run
from sandboxfs.cli.main import VERBS, main
from sandboxfs.cli.parser import Parser
from sandboxfs.control.advance import Waiting
from sandboxfs.errors import SandboxError, error_from_json

ROOT = Path(__file__).parents[3]


def parser_of(verb: str) -> Parser:
    made = importlib.import_module(f"sandboxfs.cli.{verb}").parser()
    assert isinstance(made, Parser)
    return made


def test_the_version_is_printed_on_stdout(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"sandboxfs {__version__}\n"


def test_help_names_every_verb(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    shown = capsys.readouterr().out
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
        ["allow", "a", "ask"],
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
        "error": {
            "code": "no-such-sandbox",
            "exit": 3,
            "message": "no sandbox called 'nowhere'",
            "hint": None,
        }
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
        f"import importlib, sys; importlib.import_module('sandboxfs.cli.{verb}');"
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
        "sandboxfs.cli.concluding",
        "sandboxfs.cli.planning",
        "sandboxfs.cli.starting",
        "sandboxfs.control.launch",
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

    def start() -> Waiting:
        started.append(verb)
        raise OSError

    monkeypatch.setattr(Waiting, "start", start)
    monkeypatch.setattr(run, "_reported", lambda words, verb, waiting: 0)
    run.run(words, verb)
    assert bool(started) is needed
