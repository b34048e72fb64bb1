"""Compiled policy: which rule decides about a path: the first that matches, found by an index name by name.

Decisions are made on the way down a tree. A `State` stands for a path: its decision, and how far its names
have matched each pattern. A step to a child costs one lookup of the child's name, whatever the number of
rules. A name without a remembered step is searched for in two indexes: all states share the index of patterns
that may begin anywhere, and each state has one of the patterns that have begun, or are tied to the root. No
step reads a disk, the decision of a state never changes, and memory is bounded.

A `NameIndex` takes about the same time for a thousand globs as for one. Plain names are looked up; other
globs are found by the text that a matching name must begin or end with, so that only globs that can match are
tried. For a glob with neither text, the name must contain three bytes of the glob; the remaining globs (`?`)
form one regular expression. Names are bytes as the kernel gives them. A search remembers nothing.
"""

import re
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Final, TypeVar

from sandboxfs.policy.model import Decision, Mode, Policy, Rule, RuleCondition, Ruling, SourceKind, stricter
from sandboxfs.policy.patterns import (
    Clue,
    CluePosition,
    Component,
    Glob,
    PathPattern,
    clue,
    decoded,
    parse,
    parse_glob,
    within,
)

# Texts are found by their outermost bytes: by so many, where the text is long enough.
_OUTERMOST = 3

# The number of a glob, and the glob itself when the name still has to be matched.
_Hit = tuple[int, Glob | None]
# Hits by text, by the length of the text.
_Texts = dict[int, dict[bytes, list[_Hit]]]
# Texts by their outermost bytes, by the number of those bytes.
_Affixes = tuple[tuple[int, dict[bytes, _Texts]], ...]
_Key = TypeVar("_Key")


class NameIndex:
    """Globs by their clues, each with a number; a search gives the numbers of matching globs, ascending.

    *plain*: a search finds out nearly as quickly as a lookup that no glob matches a name.
    """

    __slots__ = (
        "_any", "_beginnings", "_endings", "_grams", "_heads", "_literals", "_odd", "_rest", "_tails",
        "plain",
    )  # fmt: skip

    def __init__(self, clues: Iterable[tuple[Clue, int]]) -> None:
        found: dict[CluePosition, list[tuple[bytes, _Hit]]] = {where: [] for where in CluePosition}
        for (glob, where, texts, certain), number in clues:
            hit = number, None if certain else glob
            found[where] += [(text, hit) for text in texts]
        self._any = tuple(sorted(number for _, (number, _) in found[CluePosition.NOTHING_NEEDED]))
        self._literals = _gathered(found[CluePosition.WHOLE])
        self._beginnings = _bucketed(
            (text[:_OUTERMOST], text, hit) for text, hit in found[CluePosition.BEGINNING]
        )
        self._endings = _bucketed((text[-_OUTERMOST:], text, hit) for text, hit in found[CluePosition.END])
        self._grams = _gathered((tuple(text), hit) for text, hit in found[CluePosition.INSIDE])
        self._rest = [hit for _, hit in found[CluePosition.UNKNOWN]]
        # Most names begin and end like none of the texts; `misses` checks this first, where it can.
        lengths = {outermost for outermost, _ in self._beginnings + self._endings}
        self.plain = lengths <= {_OUTERMOST} and not self._grams and not self._rest
        self._heads = dict(self._beginnings).get(_OUTERMOST, {})
        self._tails = dict(self._endings).get(_OUTERMOST, {})
        # One expression for all remaining globs, because most names match none of them.
        odd = (f"(?:{glob.expression})" for _, glob in self._rest if glob is not None)
        self._odd = re.compile("|".join(odd), re.DOTALL)

    def misses(self, name: bytes) -> bool:
        """Whether a quick look shows that no glob matches *name*; False when a search is needed."""
        # Called for every name that is new to the policy.
        return (
            self.plain
            and name[:_OUTERMOST] not in self._heads
            and name[-_OUTERMOST:] not in self._tails
            and name not in self._literals
            and not self._any
        )

    def search(self, name: bytes) -> tuple[int, ...]:
        """Return the numbers of the globs that match *name*."""
        return () if self.misses(name) else self._search(name)

    def _search(self, name: bytes) -> tuple[int, ...]:
        hits: list[_Hit] = []
        for outermost, buckets in self._beginnings:
            if (texts := buckets.get(name[:outermost])) is not None:
                for length, by_text in texts.items():
                    hits += by_text.get(name[:length], ())
        for outermost, buckets in self._endings:
            if (texts := buckets.get(name[-outermost:])) is not None:
                for length, by_text in texts.items():
                    hits += by_text.get(name[-length:], ())
        if self._grams or self._rest:
            hits += self._with_neither(name)
        if name in self._literals:
            hits += self._literals[name]
        if not hits:
            return self._any
        text = decoded(name)
        found = (number for number, glob in hits if glob is None or glob.matches(text))
        return tuple(sorted([*self._any, *found]))

    def _with_neither(self, name: bytes) -> Iterator[_Hit]:
        """Find globs that have neither a known beginning nor a known end."""
        # The check for any such glob runs in C; the list of them is seldom needed.
        grams = zip(name, name[1:], name[2:], strict=False)
        if not self._grams.keys().isdisjoint(grams):
            grams = zip(name, name[1:], name[2:], strict=False)
            for gram in self._grams.keys() & set(grams):
                yield from self._grams[gram]
        if self._rest and self._odd.fullmatch(decoded(name)):
            yield from self._rest


def _gathered(found: Iterable[tuple[_Key, _Hit]]) -> dict[_Key, list[_Hit]]:
    hits: dict[_Key, list[_Hit]] = {}
    for key, hit in found:
        hits.setdefault(key, []).append(hit)
    return hits


def _bucketed(found: Iterable[tuple[bytes, bytes, _Hit]]) -> _Affixes:
    """Arrange hits by the outermost bytes of their text, and then by the text."""
    buckets: dict[int, dict[bytes, _Texts]] = {}
    for outermost, text, hit in found:
        texts = buckets.setdefault(len(outermost), {}).setdefault(outermost, {})
        texts.setdefault(len(text), {}).setdefault(text, []).append(hit)
    return tuple(buckets.items())


# The most states, and the most remembered steps, of a policy; beyond, all are forgotten. The names of an
# ordinary tree fit; the longest possible names take some 20 MB.
_BOUND = 50_000

# The first matching rule among the firm ones, among the project's, and among the rest.
_Best = tuple[int, int, int]
_Places = tuple[int, ...]

# Tells whether git ignores a path, relative to the root, on the host; also whether it is a directory.
Ignored = Callable[[bytes, bool], bool]


def _everything(path: bytes, is_dir: bool) -> bool:
    return True


class State:
    """The knowledge of a policy about one path.

    *free*: every access to the path is allowed. *quiet*: no rule can change a decision below, so every child
    has this very state and needs no step. *asks*: when set, the state depends on the content of the workspace
    and must be settled first (see `settle`). Until then the state is that of a path in the workspace, so that
    rules that protect such a path apply.
    """

    __slots__ = (
        "_below", "_best", "_directories", "_effect", "_files", "_index", "_near", "_pair", "_sticky",
        "asks", "decision", "free", "no", "quiet", "yes",
    )  # fmt: skip

    def __init__(self, decision: Decision, best: _Best, sticky: _Places, near: _Places) -> None:
        self.decision: Final = decision
        # Read more often than any other field, and nearly always true.
        self.free: Final = decision.is_free
        self.quiet = False
        self.asks: RuleCondition | None = None
        self.yes = self.no = self
        self._best: Final = best
        # Positions in patterns that may match a child here: *sticky* at any depth, *near* only here.
        self._sticky: Final = sticky
        self._near: Final = near
        self._index: NameIndex | None = None
        self._below = self
        self._files: dict[bytes, State] = {}
        self._directories: dict[bytes, State] = {}
        self._effect: tuple[object, ...] = ()
        self._pair: tuple[State, State] | None = None


_ANYTHING_BELOW = Component(parse_glob("*"), gap=True)


def _meanings(rule: Rule, root: str) -> Iterator[PathPattern]:
    """The patterns by which a rule is found: one about ignored paths is asked at every path it covers.

    Another rule is asked where it matches, and covers what is below.
    """
    for pattern in within(parse(rule.place or rule.pattern), root):
        if not rule.ignored:
            yield pattern
            continue
        if pattern.components:
            yield pattern
        yield PathPattern((*pattern.components, _ANYTHING_BELOW))


def same_below(one: State, other: State) -> bool:
    """Tell whether two directories' states decide every path below alike; False where it is hard to tell."""
    return one is other or one._effect == other._effect


def settle(state: State, exists: Callable[[RuleCondition], bool]) -> State:
    """Ruling the question of *state*: whether the entry, or its directory, is in the workspace."""
    while state.asks is not None:
        state = state.yes if exists(state.asks) else state.no
    return state


def _is_open(state: State) -> bool:
    """Whether every access to a path and to all paths below is allowed, with nothing held."""
    allowed = state.free and all(ruling is Ruling.ALLOW for ruling in state.decision.rulings)
    return allowed and state.quiet and state.asks is None


def _answered(state: State, needs: RuleCondition, answer: bool) -> State:
    if state.asks is not needs:
        return state
    return state.yes if answer else state.no


def _question(needs: RuleCondition, yes: State, no: State) -> State:
    """Make the state that asks; until answered it stands for yes, the answer under which more rules apply."""
    question = State(yes.decision, yes._best, yes._sticky, yes._near)
    question.quiet, question._index, question._effect = yes.quiet, yes._index, yes._effect
    question._below, question._pair = yes._below, yes._pair
    question.asks, question.yes, question.no = needs, yes, no
    return question


def _paired(one: State, other: State) -> State:
    """Make the state with the halves *one* and *other*, both settled."""
    decision = stricter(one.decision, other.decision)
    pair = State(decision, one._best, (), ())
    pair.quiet = decision.hides or (one.quiet and other.quiet)
    pair._effect = (Mode.HIDE,) if decision.hides else (one._effect, other._effect)
    # Every step must go to both halves, so `step` may skip no name for lack of an index.
    pair._pair, pair._index = (one, other), NameIndex(())
    return pair


class Compiled:
    """A policy compiled for one root, whose absolute path gives absolute patterns their meaning.

    Raises `PatternError` for a rule with a bad pattern.
    """

    def __init__(self, policy: Policy, root: str = "/", ignored: Ignored = _everything) -> None:
        """*ignored* tells what git ignores on the host; without it, rules about that apply to everything."""
        self.policy: Final = policy
        self.ignored: Final = ignored
        rules = (*(policy.rules if policy.enabled else ()), policy.root_rule)
        self._decisions = [Decision.by(rule) for rule in rules]
        self._rules = rules
        firm = (SourceKind.RUNTIME, SourceKind.COMMAND_LINE)
        self._firm = sum(rule.source.kind in firm for rule in rules)
        self._untrusted = self._firm + sum(rule.source.kind is SourceKind.PROJECT for rule in rules)
        self._nothing: Final = len(rules)
        # One item for each component of each pattern; the item of the next component follows.
        self._clues: list[Clue] = []
        self._gap: list[bool] = []
        self._last: list[bool] = []
        self._owner: list[int] = []
        self._directories_only: list[bool] = []
        self._states: dict[tuple[_Best, _Places, _Places], State] = {}
        self._pairs: dict[tuple[State, State], State] = {}
        self._joint: dict[tuple[int, int], Decision] = {}
        self._remembering: list[State] = []
        self._remembered = 0
        whole, floating, tied = self._read(root)
        self._floating = NameIndex((self._clues[place], place) for place in floating)
        self._floating_rules = sorted(self._owner[place] for place in floating)
        self.start: Final = self._start(whole, tuple(tied))

    def _read(self, root: str) -> tuple[list[int], list[int], list[int]]:
        """Split all patterns; return the rules for the whole root, and the positions where others begin."""
        whole: list[int] = []
        floating: list[int] = []
        tied: list[int] = []
        for number, rule in enumerate(self._rules):
            for pattern in _meanings(rule, root):
                if not pattern.components:
                    whole.append(number)
                    continue
                (floating if pattern.components[0].gap else tied).append(len(self._clues))
                for place, component in enumerate(pattern.components, start=1):
                    self._clues.append(clue(component.glob))
                    self._gap.append(component.gap)
                    self._last.append(place == len(pattern.components))
                    self._owner.append(number)
                    self._directories_only.append(pattern.directories_only)
        return whole, floating, tied

    def _start(self, whole: list[int], tied: _Places) -> State:
        nothing = (self._nothing,) * 3
        best = self._improved(nothing, whole)
        # The root itself can be neither hidden nor denied, or there would be no view: such a rule is about
        # the root's entries. So the root's own decision may differ from the one that its children inherit.
        own = [number for number in whole if self._rules[number].mode not in (Mode.HIDE, Mode.DENY)]
        decision = self._decided(self._improved(nothing, own))
        state = State(decision, best, (), self._relevant(best, tied))
        self._finish(state, hidden=False)
        state._below = self._state(best, (), ())
        # Every child of a quiet root has the root's state, so the root must decide as they do.
        state.quiet = state.quiet and decision is self._decided(best)
        return state

    def step(self, state: State, name: bytes, is_dir: bool) -> State:
        """Return the state of the child called *name* of a directory in *state*."""
        if state.quiet:
            return state
        known = (state._directories if is_dir else state._files).get(name)
        if known is not None:
            return known
        if state._index is None and self._floating.misses(name):
            return state._below
        return self._first_step(state, name, is_dir)

    def both(self, one: State, other: State) -> State:
        """Return the state of a path with two names: there and below, the stricter decision holds."""
        if one is other or _is_open(other):
            return one
        if _is_open(one):
            return other
        needs = one.asks or other.asks
        if needs is not None:
            yes = self.both(_answered(one, needs, True), _answered(other, needs, True))
            no = self.both(_answered(one, needs, False), _answered(other, needs, False))
            return yes if yes is no else _question(needs, yes, no)
        known = self._pairs.get((one, other))
        if known is None:
            if len(self._pairs) >= _BOUND:
                self._forget()
            known = self._pairs[one, other] = _paired(one, other)
        return known

    def _first_step(self, state: State, name: bytes, is_dir: bool) -> State:
        if state._pair is not None:
            result = self.both(*(self.step(half, name, is_dir) for half in state._pair))
            self._remember(state, name, is_dir, result)
            return result
        hits, plain = self._floating.search(name), self._floating.plain
        if state._index is not None:
            hits += state._index.search(name)
            plain = plain and state._index.plain
        if not hits and plain:
            return state._below
        # A name without a match is remembered too: most names are looked up again and again.
        result = self._advance(state, is_dir, hits) if hits else state._below
        self._remember(state, name, is_dir, result)
        return result

    def walk(
        self, names: list[bytes], is_dir: bool, exists: Callable[[int, RuleCondition], bool]
    ) -> list[State]:
        """Return the states of the root and of every path on the way down *names*, all settled.

        *exists* is called with the depth of the entry in question, counted in names.
        """
        states = [self.start]
        for depth, name in enumerate(names, start=1):
            state = self.step(states[-1], name, is_dir or depth < len(names))
            states.append(settle(state, partial(exists, depth)))
        return states

    def _advance(self, state: State, is_dir: bool, hits: _Places) -> State:
        matched: dict[RuleCondition, list[int]] = {RuleCondition.NOTHING: []}
        sticky = list(state._sticky)
        near: list[int] = []
        for place in self._relevant(state._best, hits):
            rule = self._rules[self._owner[place]]
            if not self._last[place]:
                (sticky if self._gap[place + 1] else near).append(place + 1)
            elif not rule.files_only if is_dir else not self._directories_only[place]:
                matched.setdefault(rule.needs, []).append(self._owner[place])
        if not is_dir:
            # No path is below a file, so the file's state needs no positions.
            sticky, near = [], []
        certain = matched.pop(RuleCondition.NOTHING)
        places = tuple(sorted(set(sticky))), tuple(sorted(set(near)))
        return self._outcome(state._best, certain, matched, *places)

    def _outcome(
        self,
        best: _Best,
        certain: list[int],
        asked: dict[RuleCondition, list[int]],
        sticky: _Places,
        near: _Places,
    ) -> State:
        """Make the state or, when rules depend on the workspace, the question with both of its answers."""
        if not asked:
            return self._state(self._improved(best, certain), sticky, near)
        needs, *others = asked
        rest = {other: asked[other] for other in others}
        no = self._outcome(best, certain, rest, sticky, near)
        yes = self._outcome(best, certain + asked[needs], rest, sticky, near)
        if yes is no:
            return yes
        return _question(needs, yes, no)

    def _state(self, best: _Best, sticky: _Places, near: _Places) -> State:
        sticky, near = self._relevant(best, sticky), self._relevant(best, near)
        state = self._states.get((best, sticky, near))
        if state is None:
            decision = self._decided(best)
            if len(self._states) >= _BOUND:
                self._forget()
            state = self._states[best, sticky, near] = State(decision, best, sticky, near)
            self._finish(state, hidden=decision.hides)
        return state

    def _finish(self, state: State, *, hidden: bool) -> None:
        """Compute the fields of a new state that concern paths below."""
        floating = self._count_floating(state._best)
        places = state._sticky + state._near
        # A hidden directory cannot be entered, so no earlier rule can bring back its entries.
        state.quiet = hidden or not (places or any(floating))
        modes = tuple(None if rule == self._nothing else self._meaning(rule) for rule in state._best)
        state._effect = (Mode.HIDE,) if hidden else (modes, floating, state._sticky, state._near)
        if not state.quiet and places:
            state._index = NameIndex((self._clues[place], place) for place in places)
        if state._near and not state.quiet:
            state._below = self._state(state._best, state._sticky, ())

    def _improved(self, best: _Best, matched: list[int]) -> _Best:
        firm, project, rest = best
        for rule in matched:
            if rule < self._firm:
                firm = min(firm, rule)
            elif rule < self._untrusted:
                project = min(project, rule)
            else:
                rest = min(rest, rule)
        # No other rule can change the decision of a firm rule: one state for many with equal decisions.
        return (firm, project, rest) if firm == self._nothing else (firm, self._nothing, self._nothing)

    def _decided(self, best: _Best) -> Decision:
        firm, project, rest = best
        if firm != self._nothing:
            return self._decisions[firm]
        if project != self._nothing:
            return self._together(project, rest)
        return self._decisions[rest]

    def _together(self, project: int, rest: int) -> Decision:
        """The decision where a rule of the project and another one speak: a project's may only tighten."""
        known = self._joint.get((project, rest))
        if known is None:
            known = self._joint[project, rest] = stricter(self._decisions[project], self._decisions[rest])
        return known

    def _meaning(self, rule: int) -> tuple[object, ...]:
        """All that a rule says, wherever it was written."""
        said = self._rules[rule]
        return said.mode, said.hold, said.execute

    def _limits(self, best: _Best) -> _Best:
        """Return, for each of the three groups of rules, the end of the rules that could still decide."""
        firm, project, rest = best
        if firm != self._nothing:
            return firm, self._firm, self._untrusted
        return self._firm, min(project, self._untrusted), rest

    def _relevant(self, best: _Best, places: _Places) -> _Places:
        firm, project, rest = self._limits(best)
        return tuple(
            place
            for place in places
            if (rule := self._owner[place]) < firm
            or self._firm <= rule < project
            or self._untrusted <= rule < rest
        )

    def _count_floating(self, best: _Best) -> tuple[int, int, int]:
        rules = self._floating_rules
        firm, project, rest = self._limits(best)
        return (
            bisect_left(rules, firm),
            bisect_left(rules, project) - bisect_left(rules, self._firm),
            bisect_left(rules, rest) - bisect_left(rules, self._untrusted),
        )

    def _remember(self, state: State, name: bytes, is_dir: bool, result: State) -> None:
        if self._remembered >= _BOUND:
            self._forget()
        if not state._files and not state._directories:
            self._remembering.append(state)
        (state._directories if is_dir else state._files)[name] = result
        self._remembered += 1

    def _forget(self) -> None:
        """Forget all states and steps; states in use elsewhere stay valid."""
        for state in self._remembering:
            state._files.clear()
            state._directories.clear()
        self._remembering.clear()
        self._states.clear()
        self._pairs.clear()
        self._remembered = 0
