"""What a program is told of a policy."""

from pathlib import Path

import pytest

from sandboxfs.policy.answers import described_explanation, present_in
from sandboxfs.policy.builtin import BUILT_IN
from sandboxfs.policy.explain import explain
from sandboxfs.policy.model import Access, Kind, Mode, Needs, Policy, Rule, Source


@pytest.mark.parametrize(
    ("path", "way", "needs", "expected"),
    [
        ("src/a", "src", Needs.ENTRY, True),
        ("src/a", "src/a", Needs.ENTRY, True),
        ("src/b", "src/b", Needs.ENTRY, False),
        ("src/b", "src/b", Needs.PARENT, True),
        ("new/b", "new/b", Needs.PARENT, False),
        ("new", "new", Needs.PARENT, True),
        ("src/a/below", "src/a/below", Needs.PARENT, True),
        ("src/a/below", "src/a/below", Needs.ENTRY, False),
        # What a link leads to is not in the workspace by this name.
        ("link/a", "link", Needs.ENTRY, True),
        ("link/a", "link/a", Needs.ENTRY, False),
    ],
)
def test_how_much_of_a_way_the_workspace_has(
    tmp_path: Path, path: str, way: str, needs: Needs, expected: bool
) -> None:
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "a").touch()
    (tmp_path / "link").symlink_to("src")
    assert present_in(tmp_path, path)(way, needs) is expected


def test_an_explanation_is_told_with_its_rule_and_its_error() -> None:
    rule = Rule("src", Mode.RO, Source(Kind.USER, "config.toml", 7))
    told = described_explanation(explain(Policy((rule, *BUILT_IN)), "src/a", Access.WRITE))
    assert told | {"remedies": []} == {
        "path": "src/a",
        "access": "write",
        "allowed": False,
        "mode": "ro",
        "errno": "EROFS",
        "rule": {"pattern": "src", "mode": "ro", "source": "config.toml:7", "kind": "user"},
        "decided_at": "src",
        "sentence": "write denied for 'src/a': read-only by rule 'src = ro' (config.toml:7)",
        "passed": [],
        "remedies": [],
    }
    assert told["remedies"]


def test_what_is_allowed_has_no_error() -> None:
    told = described_explanation(explain(Policy(), "", Access.READ))
    assert (told["path"], told["allowed"], told["errno"]) == (".", True, None)
