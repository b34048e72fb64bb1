"""Policy sources: files, options and built-in rules become one policy; rules that can never apply.

`assemble` puts rules into the order of docs/policy.md and returns the policy with warnings as values; the
caller prints them. Absolute patterns are resolved on the host once, here, so that a rule for `~/projects/app`
is honoured when `~/projects` is a symlink; nothing else reads a disk.

A rule is shadowed when an earlier one, of the same or a firmer source, covers every path that the rule
matches, or when any rule hides the directory of these paths. Only certain cases are reported: no rule that
could ever decide is called shadowed, while a rule that never decides may stay unreported.
"""

import os
from collections.abc import Iterator
from dataclasses import dataclass, replace

from sandboxfs.errors import UsageError
from sandboxfs.paths import quoted
from sandboxfs.policy.builtin import BUILT_IN, PRESETS, Preset
from sandboxfs.policy.compiled import Compiled, NameIndex
from sandboxfs.policy.config import Allow, UserConfig
from sandboxfs.policy.model import (
    Execute,
    Mode,
    Policy,
    Rule,
    RuleCondition,
    RuleSource,
    SourceKind,
    words_of,
)
from sandboxfs.policy.patterns import (
    Glob,
    GlobPart,
    PathPattern,
    PatternError,
    clue,
    encoded,
    escape,
    naming,
    parse,
    parse_glob,
    within,
)

# The most pairs of rules compared, so that no file of rules takes quadratic time.
_PAIRS = 200_000

_Meaning = tuple[PathPattern, ...]


def can_match_in(rule: Rule, root: str) -> bool:
    """Whether *rule* names any path in *root*; False for a rule about another directory of the host."""
    return bool(within(parse(rule.place or rule.pattern), root))


def shadowed(policy: Policy, root: str = "/") -> list[tuple[Rule, Rule]]:
    """Return each rule that can never decide inside *root*, with the rule that prevents it."""
    rules = policy.rules
    meanings = [within(parse(rule.place or rule.pattern), root) for rule in rules]
    beginnings = _Beginnings(meanings)
    compiled = Compiled(policy, root)
    found = []
    compared = 0
    for number, rule in enumerate(rules):
        by = _hidden_above(compiled, meanings[number])
        for earlier in beginnings.earlier(number):
            compared += 1
            if _may_shadow(rules[earlier], rule) and _all_covered(meanings[earlier], meanings[number]):
                by = rules[earlier]
                break
        if by is not None:
            found.append((rule, by))
        if compared > _PAIRS:
            break
    return found


def _hidden_above(compiled: Compiled, meaning: _Meaning) -> Rule | None:
    """Return the rule that hides a directory above every path that *meaning* matches."""
    if len(meaning) != 1:
        return None
    state = compiled.start
    for component in meaning[0].components[:-1]:
        if component.gap or component.glob.literal is None:
            return None
        state = compiled.step(state, encoded(component.glob.literal), True)
        rule = state.decision.reading
        if rule.mode is Mode.HIDE and rule.needs is RuleCondition.NOTHING:
            return rule
    return None


class _Beginnings:
    """An index of rules by the beginnings of their patterns: earlier rules that could cover a rule."""

    def __init__(self, meanings: list[_Meaning]) -> None:
        self._meanings = meanings
        floating = []
        # By the plain names that a pattern begins with; a rule for the whole root begins with none.
        self._tied: dict[tuple[str, ...], list[int]] = {}
        for number, meaning in enumerate(meanings):
            for pattern in meaning:
                if pattern.components and pattern.components[0].gap:
                    floating.append((clue(pattern.components[0].glob), number))
                else:
                    self._tied.setdefault(_plain_names(pattern), []).append(number)
        self._floating = NameIndex(floating)

    def earlier(self, number: int) -> list[int]:
        """Return the rules before *number* that may match a sample path of its own: no other covers it."""
        if not self._meanings[number]:
            return []
        names = [_witness(component.glob) for component in self._meanings[number][0].components]
        found: set[int] = set()
        for name in names:
            found.update(self._floating.search(encoded(name)))
        for depth in range(len(names) + 1):
            found.update(self._tied.get(tuple(names[:depth]), ()))
        return sorted(other for other in found if other < number)


def _plain_names(pattern: PathPattern) -> tuple[str, ...]:
    names = []
    for component in pattern.components:
        if component.gap or component.glob.literal is None:
            break
        names.append(component.glob.literal)
    return tuple(names)


def _all_covered(above: _Meaning, below: _Meaning) -> bool:
    return all(any(covers(one, other) for one in above) for other in below)


def _may_shadow(earlier: Rule, rule: Rule) -> bool:
    if earlier.needs is not RuleCondition.NOTHING or earlier.files_only:
        return False
    # A project's rule is not final: the stricter of it and of the later rules' decision holds.
    return earlier.source.kind is not SourceKind.PROJECT or rule.source.kind is SourceKind.PROJECT


def covers(above: PathPattern, below: PathPattern) -> bool:
    """Whether *above* covers every path that *below* matches; False where it is hard to tell."""
    if not above.components:
        return True
    return bool(below.components) and any(_coverings(above, below, 0, 0))


def _coverings(above: PathPattern, below: PathPattern, high: int, low: int) -> Iterator[bool]:
    """Try every way to lay *above* from component *high* over *below* from component *low*."""
    if high == len(above.components):
        # The matched path is a directory when more components follow, or when *below* says so.
        yield not above.directories_only or low < len(below.components) or below.directories_only
        return
    if low == len(below.components):
        return
    over, under = above.components[high], below.components[low]
    if over.glob.anything and high == len(above.components) - 1 and not above.directories_only:
        # The rest of the path, a gap of *below* included, has one name at least.
        yield True
    if under.gap and not over.gap:
        return
    if over.glob.includes(under.glob):
        yield from _coverings(above, below, high + 1, low + 1)
    if over.gap:
        yield from _coverings(above, below, high, low + 1)


def _witness(glob: Glob) -> str:
    """Return a name that *glob* matches."""
    return "".join(_example(part) for segment in glob.segments for part in segment) or "x"


def _example(part: GlobPart) -> str:
    if part.literal:
        return part.text
    for character in map(chr, (*b"x0_~", *range(1, 0x3000))):
        if character != "/" and Glob(((part,),)).matches(character):
            return character
    return "x"


@dataclass(frozen=True)
class AssembledPolicy:
    """A policy for one workspace; *roots* are the paths allowed outside, *warnings* one line each."""

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
) -> AssembledPolicy:
    """Make the policy of the workspace at *root*; *mode* and *preset* are those of the command line."""
    warnings: list[str] = []
    inside: dict[SourceKind, list[Rule]] = {
        SourceKind.COMMAND_LINE: [*command_line],
        SourceKind.USER: [*user.rules],
    }
    roots = []
    # After the rules of the same source: allowing a directory must not uncover an entry that a rule hides.
    for allow in (*allows, *user.allows):
        rule = rule_for_path(allow.path, allow.mode, allow.source, root)
        if rule is None:
            roots.append(allow)
        else:
            inside[allow.source.kind].append(rule)
    rules = (
        *(_placed(rule, root) for rule in inside[SourceKind.COMMAND_LINE]),
        *_tightening(project, warnings),
        *(_placed(rule, root) for rule in inside[SourceKind.USER]),
        *BUILT_IN,
    )
    policy = Policy(rules, user.mode, user.enabled, user.mode_source, user.hold, user.new_programs)
    policy = _with_settings(policy, preset, mode)
    if policy.enabled:
        warnings += _shadow_warnings(policy, root)
    return AssembledPolicy(policy, tuple(roots), tuple(warnings))


def _tightening(project: tuple[Rule, ...], warnings: list[str]) -> list[Rule]:
    kept = [rule for rule in project if rule.tightens]
    warnings += [
        f"{rule.source}: rule {quoted(str(rule))} is ignored: a project's own rules may only tighten"
        for rule in project
        if not rule.tightens
    ]
    return kept


def _with_settings(policy: Policy, preset: Preset | None, mode: Mode | None) -> Policy:
    if preset is not None:
        settings = PRESETS[preset]
        source = RuleSource(SourceKind.WORKSPACE, f"--preset {preset.value}")
        policy = replace(
            policy,
            mode=settings.mode,
            enabled=settings.enabled,
            mode_source=source,
            hold=settings.hold,
            new_programs=settings.new_programs or policy.new_programs,
        )
    if mode is not None:
        policy = replace(policy, mode=mode, mode_source=RuleSource(SourceKind.WORKSPACE, "--mode"))
    return policy


def _shadow_warnings(policy: Policy, root: str) -> list[str]:
    # A rule before a built-in one overrides it on purpose, and is no mistake.
    return [
        f"{rule.source}: rule {quoted(str(rule))} never applies: {quoted(str(earlier))} "
        f"({earlier.source}) decides before it"
        for rule, earlier in shadowed(policy, root)
        if rule.source.kind is not SourceKind.BUILT_IN
    ]


def parse_rule(text: str, kind: SourceKind = SourceKind.COMMAND_LINE) -> Rule:
    """Parse `PATTERN=MODE`, the form of `--rule`."""
    pattern, equals, word = text.rpartition("=")
    if not equals:
        raise UsageError(f"--rule {quoted(text)}: expected PATTERN=MODE")
    try:
        parse(pattern)
    except PatternError as error:
        raise UsageError(f"--rule {quoted(text)}: {error}") from error
    return Rule(pattern, parse_mode(word, f"--rule {quoted(text)}"), RuleSource(kind))


def parse_mode(word: str, where: str) -> Mode:
    """Parse the mode of a rule; *where* begins the error message for any other word."""
    try:
        return Mode(word)
    except ValueError as error:
        raise UsageError(
            f"{where}: expected mode 'hide', 'deny', 'ro', 'rw', 'hold' or 'ask', found {quoted(word)}"
        ) from error


def rule_for_path(path: str, mode: Mode, source: RuleSource, root: str) -> Rule | None:
    """Make the rule for one *path* of the host and all paths below; None when *path* is outside *root*.

    A relative path is inside *root*.
    """
    given = os.path.normpath(os.path.join(root, os.path.expanduser(path)))  # noqa: PTH111, PTH118
    parent, name = os.path.split(given)
    for spelling in (given, os.path.join(os.path.realpath(parent), name), os.path.realpath(given)):  # noqa: PTH118
        relative = os.path.relpath(spelling, root)
        if relative != ".." and not relative.startswith("../"):
            return Rule("**" if relative == "." else naming(relative), mode, source)
    return None


def _placed(rule: Rule, root: str) -> Rule:
    """Resolve the symlinks in the literal beginning of an absolute pattern."""
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
    """Resolve *path*; with *last_is_meant* a symlink at its end stays, unless it leads to *root* or above."""
    whole = os.path.realpath(path)
    if not last_is_meant or os.path.commonpath([whole, root]) == whole:
        return whole
    parent, name = os.path.split(path)
    return os.path.join(os.path.realpath(parent), name)  # noqa: PTH118


def effective_toml(policy: Policy, root: str) -> str:
    """Write *policy* as TOML, in order, each rule under a comment with its source."""
    import tomli_w

    settings: dict[str, object] = {"root": root, "mode": policy.mode.value, "enabled": policy.enabled}
    if policy.hold:
        settings["hold"] = words_of(policy.hold)
    parts = [f"# {policy.mode_source}\n[workspace]\n{tomli_w.dumps(settings)}"]
    if policy.new_programs is not Execute.ALLOW:
        parts.append(f'[execute]\nnew = "{policy.new_programs.value}"\n')
    for rule in policy.rules:
        note = str(rule.source)
        if not can_match_in(rule, root):
            note += ", outside the workspace"
        if rule.needs in (RuleCondition.ENTRY, RuleCondition.PARENT):
            note += ", applies to what is in the workspace already"
        content: dict[str, object] = {"path": rule.pattern}
        if rule.ignored:
            content["ignored"] = True
        content["mode"] = rule.mode.value
        if rule.hold:
            content["hold"] = words_of(rule.hold)
        if rule.execute is not None:
            content["execute"] = rule.execute.value
        table = tomli_w.dumps(content)
        parts.append(f"# {note}\n[[rule]]\n{table}")
    return "\n".join(parts)
