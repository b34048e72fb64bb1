"""How is a policy asked, name by name, on the way down a tree?

A `State` stands for a path: its decision, and how far into which patterns its names have led. A step to a
child costs one lookup of the child's name, whatever the number of rules. A name that matched nothing yet is
searched for in two indexes: patterns that may begin anywhere are in one that all states share, and a state
keeps only those that have begun (or are tied to the root). Nothing is read from a disk, what a state decides
never changes, and what is remembered is bounded.
"""

from bisect import bisect_left
from collections.abc import Callable
from functools import partial
from typing import Final

from sandboxfs.policy.model import Decision, Kind, Mode, Needs, Policy
from sandboxfs.policy.names import Clue, NameIndex, clue
from sandboxfs.policy.pattern import parse, within

# How many states, and how many remembered steps, a policy may hold before it forgets them all and starts
# again. The names of an ordinary tree fit; the longest that there can be take some 20 MB.
_BOUND = 50_000

# The first matching rule among those that nobody overrules, among the project's, and among the rest.
_Best = tuple[int, int, int]
_Places = tuple[int, ...]


class State:
    """What a policy knows of one path.

    *free*: everything may be done to it.
    *quiet*: no rule can change anything below, so every child has this very state and need not be stepped to.
    *asks*: when set, the state depends on what the workspace holds and is to be settled first (see `settle`);
    until then it is what it would be if the workspace held it, so that rules that protect it apply.
    """

    __slots__ = (
        "_below", "_best", "_directories", "_effect", "_files", "_index", "_near", "_sticky",
        "asks", "decision", "free", "no", "quiet", "yes",
    )  # fmt: skip

    def __init__(self, decision: Decision, best: _Best, sticky: _Places, near: _Places) -> None:
        self.decision: Final = decision
        # Asked more often than anything else, and nearly always true.
        self.free: Final = decision.mode is Mode.RW
        self.quiet = False
        self.asks: Needs | None = None
        self.yes = self.no = self
        self._best: Final = best
        # Places in patterns that may match a child here: *sticky* ones at any depth, *near* ones only here.
        self._sticky: Final = sticky
        self._near: Final = near
        self._index: NameIndex | None = None
        self._below = self
        self._files: dict[bytes, State] = {}
        self._directories: dict[bytes, State] = {}
        self._effect: tuple[object, ...] = ()


def same_below(one: State, other: State) -> bool:
    """Tell whether two directories' states decide every path below alike; False where it is hard to tell."""
    return one is other or one._effect == other._effect


def settle(state: State, exists: Callable[[Needs], bool]) -> State:
    """Answer what *state* asks: whether the entry, or the directory that holds it, is in the workspace."""
    while state.asks is not None:
        state = state.yes if exists(state.asks) else state.no
    return state


class Compiled:
    """A policy made ready for one root, the absolute path of which gives absolute patterns their meaning.

    Raises `PatternError` for a rule whose pattern is none.
    """

    def __init__(self, policy: Policy, root: str = "/") -> None:
        self.policy: Final = policy
        rules = (*(policy.rules if policy.enabled else ()), policy.root_rule)
        self._decisions = [Decision(rule.mode, rule) for rule in rules]
        self._rules = rules
        firm = (Kind.RUNTIME, Kind.COMMAND_LINE)
        self._firm = sum(rule.source.kind in firm for rule in rules)
        self._untrusted = self._firm + sum(rule.source.kind is Kind.PROJECT for rule in rules)
        self._nothing: Final = len(rules)
        # One entry for each component of each pattern; that of the next component follows.
        self._clues: list[Clue] = []
        self._gap: list[bool] = []
        self._last: list[bool] = []
        self._owner: list[int] = []
        self._directories_only: list[bool] = []
        self._states: dict[tuple[_Best, _Places, _Places], State] = {}
        self._remembering: list[State] = []
        self._remembered = 0
        whole, floating, tied = self._read(root)
        self._floating = NameIndex((self._clues[place], place) for place in floating)
        self._floating_rules = sorted(self._owner[place] for place in floating)
        self.start: Final = self._start(whole, tuple(tied))

    def _read(self, root: str) -> tuple[list[int], list[int], list[int]]:
        """Take all patterns apart; return the rules for the whole root, and the places where others begin."""
        whole: list[int] = []
        floating: list[int] = []
        tied: list[int] = []
        for number, rule in enumerate(self._rules):
            for pattern in within(parse(rule.place or rule.pattern), root):
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
        # what is in it. So its own decision may differ from the one that its children inherit.
        own = [number for number in whole if self._rules[number].mode in (Mode.RO, Mode.RW)]
        decision = self._decided(self._improved(nothing, own))
        state = State(decision, best, (), self._relevant(best, tied))
        self._finish(state, hidden=False)
        state._below = self._state(best, (), ())
        # A quiet root has no state but its own, which must then be its children's as well.
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

    def _first_step(self, state: State, name: bytes, is_dir: bool) -> State:
        hits, plain = self._floating.search(name), self._floating.plain
        if state._index is not None:
            hits += state._index.search(name)
            plain = plain and state._index.plain
        if not hits and plain:
            return state._below
        # That nothing matched is remembered too: most names are seen again and again.
        result = self._advance(state, is_dir, hits) if hits else state._below
        self._remember(state, name, is_dir, result)
        return result

    def walk(self, names: list[bytes], is_dir: bool, exists: Callable[[int, Needs], bool]) -> list[State]:
        """Return the states of the root and of every path on the way down *names*, all settled.

        *exists* is asked with the number of names down to the entry in question.
        """
        states = [self.start]
        for depth, name in enumerate(names, start=1):
            state = self.step(states[-1], name, is_dir or depth < len(names))
            states.append(settle(state, partial(exists, depth)))
        return states

    def _advance(self, state: State, is_dir: bool, hits: _Places) -> State:
        matched: dict[Needs, list[int]] = {Needs.NOTHING: []}
        sticky = list(state._sticky)
        near: list[int] = []
        for place in self._relevant(state._best, hits):
            rule = self._rules[self._owner[place]]
            if not self._last[place]:
                (sticky if self._gap[place + 1] else near).append(place + 1)
            elif not rule.files_only if is_dir else not self._directories_only[place]:
                matched.setdefault(rule.needs, []).append(self._owner[place])
        if not is_dir:
            # Nothing is below a file, so it needs to know no beginnings.
            sticky, near = [], []
        certain = matched.pop(Needs.NOTHING)
        places = tuple(sorted(set(sticky))), tuple(sorted(set(near)))
        return self._outcome(state._best, certain, matched, *places)

    def _outcome(
        self, best: _Best, certain: list[int], asked: dict[Needs, list[int]], sticky: _Places, near: _Places
    ) -> State:
        """Make the state, or when rules depend on the workspace, the question with both of its answers."""
        if not asked:
            return self._state(self._improved(best, certain), sticky, near)
        needs, *others = asked
        rest = {other: asked[other] for other in others}
        no = self._outcome(best, certain, rest, sticky, near)
        yes = self._outcome(best, certain + asked[needs], rest, sticky, near)
        if yes is no:
            return yes
        # Unanswered, it stands for yes: the answer under which more rules apply.
        question = State(yes.decision, yes._best, yes._sticky, yes._near)
        question.quiet, question._index, question._effect = yes.quiet, yes._index, yes._effect
        question._below = yes._below
        question.asks, question.yes, question.no = needs, yes, no
        return question

    def _state(self, best: _Best, sticky: _Places, near: _Places) -> State:
        sticky, near = self._relevant(best, sticky), self._relevant(best, near)
        state = self._states.get((best, sticky, near))
        if state is None:
            decision = self._decided(best)
            if len(self._states) >= _BOUND:
                self._forget()
            state = self._states[best, sticky, near] = State(decision, best, sticky, near)
            self._finish(state, hidden=decision.mode is Mode.HIDE)
        return state

    def _finish(self, state: State, *, hidden: bool) -> None:
        """Work out what a new state means for what is below it."""
        floating = self._count_floating(state._best)
        places = state._sticky + state._near
        # There is no way into a hidden directory, so no earlier rule can bring back what is in it.
        state.quiet = hidden or not (places or any(floating))
        modes = tuple(None if rule == self._nothing else self._rules[rule].mode for rule in state._best)
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
        # What a firm rule decided no other can change: one state instead of many that decide alike.
        return (firm, project, rest) if firm == self._nothing else (firm, self._nothing, self._nothing)

    def _decided(self, best: _Best) -> Decision:
        firm, project, rest = best
        if firm != self._nothing:
            return self._decisions[firm]
        if project != self._nothing:
            decision = self._decisions[project]
            if not self._decisions[rest].mode.stricter_than(decision.mode):
                return decision
        return self._decisions[rest]

    def _limits(self, best: _Best) -> _Best:
        """Return, for each of the three groups of rules, the end of those that could still matter."""
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
        """Forget everything; states in use elsewhere stay valid."""
        for state in self._remembering:
            state._files.clear()
            state._directories.clear()
        self._remembering.clear()
        self._states.clear()
        self._remembered = 0
