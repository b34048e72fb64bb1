"""What does a program in the view read in `.sandboxfs/`?

Plain text for whoever was told "Permission denied": what the policy is, what was refused and what would allow
it, and what the sandbox has changed.
"""

import os
import stat
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

from sandboxfs.daemon.journal import Denial, SessionJournal
from sandboxfs.layers.hostdir import HostDir
from sandboxfs.layers.marks import Whiteouts
from sandboxfs.paths import quoted
from sandboxfs.policy.decide import decide
from sandboxfs.policy.explain import explain
from sandboxfs.policy.model import Mode, Policy
from sandboxfs.policy.sources import effective_toml

_LISTED = 10_000
_DEEPEST = 200


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


def changes_report(upper: Path, workspace: Path, policy: Policy) -> bytes:
    """What the sandbox has changed and the policy does not hide: A added, M modified, D deleted."""
    with HostDir.at(upper) as top, HostDir.at(workspace) as below:
        lines: list[str] = []
        for letter, path in _changes(top, below, b""):
            if decide(policy, os.fsdecode(path), root=str(workspace)).mode is Mode.HIDE:
                continue
            if len(lines) == _LISTED:
                lines.append("…")
                break
            lines.append(f"{letter} {quoted(os.fsdecode(path))}")
    return "".join(f"{line}\n" for line in lines).encode(errors="surrogateescape")


def _changes(upper: HostDir, lower: HostDir | None, at: bytes) -> Iterator[tuple[str, bytes]]:
    whiteouts = Whiteouts(devices=True)
    for name in sorted(upper.names()):
        status = upper.stat(name)
        if status is None:
            continue
        path = at + b"/" + name if at else name
        below = lower.stat(name) if lower is not None else None
        if whiteouts.covers(upper, name, status):
            yield "D", path
        elif not stat.S_ISDIR(status.st_mode):
            yield ("A" if below is None else "M"), path
        else:
            if below is None:
                yield "A", path
            yield from _inside(upper, lower, name, below, path)


def _inside(
    upper: HostDir, lower: HostDir | None, name: bytes, below: os.stat_result | None, path: bytes
) -> Iterator[tuple[str, bytes]]:
    if path.count(b"/") > _DEEPEST:
        yield "…", path
        return
    with upper.child(name) as directory:
        if lower is not None and below is not None and stat.S_ISDIR(below.st_mode):
            with lower.child(name) as under:
                yield from _changes(directory, under, path)
        else:
            yield from _changes(directory, None, path)
