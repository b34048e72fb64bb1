"""What a program is told of a policy."""

from pathlib import Path

import pytest

from sandboxfs.policy.builtin import BUILT_IN
from sandboxfs.policy.explain import described_explanation, explain, present_in
from sandboxfs.policy.model import Access, Hold, Mode, Policy, Rule, RuleCondition, RuleSource, SourceKind


@pytest.mark.parametrize(
    ("path", "way", "needs", "expected"),
    [
        ("src/a", "src", RuleCondition.ENTRY, True),
        ("src/a", "src/a", RuleCondition.ENTRY, True),
        ("src/b", "src/b", RuleCondition.ENTRY, False),
        ("src/b", "src/b", RuleCondition.PARENT, True),
        ("new/b", "new/b", RuleCondition.PARENT, False),
        ("new", "new", RuleCondition.PARENT, True),
        ("src/a/below", "src/a/below", RuleCondition.PARENT, True),
        ("src/a/below", "src/a/below", RuleCondition.ENTRY, False),
        # What a link leads to is not in the workspace by this name.
        ("link/a", "link", RuleCondition.ENTRY, True),
        ("link/a", "link/a", RuleCondition.ENTRY, False),
    ],
)
def test_how_much_of_a_way_the_workspace_has(
    tmp_path: Path, path: str, way: str, needs: RuleCondition, expected: bool
) -> None:
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "a").touch()
    (tmp_path / "link").symlink_to("src")
    assert present_in(tmp_path, path)(way, needs) is expected


def test_an_explanation_is_told_with_its_rule_and_its_error() -> None:
    rule = Rule("src", Mode.RO, RuleSource(SourceKind.USER, "config.toml", 7))
    told = described_explanation(explain(Policy((rule, *BUILT_IN)), "src/a", Access.WRITE))
    assert told | {"remedies": []} == {
        "path": "src/a",
        "access": "write",
        "allowed": False,
        "mode": "ro",
        "errno": "EROFS",
        "held": None,
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


def test_an_explanation_tells_whether_the_change_is_held() -> None:
    source = RuleSource(SourceKind.USER, "config.toml", 7)
    always = Rule("kept", Mode.HOLD, source)
    existing = Rule("src", Mode.RW, source, hold=frozenset({Hold.DELETE}))
    policy = Policy((always, existing))

    def held(path: str, access: Access) -> object:
        told = described_explanation(explain(policy, path, access))
        assert told["allowed"] is True
        return told["held"]

    assert held("kept/a", Access.WRITE) == held("kept/a", Access.DELETE) == "always"
    assert held("src/a", Access.DELETE) == "existing"
    assert held("src/a", Access.WRITE) is held("kept/a", Access.READ) is None
    told = described_explanation(explain(policy, "src/a", Access.DELETE))
    rule = "'src = rw, hold delete' (config.toml:7)"
    assert told["sentence"] == f"delete allowed for 'src/a': held by rule {rule}"
    assert told["rule"] == {
        "pattern": "src",
        "mode": "rw",
        "hold": ["delete"],
        "source": "config.toml:7",
        "kind": "user",
    }
