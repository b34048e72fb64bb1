"""Grants: what stays allowed, or refused, because a person answered a question.

A rule whose ruling is `Ruling.ASK` leaves a decision to a person. The answer may stay: for one path, a
directory, a pattern or one content, for a time, and for anybody, one program or one process tree. A grant
belongs to the rule that asked and to the access that was asked about, so that it never loosens another rule.

"This program" is known by its executable. That is a convenience, not a boundary: any program can start a
`cat` that was granted something.

A `KeptGrant` is an answer that the user had written down, a `[[grant]]` table of the user's configuration. It
names its rule by pattern and by the kind of source, because lines move. It is no rule: it answers the
question of that rule, and while no such rule asks, the table does nothing.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum

from sandboxfs.errors import UsageError
from sandboxfs.paths import quoted
from sandboxfs.policy.explain import names_of
from sandboxfs.policy.model import Access, Mode, Policy, Rule, RuleCondition, RuleSource, SourceKind
from sandboxfs.policy.patterns import PatternError, covers_path, parse, within


class Extent(StrEnum):
    """The paths that an answer is for."""

    ONCE = "once"
    PATH = "path"
    DIRECTORY = "directory"
    GLOB = "glob"
    CONTENT = "content"


class Audience(StrEnum):
    """The processes that an answer is for."""

    ANYBODY = "anybody"
    PROGRAM = "program"
    TREE = "tree"


class Wish(StrEnum):
    """What a program asks a person for that no access asks for."""

    WIDEN = "widen"


@dataclass(frozen=True)
class ProcessMark:
    """One process: a number alone may be given to another process."""

    pid: int
    started: int


@dataclass(frozen=True)
class Asker:
    """The process that opens a file: its executable, and itself and its parents, the nearest first."""

    exe: str | None
    line: tuple[ProcessMark, ...]


@dataclass(frozen=True)
class Recipient:
    """Whom a grant is for: *exe* of a program, *root* of a process tree."""

    audience: Audience = Audience.ANYBODY
    exe: str | None = None
    root: ProcessMark | None = None

    def includes(self, asker: Callable[[], Asker]) -> bool:
        """Tell whether a process is meant; *asker* is called only where that is needed."""
        match self.audience:
            case Audience.ANYBODY:
                return True
            case Audience.PROGRAM:
                return self.exe is not None and asker().exe == self.exe
            case Audience.TREE:
                return self.root in asker().line


@dataclass(frozen=True)
class Attempt:
    """An access that a rule asks about. *path* is relative to *root*; *content*: a new program's digest.

    Of a wish, *path* is absolute, and *rule* says which mode it is to have.
    """

    access: Access | Wish
    rule: Rule
    path: str
    root: str
    content: str | None = None


@dataclass(frozen=True)
class Grant:
    """An answer that stays. *target* is what the *extent* names; *until* is on the clock of the session.

    A grant of `Extent.ONCE` covers no further attempt: it stands for the files that were opened by it.
    """

    number: int
    allows: bool
    access: Access | Wish
    rule: Rule
    extent: Extent
    target: str
    recipient: Recipient = Recipient()
    until: float | None = None
    reason: str | None = None

    def covers(self, attempt: Attempt, asker: Callable[[], Asker]) -> bool:
        """Tell whether the grant decides about an attempt of a process."""
        return (
            attempt.access is self.access
            and attempt.rule.identity == self.rule.identity
            and (attempt.content == self.target if self.extent is Extent.CONTENT else self.names(attempt))
            and self.recipient.includes(asker)
        )

    def names(self, attempt: Attempt) -> bool:
        """Tell whether the grant is about the path of an attempt."""
        return names_path(self.extent, self.target, attempt.path, attempt.root)


def names_path(extent: Extent, target: str, path: str, root: str) -> bool:
    """Tell whether a grant of that *extent*, for *target*, is about *path*, which is relative to *root*."""
    match extent:
        case Extent.PATH:
            return path == target
        case Extent.DIRECTORY:
            return is_in(path, target)
        case Extent.GLOB:
            meaning = within(parse(target), root)
            return any(covers_path(pattern, names_of(path), False) for pattern in meaning)
        case _:
            return False


KEPT_EXTENTS = (Extent.PATH, Extent.DIRECTORY, Extent.GLOB, Extent.CONTENT)
"""What a kept grant may be for."""

KEPT_KEYS = ("path", "directory", "pattern", "content")
"""The keys that say so, in the same order."""


@dataclass(frozen=True)
class KeptGrant:
    """One `[[grant]]` table: an answer in *workspace* to the question of the rule *pattern* of one *kind*."""

    workspace: str
    pattern: str
    kind: SourceKind
    access: Access
    allows: bool
    extent: Extent
    target: str
    program: str | None = None
    reason: str | None = None
    ignored: bool = False
    source: RuleSource | None = field(default=None, compare=False)

    @classmethod
    def of(cls, grant: Grant, workspace: str) -> "KeptGrant":
        """Return the table for *grant*; `UsageError` for one that cannot outlive its session."""
        access = grant.access
        if isinstance(access, Wish):
            raise UsageError(
                "the answer cannot be kept: a directory is shown as long as the session lasts",
                hint="name it when a run is started, with --allow",
            )
        objection = _objection(grant)
        if objection is None:
            words = (workspace, grant.rule.pattern, grant.target, grant.recipient.exe or "")
            if any("\udc80" <= letter <= "\udcff" for word in words for letter in word):
                objection = "a configuration file cannot name bytes that are not UTF-8"
        if objection is not None:
            raise UsageError(f"the answer cannot be kept: {objection}", hint="answer for the session")
        return cls(
            workspace,
            grant.rule.pattern,
            grant.rule.source.kind,
            access,
            grant.allows,
            grant.extent,
            grant.target,
            grant.recipient.exe,
            grant.reason,
            grant.rule.ignored,
        )

    def in_force(self, number: int, policy: Policy) -> Grant:
        """Return the grant of a session under *policy*, in which the rule may be missing."""
        recipient = Recipient() if self.program is None else Recipient(Audience.PROGRAM, exe=self.program)
        return Grant(
            number,
            self.allows,
            self.access,
            self._rule_in(policy),
            self.extent,
            self.target,
            recipient,
            None,
            self.reason,
        )

    def _rule_in(self, policy: Policy) -> Rule:
        needs = RuleCondition.IGNORED if self.ignored else RuleCondition.NOTHING
        source = RuleSource(self.kind, "a rule that is not there")
        stated = Rule(self.pattern, Mode.ASK, source, needs=needs)
        new = policy.new_program_rule
        rules = (*policy.rules, *(() if new is None else (new,)))
        return next((rule for rule in rules if rule.identity == stated.identity), stated)

    def toml(self) -> str:
        """Return the table as text."""
        # Imported here: only this writes TOML, and seldom.
        import tomli_w

        keys = {
            "workspace": self.workspace,
            "rule": self.pattern,
            "ignored": True if self.ignored else None,
            "source": self.kind.value,
            "access": self.access.value,
            "decision": "allow" if self.allows else "deny",
            KEPT_KEYS[KEPT_EXTENTS.index(self.extent)]: self.target or ".",
            "program": self.program,
            "reason": self.reason,
        }
        # No value spans lines, so that a table is where its keys are.
        written = {key: value for key, value in keys.items() if value is not None}
        return "[[grant]]\n" + tomli_w.dumps(written, multiline_strings=False)


def target_problem(extent: Extent, target: str) -> str | None:
    """Say why a grant cannot be for *target*, if so."""
    if extent is Extent.CONTENT:
        is_digest = len(target) == 64 and set(target) <= set("0123456789abcdef")
        return None if is_digest else "expected a SHA-256 digest: 64 digits and small letters"
    try:
        if extent is Extent.GLOB:
            parse(target)
            return None
        names = names_of(target)
    except PatternError as error:
        return str(error)
    except ValueError:
        names = []
    if (names and "/".join(names) == target) or (extent is Extent.DIRECTORY and target == "."):
        return None
    return f"expected a path inside the workspace, found {quoted(target)}"


def _objection(grant: Grant) -> str | None:
    """Say why an answer holds no longer than its session, if so."""
    if grant.extent not in KEPT_EXTENTS:
        return "'once' is over with the files that it opened"
    if grant.recipient.audience is Audience.TREE:
        return "it is for one process and its children, which end"
    if grant.until is not None:
        return "it is for a time only"
    if grant.rule.source.kind is SourceKind.RUNTIME:
        return f"the rule {quoted(str(grant.rule))} ends with the session"
    return None


def is_in(path: str, directory: str) -> bool:
    """Tell whether a relative path is below a directory; an empty directory is the root."""
    return not directory or path.startswith(directory + "/")


def directory_of(path: str) -> str:
    """Return the directory of a relative path; empty for the root."""
    return path.rpartition("/")[0]


def extent_of(word: str, path: str, content: str | None) -> tuple[Extent, str]:
    """Read what an answer is for, where *path* was shown: the extent, and what it names."""
    match word:
        case Extent.ONCE | Extent.PATH:
            return Extent(word), path
        case Extent.DIRECTORY:
            return Extent.DIRECTORY, directory_of(path)
        case Extent.CONTENT:
            if content is None:
                raise UsageError("'for' is 'content' only where a new program is to be executed")
            return Extent.CONTENT, content
        case _:
            try:
                parse(word)
            except PatternError as error:
                raise UsageError(f"'for' {quoted(word)}: {error}") from error
            return Extent.GLOB, word


_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
LASTING = ("session", "always")


def duration_of(word: str) -> float | None:
    """Read for how long an answer holds, in seconds; None for as long as the session lasts."""
    if word in LASTING:
        return None
    number, unit = word[:-1], word[-1:]
    if not (number.isascii() and number.isdigit() and unit in _UNITS and 0 < int(number) < 1_000_000):
        raise UsageError(
            f"'during' is 'session', 'always' or a duration as '90s', '30m' or '2h', not {quoted(word)}"
        )
    return float(int(number) * _UNITS[unit])
