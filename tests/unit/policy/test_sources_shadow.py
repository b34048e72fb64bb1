"""A rule is called shadowed only when it can never decide."""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sandboxfs.policy.builtin import BUILT_IN
from sandboxfs.policy.model import Access, Mode, Policy, Rule, RuleCondition, RuleSource, SourceKind
from sandboxfs.policy.sources import shadowed
from tests.unit.policy import made, reference

USER = RuleSource(SourceKind.USER)


def pairs(*patterns: str, kinds: tuple[SourceKind, ...] = (SourceKind.USER,) * 2) -> list[tuple[str, str]]:
    rules = tuple(
        Rule(pattern, Mode.RO, RuleSource(kind)) for pattern, kind in zip(patterns, kinds, strict=True)
    )
    return [(rule.pattern, by.pattern) for rule, by in shadowed(Policy(rules), "/srv/app")]


@pytest.mark.parametrize(
    ("earlier", "rule"),
    [
        ("src/a", "src/a"),
        ("src", "./src/a"),
        ("src/**", "src/a/*"),
        ("src/", "src/a"),
        ("src/", "src/"),
        ("**", "src/a/*"),
        ("*", "a"),
        ("*.py", "src/*.py"),
        ("*.py", "src/**/test_*.py"),
        ("**/.env*", "app/.env.local"),
        ("a*", "abc*"),
        ("a/**/b", "a/x/b/c"),
        ("[ab]", "a"),
        ("/srv/app/x", "x/y"),
        ("/srv", "anything"),
        ("x", "/srv/app/x"),
    ],
)
def test_a_rule_below_an_earlier_one_is_shadowed(earlier: str, rule: str) -> None:
    assert pairs(earlier, rule) == [(rule, earlier)]


@pytest.mark.parametrize(
    ("earlier", "rule"),
    [
        ("src/a", "src"),
        ("src/**", "src"),
        ("src/", "src"),
        ("./src", "src"),
        ("src", "srcs"),
        ("a/*/c", "a/**/c"),
        ("a?", "a*"),
        ("/elsewhere", "src"),
        ("src", "/elsewhere/src"),
    ],
)
def test_a_rule_that_can_still_decide_is_not_shadowed(earlier: str, rule: str) -> None:
    assert pairs(earlier, rule) == []


def test_a_project_s_rule_shadows_only_the_project_s_own() -> None:
    assert pairs("src", "src", kinds=(SourceKind.PROJECT, SourceKind.USER)) == []
    assert pairs("src", "src", kinds=(SourceKind.PROJECT, SourceKind.PROJECT)) == [("src", "src")]
    assert pairs("src", "src", kinds=(SourceKind.RUNTIME, SourceKind.PROJECT)) == [("src", "src")]


def test_a_rule_inside_a_directory_that_another_hides_is_shadowed_wherever_that_one_stands() -> None:
    rules = (Rule("secret/pub", Mode.RO, USER), Rule("secret", Mode.HIDE, USER))
    assert shadowed(Policy(rules)) == [rules]
    assert shadowed(Policy((rules[0], Rule("secret/**", Mode.HIDE, USER)))) == []


@pytest.mark.parametrize(
    "earlier",
    [
        Rule("x", Mode.RO, RuleSource(SourceKind.BUILT_IN), needs=RuleCondition.ENTRY),
        Rule("x", Mode.RO, RuleSource(SourceKind.BUILT_IN), files_only=True),
    ],
)
def test_a_rule_that_does_not_always_apply_shadows_none(earlier: Rule) -> None:
    assert shadowed(Policy((earlier, Rule("x", Mode.DENY, RuleSource(SourceKind.BUILT_IN))))) == []


def test_no_built_in_rule_shadows_another() -> None:
    assert shadowed(Policy(BUILT_IN)) == []


def test_a_thousand_rules_that_begin_alike_are_looked_through_in_bounded_time() -> None:
    rules = tuple(Rule(f"src/{number}", Mode.RO, USER) for number in range(1000))
    assert shadowed(Policy(rules)) == []


@settings(max_examples=2 * settings().max_examples)
@given(made.policies(), st.lists(made.relative_paths, max_size=10))
def test_a_shadowed_rule_never_decides(policy: Policy, paths: list[str]) -> None:
    never = {id(rule) for rule, _ in shadowed(policy)}
    for path in [*made.EVERY_PATH, *paths]:
        for is_dir, existing in itertools.product((True, False), (None, {"a"}, set[str]())):
            decision = reference.decided(policy, path, is_dir, existing)
            assert not {id(decision.rule_for(access)) for access in Access} & never
