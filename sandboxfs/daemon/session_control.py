"""Session control: a session changed while programs work: the policy in force, and edits of the upper.

Both are for a person, so no policy is asked, and both are answered once they are true everywhere: the kernel
has dropped the names, attributes and pages that are stale or no longer allowed.

A policy change is for the session only, and takes effect for everything at once: the guard decides by the new
policy from the next request on, and open handles are decided again. Where a rule holds changes, the session's
rules are written down before, for reviews (`state/session_rules`).

Edits of the upper are done a few at a time, so that programs hardly wait. A program that looks afterwards
sees the result.

Where a rule is about what git ignores, the files on which that depends are looked at again and again, as some
are in directories that no program in the view has looked into. When one has changed, everything is decided
anew as by another policy.
"""

import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import trio

from sandboxfs.control.control_socket import ANSWER_LIMIT, Request
from sandboxfs.control.upper_client import VERB, no_record
from sandboxfs.daemon.control_peers import Peer, Turn
from sandboxfs.daemon.control_server import Handler
from sandboxfs.daemon.lasting_tasks import in_a_thread
from sandboxfs.daemon.session_log import SessionJournal
from sandboxfs.errors import SandboxBusy, UsageError
from sandboxfs.hostfs.directory import HostDir
from sandboxfs.overlay.decisions import ShownInode
from sandboxfs.overlay.guard import Guard
from sandboxfs.overlay.host_changes import Invalidation
from sandboxfs.overlay.live_edits import LiveEdits
from sandboxfs.overlay.overlay import Overlay
from sandboxfs.paths import quoted
from sandboxfs.policy.compiled import Compiled
from sandboxfs.policy.explain import described_explanation, described_rule, explain, present_in
from sandboxfs.policy.model import Access, Execute, Mode, Policy, Rule, RuleSource, SourceKind
from sandboxfs.policy.sources import parse_mode, rule_for_path
from sandboxfs.state.session_rules import begin_session_rules, write_session_rules
from sandboxfs.upper.edits import EditOutcome, Operation, operation_from_json, outcome_to_json

if TYPE_CHECKING:
    from sandboxfs.review.host_ignores import HostIgnores

Invalidate = Callable[[list[ShownInode]], None]
Refresh = Callable[[Invalidation], None]
# Seconds that a policy change, or an edit of the upper, waits for the one before: less than a command waits
# for its answer.
_CHANGE_PATIENCE, _EDIT_PATIENCE = 8.0, 50.0
# Seconds between two looks at the files that say what git ignores, and at least so many times as long as one
# look takes.
_LOOK_AGAIN, _SHARE = 0.5, 20


class PolicyControl:
    """The policy of one session."""

    def __init__(
        self,
        policy: Policy,
        workspace: Path,
        journal: SessionJournal,
        home: Path | None = None,
        open_ignores: "Callable[[], HostIgnores] | None" = None,
    ) -> None:
        """Begin with *policy*; rules for reviews are kept in *home*, the directory of the sandbox.

        *open_ignores* looks at what git ignores in the workspace.
        """
        self.policy = policy
        self._open_ignores = open_ignores
        self._ignores: HostIgnores | None = None
        self._home = home
        self._held_before = () if home is None else begin_session_rules(home)
        self.journal = journal
        self._workspace = workspace
        self._began = time.monotonic()
        self._changing = Turn(_CHANGE_PATIENCE)
        self._guard: Guard | None = None
        self._invalidate: Invalidate | None = None
        # Called when another policy has come into force.
        self.changed: Callable[[], None] = lambda: None

    def compiled(self) -> Compiled:
        compiled, self._ignores = self._compile(self.policy)
        return compiled

    def _compile(self, policy: Policy) -> "tuple[Compiled, HostIgnores | None]":
        if self._open_ignores is None or not policy.asks_git:
            return Compiled(policy, str(self._workspace)), None
        ignores = self._open_ignores()
        return Compiled(policy, str(self._workspace), ignores.ignored), ignores

    def ignored(self, path: bytes, is_dir: bool) -> bool:
        """Tell whether git ignores a path, where a rule is about that."""
        return self._ignores is not None and self._ignores.ignored(path, is_dir)

    def seal(self, paths: Iterable[Path]) -> None:
        """Do not look for ignore files at *paths*, where other sandboxes are mounted: they may look back."""
        if self._ignores is not None:
            # Imported here: few policies are about what git ignores.
            from sandboxfs.upper.sandbox_layers import masked_paths

            self._ignores.mask(masked_paths(self._workspace, paths))

    async def follow_ignores(self) -> None:
        """Decide anew whenever the host changes what git ignores, where any rule is about that."""
        while any(rule.ignored for rule in self.policy.rules):
            began = trio.current_time()
            ignores = self._ignores
            # In a thread: there may be many files, or a slow disk.
            if ignores is not None and await in_a_thread(ignores.outdated):
                await self._decide_anew()
            await trio.sleep(max(_LOOK_AGAIN, _SHARE * (trio.current_time() - began)))

    async def _decide_anew(self) -> None:
        try:
            async with self._changing.taken("git's ignore rules", os.getpid()):
                await self._replace(self.policy)
        except SandboxBusy:
            # The policy is being changed: looked at again with the next turn.
            return

    def serve(self, guard: Guard, invalidate: Invalidate) -> None:
        """Apply changes to *guard* from now on; *invalidate* makes the kernel forget inodes, and may wait."""
        self._guard = guard
        self._invalidate = invalidate

    async def change(
        self, changed_by: Callable[[Policy], Policy], verb: str, peer: Peer, rule: Rule | None = None
    ) -> None:
        """Change the policy; return when nothing is decided or shown by the old policy any more.

        Concurrent requests are carried out one after the other, each on the policy that the one before left.
        The audit log records that *peer* asked for *verb*, perhaps with a *rule*.
        """
        async with self._changing.taken(verb, peer.pid):
            policy = changed_by(self.policy)
            if policy.rules != self.policy.rules:
                await in_a_thread(self._keep, policy)
            if policy != self.policy:
                self.journal.policy_changed(verb, policy, peer.pid, peer.uid, rule)
            await self._replace(policy)

    async def _replace(self, policy: Policy) -> None:
        """Have *policy* in force, and return when nothing is decided or shown by the old one any more."""
        if self._guard is None or self._invalidate is None:
            self.policy = policy
            return
        compiled, ignores = self._compile(policy)
        closing = self._guard.closed_by(compiled)
        if closing:
            # Stores through memory maps up to now still count: the kernel writes dirty pages back first.
            await in_a_thread(self._invalidate, closing)
        self.policy = policy
        changed = self._guard.set_policy(compiled)
        before, self._ignores = self._ignores, ignores
        if before is not None:
            before.close()
        self.changed()
        if changed:
            # In a thread: the kernel may make the call wait for a request that this thread has to answer.
            await in_a_thread(self._invalidate, changed)

    def _keep(self, policy: Policy) -> None:
        """Write the session's rules down for reviews, where any rule holds changes."""
        named = {rule.pattern for rule in policy.rules if rule.source.kind is SourceKind.RUNTIME}
        # What an earlier session held stays held until this one says otherwise about the same path.
        before = tuple(rule for rule in self._held_before if rule.pattern not in named)
        holding = policy.may_hold or self.policy.may_hold or any(rule.may_hold for rule in self._held_before)
        if self._home is None or not holding:
            return
        try:
            write_session_rules(self._home, (*policy.rules, *before))
        except OSError as error:
            raise UsageError(f"the rule cannot be kept for reviews: {error}") from error

    # Verbs

    def handlers(self) -> dict[str, Handler]:
        return {
            "status": self.status,
            "rules": self.rules,
            "allow": self.allow,
            "ro": self.set_mode,
            "rw": self.set_mode,
            "enable": self.enable,
            "disable": self.enable,
            "why": self.why,
        }

    async def allow(self, request: Request, peer: Peer) -> object:
        mode = parse_mode(request.optional_text("mode") or Mode.RW.value, "allow")
        path = _path(request)
        # In a thread: the path may lead through the daemon's own mount, whose requests this thread answers.
        rule = await trio.to_thread.run_sync(
            rule_for_path, path, mode, RuleSource(SourceKind.RUNTIME), str(self._workspace)
        )
        if rule is None:
            raise UsageError(
                f"{quoted(path)} is not in the workspace {quoted(self._workspace)}",
                hint="a sandbox serves one workspace; mount another for other places",
            )
        await self.change(lambda policy: policy.with_runtime_rule(rule), request.verb, peer, rule)
        hits = self.journal.hits().get(rule, 0)
        return self._in_force() | {"rule": described_rule(rule) | {"hits": hits}}

    async def set_mode(self, request: Request, peer: Peer) -> object:
        await self.change(lambda policy: policy.with_mode(Mode(request.verb)), request.verb, peer)
        return self._in_force()

    async def enable(self, request: Request, peer: Peer) -> object:
        enabled = request.verb == "enable"
        await self.change(lambda policy: replace(policy, enabled=enabled), request.verb, peer)
        return self._in_force()

    def rules(self, request: Request, peer: Peer) -> object:
        return self._in_force()

    def status(self, request: Request, peer: Peer) -> object:
        counters = dict(self.journal.counters)
        return self._in_force() | {"counters": counters, "uptime": time.monotonic() - self._began}

    async def why(self, request: Request, peer: Peer) -> object:
        path = _path(request)
        try:
            access = Access(request.optional_text("access") or Access.READ.value)
        except ValueError as error:
            raise UsageError("'access' of 'why' is read, write, delete or execute") from error
        try:
            # In a thread: the workspace may be slow, and the daemon's own mount may lie inside.
            exists = await trio.to_thread.run_sync(present_in, self._workspace, path, self.ignored)
        except ValueError as error:
            raise UsageError(f"'path' of 'why' is a path inside the workspace, not {quoted(path)}") from error
        return described_explanation(
            explain(
                self.policy,
                path,
                access,
                root=str(self._workspace),
                exists=exists,
                ignored_by=None if self._ignores is None else self._ignores.reason,
            )
        )

    def _in_force(self) -> dict[str, object]:
        hits, new = self.journal.hits(), self.policy.new_programs
        rules = (*self.policy.rules, self.policy.root_rule)
        return {
            "mode": self.policy.mode.value,
            "enabled": self.policy.enabled,
            "rules": [described_rule(rule) | {"hits": hits.get(rule, 0)} for rule in rules],
            # Left out where it is like any program: clients of earlier versions get what they always got.
            **({} if new is Execute.ALLOW else {"new_programs": new.value}),
        }


def _path(request: Request) -> str:
    path = request.text("path")
    if not path or "\0" in path:
        raise UsageError(f"'path' of '{request.verb}' is no path: {quoted(path)}")
    return path


# Operations between two checkpoints: they take some milliseconds.
_AT_ONCE = 32
# Bytes of names in one answer: in JSON a name takes at most six times its length and a little more.
_MOST_NAMES = ANSWER_LIMIT // 16
_MOST_OUTCOMES = 4096


class UpperControl:
    """Edits the upper of one session."""

    def __init__(self, overlay: Overlay, guard: Guard, commits: Path, refresh: Refresh) -> None:
        """*refresh* makes the kernel ask again, and may wait."""
        self._overlay = overlay
        self._guard = guard
        self._commits = commits
        self._refresh = refresh
        self._editing = Turn(_EDIT_PATIENCE)

    def handlers(self) -> dict[str, Handler]:
        return {VERB: self.edit}

    async def edit(self, request: Request, peer: Peer) -> object:
        record, operations = _record(request), _operations(request)
        if not operations:
            # A client that gets this answer may send operations next.
            return {"outcomes": []}
        async with self._editing.taken(request.verb, peer.pid):
            try:
                commits = HostDir.at(self._commits)
            except FileNotFoundError as error:
                raise no_record(record) from error
            with commits:
                live = self._overlay.upper_editor(commits)
                try:
                    outcomes = await self._edit(live, record, operations)
                finally:
                    live.close()
        return {"outcomes": [outcome_to_json(outcome) for outcome in outcomes]}

    async def _edit(self, live: LiveEdits, record: int, operations: Sequence[Operation]) -> list[EditOutcome]:
        outcomes: list[EditOutcome] = []
        outdated = Invalidation()
        written = live.written(operations)
        if written:
            # Stores through memory maps up to now must reach the files: an operation then finds them changed.
            # In a thread, here and below: the kernel may make the call wait for a request to this thread.
            await trio.to_thread.run_sync(self._refresh, Invalidation(inodes=set(written)))
        try:
            for part in _parts(operations):
                outcomes += [_told(outcome) for outcome in live.edit(record, part, outdated)]
                if _is_long(outcomes):
                    break
                await trio.lowlevel.checkpoint()
        except FileNotFoundError as error:
            raise no_record(record) from error
        finally:
            # A rule may ask whether the workspace has a file.
            self._guard.decide_anew()
        await trio.to_thread.run_sync(self._refresh, outdated)
        return outcomes


def _parts(operations: Sequence[Operation]) -> Iterator[Sequence[Operation]]:
    return (operations[start : start + _AT_ONCE] for start in range(0, len(operations), _AT_ONCE))


def _told(outcome: EditOutcome) -> EditOutcome:
    """An outcome that fits into an answer; the commit record has the names that are left out."""
    opened = outcome.opened
    if opened is None or sum(map(len, (*(opened.whiteouts or ()), *opened.closed))) <= _MOST_NAMES:
        return outcome
    return replace(outcome, opened=replace(opened, whiteouts=None, closed=()))


def _is_long(outcomes: list[EditOutcome]) -> bool:
    """Whether an answer is full; the client asks again for the rest."""
    names = [o.opened.whiteouts or () for o in outcomes if o.opened is not None]
    return len(outcomes) >= _MOST_OUTCOMES or sum(sum(map(len, some)) for some in names) > _MOST_NAMES


def _record(request: Request) -> int:
    record = request.args.get("record")
    if type(record) is not int or not 0 <= record < 1 << 63:
        raise UsageError(f"'{request.verb}' needs 'record', a number")
    return record


def _operations(request: Request) -> list[Operation]:
    described = request.args.get("operations")
    if not isinstance(described, list):
        raise UsageError(f"'{request.verb}' needs 'operations', a list")
    try:
        return [operation_from_json(one, f"operations[{n}]") for n, one in enumerate(described)]
    except ValueError as error:
        # The complaint of a path check has the path in its text, and needs no place in the request.
        raise UsageError(f"malformed operation: {error.__cause__ or error}") from error
