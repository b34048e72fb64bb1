"""Which policy is in force in this session, and how is it changed while programs work?

Changes are for the session only. One takes effect for everything at once: the guard decides by the new
policy from the next request on, open handles are decided again, and the kernel is told to forget what it
may no longer show. Only then is the change answered.
"""

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import trio

from sandboxfs.control.messages import Request
from sandboxfs.daemon.control_peers import Peer
from sandboxfs.daemon.control_server import Handler
from sandboxfs.daemon.journal import SessionJournal
from sandboxfs.errors import UsageError
from sandboxfs.overlay.decisions import Shown
from sandboxfs.overlay.guard import Guard
from sandboxfs.paths import quoted
from sandboxfs.policy.answers import described_explanation, described_rule, present_in
from sandboxfs.policy.compiled import Compiled
from sandboxfs.policy.explain import explain
from sandboxfs.policy.model import Access, Kind, Mode, Policy, Source
from sandboxfs.policy.sources import parse_mode, rule_for_path

Invalidate = Callable[[list[Shown]], None]


class Policing:
    """The policy of one session."""

    def __init__(self, policy: Policy, workspace: Path, journal: SessionJournal) -> None:
        self.policy = policy
        self.journal = journal
        self._workspace = workspace
        self._began = time.monotonic()
        self._changing = trio.Lock()
        self._guard: Guard | None = None
        self._invalidate: Invalidate | None = None

    def compiled(self) -> Compiled:
        return Compiled(self.policy, str(self._workspace))

    def serve(self, guard: Guard, invalidate: Invalidate) -> None:
        """Change *guard* from now on; *invalidate* makes the kernel forget inodes, and may wait."""
        self._guard = guard
        self._invalidate = invalidate

    async def change(self, changed_by: Callable[[Policy], Policy]) -> None:
        """Change the policy; returns when nothing is decided or shown by the old one any more.

        Of changes that are asked for at the same time, each is made to what the one before it left.
        """
        async with self._changing:
            policy = changed_by(self.policy)
            compiled = Compiled(policy, str(self._workspace))
            if self._guard is None or self._invalidate is None:
                self.policy = policy
                return
            closing = self._guard.closed_by(compiled)
            if closing:
                # What was written through memory maps until now still counts: the kernel hands it over first.
                await trio.to_thread.run_sync(self._invalidate, closing)
            self.policy = policy
            changed = self._guard.set_policy(compiled)
            if changed:
                # In a thread: the kernel may make it wait for a request that this thread has to answer.
                await trio.to_thread.run_sync(self._invalidate, changed)

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
        # In a thread: the path may lead through our own mount, which this thread has to answer for.
        rule = await trio.to_thread.run_sync(
            rule_for_path, path, mode, Source(Kind.RUNTIME), str(self._workspace)
        )
        if rule is None:
            raise UsageError(
                f"{quoted(path)} is not in the workspace {quoted(self._workspace)}",
                hint="a sandbox serves one workspace; mount another for other places",
            )
        await self.change(lambda policy: policy.with_runtime_rule(rule))
        hits = self.journal.hits().get(rule, 0)
        return self._in_force() | {"rule": described_rule(rule) | {"hits": hits}}

    async def set_mode(self, request: Request, peer: Peer) -> object:
        await self.change(lambda policy: policy.with_mode(Mode(request.verb)))
        return self._in_force()

    async def enable(self, request: Request, peer: Peer) -> object:
        await self.change(lambda policy: replace(policy, enabled=request.verb == "enable"))
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
            # In a thread: the workspace may be slow, and our own mount may lie in it.
            exists = await trio.to_thread.run_sync(present_in, self._workspace, path)
        except ValueError as error:
            raise UsageError(f"'path' of 'why' is a path inside the workspace, not {quoted(path)}") from error
        return described_explanation(
            explain(self.policy, path, access, root=str(self._workspace), exists=exists)
        )

    def _in_force(self) -> dict[str, object]:
        hits = self.journal.hits()
        rules = (*self.policy.rules, self.policy.root_rule)
        return {
            "mode": self.policy.mode.value,
            "enabled": self.policy.enabled,
            "rules": [described_rule(rule) | {"hits": hits.get(rule, 0)} for rule in rules],
        }


def _path(request: Request) -> str:
    path = request.text("path")
    if not path or "\0" in path:
        raise UsageError(f"'path' of '{request.verb}' is no path: {quoted(path)}")
    return path
