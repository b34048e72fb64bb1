"""How is a sandbox described, for `list` and `status`?

The short form is what both have in common; programs may rely on its keys.
"""

from datetime import UTC

from sandboxfs.control.sandboxes import Sandbox
from sandboxfs.state.tree import TreeSize


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


def full_description(sandbox: Sandbox, upper: TreeSize) -> dict[str, object]:
    """Describe *sandbox*, whose upper layer has the size *upper*."""
    return short_description(sandbox) | {
        "enabled": True,
        "rules": [],
        "counters": {},
        "changes": None,
        "conflicts": 0,
        "allow_other": sandbox.record.allow_other,
        "uptime": None if sandbox.uptime is None else round(sandbox.uptime, 1),
        "upper_bytes": upper.size,
        "upper_entries": upper.entries,
        "upper_complete": upper.complete,
    }
