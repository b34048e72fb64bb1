"""The engine decides as the plain reference does, whatever the rules, one name at a time."""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sandboxfs.policy.builtin import BUILT_IN
from sandboxfs.policy.compiled import Compiled, NameIndex, State, same_below, settle
from sandboxfs.policy.explain import decide, names_of
from sandboxfs.policy.model import Access, Decision, Mode, Policy, Rule, RuleCondition, RuleSource, SourceKind
from sandboxfs.policy.patterns import encoded
from sandboxfs.policy.sources import parse_rule
from tests.unit.policy import made, reference

USER = RuleSource(SourceKind.USER)
PROJECT = RuleSource(SourceKind.PROJECT)
# Rules meet in many ways and an example costs next to nothing.
many = settings(max_examples=2 * settings().max_examples)


def policy(*rules: Rule, mode: Mode = Mode.RW) -> Policy:
    return Policy(rules, mode)


def state_of(compiled: Compiled, path: str) -> State:
    names = [encoded(name) for name in names_of(path)]
    return compiled.walk(names, True, lambda depth, needs: True)[-1]


@many
@given(made.policies(), st.lists(made.paths, max_size=8))
def test_the_reference_agrees_on_every_path(policy: Policy, paths: list[str]) -> None:
    for path in ["", *made.EVERY_PATH, *paths]:
        for is_dir in (True, False) if path else (True,):
            assert decide(policy, path, is_dir) == reference.decided(policy, path, is_dir)


@many
@given(made.policies(), made.relative_paths, st.booleans(), st.sets(made.paths))
def test_the_reference_agrees_where_rules_depend_on_the_workspace(
    policy: Policy, path: str, is_dir: bool, existing: set[str]
) -> None:
    def exists(path: str, needs: RuleCondition) -> bool:
        return (path if needs is RuleCondition.ENTRY else path.rpartition("/")[0]) in existing

    # Half of what is on the way is there.
    names = path.split("/")
    existing |= {"/".join(names[:depth]) for depth in range(0, len(names) + 1, 2)}
    for asked in (path, *made.EVERY_PATH):
        decided = decide(policy, asked, is_dir, exists=exists)
        assert decided == reference.decided(policy, asked, is_dir, existing)


@many
@given(
    made.policies_about_ignored(),
    made.relative_paths,
    st.booleans(),
    st.sets(made.relative_paths, max_size=3),
)
def test_the_reference_agrees_where_rules_are_about_what_git_ignores(
    policy: Policy, path: str, is_dir: bool, ignored: set[str]
) -> None:
    def exists(path: str, needs: RuleCondition) -> bool:
        if needs is RuleCondition.IGNORED:
            return reference.is_in(path.rstrip("/"), ignored)
        return (path if needs is RuleCondition.ENTRY else path.rpartition("/")[0]) in ignored

    for asked in ("", path, *made.EVERY_PATH):
        decided = decide(policy, asked, is_dir or not asked, exists=exists)
        assert decided == reference.decided(policy, asked, is_dir or not asked, ignored)


@many
@given(
    made.policies(),
    made.relative_paths,
    made.relative_paths,
    made.relative_paths,
    st.booleans(),
    st.booleans(),
)
def test_of_two_places_the_stricter_decides_for_everything_below(
    policy: Policy, one: str, other: str, below: str, is_dir: bool, there: bool
) -> None:
    compiled = Compiled(policy)
    state = compiled.both(state_of(compiled, one), state_of(compiled, other))
    names = [encoded(name) for name in names_of(below)]
    for depth, name in enumerate(names, start=1):
        step = compiled.step(state, name, is_dir or depth < len(names))
        state = settle(step, lambda needs: there)

    def decided(place: str) -> Decision:
        def exists(path: str, needs: RuleCondition) -> bool:
            return there or len(path) <= len(place)

        return decide(policy, f"{place}/{below}", is_dir, exists=exists)

    here, there_too = decided(one), decided(other)
    for access in Access:
        strictest = max(here.ruling(access), there_too.ruling(access), key=lambda answer: answer.value)
        assert state.decision.ruling(access) is strictest


@many
@given(made.policies(most=3))
def test_directories_said_to_be_alike_below_decide_every_path_below_alike(policy: Policy) -> None:
    compiled = Compiled(policy)
    states = {path: state_of(compiled, path) for path in made.EVERY_DIRECTORY}
    for one, other in itertools.combinations(states, 2):
        if same_below(states[one], states[other]):
            for below, is_dir in itertools.product(made.EVERY_PATH, (True, False)):
                paths = (f"{above}/{below}".lstrip("/") for above in (one, other))
                first, second = (reference.decided(policy, path, is_dir).rulings for path in paths)
                assert first == second, (one, other, below)


@many
@given(made.policies())
def test_below_a_quiet_directory_everything_is_decided_as_it_is(policy: Policy) -> None:
    compiled = Compiled(policy)
    for path in made.EVERY_DIRECTORY:
        state = state_of(compiled, path)
        if state.quiet:
            assert compiled.step(state, b"a", True) is state
            for below in made.EVERY_PATH:
                assert reference.decided(policy, f"{path}/{below}".lstrip("/")) == state.decision


@many
@given(made.policies(), st.lists(made.relative_paths, min_size=1, max_size=6))
def test_what_is_remembered_never_changes_an_answer(policy: Policy, paths: list[str]) -> None:
    compiled = Compiled(policy)
    for path in paths * 2:
        names = [encoded(name) for name in path.split("/")]
        states = compiled.walk(names, False, lambda depth, needs: True)
        assert states[-1].decision == reference.decided(policy, path)


@pytest.mark.parametrize(
    ("rules", "one", "other", "alike"),
    [
        (["*.pem = hide"], "a", "b", True),
        (["*.pem = hide", "a = ro"], "a", "b", False),
        (["a = rw", "*.pem = hide"], "a", "b", False),
        (["./a = rw"], "a", "b", True),
        (["./a = ro", "./b = ro"], "a", "b", True),
        (["./a = ro", "./b = deny"], "a", "b", False),
        (["./a = ro", "*.pem = hide", "./b = ro"], "a", "b", False),
        (["a/x = hide"], "a", "b", False),
        (["*/x = hide"], "a", "b", True),
        (["a/**/x = hide"], "a", "b", False),
        (["a/**/x = hide"], "a/b", "a/c", True),
        (["a/**/x = hide"], "a", "a/b", True),
        (["**/k/x = hide"], "k", "b", False),
        (["a = hide", "b = hide"], "a", "b", True),
    ],
)
def test_whether_a_directory_can_be_moved_without_looking_into_it(
    rules: list[str], one: str, other: str, alike: bool
) -> None:
    compiled = Compiled(policy(*(parse_rule(rule.replace(" ", ""), SourceKind.USER) for rule in rules)))
    assert same_below(state_of(compiled, one), state_of(compiled, other)) is alike


def test_a_pattern_that_has_begun_is_kept_through_directories_that_other_rules_match() -> None:
    rules = (Rule("a/**/x", Mode.HIDE, USER), Rule("b", Mode.RO, USER), Rule("b/c", Mode.DENY, USER))
    assert decide(Policy(rules), "a/b/c/x").mode is Mode.HIDE
    assert decide(Policy(rules), "a/b/c").mode is Mode.RO


def test_what_is_remembered_is_bounded_however_many_names_there_are() -> None:
    compiled = Compiled(policy(Rule("*.s", Mode.RO, USER), Rule("d*/**/x", Mode.DENY, USER)))
    begun = compiled.step(compiled.start, b"d", True)
    most = 0
    for number in range(30_000):
        # One that a rule matches, and one that none does.
        assert compiled.step(compiled.start, b"%d.s" % number, False).decision.mode is Mode.RO
        assert compiled.step(begun, b"%d" % number, False).decision.mode is Mode.RW
        most = max(most, len(compiled.start._files) + len(begun._files))
    assert 40_000 < most <= 50_000
    assert compiled._remembered <= 50_000
    assert compiled.step(begun, b"x", False).decision.mode is Mode.DENY


def test_a_name_that_was_seen_in_a_directory_is_not_searched_for_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    compiled = Compiled(policy(Rule("*.s", Mode.RO, USER), Rule("d/**/x*", Mode.DENY, USER)))
    names = [b"a", b"a.s", b"x1"]
    directory = compiled.step(compiled.start, b"d", True)
    first = [compiled.step(directory, name, False) for name in names]
    monkeypatch.setattr(NameIndex, "search", None)
    assert [compiled.step(directory, name, False) for name in names] == first
    assert [state.decision.mode for state in first] == [Mode.RW, Mode.RO, Mode.DENY]


def test_a_name_that_matches_nothing_is_remembered_only_where_searching_takes_long() -> None:
    plain = Compiled(policy(Rule("*.pem", Mode.RO, USER), Rule("secret*", Mode.HIDE, USER)))
    slow = Compiled(policy(Rule("*.pem", Mode.RO, USER), Rule("?x?", Mode.HIDE, USER)))
    for compiled, remembered in ((plain, {b"a.pem"}), (slow, {b"a.pem", b"a.txt"})):
        for name in (b"a.pem", b"a.txt"):
            compiled.step(compiled.start, name, False)
        assert set(compiled.start._files) == remembered


def test_a_policy_without_rules_is_quiet_at_the_root() -> None:
    assert Compiled(policy()).start.quiet
    assert Compiled(Policy(BUILT_IN, enabled=False)).start.quiet


def test_a_rule_that_covers_a_directory_makes_it_quiet_when_no_firmer_rule_is_left() -> None:
    compiled = Compiled(policy(Rule("src", Mode.RO, USER), Rule("*.pem", Mode.HIDE, USER)))
    assert compiled.step(compiled.start, b"src", True).quiet
    assert not compiled.step(compiled.start, b"doc", True).quiet


def test_a_name_that_nothing_matches_gets_the_very_state_of_its_directory() -> None:
    compiled = Compiled(policy(Rule("*.pem", Mode.HIDE, USER)))
    below = compiled.step(compiled.start, b"doc", True)
    assert compiled.step(below, b"more", True) is below
    assert compiled.step(below, b"file", False) is below


def test_the_root_can_be_read_only_but_neither_hidden_nor_denied() -> None:
    for mode in (Mode.HIDE, Mode.DENY):
        compiled = Compiled(policy(Rule("docs", Mode.RO, USER), Rule("**", mode, USER)))
        assert compiled.start.decision.mode is Mode.RW
        assert compiled.step(compiled.start, b"a", False).decision.mode is mode
        assert compiled.step(compiled.start, b"docs", True).decision.mode is Mode.RO
    assert Compiled(policy(Rule("**", Mode.RO, USER))).start.decision.mode is Mode.RO


def test_nothing_in_a_hidden_directory_can_be_brought_back() -> None:
    hidden = policy(Rule("secret/pub", Mode.RW, USER), Rule("secret", Mode.HIDE, USER))
    assert decide(hidden, "secret/pub").mode is Mode.HIDE
    below = policy(Rule("secret/pub", Mode.RW, USER), Rule("secret/**", Mode.HIDE, USER))
    assert decide(below, "secret/pub").mode is Mode.RW


def test_in_a_denied_directory_a_rule_before_can_allow_a_name() -> None:
    denied = policy(Rule("secret/pub", Mode.RO, USER), Rule("secret", Mode.DENY, USER))
    assert decide(denied, "secret/pub/x").mode is Mode.RO
    assert decide(denied, "secret/other").mode is Mode.DENY


def test_a_project_rule_tightens_and_never_loosens() -> None:
    rules = (Rule("a", Mode.RO, PROJECT), Rule("b", Mode.DENY, PROJECT), Rule("a", Mode.DENY, USER))
    assert decide(Policy(rules), "a").reading == rules[2]
    assert decide(Policy(rules), "b").reading == rules[1]
    firm = Rule("b", Mode.RW, RuleSource(SourceKind.COMMAND_LINE))
    assert decide(Policy((firm, *rules)), "b").reading == firm


def test_of_two_rules_of_one_mode_the_project_s_is_named_because_it_is_asked_first() -> None:
    rules = (Rule("a", Mode.RO, PROJECT), Rule("*", Mode.RO, USER))
    assert decide(Policy(rules), "a").reading == rules[0]


def test_rules_that_are_off_leave_everything_writable_and_say_so() -> None:
    off = Policy((Rule("a", Mode.HIDE, USER),), Mode.RO, enabled=False)
    assert decide(off, "a").mode is Mode.RW
    assert str(decide(off, "a").reading.source) == "rules are off"


def test_a_question_that_nobody_answered_stands_for_the_stricter_answer() -> None:
    compiled = Compiled(Policy(BUILT_IN))
    git = compiled.step(compiled.start, b".git", True)
    assert git.asks is None
    config = compiled.step(git, b"config", False)
    assert config.asks is RuleCondition.PARENT
    assert config.decision.mode is Mode.RO
    assert settle(config, lambda needs: True).decision.mode is Mode.RO
    assert settle(config, lambda needs: False).decision.mode is Mode.RW


def test_nothing_is_asked_where_an_earlier_rule_decides() -> None:
    compiled = Compiled(Policy((Rule(".git", Mode.RW, USER), *BUILT_IN)))
    git = compiled.step(compiled.start, b".git", True)
    assert compiled.step(git, b"config", False).asks is None


def test_an_absolute_pattern_names_a_place_on_the_host() -> None:
    rules = (Rule("/srv/app/secret", Mode.HIDE, USER), Rule("/srv/app-evil/x", Mode.DENY, USER))
    assert decide(Policy(rules), "secret", root="/srv/app").mode is Mode.HIDE
    assert decide(Policy(rules), "x", root="/srv/app").mode is Mode.RW
    assert decide(Policy(rules), "secret", root="/srv/app-evil").mode is Mode.RW
    assert decide(Policy((Rule("/srv", Mode.DENY, USER),)), "x", root="/srv/app").mode is Mode.DENY
    assert decide(Policy((Rule("/srv", Mode.DENY, USER),)), "x", root="/srv2").mode is Mode.RW
    assert decide(Policy((Rule("/**/app/*.x", Mode.DENY, USER),)), "a.x", root="/srv/app").mode is Mode.DENY
