"""Patterns mean what docs/policy.md says: its table is run here."""

import re
from pathlib import Path

import pytest

from sandboxfs.policy.explain import decide
from sandboxfs.policy.model import Mode, Policy, Rule, RuleSource, SourceKind
from sandboxfs.policy.patterns import PatternError, covers_path, escape, naming, parse, within
from sandboxfs.policy.sources import can_match_in
from tests.unit.policy import made

DOCUMENT = Path(__file__).parents[3] / "docs" / "policy.md"
ROOT = "/srv/app"


def examples() -> list[tuple[str, list[str], list[str]]]:
    """The rows of the table of examples: a pattern, paths that it matches, paths that it does not."""
    text = DOCUMENT.read_text(encoding="utf-8")
    table = text.split("| pattern | matches | does not match |\n|---|---|---|\n")[1].split("\n\n")[0]
    rows = []
    for line in table.splitlines():
        pattern, matching, others = (re.findall("`([^`]+)`", cell) for cell in line[1:-1].split("|"))
        rows.append((pattern[0], matching, others))
    return rows


@pytest.fixture(autouse=True)
def _home(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/srv")


def matched(pattern: str, path: str) -> bool:
    rule = Rule(pattern, Mode.RO, RuleSource(SourceKind.USER))
    return decide(Policy((rule,)), path, path == ".", root=ROOT).reading == rule


def test_the_table_of_examples_is_there() -> None:
    assert len(examples()) > 30


@pytest.mark.parametrize(("pattern", "matching", "others"), examples(), ids=lambda value: str(value)[:20])
def test_a_pattern_matches_what_the_document_says(
    pattern: str, matching: list[str], others: list[str]
) -> None:
    assert matching or others
    assert [path for path in matching if not matched(pattern, path)] == []
    assert [path for path in others if matched(pattern, path)] == []


@pytest.mark.parametrize(("pattern", "matching", "others"), examples(), ids=lambda value: str(value)[:20])
def test_a_path_is_covered_when_the_document_says_so(
    pattern: str, matching: list[str], others: list[str]
) -> None:
    for path, expected in [*((path, True) for path in matching), *((path, False) for path in others)]:
        names = [name for name in path.split("/") if name not in ("", ".")]
        meaning = within(parse(pattern), ROOT)
        covered = any(covers_path(one, names, path.endswith(("/", "."))) for one in meaning)
        assert covered is expected, path


@pytest.mark.parametrize(
    ("pattern", "complaint"),
    [
        ("", "the pattern is empty"),
        ("a\0b", "NUL"),
        ("a" * 5000, "longer than any path"),
        ("../a", "'..' cannot be part"),
        ("a/..", "'..' cannot be part"),
        ("/srv/../etc", "'..' cannot be part"),
        ("a/[b", "unbalanced '[' in '[b'"),
        ("[a/b]", "unbalanced '[' in '[a'"),
        ("a\\", "a backslash with nothing behind it"),
        ("a\\/b", "a backslash with nothing behind it"),
        ("[9-0]", "runs backwards"),
        ("!keep", "a leading '!'"),
        ("~bob/x", "only '~' alone"),
    ],
)
def test_a_pattern_that_is_none_is_refused_with_the_reason(pattern: str, complaint: str) -> None:
    with pytest.raises(PatternError) as refused:
        parse(pattern)
    assert complaint in str(refused.value)


def test_a_home_directory_that_is_not_known_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "somewhere")
    with pytest.raises(PatternError, match="home directory is not known"):
        parse("~/x")


def test_a_home_directory_with_odd_characters_is_taken_literally(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/[x]*")
    rule = Rule("~/a", Mode.RO, RuleSource(SourceKind.USER))
    assert decide(Policy((rule,)), "a", root="/home/[x]*").reading == rule
    assert decide(Policy((rule,)), "a", root="/home/xy").reading != rule


def test_a_place_elsewhere_on_the_host_is_said_to_be_outside() -> None:
    assert not can_match_in(Rule("/etc", Mode.HIDE, RuleSource(SourceKind.USER)), ROOT)
    assert can_match_in(Rule("/srv/app/x", Mode.HIDE, RuleSource(SourceKind.USER)), ROOT)
    assert can_match_in(Rule("etc", Mode.HIDE, RuleSource(SourceKind.USER)), ROOT)


@pytest.mark.parametrize(
    "path", [*made.NAMES, "a/b", "*", "a*/[b]", "~", "~/x", "!a", "a\\b", "x/~", "[!a]/?"]
)
def test_the_pattern_that_names_a_path_matches_it_and_nothing_beside_it(path: str) -> None:
    pattern = naming(path)
    assert matched(pattern, path)
    assert matched(pattern, f"{path}/below")
    assert not matched(pattern, f"beside/{path}")
    assert not matched(pattern, f"{path}x")


def test_the_pattern_that_names_the_root_matches_everything() -> None:
    assert naming("") == naming("./") == "."
    assert escape("a[*]?\\") == "a\\[\\*\\]\\?\\\\"
