"""What is a policy made of?

A `Policy` is an ordered tuple of `Rule`s and the mode of whatever no rule names. Asked about a path it gives
a `Decision`: a mode and the rule that gave it, so that every refusal can say why. All of these are plain
values; nothing here knows a pattern's meaning, a file or a sandbox.
"""

import errno
from dataclasses import dataclass, field, replace
from enum import Enum, StrEnum

from sandboxfs.errors import UsageError
from sandboxfs.paths import quoted


class Access(StrEnum):
    """What an operation attempts."""

    READ = "read"
    WRITE = "write"
    DELETE = "delete"
    EXECUTE = "execute"


class Mode(StrEnum):
    """What a rule permits, the strictest first."""

    HIDE = "hide"
    DENY = "deny"
    RO = "ro"
    RW = "rw"
    ASK = "ask"

    def stricter_than(self, other: "Mode") -> bool:
        """Tell whether this mode permits less than *other*."""
        return _STRICTNESS[self] > _STRICTNESS[other]

    def allows(self, access: Access) -> bool:
        """Tell whether an *access* is permitted."""
        if self is Mode.RO:
            return access in (Access.READ, Access.EXECUTE)
        return self is Mode.RW


_STRICTNESS = {Mode.HIDE: 4, Mode.DENY: 3, Mode.ASK: 2, Mode.RO: 1, Mode.RW: 0}
_WORDS = {
    Mode.HIDE: "hidden",
    Mode.DENY: "denied",
    Mode.RO: "read-only",
    Mode.RW: "allowed",
    Mode.ASK: "asked",
}


class Kind(Enum):
    """Where rules come from, in the order in which they are asked."""

    RUNTIME = "runtime"
    COMMAND_LINE = "command line"
    PROJECT = "project"
    USER = "user"
    BUILT_IN = "built-in"
    WORKSPACE = "workspace"


_ORDER = {kind: place for place, kind in enumerate(Kind)}
_UNNAMED = {Kind.COMMAND_LINE: "--rule", Kind.WORKSPACE: "workspace mode"}


@dataclass(frozen=True)
class Source:
    """Where one rule was written: *file* is its file, or the option or verb that gave it."""

    kind: Kind
    file: str | None = None
    line: int | None = None

    def __str__(self) -> str:
        if self.file is None:
            return _UNNAMED.get(self.kind, self.kind.value)
        return self.file if self.line is None else f"{self.file}:{self.line}"


class Needs(StrEnum):
    """What the workspace must hold for a rule to apply.

    A rule may protect what is there already and leave alone what the sandbox makes anew. `ENTRY`: the entry
    that the pattern matched is in the workspace. `PARENT`: the directory that holds that entry is.
    """

    NOTHING = "nothing"
    ENTRY = "entry"
    PARENT = "parent"


@dataclass(frozen=True)
class Rule:
    """One line of policy.

    *place* is what an absolute *pattern* means with the symlinks in it resolved, where that differs.
    *needs* and *files_only* (it does not apply to directories) are for built-in rules: no file can set them.
    """

    pattern: str
    mode: Mode
    source: Source
    place: str | None = None
    needs: Needs = Needs.NOTHING
    files_only: bool = False

    def __str__(self) -> str:
        return f"{self.pattern} = {self.mode.value}"


@dataclass(frozen=True, slots=True)
class Decision:
    """A mode and the rule that gave it; the same for every access, which `errno` then answers."""

    mode: Mode
    rule: Rule

    def allows(self, access: Access) -> bool:
        """Tell whether *access* is permitted."""
        return self.mode.allows(access)

    def errno(self, access: Access, *, creating: bool = False) -> int:
        """Return the error for *access*, 0 when it is permitted.

        A hidden name is not there; only *creating* it gives away that something forbids it.
        """
        if self.mode.allows(access):
            return 0
        if self.mode is Mode.HIDE and not creating:
            return errno.ENOENT
        return errno.EROFS if self.mode is Mode.RO else errno.EACCES

    def reason(self) -> str:
        """Say which rule decided, and where it is written."""
        # A project's patterns are untrusted text: quoting keeps control characters off the terminal.
        return f"{_WORDS[self.mode]} by rule {quoted(str(self.rule))} ({self.rule.source})"

    def denial(self, access: Access, path: str) -> str:
        """Write the one line that explains a refused *access* to *path*, relative to the root."""
        return f"{access.value} denied for {quoted(path or '.')}: {self.reason()}"


@dataclass(frozen=True)
class Policy:
    """Rules in the order in which they are asked, then the root's own *mode*; see docs/policy.md.

    With *enabled* off everything is `rw`. A policy that cannot be honoured is refused when it is built.
    """

    rules: tuple[Rule, ...] = ()
    mode: Mode = Mode.RW
    enabled: bool = True
    mode_source: Source = field(default=Source(Kind.WORKSPACE))

    def __post_init__(self) -> None:
        for rule in self.rules:
            if rule.mode is Mode.ASK:
                raise UsageError(f"{rule.source}: rule {quoted(str(rule))}: mode 'ask' is not available yet")
            # `rw` can only loosen, and nobody vouches for a project's own file.
            if rule.source.kind is Kind.PROJECT and rule.mode is Mode.RW:
                raise UsageError(
                    f"{rule.source}: rule {quoted(str(rule))}: a project's rule may only tighten"
                )
        if self.mode not in (Mode.RO, Mode.RW):
            raise UsageError(
                f"{self.mode_source}: expected mode 'ro' or 'rw', found {quoted(self.mode.value)}"
            )
        places = [_ORDER[rule.source.kind] for rule in self.rules]
        if places != sorted(places):
            raise ValueError("rules are out of order: see Kind")

    @property
    def root_rule(self) -> Rule:
        """The rule that decides where no other does: the root's own mode, or that rules are off."""
        if not self.enabled:
            return Rule("**", Mode.RW, Source(Kind.WORKSPACE, "rules are off"))
        return Rule("**", self.mode, self.mode_source)

    def with_runtime_rule(self, rule: Rule) -> "Policy":
        """Return the policy with *rule* before all others; it replaces an older one of the same pattern."""
        runtime = Kind.RUNTIME
        kept = (old for old in self.rules if not (old.source.kind is runtime and old.pattern == rule.pattern))
        return replace(self, rules=(rule, *kept))

    def with_mode(self, mode: Mode) -> "Policy":
        """Return the policy with another mode for what no rule names, as asked for at runtime."""
        return replace(self, mode=mode, mode_source=Source(Kind.WORKSPACE, Kind.RUNTIME.value))
