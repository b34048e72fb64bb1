"""Modes, decisions and policies as values: what they allow, with which error, and in which words."""

import errno

import pytest

from sandboxfs.errors import UsageError
from sandboxfs.policy.decide import decide
from sandboxfs.policy.model import Access, Decision, Kind, Mode, Policy, Rule, Source

USER = Source(Kind.USER, "config.toml", 3)


def decision(mode: Mode) -> Decision:
    return Decision(mode, Rule("src/**", mode, Source(Kind.PROJECT, ".sandboxfs.toml", 4)))


@pytest.mark.parametrize(
    ("mode", "read", "write", "delete", "execute", "create"),
    [
        (Mode.HIDE, errno.ENOENT, errno.ENOENT, errno.ENOENT, errno.ENOENT, errno.EACCES),
        (Mode.DENY, errno.EACCES, errno.EACCES, errno.EACCES, errno.EACCES, errno.EACCES),
        (Mode.RO, 0, errno.EROFS, errno.EROFS, 0, errno.EROFS),
        (Mode.RW, 0, 0, 0, 0, 0),
    ],
)
def test_each_mode_answers_each_access(
    mode: Mode, read: int, write: int, delete: int, execute: int, create: int
) -> None:
    answers = [decision(mode).errno(access) for access in Access]
    assert answers == [read, write, delete, execute]
    assert decision(mode).errno(Access.WRITE, creating=True) == create
    assert [decision(mode).allows(access) for access in Access] == [answer == 0 for answer in answers]


def test_hide_is_stricter_than_deny_than_ro_than_rw() -> None:
    order = [Mode.HIDE, Mode.DENY, Mode.RO, Mode.RW]
    for place, mode in enumerate(order):
        assert [mode.stricter_than(other) for other in order] == [place < other for other in range(4)]


def test_a_denial_names_access_path_rule_and_place() -> None:
    assert decision(Mode.RO).denial(Access.WRITE, "src/a.py") == (
        "write denied for 'src/a.py': read-only by rule 'src/** = ro' (.sandboxfs.toml:4)"
    )
    assert decision(Mode.HIDE).denial(Access.READ, "src/a.py") == (
        "read denied for 'src/a.py': hidden by rule 'src/** = hide' (.sandboxfs.toml:4)"
    )
    assert "denied by rule 'src/** = deny'" in decision(Mode.DENY).denial(Access.DELETE, "src/a.py")
    assert "for '.'" in decision(Mode.RO).denial(Access.WRITE, "")


def test_a_denial_shows_no_control_characters_of_untrusted_rules() -> None:
    rule = Rule("a\x1b[2J\n", Mode.RO, Source(Kind.PROJECT, ".sandboxfs.toml", 1))
    line = Decision(Mode.RO, rule).denial(Access.WRITE, "a\nb")
    assert line.isprintable()


@pytest.mark.parametrize(
    ("source", "shown"),
    [
        (Source(Kind.PROJECT, ".sandboxfs.toml", 4), ".sandboxfs.toml:4"),
        (Source(Kind.USER, "config.toml"), "config.toml"),
        (Source(Kind.COMMAND_LINE), "--rule"),
        (Source(Kind.BUILT_IN), "built-in"),
        (Source(Kind.RUNTIME), "runtime"),
        (Source(Kind.WORKSPACE), "workspace mode"),
        (Source(Kind.WORKSPACE, "--mode"), "--mode"),
    ],
)
def test_a_source_is_shown_as_its_place(source: Source, shown: str) -> None:
    assert str(source) == shown


def test_a_policy_that_asks_is_refused_as_not_available_yet() -> None:
    with pytest.raises(UsageError, match=r"config\.toml:3: rule 'a = ask': mode 'ask' is not available yet"):
        Policy((Rule("a", Mode.ASK, USER),))


@pytest.mark.parametrize("mode", [Mode.HIDE, Mode.DENY, Mode.ASK])
def test_a_root_is_ro_or_rw(mode: Mode) -> None:
    with pytest.raises(UsageError, match="expected mode 'ro' or 'rw'"):
        Policy(mode=mode)


def test_a_policy_with_a_loosening_project_rule_is_refused() -> None:
    with pytest.raises(UsageError, match="may only tighten"):
        Policy((Rule("a", Mode.RW, Source(Kind.PROJECT)),))


def test_rules_out_of_order_are_a_bug() -> None:
    with pytest.raises(ValueError, match="out of order"):
        Policy((Rule("a", Mode.RO, USER), Rule("a", Mode.RO, Source(Kind.RUNTIME))))


def test_the_newest_runtime_rule_is_asked_first_and_replaces_an_older_of_its_pattern() -> None:
    runtime = Source(Kind.RUNTIME)
    policy = Policy((Rule("a", Mode.HIDE, USER),))
    for pattern, mode in (("a", Mode.RO), ("b", Mode.RO), ("a", Mode.RW)):
        policy = policy.with_runtime_rule(Rule(pattern, mode, runtime))
    assert [str(rule) for rule in policy.rules] == ["a = rw", "b = ro", "a = hide"]
    assert decide(policy, "a").mode is Mode.RW


def test_a_mode_set_at_runtime_is_for_what_no_rule_names_and_says_where_it_came_from() -> None:
    policy = Policy((Rule("a", Mode.RO, USER),)).with_mode(Mode.RO).with_mode(Mode.RW)
    assert decide(policy, "a").mode is Mode.RO
    assert decide(policy, "b").mode is Mode.RW
    assert str(decide(policy, "b").rule.source) == "runtime"
