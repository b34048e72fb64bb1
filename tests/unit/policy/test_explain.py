"""An explanation names the rule, what came before it, and changes that really help."""

import shlex
import tomllib

from hypothesis import given
from hypothesis import strategies as st

from sandboxfs.policy.builtin import BUILT_IN
from sandboxfs.policy.explain import Remedy, decide, explain
from sandboxfs.policy.model import Access, Mode, Policy, Rule, RuleSource, SourceKind
from sandboxfs.policy.patterns import naming
from sandboxfs.policy.sources import parse_rule
from tests.unit.policy import made, reference

USER = RuleSource(SourceKind.USER, "config.toml", 7)
PROJECT = RuleSource(SourceKind.PROJECT, ".sandboxfs.toml", 4)


def test_what_is_allowed_is_explained_without_a_remedy() -> None:
    found = explain(Policy(BUILT_IN), "src/a.py", Access.WRITE)
    assert found.allowed
    assert found.remedies == ()
    assert found.hint() is None
    assert found.passed == BUILT_IN
    assert found.sentence() == "write allowed for 'src/a.py': allowed by rule '** = rw' (workspace mode)"


def test_a_user_s_rule_is_answered_by_a_line_before_it() -> None:
    rules = (Rule("doc", Mode.RW, USER), Rule("src/**", Mode.RO, USER), Rule("x", Mode.RO, USER))
    found = explain(Policy(rules), "src/a.py", Access.WRITE)
    assert found.sentence() == "write denied for 'src/a.py': read-only by rule 'src/** = ro' (config.toml:7)"
    assert found.passed == rules[:1]
    assert found.decided_at == "src/a.py"
    assert found.remedies == (
        Remedy("for this session", "sandboxfs allow src/a.py rw"),
        Remedy("before config.toml:7", '[[rule]]\npath = "src/a.py"\nmode = "rw"'),
    )


def test_reading_asks_for_no_more_than_reading() -> None:
    found = explain(Policy((Rule("*.pem", Mode.DENY, USER),)), "a/key.pem", Access.READ)
    assert found.remedies[0].text == "sandboxfs allow a/key.pem ro"
    assert found.hint() == "run 'sandboxfs allow a/key.pem ro'"


def test_inside_a_hidden_directory_the_directory_has_to_be_allowed() -> None:
    rules = (Rule("secret/pub", Mode.RW, USER), Rule("secret", Mode.HIDE, USER))
    found = explain(Policy(rules), "secret/pub/x", Access.READ)
    assert found.decided_at == "secret"
    assert found.remedies[0].text == "sandboxfs allow secret ro"


def test_a_project_s_rule_is_not_answered_by_configuration_that_it_would_overrule() -> None:
    found = explain(Policy((Rule("src", Mode.RO, PROJECT),)), "src/a b", Access.DELETE)
    assert [remedy.text for remedy in found.remedies] == [
        "sandboxfs allow 'src/a b' rw",
        "--rule 'src/a b=rw'",
    ]


def test_the_workspace_s_mode_is_answered_by_changing_it() -> None:
    found = explain(Policy(mode=Mode.RO), "a", Access.WRITE)
    assert [remedy.text for remedy in found.remedies][:2] == ["sandboxfs allow a rw", "sandboxfs rw"]
    assert found.decided_at == ""


def test_a_built_in_rule_is_answered_in_the_user_s_configuration() -> None:
    found = explain(Policy(BUILT_IN), ".git/config", Access.WRITE)
    assert found.remedies[1] == Remedy("in your configuration", '[[rule]]\npath = ".git/config"\nmode = "rw"')


def test_rules_that_are_off_passed_nothing() -> None:
    found = explain(Policy((Rule("a", Mode.HIDE, USER),), enabled=False), "a", Access.WRITE)
    assert found.allowed
    assert found.passed == ()


@given(made.policies(), made.relative_paths, st.sampled_from(list(Access)))
def test_every_denial_has_a_remedy_and_every_remedy_helps(policy: Policy, path: str, access: Access) -> None:
    found = explain(policy, path, access)
    assert found.decision == reference.decided(policy, path)
    assert found.allowed or found.remedies[0].text.startswith("sandboxfs allow")
    for remedy in found.remedies:
        changed = applied(policy, remedy.text)
        assert decide(changed, path).allows(access)


def applied(policy: Policy, text: str) -> Policy:
    """Do what a remedy says."""
    words = shlex.split(text)
    if words[:2] == ["sandboxfs", "allow"]:
        return policy.with_runtime_rule(
            Rule(naming(words[2]), Mode(words[3]), RuleSource(SourceKind.RUNTIME))
        )
    if words == ["sandboxfs", "rw"]:
        return policy.with_mode(Mode.RW)
    if words[0] == "--rule":
        new = parse_rule(words[1])
        place = sum(rule.source.kind is SourceKind.RUNTIME for rule in policy.rules)
    else:
        [table] = tomllib.loads(text)["rule"]
        new = Rule(table["path"], Mode(table["mode"]), USER)
        before = (SourceKind.RUNTIME, SourceKind.COMMAND_LINE, SourceKind.PROJECT)
        place = sum(rule.source.kind in before for rule in policy.rules)
    return Policy((*policy.rules[:place], new, *policy.rules[place:]), policy.mode)
