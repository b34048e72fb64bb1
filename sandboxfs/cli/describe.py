"""How is a sandbox described, for `list` and `status`?

The short form is what both have in common; programs may rely on its keys.
"""

from dataclasses import dataclass
from datetime import UTC

from sandboxfs.cli.live import InForce, Live
from sandboxfs.control.sandboxes import Sandbox
from sandboxfs.state.tree import TreeSize


@dataclass(frozen=True)
class Changes:
    """How many changes there are, and how many of them are in conflict with the workspace."""

    count: int
    conflicts: int


def created(sandbox: Sandbox) -> str:
    """Write when *sandbox* was made, in UTC."""
    return sandbox.record.created.astimezone(UTC).isoformat().replace("+00:00", "Z")


def short_description(sandbox: Sandbox) -> dict[str, object]:
    """Describe *sandbox* without looking at its files."""
    record = sandbox.record
    return {
        "name": record.name,
        "workspace": str(record.workspace),
        "mountpoint": str(record.mountpoint),
        "state": sandbox.state,
        "pid": sandbox.pid,
        "mode": record.mode,
        "created": created(sandbox),
    }


def full_description(
    sandbox: Sandbox, upper: TreeSize, live: Live, changes: Changes | None
) -> dict[str, object]:
    """Describe *sandbox*, whose upper layer has the size *upper* and whose policy is that of *live*."""
    policy = live.policy
    return short_description(sandbox) | {
        "mode": effective_mode(sandbox, policy),
        "enabled": policy.enabled,
        "rules": [rule.as_json() for rule in policy.rules],
        "counters": live.counters,
        "changes": None if changes is None else changes.count,
        "conflicts": None if changes is None else changes.conflicts,
        "answering": live.answering,
        "read_only": sandbox.record.read_only,
        "allow_other": sandbox.record.allow_other,
        "uptime": None if sandbox.uptime is None else round(sandbox.uptime, 1),
        "upper_bytes": upper.size,
        "upper_entries": upper.entries,
        "upper_complete": upper.complete,
    }


def effective_mode(sandbox: Sandbox, policy: InForce) -> str:
    """Return what may be done with paths that no rule names, whoever says so."""
    return "ro" if sandbox.record.read_only else policy.mode
