"""What does a program in the view read in `.sandboxfs/`?

Plain text for whoever was told "Permission denied": what the policy is, what was refused and what would allow
it, and what the sandbox has changed.
"""

import os
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from sandboxfs.daemon.journal import Denial, SessionJournal
from sandboxfs.paths import quoted
from sandboxfs.policy.decide import decide
from sandboxfs.policy.explain import explain
from sandboxfs.policy.model import Mode, Policy
from sandboxfs.policy.sources import effective_toml

if TYPE_CHECKING:
    from sandboxfs.changes.finding import Finding
    from sandboxfs.changes.layers import LayerPaths

_LISTED = 10_000


def policy_report(policy: Policy, workspace: Path) -> bytes:
    """The policy in force."""
    return effective_toml(policy, str(workspace)).encode(errors="surrogateescape")


def denials_report(journal: SessionJournal, policy: Policy, workspace: Path) -> bytes:
    """The newest denials, the last one first."""
    lines = [line for denial in reversed(journal.denials) for line in _told(denial, policy, workspace)]
    return "".join(f"{line}\n" for line in lines).encode(errors="surrogateescape")


def _told(denial: Denial, policy: Policy, workspace: Path) -> Iterator[str]:
    when = datetime.fromtimestamp(denial.time, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
    yield f"{when} {denial.command or '?'} ({denial.pid}): {denial.sentence()}"
    try:
        hint = explain(policy, os.fsdecode(denial.path), denial.access, root=str(workspace)).hint()
    except ValueError:
        return
    if hint is not None:
        yield f"  hint: a person can allow it: {hint}"


def changes_report(paths: "LayerPaths", workspace: Path, policy: Policy) -> bytes:
    """What the sandbox has changed and the policy does not hide.

    A added, M modified, D deleted, R renamed, T of another type; an exclamation mark follows where the
    workspace has changed as well.
    """
    # Imported here: few sandboxes are asked, and all would start later.
    from sandboxfs.changes.layers import open_layers
    from sandboxfs.changes.scan import scan

    def hides(path: bytes) -> bool:
        return decide(policy, os.fsdecode(path), root=str(workspace)).mode is Mode.HIDE

    lines: list[str] = []
    with open_layers(paths) as layers:
        for finding in scan(layers):
            if hides(finding.path):
                continue
            if len(lines) == _LISTED:
                lines.append("…")
                break
            lines.append(_change(finding, hides))
    return "".join(f"{line}\n" for line in lines).encode(errors="surrogateescape")


def _change(finding: "Finding", hides: Callable[[bytes], bool]) -> str:
    from sandboxfs.changes.patch import Kind

    kind, source = finding.kind, finding.old_path
    if source is not None and hides(source):
        # Where it came from is none of the program's business.
        kind, source = Kind.ADDED, None
    letter = "M" if kind is Kind.MODE else kind.value[0].upper()
    names = [path for path in (source, finding.path) if path is not None]
    shown = " -> ".join(quoted(os.fsdecode(path) or ".") for path in names)
    return f"{letter}{'!' if finding.conflict is not None else ''} {shown}"
