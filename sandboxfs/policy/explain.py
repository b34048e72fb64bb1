"""Policy explanations: the decision about one path, the rule behind it, and what would change it.

`decide` is the pure function for one path. Code that walks a tree keeps the states of `Compiled` instead.

`explain` is behind `why` and behind the hints in denials: the decision, the earlier rules that did not match,
and the smallest change that allows the access. A change is only proposed after a test: the policy with the
change allows the access.

The daemon of a mounted sandbox and the record of an unmounted one give the same answer, so the JSON form of a
rule and of an explanation is defined here once.
"""

import errno
import json
import os
import shlex
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

from sandboxfs.paths import quoted
from sandboxfs.policy.compiled import Compiled, State
from sandboxfs.policy.model import (
    Access,
    Decision,
    Execute,
    Mode,
    Policy,
    Rule,
    RuleCondition,
    RuleSource,
    Ruling,
    SourceKind,
    words_of,
)
from sandboxfs.policy.patterns import covers_path, encoded, naming, parse, within

# Called with a path and the condition of a rule: whether the entry, or its parent, is in the workspace, or
# whether git ignores the path there, which then ends with a slash for a directory.
Exists = Callable[[str, RuleCondition], bool]

_compiled = lru_cache(maxsize=8)(Compiled)


def decide(
    policy: Policy, path: str, is_dir: bool = False, *, root: str = "/", exists: Exists | None = None
) -> Decision:
    """Decide about *path*, which is relative to *root* and need not exist; a final `/` means a directory.

    Without *exists* every entry counts as present in the workspace, and as ignored by git, so that rules
    about such entries apply. The decision covers every access: see `Decision.allows` and `Decision.errno`.
    """
    return states_on_the_way(policy, path, is_dir, root=root, exists=exists)[-1].decision


def states_on_the_way(
    policy: Policy, path: str, is_dir: bool = False, *, root: str = "/", exists: Exists | None = None
) -> list[State]:
    """Return the states of the root, of every directory on the way to *path*, and of *path* itself."""
    names = names_of(path)

    is_dir = is_dir or path.endswith("/")

    def known(depth: int, needs: RuleCondition) -> bool:
        slash = "/" if needs is RuleCondition.IGNORED and (is_dir or depth < len(names)) else ""
        return exists is None or exists("/".join(names[:depth]) + slash, needs)

    walked = [encoded(name) for name in names]
    return _compiled(policy, root).walk(walked, is_dir, known)


def names_of(path: str) -> list[str]:
    """Split a relative path; raise `ValueError` for a path that leads outside or is not relative."""
    names = [name for name in path.split("/") if name not in ("", ".")]
    if path.startswith("/") or ".." in names or "\0" in path:
        raise ValueError(f"not a path inside the root: {path!r}")
    return names


@dataclass(frozen=True)
class Remedy:
    """One change that allows an access: *text* to type or to add, and *where*."""

    where: str
    text: str


@dataclass(frozen=True)
class Explanation:
    """The decision about one access to one path.

    *decided_at* is the path that the rule matched: *path* itself, or a directory above ("" for the root).
    *passed* are the earlier rules that did not match. *remedies*, the smallest change first, are empty when
    the access is allowed already. *new_programs* is what becomes of executing the path once the sandbox made
    or changed it, where that differs. *ignored_by* is the line by which git ignores *decided_at*, where the
    rule is about that.
    """

    path: str
    access: Access
    decision: Decision
    decided_at: str
    passed: tuple[Rule, ...]
    remedies: tuple[Remedy, ...]
    new_programs: Execute | None = None
    ignored_by: str | None = None

    @property
    def allowed(self) -> bool:
        """Whether the access is permitted."""
        return self.decision.allows(self.access)

    def sentence(self) -> str:
        """Return the explanation in one line, in the form of a denial."""
        if self.allowed:
            reason = self.decision.reason(self.access)
            said = f"{self.access.value} allowed for {quoted(self.path or '.')}: {reason}"
        elif self.decision.ruling(self.access) is Ruling.ASK:
            reason = self.decision.reason(self.access)
            said = f"{self.access.value} waits for a person for {quoted(self.path or '.')}: {reason}"
        else:
            said = self.decision.denial(self.access, self.path)
        return said if self.ignored_by is None else f"{said}, ignored by {quoted(self.ignored_by)}"

    def hint(self) -> str | None:
        """Return one line with the change that would allow the access; None when allowed or without one."""
        return f"run {quoted(self.remedies[0].text)}" if self.remedies else None


def explain(
    policy: Policy,
    path: str,
    access: Access,
    is_dir: bool = False,
    *,
    root: str = "/",
    exists: Exists | None = None,
    ignored_by: Callable[[bytes, bool], str | None] | None = None,
) -> Explanation:
    """Explain the decision of *policy* about an *access* to *path*; `decide` gives the same decision.

    *ignored_by* tells by which line git ignores a path, or a directory.
    """
    names = names_of(path)
    is_dir = is_dir or path.endswith("/")
    states = states_on_the_way(policy, path, is_dir, root=root, exists=exists)
    decision = states[-1].decision
    depth = len(states) - 1
    while depth > 0 and states[depth - 1].decision.rule_for(access) is decision.rule_for(access):
        depth -= 1
    decided_at = "/".join(names[:depth])
    changes = () if decision.allows(access) else _changes(policy, decision, access, names, decided_at)
    line = None
    if ignored_by is not None and decision.rule_for(access).ignored:
        line = ignored_by(os.fsencode(decided_at), is_dir or depth < len(names))
    return Explanation(
        path="/".join(names),
        access=access,
        decision=decision,
        decided_at=decided_at,
        passed=tuple(_passed(policy, decision.rule_for(access), names, is_dir, root)),
        remedies=tuple(
            remedy
            for remedy, changed in changes
            if decide(changed, path, is_dir, root=root, exists=exists).allows(access)
        ),
        new_programs=_new_programs(policy, decision, access),
        ignored_by=line,
    )


def _new_programs(policy: Policy, decision: Decision, access: Access) -> Execute | None:
    rule = policy.new_program_rule
    if access is not Access.EXECUTE or rule is None or not decision.allows(access):
        return None
    return rule.execute if decision.executing.execute is None else None


def _passed(policy: Policy, decisive: Rule, names: list[str], is_dir: bool, root: str) -> Iterator[Rule]:
    if not policy.enabled:
        return
    for rule in policy.rules:
        if rule == decisive:
            return
        meaning = within(parse(rule.place or rule.pattern), root)
        if rule.ignored or not any(covers_path(pattern, names, is_dir) for pattern in meaning):
            yield rule


def _changes(
    policy: Policy, decision: Decision, access: Access, names: list[str], decided_at: str
) -> Iterator[tuple[Remedy, Policy]]:
    """Propose changes with the policies that they make; the caller tests whether a change helps."""
    mode = Mode.RO if Mode.RO.allows(access) else Mode.RW
    # No entry of a hidden directory can be reached, so the directory has to be allowed.
    target = decided_at if decision.hides else "/".join(names)
    pattern = naming(target)
    rule = decision.rule_for(access)

    def at(kind: SourceKind) -> Policy:
        return _with_first(policy, Rule(pattern, mode, RuleSource(kind)))

    typed = f"sandboxfs allow {shlex.quote(target or '.')} {mode.value}"
    yield Remedy("for this session", typed), at(SourceKind.RUNTIME)
    if rule.source.kind is SourceKind.WORKSPACE:
        yield (
            Remedy("for this session, for all that no rule names", "sandboxfs rw"),
            policy.with_mode(Mode.RW),
        )
    if rule.source.kind in (SourceKind.COMMAND_LINE, SourceKind.PROJECT):
        where = "when mounting"
        if rule.source.kind is SourceKind.COMMAND_LINE:
            where += f", before the rule {quoted(str(rule))}"
        yield Remedy(where, f"--rule {shlex.quote(f'{pattern}={mode.value}')}"), at(SourceKind.COMMAND_LINE)
    if pattern.isprintable():
        where = "in your configuration"
        if rule.source.kind is SourceKind.USER:
            where = f"before {rule.source}"
        yield (
            Remedy(where, f'[[rule]]\npath = {json.dumps(pattern)}\nmode = "{mode.value}"'),
            at(SourceKind.USER),
        )


def _with_first(policy: Policy, rule: Rule) -> Policy:
    """Return *policy* with *rule* as the first of its kind."""
    kinds = list(SourceKind)
    before = sum(kinds.index(other.source.kind) < kinds.index(rule.source.kind) for other in policy.rules)
    return replace(policy, rules=(*policy.rules[:before], rule, *policy.rules[before:]))


def described_rule(rule: Rule) -> dict[str, object]:
    """Describe *rule*: its pattern and mode, and where it was written."""
    return {
        "pattern": rule.pattern,
        "mode": rule.mode.value,
        **({"ignored": True} if rule.ignored else {}),
        **({"hold": words_of(rule.hold)} if rule.hold else {}),
        **({"execute": rule.execute.value} if rule.execute is not None else {}),
        "source": str(rule.source),
        "kind": rule.source.kind.value,
    }


_HELD = {Ruling.HOLD: "always", Ruling.HOLD_EXISTING: "existing"}


def described_explanation(found: Explanation) -> dict[str, object]:
    """Describe an explanation as `why` prints it."""
    number = found.decision.errno(found.access)
    return {
        "path": found.path or ".",
        "access": found.access.value,
        "allowed": found.allowed,
        "mode": found.decision.rule_for(found.access).mode.value,
        "errno": errno.errorcode[number] if number else None,
        "held": _HELD.get(found.decision.ruling(found.access)),
        # Left out where there is none: clients of earlier versions get what they always got.
        **({} if found.new_programs is None else {"new_programs": found.new_programs.value}),
        "rule": described_rule(found.decision.rule_for(found.access)),
        "decided_at": found.decided_at or ".",
        **({} if found.ignored_by is None else {"ignored_by": found.ignored_by}),
        "sentence": found.sentence(),
        "passed": [described_rule(rule) for rule in found.passed],
        "remedies": [{"where": remedy.where, "text": remedy.text} for remedy in found.remedies],
    }


def present_in(
    workspace: Path, path: str, ignored: Callable[[bytes, bool], bool] = lambda path, is_dir: False
) -> Exists:
    """Count the names of *path* present in *workspace*; the returned function looks no further.

    *ignored* tells what git ignores there.
    """
    place, depth = workspace, 0
    for name in names_of(path):
        place /= name
        try:
            status = os.lstat(place)
        except OSError:
            break
        depth += 1
        if not stat.S_ISDIR(status.st_mode):
            break

    def exists(way: str, needs: RuleCondition) -> bool:
        if needs is RuleCondition.IGNORED:
            return ignored(os.fsencode(way.rstrip("/")), way.endswith("/"))
        wanted = len(names_of(way)) - (needs is RuleCondition.PARENT)
        return wanted <= depth

    return exists
