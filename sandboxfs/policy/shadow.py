"""Which rules can never decide anything?

A rule is shadowed when an earlier one, in the same or a firmer place of the order, covers every path that it
matches, or when any rule hides the directory that these paths are in. Only what is certain is reported: no
rule that could ever decide is called shadowed, while one that never does may go unnoticed.
"""

from collections.abc import Iterator

from sandboxfs.policy.compiled import Compiled
from sandboxfs.policy.glob import Glob, Part
from sandboxfs.policy.model import Kind, Mode, Needs, Policy, Rule
from sandboxfs.policy.names import NameIndex, clue, encoded
from sandboxfs.policy.pattern import Pattern, parse, within

# Pairs of rules compared at most, so that no file of rules, however odd, takes quadratic time.
_PAIRS = 200_000

_Meaning = tuple[Pattern, ...]


def shadowed(policy: Policy, root: str = "/") -> list[tuple[Rule, Rule]]:
    """Return each rule that can never decide inside *root*, with the rule that keeps it from doing so."""
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
    """Return the rule that hides a directory which everything that *meaning* matches is in."""
    if len(meaning) != 1:
        return None
    state = compiled.start
    for component in meaning[0].components[:-1]:
        if component.gap or component.glob.literal is None:
            return None
        state = compiled.step(state, encoded(component.glob.literal), True)
        rule = state.decision.rule
        if rule.mode is Mode.HIDE and rule.needs is Needs.NOTHING:
            return rule
    return None


class _Beginnings:
    """Finds, for a rule, the earlier ones that could cover it, by what their patterns begin with."""

    def __init__(self, meanings: list[_Meaning]) -> None:
        self._meanings = meanings
        floating = []
        # By the plain names that they begin with; a rule for the whole root begins with none.
        self._tied: dict[tuple[str, ...], list[int]] = {}
        for number, meaning in enumerate(meanings):
            for pattern in meaning:
                if pattern.components and pattern.components[0].gap:
                    floating.append((clue(pattern.components[0].glob), number))
                else:
                    self._tied.setdefault(_plain_names(pattern), []).append(number)
        self._floating = NameIndex(floating)

    def earlier(self, number: int) -> list[int]:
        """Return the rules before *number* that may match one path which it matches: no other covers it."""
        if not self._meanings[number]:
            return []
        names = [_witness(component.glob) for component in self._meanings[number][0].components]
        found: set[int] = set()
        for name in names:
            found.update(self._floating.search(encoded(name)))
        for depth in range(len(names) + 1):
            found.update(self._tied.get(tuple(names[:depth]), ()))
        return sorted(other for other in found if other < number)


def _plain_names(pattern: Pattern) -> tuple[str, ...]:
    names = []
    for component in pattern.components:
        if component.gap or component.glob.literal is None:
            break
        names.append(component.glob.literal)
    return tuple(names)


def _all_covered(above: _Meaning, below: _Meaning) -> bool:
    return all(any(covers(one, other) for one in above) for other in below)


def _may_shadow(earlier: Rule, rule: Rule) -> bool:
    if earlier.needs is not Needs.NOTHING or earlier.files_only:
        return False
    # A project's rule does not end the search: the stricter of it and of what the rest says decides.
    return earlier.source.kind is not Kind.PROJECT or rule.source.kind is Kind.PROJECT


def covers(above: Pattern, below: Pattern) -> bool:
    """Tell whether *above* covers every path that *below* matches; False where it is hard to tell."""
    if not above.components:
        return True
    return bool(below.components) and any(_coverings(above, below, 0, 0))


def _coverings(above: Pattern, below: Pattern, high: int, low: int) -> Iterator[bool]:
    """Try every way to lay *above* from place *high* over *below* from place *low*."""
    if high == len(above.components):
        # What was matched is a directory when more of the path follows, or when *below* says so.
        yield not above.directories_only or low < len(below.components) or below.directories_only
        return
    if low == len(below.components):
        return
    over, under = above.components[high], below.components[low]
    if over.glob.anything and high == len(above.components) - 1 and not above.directories_only:
        # Whatever comes next in the path, a gap of *below* included, is one name at least.
        yield True
    if under.gap and not over.gap:
        return
    if over.glob.includes(under.glob):
        yield from _coverings(above, below, high + 1, low + 1)
    if over.gap:
        yield from _coverings(above, below, high, low + 1)


def _witness(glob: Glob) -> str:
    """Make up a name that *glob* matches."""
    return "".join(_example(part) for segment in glob.segments for part in segment) or "x"


def _example(part: Part) -> str:
    if part.literal:
        return part.text
    for character in map(chr, (*b"x0_~", *range(1, 0x3000))):
        if character != "/" and Glob(((part,),)).matches(character):
            return character
    return "x"
