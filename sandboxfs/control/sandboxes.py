"""In which state is a sandbox now?

The lock says whether a daemon lives; the kernel's mount table says whether its mount is there. Nothing here
looks at the mount itself, so it never hangs and never fails because of a dead one.
"""

import os
import time
from dataclasses import dataclass
from typing import Literal

from sandboxfs.control.mounts import Mount, MountTable
from sandboxfs.errors import NoSuchSandbox, UsageError
from sandboxfs.state.lock import holder
from sandboxfs.state.record import SandboxRecord
from sandboxfs.state.store import Store

State = Literal["mounted", "unmounted", "dead"]


@dataclass(frozen=True)
class Sandbox:
    """A sandbox as seen at one moment.

    *pid* is the process that holds it. An unmounted sandbox that has one is starting, being changed by a
    command, or was detached and still serves whoever had its files open.
    """

    record: SandboxRecord
    state: State
    pid: int | None
    held: bool
    uptime: float | None
    mount: Mount | None

    @property
    def name(self) -> str:
        return self.record.name


def observe(store: Store, record: SandboxRecord, table: MountTable) -> Sandbox:
    """Say in which state the sandbox of *record* is."""
    held_by = holder(store.places(record.name).lock)
    mount = table.at(record.mountpoint)
    if mount is not None and not mount.ours:
        mount = None
    if held_by is not None:
        state: State = "mounted" if mount is not None else "unmounted"
        uptime = max(0.0, time.time() - held_by.since)
        return Sandbox(record, state, held_by.pid, held=True, uptime=uptime, mount=mount)
    # Another sandbox may have been given the same mountpoint since; its mount is not a dead one of ours.
    if mount is not None and not _held_elsewhere(store, record):
        return Sandbox(record, "dead", None, held=False, uptime=None, mount=mount)
    return Sandbox(record, "unmounted", None, held=False, uptime=None, mount=None)


def _held_elsewhere(store: Store, record: SandboxRecord) -> bool:
    return any(
        other.name != record.name
        and other.mountpoint == record.mountpoint
        and holder(store.places(other.name).lock) is not None
        for other in store.readable()
    )


def select(store: Store, name: str | None) -> SandboxRecord:
    """Find the sandbox that a verb is about.

    That is *name*, else `$SANDBOXFS_SANDBOX`, else the one whose workspace or mountpoint most closely holds
    the current directory, else the only one there is.
    """
    named = name if name is not None else os.environ.get("SANDBOXFS_SANDBOX") or None
    if named is not None:
        return store.load(named)
    names = store.names()
    if not names:
        raise NoSuchSandbox(
            "there is no sandbox yet", hint="make one with 'sandboxfs mount WORKSPACE MOUNTPOINT'"
        )
    candidates = _holding(store, _current_directory()) or names
    if len(candidates) > 1:
        raise UsageError(
            "which sandbox is meant? there is " + ", ".join(candidates),
            hint="name one with -s NAME",
            details={"sandboxes": candidates},
        )
    return store.load(candidates[0])


def _holding(store: Store, directory: str | None) -> list[str]:
    if directory is None:
        return []
    depths: dict[str, int] = {}
    for record in store.readable():
        for place in (record.workspace, record.mountpoint):
            if os.path.join(directory, "").startswith(os.path.join(place, "")):
                depths[record.name] = max(depths.get(record.name, 0), len(place.parts))
    closest = max(depths.values(), default=0)
    return sorted(name for name, depth in depths.items() if depth == closest)


def _current_directory() -> str | None:
    # The name alone: the directory may lie on a dead mount, or be gone.
    try:
        return os.getcwd()
    except OSError:
        return None
