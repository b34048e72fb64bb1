"""Files, options and built-in rules become one policy, in order, and what is odd about them is said."""

from pathlib import Path

import pytest

from sandboxfs.errors import UsageError
from sandboxfs.policy.builtin import BUILT_IN, Preset
from sandboxfs.policy.config import Allow, UserConfig, read_user_config
from sandboxfs.policy.explain import decide
from sandboxfs.policy.model import Mode, Policy, Rule, RuleSource, SourceKind
from sandboxfs.policy.sources import assemble, effective_toml, parse_mode, parse_rule, rule_for_path

USER = RuleSource(SourceKind.USER, "config.toml", 3)
PROJECT = RuleSource(SourceKind.PROJECT, ".sandboxfs.toml", 4)


def user(*rules: Rule, allows: tuple[Allow, ...] = ()) -> UserConfig:
    return UserConfig(rules=rules, allows=allows)


def test_rules_are_in_the_order_of_their_places() -> None:
    made = assemble(
        "/srv/app",
        user(Rule("user", Mode.RO, USER), allows=(Allow("allowed", Mode.RW, USER),)),
        (Rule("project", Mode.RO, PROJECT),),
        (parse_rule("line=ro"),),
        allows=(Allow("/srv/app/x", Mode.RW, RuleSource(SourceKind.COMMAND_LINE, "--allow")),),
    )
    patterns = [rule.pattern for rule in made.policy.rules]
    assert patterns[:5] == ["line", "./x", "project", "user", "./allowed"]
    assert made.policy.rules[5:] == BUILT_IN
    assert made.warnings == ()


def test_a_loosening_rule_of_a_project_is_dropped_with_a_warning_that_names_it() -> None:
    made = assemble("/srv/app", user(), (Rule("a", Mode.RW, PROJECT), Rule("b", Mode.RO, PROJECT)))
    assert [rule.pattern for rule in made.policy.rules if rule.source.kind is SourceKind.PROJECT] == ["b"]
    assert made.warnings == (
        ".sandboxfs.toml:4: rule 'a = rw' is ignored: a project's own rules may only tighten",
    )


def test_a_shadowed_rule_is_warned_about_with_the_rule_that_shadows_it() -> None:
    made = assemble("/srv/app", user(Rule("src", Mode.RO, USER), Rule("src/a", Mode.RW, USER)))
    assert made.warnings == (
        "config.toml:3: rule 'src/a = rw' never applies: 'src = ro' (config.toml:3) decides before it",
    )


def test_overriding_a_built_in_rule_is_no_mistake() -> None:
    assert assemble("/srv/app", user(Rule(".git", Mode.RW, USER))).warnings == ()


def test_a_place_outside_the_workspace_is_another_root() -> None:
    allows = (Allow("/srv/lib", Mode.RO, USER), Allow("/srv/app-evil", Mode.RW, USER))
    made = assemble("/srv/app", user(allows=allows))
    assert made.roots == allows
    assert made.policy.rules == BUILT_IN


def test_allowing_a_directory_does_not_uncover_what_a_rule_hides_in_it() -> None:
    config = user(Rule("**/.env", Mode.HIDE, USER), allows=(Allow("app", Mode.RW, USER),))
    policy = assemble("/srv/app", config, mode=Mode.RO).policy
    assert decide(policy, "app/.env").mode is Mode.HIDE
    assert decide(policy, "app/x").mode is Mode.RW
    assert decide(policy, "x").mode is Mode.RO


@pytest.mark.parametrize(
    ("preset", "mode", "expected", "source"),
    [
        (None, None, Mode.RO, "config.toml:2"),
        (Preset.WORKSPACE_WRITE, None, Mode.RW, "--preset workspace-write"),
        (Preset.WORKSPACE_WRITE, Mode.RO, Mode.RO, "--mode"),
        (None, Mode.RW, Mode.RW, "--mode"),
    ],
)
def test_the_mode_is_that_of_the_command_line_then_the_preset_then_the_configuration(
    preset: Preset | None, mode: Mode | None, expected: Mode, source: str
) -> None:
    config = UserConfig(mode=Mode.RO, mode_source=RuleSource(SourceKind.WORKSPACE, "config.toml", 2))
    decision = decide(assemble("/srv/app", config, preset=preset, mode=mode).policy, "a")
    assert (decision.mode, str(decision.reading.source)) == (expected, source)


def test_a_rule_for_a_place_is_honoured_through_a_symlink_on_the_way(tmp_path: Path) -> None:
    root = tmp_path / "data" / "app"
    root.mkdir(parents=True)
    (tmp_path / "link").symlink_to("data")
    for pattern in ("link/app/secret", "link/app/*.key", "link", "link/", "link/**/x.pem"):
        config = user(Rule(f"{tmp_path}/{pattern}", Mode.HIDE, USER))
        policy = assemble(str(root), config).policy
        path = {"link/app/*.key": "a.key", "link/**/x.pem": "deep/x.pem"}.get(pattern, "secret")
        assert decide(policy, path, root=str(root)).mode is Mode.HIDE, pattern
        if pattern not in ("link", "link/"):
            assert decide(policy, "other", root=str(root)).mode is Mode.RW


def test_a_rule_for_a_link_inside_the_workspace_is_for_the_link(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    policy = assemble(str(tmp_path), user(Rule(f"{tmp_path}/link", Mode.DENY, USER))).policy
    assert decide(policy, "link", root=str(tmp_path)).mode is Mode.DENY
    assert decide(policy, "real", root=str(tmp_path)).mode is Mode.RW


@pytest.mark.parametrize(
    ("path", "pattern"),
    [
        ("a", "./a"),
        ("a/b", "a/b"),
        ("/srv/app/a*", "./a\\*"),
        ("/srv/app", "**"),
        (".", "**"),
        ("a/../b", "./b"),
        ("~/app/x", "./x"),
        ("/srv/app-evil", None),
        ("..", None),
        ("/etc", None),
    ],
)
def test_a_path_becomes_the_rule_that_names_it(
    path: str, pattern: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", "/srv")
    rule = rule_for_path(path, Mode.RO, USER, "/srv/app")
    assert (rule.pattern if rule else None) == pattern


def test_a_rule_of_the_command_line_is_split_at_its_last_equals_sign() -> None:
    assert parse_rule("a=b=ro") == Rule("a=b", Mode.RO, RuleSource(SourceKind.COMMAND_LINE))


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("src", "--rule 'src': expected PATTERN=MODE"),
        ("=ro", "--rule '=ro': the pattern is empty"),
        ("[=ro", "unbalanced '['"),
        ("a=rx", "expected mode 'hide', 'deny', 'ro', 'rw', 'hold' or 'ask', found 'rx'"),
        ("a=asks", "expected mode 'hide', 'deny', 'ro', 'rw', 'hold' or 'ask', found 'asks'"),
    ],
)
def test_a_bad_rule_of_the_command_line_is_refused_with_the_reason(text: str, complaint: str) -> None:
    with pytest.raises(UsageError) as refused:
        parse_rule(text)
    assert complaint in refused.value.message


def test_a_mode_is_read_with_the_place_it_came_from() -> None:
    assert parse_mode("deny", "allow") is Mode.DENY
    with pytest.raises(UsageError, match=r"^allow: expected mode"):
        parse_mode("", "allow")


def test_the_effective_policy_is_written_as_a_configuration_that_says_where_each_rule_came_from(
    tmp_path: Path,
) -> None:
    rules = (Rule("src/**", Mode.RO, PROJECT), Rule("/elsewhere/\"x'", Mode.HIDE, USER), *BUILT_IN)
    text = effective_toml(Policy(rules, Mode.RO), "/srv/app")
    path = tmp_path / "config.toml"
    path.write_text(text)
    config = read_user_config(path)
    assert [(rule.pattern, rule.mode) for rule in config.rules] == [
        (rule.pattern, rule.mode) for rule in rules
    ]
    assert (config.root, config.mode) == (Path("/srv/app"), Mode.RO)
    assert "# .sandboxfs.toml:4\n[[rule]]\n" in text
    assert "# config.toml:3, outside the workspace\n[[rule]]\n" in text
    assert "# built-in, applies to what is in the workspace already\n" in text
