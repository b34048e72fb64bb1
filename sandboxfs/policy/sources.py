"""How do files, options and built-in rules become one policy?

`assemble` puts them in the order of docs/policy.md and returns the policy with warnings as values; printing
them is for the caller. Absolute patterns are looked up on the host once, here, so that a rule for
`~/projects/app` is honoured when `~/projects` is a symlink; nothing else touches a disk.
"""

import os
from dataclasses import dataclass, replace

from sandboxfs.errors import UsageError
from sandboxfs.paths import quoted
from sandboxfs.policy.builtin import BUILT_IN, PRESETS, Preset
from sandboxfs.policy.config import Allow, UserConfig
from sandboxfs.policy.decide import can_match_in
from sandboxfs.policy.glob import parse_glob
from sandboxfs.policy.model import Kind, Mode, Needs, Policy, Rule, Source
from sandboxfs.policy.pattern import PatternError, escape, naming, parse
from sandboxfs.policy.shadow import shadowed


@dataclass(frozen=True)
class Assembled:
    """A policy for one workspace; *roots* are the places allowed outside it, *warnings* one line each."""

    policy: Policy
    roots: tuple[Allow, ...] = ()
    warnings: tuple[str, ...] = ()


def assemble(
    root: str,
    user: UserConfig,
    project: tuple[Rule, ...] = (),
    command_line: tuple[Rule, ...] = (),
    *,
    allows: tuple[Allow, ...] = (),
    preset: Preset | None = None,
    mode: Mode | None = None,
) -> Assembled:
    """Make the policy of the workspace at *root*; *mode* and *preset* are those of the command line."""
    warnings: list[str] = []
    inside: dict[Kind, list[Rule]] = {Kind.COMMAND_LINE: [*command_line], Kind.USER: [*user.rules]}
    roots = []
    # After the rules of the same place: allowing a directory must not uncover what a rule hides in it.
    for allow in (*allows, *user.allows):
        rule = rule_for_path(allow.path, allow.mode, allow.source, root)
        if rule is None:
            roots.append(allow)
        else:
            inside[allow.source.kind].append(rule)
    rules = (
        *(_placed(rule, root) for rule in inside[Kind.COMMAND_LINE]),
        *_tightening(project, warnings),
        *(_placed(rule, root) for rule in inside[Kind.USER]),
        *BUILT_IN,
    )
    policy = _with_settings(Policy(rules, user.mode, user.enabled, user.mode_source), preset, mode)
    if policy.enabled:
        warnings += _shadow_warnings(policy, root)
    return Assembled(policy, tuple(roots), tuple(warnings))


def _tightening(project: tuple[Rule, ...], warnings: list[str]) -> list[Rule]:
    kept = [rule for rule in project if rule.mode is not Mode.RW]
    warnings += [
        f"{rule.source}: rule {quoted(str(rule))} is ignored: a project's own rules may only tighten"
        for rule in project
        if rule.mode is Mode.RW
    ]
    return kept


def _with_settings(policy: Policy, preset: Preset | None, mode: Mode | None) -> Policy:
    if preset is not None:
        settings = PRESETS[preset]
        source = Source(Kind.WORKSPACE, f"--preset {preset.value}")
        policy = replace(policy, mode=settings.mode, enabled=settings.enabled, mode_source=source)
    if mode is not None:
        policy = replace(policy, mode=mode, mode_source=Source(Kind.WORKSPACE, "--mode"))
    return policy


def _shadow_warnings(policy: Policy, root: str) -> list[str]:
    # That somebody's rule comes before a built-in one is what overriding it means, and no mistake.
    return [
        f"{rule.source}: rule {quoted(str(rule))} never applies: {quoted(str(earlier))} "
        f"({earlier.source}) decides before it"
        for rule, earlier in shadowed(policy, root)
        if rule.source.kind is not Kind.BUILT_IN
    ]


def parse_rule(text: str, kind: Kind = Kind.COMMAND_LINE) -> Rule:
    """Read `PATTERN=MODE`, as `--rule` takes it."""
    pattern, equals, word = text.rpartition("=")
    if not equals:
        raise UsageError(f"--rule {quoted(text)}: expected PATTERN=MODE")
    try:
        parse(pattern)
    except PatternError as error:
        raise UsageError(f"--rule {quoted(text)}: {error}") from error
    return Rule(pattern, parse_mode(word, f"--rule {quoted(text)}"), Source(kind))


def parse_mode(word: str, where: str) -> Mode:
    """Read a mode that a rule may have; *where* begins the complaint about any other word."""
    if word == Mode.ASK:
        raise UsageError(f"{where}: mode 'ask' is not available yet")
    try:
        return Mode(word)
    except ValueError as error:
        raise UsageError(
            f"{where}: expected mode 'hide', 'deny', 'ro' or 'rw', found {quoted(word)}"
        ) from error


def rule_for_path(path: str, mode: Mode, source: Source, root: str) -> Rule | None:
    """Make the rule for one *path* of the host and what is below it; None when it is outside *root*.

    A relative path is one inside *root*.
    """
    given = os.path.normpath(os.path.join(root, os.path.expanduser(path)))  # noqa: PTH111, PTH118
    parent, name = os.path.split(given)
    for spelling in (given, os.path.join(os.path.realpath(parent), name), os.path.realpath(given)):  # noqa: PTH118
        relative = os.path.relpath(spelling, root)
        if relative != ".." and not relative.startswith("../"):
            return Rule("**" if relative == "." else naming(relative), mode, source)
    return None


def _placed(rule: Rule, root: str) -> Rule:
    """Resolve the symlinks on the way to what an absolute pattern names."""
    if not parse(rule.pattern).absolute:
        return rule
    text = rule.pattern
    if text.startswith("~"):
        text = escape(os.path.expanduser("~")) + text[1:]  # noqa: PTH111
    names = [name for name in text.split("/") if name not in ("", ".")]
    plain = 0
    while plain < len(names) and names[plain] != "**" and parse_glob(names[plain]).literal is not None:
        plain += 1
    known = "/" + "/".join(parse_glob(name).literal or "" for name in names[:plain])
    place = escape(_resolved(known, root, last_is_meant=plain == len(names)))
    place = "/".join([place.rstrip("/"), *names[plain:]]) + ("/" if text.endswith("/") else "")
    return rule if place == rule.pattern else replace(rule, place=place or "/")


def _resolved(path: str, root: str, *, last_is_meant: bool) -> str:
    """Resolve *path*; with *last_is_meant* a link at its end stands for itself unless *root* is in there."""
    whole = os.path.realpath(path)
    if not last_is_meant or os.path.commonpath([whole, root]) == whole:
        return whole
    parent, name = os.path.split(path)
    return os.path.join(os.path.realpath(parent), name)  # noqa: PTH118


def effective_toml(policy: Policy, root: str) -> str:
    """Write *policy* as TOML, in order, each rule under a comment that says where it came from."""
    import tomli_w

    settings = {"root": root, "mode": policy.mode.value, "enabled": policy.enabled}
    parts = [f"# {policy.mode_source}\n[workspace]\n{tomli_w.dumps(settings)}"]
    for rule in policy.rules:
        note = str(rule.source)
        if not can_match_in(rule, root):
            note += ", outside the workspace"
        if rule.needs is not Needs.NOTHING:
            note += ", applies to what is in the workspace already"
        table = tomli_w.dumps({"path": rule.pattern, "mode": rule.mode.value})
        parts.append(f"# {note}\n[[rule]]\n{table}")
    return "\n".join(parts)
