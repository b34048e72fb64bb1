"""The documents say what the code does: every verb, exit code and package is where a reader looks for it."""

import importlib
import itertools
import pkgutil
import re
import subprocess
import sys
from pathlib import Path

import pytest

from sandboxfs import errors

ROOT = Path(__file__).parents[2]
CLI_DOC = ROOT / "docs" / "cli.md"


def verbs() -> list[str]:
    """The verbs that `sandboxfs --help` offers, read from the parser itself."""
    shown = subprocess.run(
        [sys.executable, "-m", "sandboxfs", "--help"], capture_output=True, text=True, check=True
    ).stdout
    group = re.search(r"\{([a-z][a-z,-]+)\}", shown)
    if group:
        return group.group(1).split(",")
    return re.findall(r"^ {2,4}([a-z]+)(?:\s{2,}|$)", shown, re.MULTILINE)


def error_classes() -> list[type[errors.SandboxError]]:
    found: list[type[errors.SandboxError]] = []
    pending = list(errors.SandboxError.__subclasses__())
    while pending:
        kind = pending.pop()
        found.append(kind)
        pending += kind.__subclasses__()
    return found


def test_every_verb_has_a_section_in_the_cli_document() -> None:
    text = CLI_DOC.read_text(encoding="utf-8")
    assert {"mount", "unmount", "list", "status", "rm", "doctor"} <= set(verbs())
    for verb in verbs():
        assert re.search(rf"^#+ .*\b{verb}\b", text, re.MULTILINE), f"docs/cli.md has no section on {verb}"


@pytest.mark.parametrize("kind", error_classes(), ids=lambda kind: kind.__name__)
def test_every_exit_code_is_in_the_cli_document(kind: type[errors.SandboxError]) -> None:
    text = CLI_DOC.read_text(encoding="utf-8")
    assert re.search(rf"^\| *`?{kind.exit_code}`? *\|", text, re.MULTILINE), (
        f"exit code {kind.exit_code} ({kind.__name__}) is not in the table of docs/cli.md"
    )


def test_the_exit_codes_that_are_no_error_class_are_in_the_cli_document() -> None:
    text = CLI_DOC.read_text(encoding="utf-8")
    for code in (0, 70, 130):
        assert re.search(rf"^\| *`?{code}`? *\|", text, re.MULTILINE), f"exit code {code} is not in the table"


def test_no_two_kinds_of_error_share_an_exit_code() -> None:
    codes = [kind.exit_code for kind in errors.SandboxError.__subclasses__()]
    assert len(codes) == len(set(codes))


def test_every_package_is_named_in_the_architecture_document() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    package = importlib.import_module("sandboxfs")
    for module in pkgutil.iter_modules(package.__path__):
        if module.ispkg:
            assert f"{module.name}/" in text, f"docs/architecture.md does not name {module.name}/"


def test_every_attempt_of_the_escape_suite_is_in_the_security_document() -> None:
    text = (ROOT / "docs" / "security.md").read_text(encoding="utf-8")
    lines = (ROOT / "tests" / "security" / "inside" / "attacks.py").read_text(encoding="utf-8").splitlines()
    attempts = [
        line.removeprefix("def ").partition("(")[0]
        for before, line in itertools.pairwise(lines)
        if before == "@attack"
    ]
    # A star or an ellipsis stands for the rest of a name.
    named = [
        re.escape(word).replace(r"\*", ".*").replace("…", ".*") for word in re.findall(r"`([^`]+)`", text)
    ]
    assert attempts
    for attempt in attempts:
        assert any(re.fullmatch(pattern, attempt) for pattern in named), f"{attempt} is not in security.md"
