"""Random policies and paths, from alphabets so small that rules match, overlap and shadow each other."""

from dataclasses import replace

from hypothesis import strategies as st

from sandboxfs.policy.model import Execute, Hold, Mode, Policy, Rule, RuleCondition, RuleSource, SourceKind
from sandboxfs.policy.patterns import Glob, GlobError, encoded, parse_glob

NAMES = ["a", "b", "ab", "ba", "aab", "c.x", "b.x", "a.y", "abab", "é", "\udcff", "a\nb", ".git", "hooks"]
GLOBS = [
    "a", "b", "ab", "*", "a*", "*b", "*.x", "?", "?b", "[ab]", "[!a]*", "a*b", "*b*", "*aba*", "[a-c].?",
    "\\*", "**", "é", "é*", "*é", ".git", "hooks", "a?b", "*a*b*", "*\udcff", "[a-]", "[]a]", "\\a*",
]  # fmt: skip
# Every path of a tree that is small enough to be looked at as a whole.
EVERY_DIRECTORY = ["", "a", "b", "a/a", "a/b", "b/a", "b/b"]
EVERY_PATH = [
    f"{above}/{name}".lstrip("/") for above in [*EVERY_DIRECTORY, "a/b/a", "b/b/a"] for name in "ab"
]
MODES = [Mode.HIDE, Mode.DENY, Mode.RO, Mode.ASK, Mode.HOLD, Mode.RW]

names = st.sampled_from(["a", "b"]) | st.sampled_from(NAMES)
globs = st.sampled_from(["a", "b", "*", "**", "a*"]) | st.sampled_from(GLOBS)
relative_paths = st.lists(names, min_size=1, max_size=4).map("/".join)
paths = st.one_of(st.just(""), relative_paths)


# Pieces of names and of globs that share beginnings and ends, characters of several bytes and stray bytes.
_PIECES = ["a", "b", "abc", "abd", "xab", "é", "ê", "\udcc3", "\udca9", "\udcff", "a\nb"]
_WILD = ["*", "?", "[ab]", "[!a]", "[a-c]x", "[a-z]", "[é\udcff]", "[é-ê]", "\\*", "*", "?"]
odd_names = st.one_of(
    st.lists(st.sampled_from(_PIECES), min_size=1, max_size=4).map(lambda pieces: encoded("".join(pieces))),
    st.sampled_from([encoded(name) for name in NAMES]),
    st.binary(min_size=1, max_size=5),
)


@st.composite
def odd_globs(draw: st.DrawFn) -> Glob:
    """Globs for one name, more of them and odder than people write."""
    pieces = st.lists(st.sampled_from([*_PIECES, *_WILD]), min_size=1, max_size=5).map("".join)
    texts = st.one_of(st.sampled_from(GLOBS), pieces, st.text("ab*?[]!-\\é", min_size=1, max_size=6))
    try:
        return parse_glob(draw(texts))
    except GlobError:
        return parse_glob("a*")


@st.composite
def patterns(draw: st.DrawFn) -> str:
    parts = draw(st.lists(globs, min_size=1, max_size=4))
    lead = draw(st.sampled_from(["", "", "", "./", "**/"]))
    return lead + "/".join(parts) + draw(st.sampled_from(["", "", "", "/", "/**"]))


@st.composite
def rules(draw: st.DrawFn, kind: SourceKind, asking: bool) -> Rule:
    loosest = MODES.index(Mode.RW) if kind is SourceKind.PROJECT else len(MODES)
    mode = draw(st.sampled_from([mode for mode in MODES[:loosest] if asking or mode is not Mode.ASK]))
    pattern = draw(patterns())
    if mode not in (Mode.HIDE, Mode.DENY) and draw(st.booleans()):
        hold = draw(st.frozensets(st.sampled_from(Hold)))
        execute = draw(st.none() | st.sampled_from(Execute)) if asking else None
        return Rule(pattern, mode, RuleSource(kind), hold=hold, execute=execute)
    if kind is not SourceKind.BUILT_IN or pattern in ("**", "./**"):
        return Rule(pattern, mode, RuleSource(kind))
    needs = draw(st.sampled_from([RuleCondition.NOTHING, RuleCondition.ENTRY, RuleCondition.PARENT]))
    return Rule(pattern, mode, RuleSource(kind), needs=needs, files_only=draw(st.booleans()))


@st.composite
def policies_about_ignored(draw: st.DrawFn) -> Policy:
    """Policies of which some rules are about what git ignores only."""
    policy = draw(policies())
    about = draw(st.lists(st.booleans(), min_size=len(policy.rules), max_size=len(policy.rules)))
    made = (
        replace(rule, needs=RuleCondition.IGNORED) if ignored and not rule.files_only else rule
        for rule, ignored in zip(policy.rules, about, strict=True)
    )
    return replace(policy, rules=tuple(made))


@st.composite
def policies(draw: st.DrawFn, most: int = 8, *, asking: bool = True) -> Policy:
    kinds = draw(st.lists(st.sampled_from(list(SourceKind)[:-1]), max_size=most))
    made = [draw(rules(kind, asking)) for kind in sorted(kinds, key=list(SourceKind).index)]
    return Policy(tuple(made), draw(st.sampled_from([Mode.RO, Mode.RW])), draw(st.booleans() | st.just(True)))
