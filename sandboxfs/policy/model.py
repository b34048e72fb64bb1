"""Policy values: modes, rules, sources and decisions.

A `Policy` is an ordered tuple of `Rule`s and the mode of paths that no rule names. For a path the policy has
a `Decision`: a mode and the rule that gave the mode, so that every refusal can name its rule. All of these
are plain values; this module knows no pattern's meaning, no file and no sandbox.
"""

import errno
from dataclasses import dataclass, field, replace
from enum import Enum, StrEnum

from sandboxfs.errors import UsageError
from sandboxfs.paths import quoted


class Access(StrEnum):
    """The kind of access that an operation attempts."""

    READ = "read"
    WRITE = "write"
    DELETE = "delete"
    EXECUTE = "execute"


class Ruling(Enum):
    """The ruling of a policy about one access, the mildest first: of two rulings, the stricter one counts.

    `HOLD` permits a change, which `commit` leaves out until a person approves it; `HOLD_EXISTING` holds a
    change only of what the workspace has. `ASK` makes the access wait for a person. Reading and executing are
    never held or `READ_ONLY`, changing never is `ASK`, so that one order serves all accesses.
    """

    ALLOW = 0
    HOLD_EXISTING = 1
    HOLD = 2
    ASK = 3
    READ_ONLY = 4
    DENY = 5
    HIDE = 6

    def stricter_than(self, other: "Ruling") -> bool:
        """Tell whether this ruling permits less than *other*."""
        return self._value_ > other._value_

    @property
    def permits(self) -> bool:
        """Whether the access happens at once."""
        return self._value_ <= Ruling.HOLD._value_


class Mode(StrEnum):
    """The permission that a rule gives."""

    HIDE = "hide"
    DENY = "deny"
    RO = "ro"
    RW = "rw"
    HOLD = "hold"
    ASK = "ask"

    def ruling(self, access: Access) -> Ruling:
        """Return the ruling about an *access*."""
        reading, changing = _RULINGS[self]
        return changing if access in CHANGING else reading

    def allows(self, access: Access) -> bool:
        """Tell whether an *access* is permitted at once."""
        return self.ruling(access).permits


CHANGING = frozenset({Access.WRITE, Access.DELETE})
# To reading and executing, and to writing and deleting.
_RULINGS = {
    Mode.HIDE: (Ruling.HIDE, Ruling.HIDE),
    Mode.DENY: (Ruling.DENY, Ruling.DENY),
    Mode.RO: (Ruling.ALLOW, Ruling.READ_ONLY),
    Mode.RW: (Ruling.ALLOW, Ruling.ALLOW),
    Mode.HOLD: (Ruling.ALLOW, Ruling.HOLD),
    Mode.ASK: (Ruling.ASK, Ruling.HOLD),
}
_WORDS = {
    Ruling.HIDE: "hidden",
    Ruling.DENY: "denied",
    Ruling.READ_ONLY: "read-only",
    Ruling.ASK: "asked",
    Ruling.HOLD: "held",
    Ruling.HOLD_EXISTING: "held",
    Ruling.ALLOW: "allowed",
}


class Hold(StrEnum):
    """The changes of the workspace's own files that a rule holds beside its mode."""

    DELETE = "delete"
    OVERWRITE = "overwrite"


def words_of(hold: frozenset[Hold]) -> list[str]:
    """Return the words for kinds of changes, in one order."""
    return [kind.value for kind in Hold if kind in hold]


_HELD_BY = {Access.DELETE: Hold.DELETE, Access.WRITE: Hold.OVERWRITE}


class Execute(StrEnum):
    """What a rule says about executing, where that differs from what it says about reading."""

    ALLOW = "allow"
    ASK = "ask"
    DENY = "deny"


_EXECUTE = {Execute.ALLOW: Ruling.ALLOW, Execute.ASK: Ruling.ASK, Execute.DENY: Ruling.DENY}


class SourceKind(Enum):
    """The origins of rules, in the order in which the rules are tried."""

    RUNTIME = "runtime"
    COMMAND_LINE = "command line"
    PROJECT = "project"
    USER = "user"
    BUILT_IN = "built-in"
    WORKSPACE = "workspace"


_ORDER = {kind: place for place, kind in enumerate(SourceKind)}
_UNNAMED = {SourceKind.COMMAND_LINE: "--rule", SourceKind.WORKSPACE: "workspace mode"}


@dataclass(frozen=True)
class RuleSource:
    """The origin of one rule: *file* is a file, or the option or verb that gave the rule."""

    kind: SourceKind
    file: str | None = None
    line: int | None = None

    def __str__(self) -> str:
        if self.file is None:
            return _UNNAMED.get(self.kind, self.kind.value)
        return self.file if self.line is None else f"{self.file}:{self.line}"


class RuleCondition(StrEnum):
    """The content of the workspace that a rule needs to apply.

    A rule may protect existing entries and leave new ones of the sandbox alone. `ENTRY`: the matched entry is
    in the workspace. `PARENT`: the directory of that entry is. `IGNORED`: git ignores the path in the
    workspace as it is on the host, whether there is anything at the path or not.
    """

    NOTHING = "nothing"
    ENTRY = "entry"
    PARENT = "parent"
    IGNORED = "ignored"


@dataclass(frozen=True)
class Rule:
    """One line of policy.

    *place* is an absolute *pattern* with its symlinks resolved, where that differs. *needs*, but for
    `RuleCondition.IGNORED`, and *files_only* (the rule does not apply to directories) are for built-in rules:
    no file can set them. *hold* and *execute* say finer what *mode* says of a path that may be read.
    """

    pattern: str
    mode: Mode
    source: RuleSource
    place: str | None = None
    needs: RuleCondition = RuleCondition.NOTHING
    files_only: bool = False
    hold: frozenset[Hold] = frozenset()
    execute: Execute | None = None

    def ruling(self, access: Access) -> Ruling:
        """Return the ruling about an *access*."""
        ruling = self.mode.ruling(access)
        if access is Access.EXECUTE and self.execute is not None:
            return _EXECUTE[self.execute]
        if ruling is Ruling.ALLOW and access in CHANGING and _HELD_BY[access] in self.hold:
            return Ruling.HOLD_EXISTING
        return ruling

    @property
    def may_hold(self) -> bool:
        """Whether the rule holds any change."""
        return bool(self.hold) or self.mode.ruling(Access.WRITE) is Ruling.HOLD

    @property
    def tightens(self) -> bool:
        """Whether the rule forbids or holds anything."""
        return self.mode is not Mode.RW or bool(self.hold) or self.execute not in (None, Execute.ALLOW)

    @property
    def identity(self) -> tuple[object, ...]:
        """What a rule is known by when its file is edited, or it says something else of its paths."""
        return self.source.kind, self.pattern, self.ignored

    @property
    def ignored(self) -> bool:
        """Whether the rule is about what git ignores only."""
        return self.needs is RuleCondition.IGNORED

    def __str__(self) -> str:
        more = ["ignored"] if self.ignored else []
        more += [f"hold {kind.value}" for kind in Hold if kind in self.hold]
        if self.execute is not None:
            more.append(f"execute {self.execute.value}")
        return ", ".join([f"{self.pattern} = {self.mode.value}", *more])


@dataclass(frozen=True, slots=True)
class Decision:
    """For one path and each kind of access, the rule that decides; `errno` answers for one access.

    Two sources may speak for one path: for each access by itself the stricter one decides.
    """

    reading: Rule
    writing: Rule
    deleting: Rule
    executing: Rule

    @classmethod
    def by(cls, rule: Rule) -> "Decision":
        """Return the decision of one rule about every access."""
        return cls(rule, rule, rule, rule)

    def rule_for(self, access: Access) -> Rule:
        """Return the rule that decides about *access*."""
        match access:
            case Access.READ:
                return self.reading
            case Access.WRITE:
                return self.writing
            case Access.DELETE:
                return self.deleting
            case Access.EXECUTE:
                return self.executing

    @property
    def mode(self) -> Mode:
        """The decision in one word: what forbids reading, else what forbids writing."""
        return (self.writing if self.ruling(Access.READ) is Ruling.ALLOW else self.reading).mode

    def ruling(self, access: Access) -> Ruling:
        """Return the ruling about *access*."""
        return self.rule_for(access).ruling(access)

    def allows(self, access: Access) -> bool:
        """Tell whether *access* is permitted at once."""
        return self.ruling(access).permits

    @property
    def rulings(self) -> tuple[Ruling, ...]:
        """The rulings about all kinds of access, in the order of `Access`."""
        return tuple(self.ruling(access) for access in Access)

    @property
    def refusals(self) -> tuple[int, ...]:
        """How strictly each kind of access is refused, 0 where the access is permitted: for comparisons."""
        return tuple(0 if ruling.permits else ruling.value for ruling in self.rulings)

    @property
    def bars(self) -> tuple[int, ...]:
        """The same where an entry of whatever content is barred: a question bars content only."""
        rulings = [self.ruling(access) for access in (Access.READ, Access.WRITE, Access.DELETE)]
        return tuple(0 if ruling.permits or ruling is Ruling.ASK else ruling.value for ruling in rulings)

    @property
    def asks(self) -> Access | None:
        """The access to content about which a person is asked, reading first; None without any."""
        for access in (Access.READ, Access.EXECUTE):
            if self.ruling(access) is Ruling.ASK:
                return access
        return None

    def uncovered_by(self, after: "Decision") -> Access | None:
        """How a file's content could be used under *after* more freely than under this; None if it cannot."""
        for access in (Access.READ, Access.EXECUTE):
            if not self.allows(access) and self.ruling(access).stricter_than(after.ruling(access)):
                return access
        return None

    @property
    def is_free(self) -> bool:
        """Whether every access is permitted at once."""
        return all(ruling.permits for ruling in self.rulings)

    @property
    def hides(self) -> bool:
        """Whether the path does not exist for programs."""
        return self.reading.mode is Mode.HIDE

    @property
    def denies(self) -> bool:
        """Whether the path is listed, and cannot be looked at."""
        return self.reading.mode is Mode.DENY

    def errno(self, access: Access, *, creating: bool = False) -> int:
        """Return the error for *access*, 0 when it is permitted.

        A hidden name does not exist; only the error of *creating* the name reveals a rule.
        """
        ruling = self.ruling(access)
        if ruling.permits:
            return 0
        if ruling is Ruling.HIDE and not creating:
            return errno.ENOENT
        return errno.EROFS if ruling is Ruling.READ_ONLY else errno.EACCES

    def reason(self, access: Access) -> str:
        """Return the rule that decided about *access*, and its source."""
        rule, ruling = self.rule_for(access), self.ruling(access)
        # What may be read is told with what else is known: that it may not be changed.
        word = _WORDS[Ruling.READ_ONLY if ruling is Ruling.ALLOW and rule.mode is Mode.RO else ruling]
        # A project's patterns are untrusted text: quoting keeps control characters off the terminal.
        return f"{word} by rule {quoted(str(rule))} ({rule.source})"

    def denial(self, access: Access, path: str, why: str | None = None) -> str:
        """Return the one line that explains a refused *access* to *path*, relative to the root.

        *why* is the reason of the person who was asked, or that there was none.
        """
        sentence = f"{access.value} denied for {quoted(path or '.')}: {self.reason(access)}"
        return sentence if why is None else f"{sentence}: {quoted(why)}"


def stricter(one: Decision, other: Decision) -> Decision:
    """Return the decision of two sources together; *one* where they are equally strict about an access."""
    decided = {
        access: strict.rule_for(access)
        for access in Access
        for strict in [other if other.ruling(access).stricter_than(one.ruling(access)) else one]
    }
    return Decision(*decided.values())


@dataclass(frozen=True)
class Policy:
    """Rules in the order in which they are tried, then the root's own *mode*; see docs/policy.md.

    With *enabled* off every path is `rw`. *hold* goes with *mode*, and *new_programs* is about executing
    files that the sandbox made or changed, where no rule says more. A policy that cannot be enforced is
    refused when it is built.
    """

    rules: tuple[Rule, ...] = ()
    mode: Mode = Mode.RW
    enabled: bool = True
    mode_source: RuleSource = field(default=RuleSource(SourceKind.WORKSPACE))
    hold: frozenset[Hold] = frozenset()
    new_programs: Execute = Execute.ALLOW

    def __post_init__(self) -> None:
        for rule in self.rules:
            # `rw` can only loosen, and a project's own file is untrusted.
            if rule.source.kind is SourceKind.PROJECT and not rule.tightens:
                raise UsageError(
                    f"{rule.source}: rule {quoted(str(rule))}: a project's rule may only tighten"
                )
        if self.mode not in (Mode.RO, Mode.RW):
            raise UsageError(
                f"{self.mode_source}: expected mode 'ro' or 'rw', found {quoted(self.mode.value)}"
            )
        places = [_ORDER[rule.source.kind] for rule in self.rules]
        if places != sorted(places):
            raise ValueError("rules are out of order: see SourceKind")

    @property
    def root_rule(self) -> Rule:
        """The rule for paths without another rule: the root's own mode, or `rw` when rules are off."""
        if not self.enabled:
            return Rule("**", Mode.RW, RuleSource(SourceKind.WORKSPACE, "rules are off"))
        return Rule("**", self.mode, self.mode_source, hold=self.hold)

    @property
    def may_hold(self) -> bool:
        """Whether any rule holds any change, the one of paths without another rule included."""
        return any(rule.may_hold for rule in (*self.rules, self.root_rule))

    @property
    def asks_git(self) -> bool:
        """Whether any rule in force is about what git ignores."""
        return self.enabled and any(rule.ignored for rule in self.rules)

    @property
    def new_program_rule(self) -> Rule | None:
        """The rule for executing what the sandbox made or changed; None where that is like any program."""
        if not self.enabled or self.new_programs is Execute.ALLOW:
            return None
        source = RuleSource(SourceKind.WORKSPACE, "[execute] new")
        return Rule("**", Mode.RW, source, execute=self.new_programs)

    def with_runtime_rule(self, rule: Rule) -> "Policy":
        """Return the policy with *rule* before all others, in place of a runtime rule of the same pattern."""
        runtime = SourceKind.RUNTIME
        kept = (old for old in self.rules if not (old.source.kind is runtime and old.pattern == rule.pattern))
        return replace(self, rules=(rule, *kept))

    def with_mode(self, mode: Mode) -> "Policy":
        """Return the policy with a runtime *mode* for paths that no rule names."""
        return replace(
            self, mode=mode, mode_source=RuleSource(SourceKind.WORKSPACE, SourceKind.RUNTIME.value)
        )
