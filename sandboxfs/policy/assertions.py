"""Assertions about a run: the paths it must not write, or may alone write.

The patterns are those of rules, and are matched as in a policy: `--assert-no-writes GLOB` as the rule `GLOB =
ro`, `--assert-writes-only GLOB` as `GLOB = rw` in a read-only root.
"""

from dataclasses import dataclass

from sandboxfs.errors import UsageError
from sandboxfs.paths import quoted
from sandboxfs.policy.compiled import Compiled, State
from sandboxfs.policy.model import Mode, Policy, Rule, RuleSource, SourceKind
from sandboxfs.policy.patterns import PatternError

_ASSERTED = RuleSource(SourceKind.COMMAND_LINE)


@dataclass(frozen=True)
class Assertions:
    """The assertions about one run; patterns are those of rules."""

    no_writes: tuple[str, ...] = ()
    writes_only: tuple[str, ...] = ()
    no_denials: bool = False

    @property
    def any(self) -> bool:
        return bool(self.no_writes or self.writes_only or self.no_denials)

    @property
    def about_writes(self) -> bool:
        return bool(self.no_writes or self.writes_only)

    def check(self) -> None:
        """Raise `UsageError` for a bad pattern, before the program is run."""
        WriteAssertions(self, "/")


class WriteAssertions:
    """The assertions about writes, compiled for the workspace *root*.

    Raises `UsageError` for a bad pattern.
    """

    def __init__(self, assertions: Assertions, root: str) -> None:
        self._forbidden = _compiled(assertions.no_writes, Mode.RO, Mode.RW, root)
        self._permitted = _compiled(assertions.writes_only, Mode.RW, Mode.RO, root)
        self._only = ", ".join(map(quoted, assertions.writes_only))

    def objection(self, path: bytes) -> str | None:
        """Return the option that forbids a write to *path*, relative to the root; None when none does."""
        names = [name for name in path.split(b"/") if name]
        if self._forbidden is not None:
            # The caller does not say whether *path* is a directory: a pattern for directories counts.
            state = _walk(self._forbidden, self._forbidden.start, names)
            if not state.free:
                return _forbids(state)
        if self._permitted is not None:
            state = _walk(self._permitted, self._permitted.start, names)
            # A directory in which every entry may be written may be made as well.
            if not state.free and not self._permitted.step(state, b"any", False).free:
                return f"--assert-writes-only {self._only}"
        return None

    def subtree(self, path: bytes) -> "SubtreeAssertion | None":
        """Return the assertion for entries below the directory *path*; None when no pattern names one."""
        if self._forbidden is None:
            return None
        state = _walk(self._forbidden, self._forbidden.start, [name for name in path.split(b"/") if name])
        return None if state.quiet else SubtreeAssertion(self._forbidden, state)


class SubtreeAssertion:
    """The `--assert-no-writes` patterns, matched name by name on the way down from a directory."""

    def __init__(self, forbidden: Compiled, state: State) -> None:
        self._compiled = forbidden
        self._state = state

    @property
    def quiet(self) -> bool:
        """Whether every path below gets the same answer as this directory."""
        return self._state.quiet

    @property
    def objection(self) -> str | None:
        return None if self._state.free else _forbids(self._state)

    def child(self, name: bytes, *, is_dir: bool) -> "SubtreeAssertion":
        return SubtreeAssertion(self._compiled, self._compiled.step(self._state, name, is_dir))


def _compiled(patterns: tuple[str, ...], mode: Mode, otherwise: Mode, root: str) -> Compiled | None:
    if not patterns:
        return None
    for pattern in patterns:
        try:
            Compiled(Policy((Rule(pattern, mode, _ASSERTED),)), root)
        except PatternError as error:
            raise UsageError(f"bad pattern {quoted(pattern)}: {error}") from error
    rules = tuple(Rule(pattern, mode, _ASSERTED) for pattern in patterns)
    return Compiled(Policy(rules, mode=otherwise), root)


def _walk(compiled: Compiled, state: State, names: list[bytes]) -> State:
    for name in names:
        if state.quiet:
            break
        state = compiled.step(state, name, True)
    return state


def _forbids(state: State) -> str:
    return f"--assert-no-writes {quoted(state.decision.writing.pattern)}"
