"""What a policy means, written as plainly as possible: each rule is one regular expression for a path.

Slow, and independent of the engine: it shares nothing but the values of `model`.
"""

import re

from sandboxfs.policy.model import Access, Decision, Mode, Policy, Rule, RuleCondition, SourceKind

FIRM = (SourceKind.RUNTIME, SourceKind.COMMAND_LINE)
UNSEEN = (Mode.HIDE, Mode.DENY)
WHOLE = ("**", ".", "./**")


def expression(pattern: str) -> str:
    """Translate a relative pattern into an expression for a whole path; directories end with a slash."""
    floating = "/" not in pattern.rstrip("/")
    names = [name for name in pattern.split("/") if name not in ("", ".")]
    text = "(?:[^/]+/)*" if floating else ""
    for number, name in enumerate(names):
        last = number == len(names) - 1
        if name == "**":
            text += "[^/]+" if last else "(?:[^/]+/)*"
        else:
            text += one_name(name) + ("" if last else "/")
    return text + ("/" if pattern.endswith("/") else "/?")


def one_name(glob: str) -> str:
    words = re.findall(r"\\.|\[[!^]?\]?[^\]]*\]|\*+|\?|.", glob, re.DOTALL)
    # No name is empty, not even one that a star alone matches.
    return "(?=[^/])" + "".join(map(one_word, words))


def one_word(word: str) -> str:
    if word.startswith("*"):
        return "[^/]*"
    if word == "?":
        return "[^/]"
    if word.startswith("[") and len(word) > 1:
        return "(?!/)[" + ("^" + word[2:] if word[1] in "!^" else word[1:])
    return re.escape(word.removeprefix("\\"))


def is_in(path: str, ignored: set[str]) -> bool:
    """Whether *path* or a directory above it is among those that are ignored."""
    names = path.split("/")
    return bool(path) and any("/".join(names[:depth]) in ignored for depth in range(1, len(names) + 1))


def matches(rule: Rule, names: list[str], is_dir: bool, existing: set[str] | None) -> bool:
    """Whether *rule* matches the path of *names* or a directory above it.

    A rule about ignored paths does so where git ignores this very path: *existing* are those, too.
    """
    if rule.ignored and existing is not None and not is_in("/".join(names), existing):
        return False
    if rule.ignored and not names:
        return False
    if rule.pattern in WHOLE:
        return True
    regex = re.compile(expression(rule.pattern), re.DOTALL)
    for depth in range(1, len(names) + 1):
        directory = is_dir or depth < len(names)
        path = "/".join(names[:depth])
        if rule.files_only and directory:
            continue
        needed = {RuleCondition.ENTRY: path, RuleCondition.PARENT: "/".join(names[: depth - 1])}.get(
            rule.needs
        )
        if needed is not None and existing is not None and needed not in existing:
            continue
        if regex.fullmatch(path + ("/" if directory else "")):
            return True
    return False


def decided(policy: Policy, path: str, is_dir: bool = False, existing: set[str] | None = None) -> Decision:
    """The rules that decide; *existing* is what the workspace holds, None for everything."""
    names = path.split("/") if path else []
    for depth in range(1, len(names)):
        above = [first(policy, names[:depth], True, existing, access) for access in Access]
        if above[0].mode is Mode.HIDE:
            return Decision(*above)
    return Decision(*(first(policy, names, is_dir, existing, access) for access in Access))


def first(policy: Policy, names: list[str], is_dir: bool, existing: set[str] | None, access: Access) -> Rule:
    if not policy.enabled:
        return policy.root_rule
    matching = [rule for rule in policy.rules if matches(rule, names, is_dir, existing)]
    if not names:
        matching = [rule for rule in matching if rule.pattern in WHOLE and rule.mode not in UNSEEN]
    matching.append(policy.root_rule)
    if matching[0].source.kind in FIRM:
        return matching[0]
    trusted = next(rule for rule in matching if rule.source.kind is not SourceKind.PROJECT)
    if matching[0].source.kind is not SourceKind.PROJECT:
        return trusted
    said, known = matching[0].ruling(access), trusted.ruling(access)
    return trusted if known.value > said.value else matching[0]
