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


def test_every_proof_that_the_security_document_names_exists() -> None:
    text = (ROOT / "docs" / "security.md").read_text(encoding="utf-8")
    tables = [part for part in text.split("\n## ") if "| shown by |" in part]
    rows = [
        line.split(" | ")
        for table in tables
        for line in table.partition("| shown by |")[2].splitlines()
        if line.startswith("| ")
    ]
    sources = [path.read_text(encoding="utf-8") for path in (ROOT / "tests").rglob("*.py")]
    defined = {name for source in sources for name in re.findall(r"^def ([a-z]\w+)\(", source, re.MULTILINE)}
    headings = [table.partition("\n")[0] for table in tables]
    assert len(set(headings)) == len(headings) > 2
    assert len(rows) > 30
    for row in rows:
        proofs = re.findall(r"`([^`]+)`", row[-1])
        assert proofs, f"no test is named for {row[0]!r}"
        for proof in proofs:
            name = proof.partition("[")[0]
            pattern = re.escape(name).replace("…", r"\w*").replace(r"\*", r"\w*")
            folders = (ROOT, ROOT / "tests/security", ROOT / "tests/unit/review")
            files = (folder / name for folder in folders)
            known = any(re.fullmatch(pattern, one) for one in defined) or any(map(Path.exists, files))
            assert known, f"security.md names {proof!r}, which is no test"


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


DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
PACKAGE = ROOT / "sandboxfs"
ROOMS = {place.name for place in PACKAGE.iterdir() if (place / "__init__.py").exists()}
# In text, a name of ours: its first part, the path, and perhaps what is defined there.
NAMED = re.compile(r"`([a-z_]+)((?:/[\w-]+)+(?:\.(?:py|txt|md|toml|sh))?)/?(?:(?:\.|::)(\w+))?(?:\(\))?`")


def place_of(first: str, path: str) -> Path | None:
    """Where the file or the directory is that a document names; None for what is none of ours."""
    if first in ROOMS:
        return PACKAGE / (first + path)
    if first in ("tests", "scripts", "docs"):
        return ROOT / (first + path)
    below = path.lstrip("/").partition("/")[0]
    return ROOT / (first + path) if first == "sandboxfs" and below in ROOMS else None


def misnamed(text: str) -> list[str]:
    """The names of modules, tests, scripts and what is defined in them that lead nowhere."""
    wrong = []
    for found in NAMED.finditer(text):
        place = place_of(found[1], found[2])
        if place is None or place.is_dir():
            continue
        module = place if place.exists() else place.with_name(place.name + ".py")
        if not module.exists() or not defines(module, found[3]):
            wrong.append(found[0])
    return wrong


def defines(module: Path, name: str | None) -> bool:
    """Whether the file *module* has a function, class or value called *name*; None is defined anywhere."""
    definition = rf"^ *(?:async )?(?:def|class) {name}\b|^{name}\b"
    return name is None or re.search(definition, module.read_text(encoding="utf-8"), re.MULTILINE) is not None


def test_names_of_what_is_not_there_are_found() -> None:
    assert misnamed("`overlay/nodes` `overlay/nodes.py` `review/flags.table()` `sandboxfs/overlay`") == []
    assert misnamed("`tests/unit` `tests/unit/test_docs.py::misnamed` `a/b` `sandboxfs/mnt`") == []
    gone = ["`overlay/knots`", "`sandboxfs/review/flags.txt`", "`tests/mount/x.py`", "`review/flags.tables`"]
    assert misnamed(" ".join(gone)) == gone


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_every_module_test_and_function_that_a_document_names_exists(document: Path) -> None:
    assert misnamed(document.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_every_link_to_a_file_of_ours_leads_somewhere(document: Path) -> None:
    text = re.sub(r"```.*?```|`[^`\n]*`", "", document.read_text(encoding="utf-8"), flags=re.DOTALL)
    links = [link for link in re.findall(r"\]\(([^)#\s]+)", text) if ":" not in link]
    assert [link for link in links if not (document.parent / link).exists()] == []
