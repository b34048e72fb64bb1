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
from sandboxfs.policy.compiled import Compiled
from sandboxfs.policy.model import Kind, Mode, Policy, Source
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

    async def change(self, policy: Policy) -> None:
        """Put *policy* in force; returns when nothing is decided or shown by the old one any more."""
        compiled = Compiled(policy, str(self._workspace))
        async with self._changing:
            self.policy = policy
            if self._guard is None or self._invalidate is None:
                return
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
        }

    async def allow(self, request: Request, peer: Peer) -> object:
        mode = parse_mode(request.optional_text("mode") or Mode.RW.value, "allow")
        path = request.text("path")
        rule = rule_for_path(path, mode, Source(Kind.RUNTIME), str(self._workspace))
        if rule is None:
            raise UsageError(
                f"{quoted(path)} is not in the workspace {quoted(self._workspace)}",
                hint="a sandbox serves one workspace; mount another for other places",
            )
        await self.change(self.policy.with_runtime_rule(rule))
        return self.rules(request, peer)

    async def set_mode(self, request: Request, peer: Peer) -> object:
        await self.change(self.policy.with_mode(Mode(request.verb)))
        return self.rules(request, peer)

    async def enable(self, request: Request, peer: Peer) -> object:
        await self.change(replace(self.policy, enabled=request.verb == "enable"))
        return self.rules(request, peer)

    def rules(self, request: Request, peer: Peer) -> object:
        return {
            "mode": self.policy.mode.value,
            "enabled": self.policy.enabled,
            "rules": [
                {
                    "pattern": rule.pattern,
                    "mode": rule.mode.value,
                    "source": str(rule.source),
                    "kind": rule.source.kind.value,
                    "hits": self.journal.hits(rule),
                }
                for rule in (*self.policy.rules, self.policy.root_rule)
            ],
        }

    def status(self, request: Request, peer: Peer) -> object:
        described = self.rules(request, peer)
        counters = dict(self.journal.counters)
        uptime = time.monotonic() - self._began
        return {**described, "counters": counters, "uptime": uptime} if isinstance(described, dict) else {}
