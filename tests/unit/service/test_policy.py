"""What a daemon answers is checked before it is believed."""

import pytest

from sandboxfs.errors import DaemonLost
from sandboxfs.service.policy import PolicyInForce, ShownRule, in_force, shown_rule

RULE = {"pattern": "src", "mode": "ro", "source": "--rule", "kind": "command line", "hits": 3}


def test_an_answer_is_read_with_what_a_newer_daemon_adds() -> None:
    found = in_force({"mode": "rw", "enabled": True, "rules": [RULE | {"new": 1}], "more": None})
    assert found == PolicyInForce("rw", True, (ShownRule("src", "ro", "--rule", "command line", 3),))
    assert found.rules[0].as_json() == RULE
    assert str(found.rules[0]) == "src = ro"


@pytest.mark.parametrize(
    "answer",
    [
        {},
        {"mode": "rw", "enabled": True},
        {"mode": 1, "enabled": True, "rules": []},
        {"mode": "rw", "enabled": "yes", "rules": []},
        {"mode": "rw", "enabled": True, "rules": {}},
        {"mode": "rw", "enabled": True, "rules": [1]},
        {"mode": "rw", "enabled": True, "rules": [{"pattern": "a"}]},
    ],
)
def test_an_answer_that_makes_no_sense_is_refused(answer: dict[str, object]) -> None:
    with pytest.raises(DaemonLost, match="makes no sense"):
        in_force(answer)


def test_hits_that_nobody_counted_are_none() -> None:
    assert shown_rule(RULE | {"hits": None}).hits is None


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        (PolicyInForce("ro", True, ()), "mode ro: what no rule names is read-only"),
        (PolicyInForce("rw", True, ()), "mode rw: what no rule names is writable, in the sandbox"),
        (PolicyInForce("ro", False, ()), "rules are off: nothing is refused"),
    ],
)
def test_one_line_says_what_a_policy_comes_to(policy: PolicyInForce, expected: str) -> None:
    assert policy.sentence().startswith(expected)


def test_a_rule_says_what_it_holds() -> None:
    found = shown_rule(RULE | {"mode": "rw", "hold": ["delete", "overwrite"]})
    assert str(found) == "src = rw, hold delete, hold overwrite"
    assert found.as_json()["hold"] == ["delete", "overwrite"]
    assert "hold" not in shown_rule(RULE).as_json()
