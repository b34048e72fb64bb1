"""How does a verb ask the daemon that serves a sandbox, and what does the answer say?

What comes over the socket is checked before it is believed: a daemon of another version may say other things.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from sandboxfs.control.address import control_address
from sandboxfs.control.client import ask
from sandboxfs.control.messages import DaemonBug
from sandboxfs.control.mounts import MountTable
from sandboxfs.control.sandboxes import Sandbox, observe, select
from sandboxfs.errors import DaemonLost, SandboxError, UsageError
from sandboxfs.policy.answers import described_rule
from sandboxfs.policy.model import Kind, Mode
from sandboxfs.state.locations import Locations
from sandboxfs.state.store import Store


@dataclass(frozen=True)
class ShownRule:
    """A rule as a program is told of it; *hits* is None where nobody counts."""

    pattern: str
    mode: str
    source: str
    kind: str
    hits: int | None = None

    def __str__(self) -> str:
        return f"{self.pattern} = {self.mode}"

    def as_json(self) -> dict[str, object]:
        return {
            "pattern": self.pattern,
            "mode": self.mode,
            "source": self.source,
            "kind": self.kind,
            "hits": self.hits,
        }


@dataclass(frozen=True)
class InForce:
    """A policy as it is in force; the last of *rules* is the mode of what no other names."""

    mode: str
    enabled: bool
    rules: tuple[ShownRule, ...]

    def sentence(self) -> str:
        """Say in one line what the policy comes to."""
        if not self.enabled:
            return "rules are off: nothing is refused, and changes stay in the sandbox"
        word = "read-only" if self.mode == Mode.RO else "writable, in the sandbox"
        mine = sum(rule.kind not in (Kind.BUILT_IN.value, Kind.WORKSPACE.value) for rule in self.rules)
        others = sum(rule.kind == Kind.BUILT_IN.value for rule in self.rules)
        named = f"; {mine} rules and {others} built-in ones are asked before"
        return f"mode {self.mode}: what no rule names is {word}{named}"


@dataclass(frozen=True)
class Live:
    """The policy of a sandbox, and what its daemon counts.

    *answering* is None when no daemon serves it. Unless it is true, the policy is that of the last mount and
    *problem* says why nothing better is known.
    """

    policy: InForce
    counters: dict[str, int]
    answering: bool | None
    problem: str | None = None


def look(store: Store, sandbox: Sandbox, timeout: float) -> Live:
    """Find out what is in force; never fails, and waits for the daemon no longer than *timeout* seconds."""
    if sandbox.state != "mounted":
        return Live(recorded(sandbox), {}, None)
    try:
        answer = ask_daemon(store, sandbox, "status", timeout=timeout)
        return Live(in_force(answer), _counters(answer.get("counters")), answering=True)
    except (SandboxError, DaemonBug) as error:
        return Live(recorded(sandbox), {}, answering=False, problem=str(error))


def _counters(found: object) -> dict[str, int]:
    if not isinstance(found, dict):
        return {}
    return {str(word): count for word, count in found.items() if isinstance(count, int)}


def recorded(sandbox: Sandbox) -> InForce:
    """Return the policy as the sandbox was last mounted with."""
    policy = sandbox.record.settings.policy
    rules = (shown_rule(described_rule(rule)) for rule in (*policy.rules, policy.root_rule))
    return InForce(policy.mode.value, policy.enabled, tuple(rules))


def selected(name: str | None) -> tuple[Store, Sandbox]:
    """Find the sandbox that a verb is about."""
    store = Store(Locations.from_environment())
    return store, observe(store, select(store, name), MountTable.read())


def require_served(sandbox: Sandbox) -> None:
    """Raise unless a daemon serves *sandbox*."""
    if sandbox.state == "dead":
        raise DaemonLost(
            f"the daemon of sandbox '{sandbox.name}' died",
            hint=f"'sandboxfs mount --name {sandbox.name}' recovers it",
        )
    if not sandbox.held:
        raise UsageError(
            f"sandbox '{sandbox.name}' is not mounted: its policy is that of its next mount",
            hint=f"mount it first: 'sandboxfs mount --name {sandbox.name}'",
        )


def ask_daemon(
    store: Store,
    sandbox: Sandbox,
    verb: str,
    args: Mapping[str, object] | None = None,
    timeout: float | None = None,
) -> dict[str, object]:
    """Ask the daemon of *sandbox*; the answer to every verb is an object."""
    address = control_address(store.locations, sandbox.name)
    more = {} if timeout is None else {"timeout": timeout}
    answer = ask(address, verb, args, **more)
    if not isinstance(answer, dict):
        raise _senseless(verb)
    return answer


def in_force(answer: Mapping[str, object]) -> InForce:
    """Read the policy that the daemon tells of."""
    match answer:
        case {"mode": str(mode), "enabled": bool(enabled), "rules": [*rules]}:
            return InForce(mode, enabled, tuple(map(shown_rule, rules)))
        case _:
            raise _senseless("rules")


def shown_rule(described: object) -> ShownRule:
    """Read one rule that the daemon tells of."""
    match described:
        case {"pattern": str(pattern), "mode": str(mode), "source": str(source), "kind": str(kind), **rest}:
            hits = rest.get("hits")
            return ShownRule(pattern, mode, source, kind, hits if isinstance(hits, int) else None)
        case _:
            raise _senseless("rules")


def _senseless(verb: str) -> DaemonLost:
    return DaemonLost(
        f"the daemon's answer to '{verb}' makes no sense",
        hint="unmount and mount the sandbox to have it served by this version of sandboxfs",
    )
