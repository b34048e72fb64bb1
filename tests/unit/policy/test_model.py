"""Modes, decisions and policies as values: what they allow, with which error, and in which words."""

import errno
import itertools

import pytest

from sandboxfs.errors import UsageError
from sandboxfs.policy.explain import decide
from sandboxfs.policy.model import (
    Access,
    Decision,
    Execute,
    Hold,
    Mode,
    Policy,
    Rule,
    RuleSource,
    Ruling,
    SourceKind,
    stricter,
)

USER = RuleSource(SourceKind.USER, "config.toml", 3)


def decision(mode: Mode) -> Decision:
    return Decision.by(Rule("src/**", mode, RuleSource(SourceKind.PROJECT, ".sandboxfs.toml", 4)))


@pytest.mark.parametrize(
    ("mode", "read", "write", "delete", "execute", "create"),
    [
        (Mode.HIDE, errno.ENOENT, errno.ENOENT, errno.ENOENT, errno.ENOENT, errno.EACCES),
        (Mode.DENY, errno.EACCES, errno.EACCES, errno.EACCES, errno.EACCES, errno.EACCES),
        (Mode.RO, 0, errno.EROFS, errno.EROFS, 0, errno.EROFS),
        (Mode.RW, 0, 0, 0, 0, 0),
        (Mode.HOLD, 0, 0, 0, 0, 0),
        (Mode.ASK, errno.EACCES, 0, 0, errno.EACCES, 0),
    ],
)
def test_each_mode_answers_each_access(
    mode: Mode, read: int, write: int, delete: int, execute: int, create: int
) -> None:
    answers = [decision(mode).errno(access) for access in Access]
    assert answers == [read, write, delete, execute]
    assert decision(mode).errno(Access.WRITE, creating=True) == create
    assert [decision(mode).allows(access) for access in Access] == [answer == 0 for answer in answers]


# For each access the modes from the mildest to the strictest, those that are alike together.
READING = [{Mode.RW, Mode.RO, Mode.HOLD}, {Mode.ASK}, {Mode.DENY}, {Mode.HIDE}]
WRITING = [{Mode.RW}, {Mode.HOLD, Mode.ASK}, {Mode.RO}, {Mode.DENY}, {Mode.HIDE}]


@pytest.mark.parametrize("access", list(Access))
@pytest.mark.parametrize(("one", "other"), list(itertools.product(Mode, Mode)))
def test_of_two_modes_the_stricter_for_each_access_decides(one: Mode, other: Mode, access: Access) -> None:
    order = READING if access in (Access.READ, Access.EXECUTE) else WRITING
    places = {mode: place for place, alike in enumerate(order) for mode in alike}
    both = stricter(decision(one), decision(other))
    assert both.rule_for(access).mode is (other if places[other] > places[one] else one)


def test_what_may_be_read_and_what_may_be_written_can_come_from_two_rules() -> None:
    both = stricter(decision(Mode.RO), decision(Mode.ASK))
    assert [both.errno(access) for access in Access] == [errno.EACCES, errno.EROFS, errno.EROFS, errno.EACCES]
    assert "asked by rule 'src/** = ask'" in both.denial(Access.READ, "a")
    assert "read-only by rule 'src/** = ro'" in both.denial(Access.WRITE, "a")


@pytest.mark.parametrize(
    ("execute", "answer"),
    [(Execute.ALLOW, Ruling.ALLOW), (Execute.ASK, Ruling.ASK), (Execute.DENY, Ruling.DENY)],
)
@pytest.mark.parametrize("mode", [Mode.RO, Mode.RW, Mode.HOLD, Mode.ASK])
def test_a_rule_may_say_about_executing_what_it_does_not_say_about_reading(
    mode: Mode, execute: Execute, answer: Ruling
) -> None:
    rule = Rule("bin/**", mode, USER, execute=execute)
    assert rule.ruling(Access.EXECUTE) is answer
    assert rule.ruling(Access.READ) is mode.ruling(Access.READ)


@pytest.mark.parametrize(
    ("hold", "writing", "deleting"),
    [
        ({Hold.DELETE}, Ruling.ALLOW, Ruling.HOLD_EXISTING),
        ({Hold.OVERWRITE}, Ruling.HOLD_EXISTING, Ruling.ALLOW),
        (set(Hold), Ruling.HOLD_EXISTING, Ruling.HOLD_EXISTING),
    ],
)
def test_a_rule_may_hold_deletions_or_overwriting_alone(
    hold: set[Hold], writing: Ruling, deleting: Ruling
) -> None:
    rule = Rule("**", Mode.RW, USER, hold=frozenset(hold))
    assert (rule.ruling(Access.WRITE), rule.ruling(Access.DELETE)) == (writing, deleting)
    assert Decision.by(rule).is_free
    # What the mode says beside it is stricter.
    assert Rule("**", Mode.RO, USER, hold=frozenset(hold)).ruling(Access.WRITE) is Ruling.READ_ONLY


def test_two_sources_that_hold_different_changes_hold_both() -> None:
    one, other = (Decision.by(Rule("**", Mode.RW, USER, hold=frozenset({kind}))) for kind in Hold)
    both = stricter(one, other)
    assert both.ruling(Access.WRITE) is both.ruling(Access.DELETE) is Ruling.HOLD_EXISTING


def test_a_rule_is_shown_with_all_that_it_says() -> None:
    rule = Rule("a", Mode.RW, USER, hold=frozenset(Hold), execute=Execute.ASK)
    assert str(rule) == "a = rw, hold delete, hold overwrite, execute ask"


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
    rule = Rule("a\x1b[2J\n", Mode.RO, RuleSource(SourceKind.PROJECT, ".sandboxfs.toml", 1))
    line = Decision.by(rule).denial(Access.WRITE, "a\nb")
    assert line.isprintable()


@pytest.mark.parametrize(
    ("source", "shown"),
    [
        (RuleSource(SourceKind.PROJECT, ".sandboxfs.toml", 4), ".sandboxfs.toml:4"),
        (RuleSource(SourceKind.USER, "config.toml"), "config.toml"),
        (RuleSource(SourceKind.COMMAND_LINE), "--rule"),
        (RuleSource(SourceKind.BUILT_IN), "built-in"),
        (RuleSource(SourceKind.RUNTIME), "runtime"),
        (RuleSource(SourceKind.WORKSPACE), "workspace mode"),
        (RuleSource(SourceKind.WORKSPACE, "--mode"), "--mode"),
    ],
)
def test_a_source_is_shown_as_its_place(source: RuleSource, shown: str) -> None:
    assert str(source) == shown


@pytest.mark.parametrize("mode", [Mode.HIDE, Mode.DENY, Mode.HOLD, Mode.ASK])
def test_a_root_is_ro_or_rw(mode: Mode) -> None:
    with pytest.raises(UsageError, match="expected mode 'ro' or 'rw'"):
        Policy(mode=mode)


def test_a_policy_with_a_loosening_project_rule_is_refused() -> None:
    with pytest.raises(UsageError, match="may only tighten"):
        Policy((Rule("a", Mode.RW, RuleSource(SourceKind.PROJECT)),))


def test_rules_out_of_order_are_a_bug() -> None:
    with pytest.raises(ValueError, match="out of order"):
        Policy((Rule("a", Mode.RO, USER), Rule("a", Mode.RO, RuleSource(SourceKind.RUNTIME))))


def test_the_newest_runtime_rule_is_asked_first_and_replaces_an_older_of_its_pattern() -> None:
    runtime = RuleSource(SourceKind.RUNTIME)
    policy = Policy((Rule("a", Mode.HIDE, USER),))
    for pattern, mode in (("a", Mode.RO), ("b", Mode.RO), ("a", Mode.RW)):
        policy = policy.with_runtime_rule(Rule(pattern, mode, runtime))
    assert [str(rule) for rule in policy.rules] == ["a = rw", "b = ro", "a = hide"]
    assert decide(policy, "a").mode is Mode.RW


def test_a_mode_set_at_runtime_is_for_what_no_rule_names_and_says_where_it_came_from() -> None:
    policy = Policy((Rule("a", Mode.RO, USER),)).with_mode(Mode.RO).with_mode(Mode.RW)
    assert decide(policy, "a").mode is Mode.RO
    assert decide(policy, "b").mode is Mode.RW
    assert str(decide(policy, "b").reading.source) == "runtime"
