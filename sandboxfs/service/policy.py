"""The policy in force: asked of the daemon, changed for the session, and explained for one path.

What comes over the socket is checked before it is believed: a daemon of another version may say other things.

A change holds at once, also for files that are open, and lasts as long as the session. Nothing is written
anywhere: the next mount starts from the files again.

An access is explained by the daemon, which knows what was changed in the session, and where none serves by
the sandbox's record. The view itself is not looked at.
"""

import os
from collections.abc import Mapping
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeVar

from sandboxfs.codec import OPTIONAL, SPARSE, Malformed, decode, encode
from sandboxfs.control.control_socket import DaemonBug as DaemonBug
from sandboxfs.control.control_socket import ask, control_address
from sandboxfs.control.mount_table import MountTable, SandboxStatus
from sandboxfs.errors import DaemonLost, SandboxError, UsageError
from sandboxfs.paths import counted, quoted
from sandboxfs.policy.explain import Remedy, described_explanation, described_rule, explain, present_in
from sandboxfs.policy.model import Access, Execute, Mode, SourceKind
from sandboxfs.policy.sources import parse_mode
from sandboxfs.service.events import CallerContext, Events
from sandboxfs.service.resolve_policy import came_from, followed
from sandboxfs.service.select import select_observed
from sandboxfs.service.workspace import inside, place_in, user_path
from sandboxfs.state.locations import Locations
from sandboxfs.state.store import SandboxRecord, Store

if TYPE_CHECKING:
    from sandboxfs.review.host_ignores import HostIgnores
    from sandboxfs.service.questions import AskedPath, AskingState

T = TypeVar("T")


@dataclass(frozen=True)
class ShownRule:
    """A rule as a program is told of it; *hits* is None where nobody counts."""

    pattern: str
    mode: str
    source: str
    kind: str
    hits: int | None = field(default=None, metadata=OPTIONAL)
    hold: tuple[str, ...] = field(default=(), metadata=SPARSE)
    execute: str | None = field(default=None, metadata=SPARSE)
    ignored: bool = field(default=False, metadata=SPARSE)

    def __str__(self) -> str:
        more = ["ignored"] if self.ignored else []
        more += [f"hold {kind}" for kind in self.hold]
        more += [] if self.execute is None else [f"execute {self.execute}"]
        return ", ".join([f"{self.pattern} = {self.mode}", *more])

    @property
    def asks(self) -> bool:
        """Whether a person decides about reading or executing."""
        return self.mode == Mode.ASK or self.execute == Execute.ASK

    @property
    def holds(self) -> bool:
        """Whether changes wait for an approval."""
        return self.mode in (Mode.HOLD, Mode.ASK) or bool(self.hold)

    def as_json(self) -> dict[str, object]:
        return encode(self)


@dataclass(frozen=True)
class PolicyInForce:
    """A policy as it is in force; the last of *rules* is the mode of what no other names.

    *new_programs* is what becomes of executing files that the sandbox made or changed, where no rule says it.
    """

    mode: str
    enabled: bool
    rules: tuple[ShownRule, ...]
    new_programs: str = field(default=Execute.ALLOW.value, metadata=OPTIONAL)

    @property
    def asks(self) -> bool:
        """Whether anything waits for a person."""
        asking = self.new_programs == Execute.ASK or any(rule.asks for rule in self.rules)
        return self.enabled and asking

    @property
    def holds(self) -> bool:
        """Whether any change waits for an approval."""
        return self.enabled and any(rule.holds for rule in self.rules)

    def sentence(self) -> str:
        """Say in one line what the policy comes to."""
        if not self.enabled:
            return "rules are off: nothing is refused, and changes stay in the sandbox"
        word = "read-only" if self.mode == Mode.RO else "writable, in the sandbox"
        mine = sum(
            rule.kind not in (SourceKind.BUILT_IN.value, SourceKind.WORKSPACE.value) for rule in self.rules
        )
        others = sum(rule.kind == SourceKind.BUILT_IN.value for rule in self.rules)
        rules = counted(mine, "rule")
        ones = "one is" if (mine, others) == (0, 1) else "ones are"
        named = f"; {rules} and {others} built-in {ones} asked before"
        return f"mode {self.mode}: what no rule names is {word}{named}"


@dataclass(frozen=True)
class LivePolicy:
    """The policy of a sandbox, and what its daemon counts.

    *answering* is None when no daemon serves it. Unless it is true, the policy is that of the last mount and
    *problem* says why nothing better is known.
    """

    policy: PolicyInForce
    counters: dict[str, int]
    answering: bool | None
    problem: str | None = None


def look(store: Store, sandbox: SandboxStatus, timeout: float) -> LivePolicy:
    """Find out what is in force; never fails, and waits for the daemon no longer than *timeout* seconds."""
    if sandbox.state != "mounted":
        return LivePolicy(recorded(sandbox), {}, None)
    try:
        answer = ask_daemon(store, sandbox, "status", timeout=timeout)
        return LivePolicy(in_force(answer), _counters(answer.get("counters")), answering=True)
    except (SandboxError, DaemonBug) as error:
        return LivePolicy(recorded(sandbox), {}, answering=False, problem=str(error))


def _counters(found: object) -> dict[str, int]:
    if not isinstance(found, dict):
        return {}
    return {str(word): count for word, count in found.items() if isinstance(count, int)}


def recorded(sandbox: SandboxStatus) -> PolicyInForce:
    """Return the policy as the sandbox was last mounted with."""
    policy = sandbox.record.settings.policy
    rules = (shown_rule(described_rule(rule)) for rule in (*policy.rules, policy.root_rule))
    return PolicyInForce(policy.mode.value, policy.enabled, tuple(rules), policy.new_programs.value)


def require_served(sandbox: SandboxStatus) -> None:
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
    sandbox: SandboxStatus,
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


def in_force(answer: Mapping[str, object]) -> PolicyInForce:
    """Read the policy that the daemon tells of."""
    return _read(PolicyInForce, answer)


def shown_rule(described: object) -> ShownRule:
    """Read one rule that the daemon tells of."""
    return _read(ShownRule, described)


def _read(kind: type[T], answer: object) -> T:
    try:
        # A newer daemon may say more.
        return decode(kind, answer, lenient=True)
    except Malformed as error:
        raise _senseless("rules") from error


def _senseless(verb: str) -> DaemonLost:
    return DaemonLost(
        f"the daemon's answer to '{verb}' makes no sense",
        hint="unmount and mount the sandbox to have it served by this version of sandboxfs",
    )


Switch = Literal["ro", "rw", "enable", "disable"]


@dataclass(frozen=True)
class SessionPolicy:
    """The policy of a running session as its daemon tells of it; *answer* is what the daemon said."""

    record: SandboxRecord
    policy: PolicyInForce
    answer: Mapping[str, object]

    def as_json(self) -> dict[str, object]:
        return {"name": self.record.name, "workspace": str(self.record.workspace), **self.answer}


@dataclass(frozen=True)
class AllowedPath(SessionPolicy):
    """The policy after one path, *place* in the workspace, was given another *mode*."""

    status: SandboxStatus
    place: str
    mode: Mode

    @property
    def rule(self) -> ShownRule:
        """The rule that is asked before all others now."""
        return shown_rule(self.answer.get("rule"))


@dataclass(frozen=True)
class RulesInForce(SessionPolicy):
    """The rules of a session; *asking* tells who could be asked, where any rule asks."""

    asking: "AskingState | None"

    def as_json(self) -> dict[str, object]:
        asks = None if self.asking is None else self.asking.as_json()
        return super().as_json() | {"new_programs": self.policy.new_programs, "asks": asks}


def rules_in_force(name: str | None, caller: CallerContext, events: Events) -> RulesInForce:
    """Return the rules of a running session, with how often each decided."""
    store, sandbox = select_observed(name, caller, events, changing=False, served=True)
    policy, answer = _asked(store, sandbox, "rules")
    asking = None
    if policy.asks:
        # Imported here: it stands on this module.
        from sandboxfs.service.questions import asking_state

        try:
            asking = asking_state(store, sandbox)
        except UsageError as error:
            if not error.details.get("inside"):
                raise
    return RulesInForce(sandbox.record, policy, answer, asking)


def switch_policy(switch: Switch, name: str | None, caller: CallerContext, events: Events) -> SessionPolicy:
    """Change the mode of what no rule names, or whether rules are enforced."""
    store, sandbox = select_observed(name, caller, events, changing=True, served=True)
    return SessionPolicy(sandbox.record, *_asked(store, sandbox, switch))


@dataclass(frozen=True)
class AllowedDirectory:
    """A directory outside the workspace that programs of the running session can use from now on."""

    record: SandboxRecord
    path: Path
    mode: Mode
    grant: int

    def as_json(self) -> dict[str, object]:
        return {
            "name": self.record.name,
            "workspace": str(self.record.workspace),
            "path": str(self.path),
            "mode": self.mode.value,
            "grant": self.grant,
        }


# The words for modes that a path may end with.
_AT_THE_END = tuple(f":{mode.value}" for mode in Mode)
# Seconds for a run to start what serves a directory, and to mount that.
_SHOWN_WITHIN = 100.0


def allow_path(
    path: str, word: str | None, name: str | None, caller: CallerContext, events: Events
) -> AllowedPath | AllowedDirectory:
    """Give *path*, as the caller names it, and what is below it the mode that *word* names, else `rw`.

    A directory outside the workspace is shown to the programs of a run that goes on. Without a *word*, the
    path may end with a colon and one.
    """
    if word is None and path.endswith(_AT_THE_END) and not os.path.lexists(path):
        path, _, word = path.rpartition(":")
    mode = parse_mode(word or Mode.RW.value, "allow")
    store, sandbox = select_observed(name, caller, events, changing=True, served=True)
    record = sandbox.record
    found = inside(path, record.workspace, record.mountpoint, caller.directory, MountTable.read())
    if found is None:
        return _allow_beside(store, sandbox, user_path(path, caller.directory), mode)
    place, _ = followed(store, record, found)
    asked = {"path": str(record.workspace / place), "mode": mode.value}
    policy, answer = _asked(store, sandbox, "allow", asked)
    return AllowedPath(record, policy, answer, sandbox, place or ".", mode)


def _allow_beside(store: Store, sandbox: SandboxStatus, given: Path, mode: Mode) -> AllowedDirectory:
    """Have a directory outside the workspace shown by the runs that go on."""
    record = sandbox.record
    outside = f"{quoted(given)} is not in the workspace {quoted(record.workspace)}"
    if mode not in (Mode.RO, Mode.RW):
        raise UsageError(f"{outside}: it can be 'ro' or 'rw' there, not '{mode.value}'")
    option = quoted(f"{given}:{mode.value}")
    if sandbox.state == "mounted":
        try:
            place = MountTable.read().resolve(given)
            if not place.is_dir():
                raise UsageError(f"{outside}, and no directory: only a directory can be shown there")
        except (OSError, ValueError) as error:
            raise UsageError(f"cannot use {quoted(given)}: {error}") from error
        about = {"path": str(place), "mode": mode.value}
        try:
            answer = ask_daemon(store, sandbox, "widen", about, timeout=_SHOWN_WITHIN)
        except UsageError as error:
            error.hint = error.hint or f"a run shows what it is started with: --allow {option}"
            raise
        grant = answer.get("grant")
        return AllowedDirectory(record, place, mode, grant if isinstance(grant, int) else 0)
    raise UsageError(
        f"{outside}, and no run of sandbox '{sandbox.name}' goes on",
        hint=f"name it when the next run is started: --allow {option}",
    )


def still_refused(allowed: AllowedPath, caller: CallerContext) -> str | None:
    """Say why a path is refused all the same, if it is: there is no way into a hidden directory."""
    if allowed.mode not in (Mode.RO, Mode.RW):
        return None
    store = Store(Locations.from_environment(caller.environment))
    access = Access.READ if allowed.mode is Mode.RO else Access.WRITE
    found = ask_daemon(store, allowed.status, "why", {"path": allowed.place, "access": access.value})
    return str(found.get("sentence")) if found.get("allowed") is False else None


def _asked(
    store: Store, sandbox: SandboxStatus, verb: str, args: Mapping[str, object] | None = None
) -> tuple[PolicyInForce, dict[str, object]]:
    require_served(sandbox)
    answer = ask_daemon(store, sandbox, verb, args)
    return in_force(answer), answer


@dataclass(frozen=True)
class AccessExplanation:
    """What the policy of a sandbox says about one access; *answer* is as the daemon gives it.

    *asked* tells what would answer the question, where a rule asks and a daemon serves the sandbox.
    """

    name: str
    state: str
    answer: Mapping[str, object]
    asked: "AskedPath | None" = None

    @property
    def outcome(self) -> str:
        """What would happen now: it `happens`, is `held`, `waits` for a person, or is `refused`."""
        return str(self.answer.get("outcome"))

    @property
    def asks(self) -> bool:
        """Whether the rule leaves the access to a person, whatever was answered up to now."""
        return self.answer.get("asks") is not None or self.outcome == "waits"

    @property
    def new_programs(self) -> str | None:
        """`ask` or `deny`: what becomes of executing what the sandbox made or changed, if that differs."""
        word = self.answer.get("new_programs")
        return None if word is None else str(word)

    @property
    def allowed(self) -> bool:
        return self.answer.get("allowed") is True

    @property
    def sentence(self) -> str:
        return str(self.answer.get("sentence"))

    @property
    def held(self) -> str | None:
        """Whether the change waits for a person: `always`, `existing` where the workspace has it, or None."""
        held = self.answer.get("held")
        return None if held is None else str(held)

    @property
    def path(self) -> str:
        return str(self.answer.get("path"))

    @property
    def came_from(self) -> str | None:
        """Where the workspace has what a moved directory shows here, if rules for that place decide."""
        origin = self.answer.get("came_from")
        return None if origin is None else str(origin)

    @property
    def decided_above(self) -> str | None:
        """The directory that the rule matched, where it is not the path itself."""
        place = self.answer.get("decided_at")
        return None if place in (self.answer.get("path"), ".") else str(place)

    @property
    def passed(self) -> list[ShownRule]:
        """The rules that were asked before and did not match."""
        return [shown_rule(rule) for rule in self._members("passed")]

    @property
    def remedies(self) -> list[Remedy]:
        return [
            Remedy(str(one.get("where")), str(one.get("text")))
            for one in self._members("remedies")
            if isinstance(one, dict)
        ]

    def _members(self, key: str) -> list[object]:
        found = self.answer.get(key)
        return found if isinstance(found, list) else []

    def as_json(self) -> dict[str, object]:
        return {"name": self.name, "state": self.state, **self.answer}


def explain_access(
    path: str, access: Access, name: str | None, caller: CallerContext, events: Events
) -> AccessExplanation:
    """Explain what the policy says about *access* to *path*, as the caller names it; it need not exist."""
    store, sandbox = select_observed(name, caller, events, changing=False)
    place, is_directory = followed(store, sandbox.record, place_in(sandbox.record, path, caller.directory))
    slash = "/" if is_directory or path.endswith("/") else ""
    answer = _answer(store, sandbox, place + slash or ".", access)
    answer["came_from"] = None
    for origin in came_from(store, sandbox.record, place):
        # Of several places the first that refuses is told: what allows it has to be done for each.
        other = _answer(store, sandbox, origin + slash, access)
        if answer["allowed"] is True and other["allowed"] is not True:
            answer = other | {"path": answer["path"], "came_from": origin}
    answer["outcome"] = _outcome(answer, access)
    answer.setdefault("new_programs", None)
    _add_mount(answer, sandbox.record, access)
    asked = _add_person(answer, store, sandbox)
    return AccessExplanation(sandbox.name, sandbox.state, answer, asked)


def _outcome(answer: Mapping[str, object], access: Access) -> str:
    """Say what would happen, in one word, where nothing is known of persons and their answers."""
    if answer.get("allowed") is True:
        return "held" if answer.get("held") == "always" else "happens"
    rule = shown_rule(answer.get("rule"))
    word = rule.execute if access is Access.EXECUTE and rule.execute is not None else rule.mode
    return "waits" if word == Mode.ASK and access in (Access.READ, Access.EXECUTE) else "refused"


def _add_person(answer: dict[str, object], store: Store, sandbox: SandboxStatus) -> "AskedPath | None":
    """Say what would become of a question now."""
    answer["asks"] = None
    rule = answer.get("rule")
    if answer.get("outcome") != "waits" or sandbox.state != "mounted" or not isinstance(rule, dict):
        return None
    # Imported here: it stands on this module.
    from sandboxfs.service.questions import asked_path

    place = str(answer.get("came_from") or answer.get("path"))
    try:
        asked = asked_path(store, sandbox, place, str(answer.get("access")), rule)
    except UsageError as error:
        if not error.details.get("inside"):
            raise
        # Who is connected is nobody's business in the view.
        return None
    answer["asks"], answer["outcome"] = asked.as_json(), asked.outcome
    return asked


def _answer(store: Store, sandbox: SandboxStatus, place: str, access: Access) -> dict[str, object]:
    place = place.removeprefix("/") or "."
    if sandbox.state == "mounted":
        return ask_daemon(store, sandbox, "why", {"path": place, "access": access.value})
    record = sandbox.record
    policy, workspace = record.settings.policy, record.workspace
    with ExitStack() as stack:
        ignores = stack.enter_context(_ignores(store, record)) if policy.asks_git else None
        exists = present_in(workspace, place, *([] if ignores is None else [ignores.ignored]))
        by = None if ignores is None else ignores.reason
        found = explain(policy, place, access, root=str(workspace), exists=exists, ignored_by=by)
    return described_explanation(found)


def _ignores(store: Store, record: SandboxRecord) -> AbstractContextManager["HostIgnores"]:
    # Imported here: few policies are about what git ignores.
    from sandboxfs.control.mount_table import mounts_below, reach_on_the_host
    from sandboxfs.review.host_ignores import opened_ignores
    from sandboxfs.upper.sandbox_layers import masked_paths

    workspace = record.workspace
    hidden = [store.locations.state, record.mountpoint, *record.covered]
    hidden += [mount.mountpoint for mount in mounts_below(workspace) if mount.ours]
    return opened_ignores(workspace, masked_paths(workspace, hidden), reach_on_the_host)


def _add_mount(answer: dict[str, object], record: SandboxRecord, access: Access) -> None:
    """Say it when the kernel refuses what the policy would allow."""
    if record.read_only and access in (Access.WRITE, Access.DELETE) and answer.get("allowed") is True:
        answer["allowed"], answer["errno"], answer["outcome"] = False, "EROFS", "refused"
        path = quoted(str(answer.get("path")))
        answer["sentence"] = f"{access.value} denied for {path}: the view is mounted with --read-only"
        answer["remedies"] = [{"where": "when mounting", "text": "leave --read-only out"}]
