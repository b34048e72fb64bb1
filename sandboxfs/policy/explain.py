"""Why may a path be used, or not, and what would change that?

The answer behind `why` and behind the hints in denials: the decision, the rules that were asked before and
did not match, and the smallest change that allows the access. A change is only proposed after it was tried:
the policy with it allows what was asked.
"""

import json
import shlex
from collections.abc import Iterator
from dataclasses import dataclass, replace

from sandboxfs.paths import quoted
from sandboxfs.policy.decide import Exists, decide, names_of, states_on_the_way
from sandboxfs.policy.model import Access, Decision, Kind, Mode, Policy, Rule, Source
from sandboxfs.policy.pattern import covers_path, naming, parse, within


@dataclass(frozen=True)
class Remedy:
    """One change that allows an access: *text* to type or to add, and *where*."""

    where: str
    text: str


@dataclass(frozen=True)
class Explanation:
    """The decision about one access to one path.

    *decided_at* is the path that the rule matched: *path* itself, or a directory above it ("" for the root).
    *passed* are the rules asked before that did not match. *remedies*, the smallest change first, are empty
    when the access is allowed already.
    """

    path: str
    access: Access
    decision: Decision
    decided_at: str
    passed: tuple[Rule, ...]
    remedies: tuple[Remedy, ...]

    @property
    def allowed(self) -> bool:
        """Whether the access is permitted."""
        return self.decision.allows(self.access)

    def sentence(self) -> str:
        """Say it in one line, as a denial does."""
        if self.allowed:
            return f"{self.access.value} allowed for {quoted(self.path or '.')}: {self.decision.reason()}"
        return self.decision.denial(self.access, self.path)

    def hint(self) -> str | None:
        """Say in one line what would allow the access; None when it is allowed, or nothing would."""
        return f"run {quoted(self.remedies[0].text)}" if self.remedies else None


def explain(
    policy: Policy,
    path: str,
    access: Access,
    is_dir: bool = False,
    *,
    root: str = "/",
    exists: Exists | None = None,
) -> Explanation:
    """Explain what *policy* says about an *access* to *path*, as `decide` would answer it."""
    names = names_of(path)
    is_dir = is_dir or path.endswith("/")
    states = states_on_the_way(policy, path, is_dir, root=root, exists=exists)
    decision = states[-1].decision
    depth = len(states) - 1
    while depth > 0 and states[depth - 1].decision.rule is decision.rule:
        depth -= 1
    decided_at = "/".join(names[:depth])
    changes = () if decision.allows(access) else _changes(policy, decision, access, names, decided_at)
    return Explanation(
        path="/".join(names),
        access=access,
        decision=decision,
        decided_at=decided_at,
        passed=tuple(_passed(policy, decision.rule, names, is_dir, root)),
        remedies=tuple(
            remedy
            for remedy, changed in changes
            if decide(changed, path, is_dir, root=root, exists=exists).allows(access)
        ),
    )


def _passed(policy: Policy, decisive: Rule, names: list[str], is_dir: bool, root: str) -> Iterator[Rule]:
    if not policy.enabled:
        return
    for rule in policy.rules:
        if rule == decisive:
            return
        meaning = within(parse(rule.place or rule.pattern), root)
        if not any(covers_path(pattern, names, is_dir) for pattern in meaning):
            yield rule


def _changes(
    policy: Policy, decision: Decision, access: Access, names: list[str], decided_at: str
) -> Iterator[tuple[Remedy, Policy]]:
    """Propose changes with the policies that they make; whether they help is for the caller to try."""
    mode = Mode.RO if Mode.RO.allows(access) else Mode.RW
    # Nothing in a hidden directory can be reached, so it is the directory that has to be allowed.
    target = decided_at if decision.mode is Mode.HIDE else "/".join(names)
    pattern = naming(target)
    rule = decision.rule

    def at(kind: Kind) -> Policy:
        return _with_first(policy, Rule(pattern, mode, Source(kind)))

    typed = f"sandboxfs allow {shlex.quote(target or '.')} {mode.value}"
    yield Remedy("for this session", typed), at(Kind.RUNTIME)
    if rule.source.kind is Kind.WORKSPACE:
        yield (
            Remedy("for this session, for all that no rule names", "sandboxfs rw"),
            policy.with_mode(Mode.RW),
        )
    if rule.source.kind in (Kind.COMMAND_LINE, Kind.PROJECT):
        where = "when mounting"
        if rule.source.kind is Kind.COMMAND_LINE:
            where += f", before the rule {quoted(str(rule))}"
        yield Remedy(where, f"--rule {shlex.quote(f'{pattern}={mode.value}')}"), at(Kind.COMMAND_LINE)
    if pattern.isprintable():
        where = "in your configuration"
        if rule.source.kind is Kind.USER:
            where = f"before {rule.source}"
        yield Remedy(where, f'[[rule]]\npath = {json.dumps(pattern)}\nmode = "{mode.value}"'), at(Kind.USER)


def _with_first(policy: Policy, rule: Rule) -> Policy:
    """Return *policy* with *rule* as the first of its kind."""
    kinds = list(Kind)
    before = sum(kinds.index(other.source.kind) < kinds.index(rule.source.kind) for other in policy.rules)
    return replace(policy, rules=(*policy.rules[:before], rule, *policy.rules[before:]))
