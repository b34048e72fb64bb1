"""Mounting: a view of a workspace, served by a daemon that outlives the caller.

The plan is checked first; then everything is made in an order in which each step can be taken back, so that a
mount that fails leaves nothing behind: the sandbox and its lock, its record, the mountpoint. Whoever starts a
daemon prepares the mount so (`prepare`).
"""

from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from sandboxfs.control.mount_table import MountTable, observe
from sandboxfs.control.start_daemon import become, launch
from sandboxfs.control.unmount import detach_dead
from sandboxfs.errors import MountFailed, SandboxBusy
from sandboxfs.hostfs import probe
from sandboxfs.paths import make_directories, quoted, remove_directories
from sandboxfs.service.mount_plan import (
    STATE_HINT,
    MountPlan,
    MountRequest,
    check_mountpoint,
    plan_mount,
    refuse_if_held,
)
from sandboxfs.state.locations import Locations
from sandboxfs.state.lock import SandboxLock
from sandboxfs.state.store import SandboxRecord, Store

Warn = Callable[[str], None]


@dataclass(frozen=True)
class MountedSandbox:
    """A sandbox that is served by process *pid*; *resumed* when it was there before."""

    name: str
    workspace: Path
    mountpoint: Path
    mode: str
    pid: int
    resumed: bool
    warnings: tuple[str, ...]


def mount(request: MountRequest, environment: Mapping[str, str], warn: Warn) -> MountedSandbox:
    """Serve what *request* asks for, and return when the view is ready.

    *warn* hears, before anything is made, what may not be meant as it is.
    """
    store, plan = _planned(request, environment, warn)
    with ExitStack() as undo:
        lock = prepare(store, plan, undo)
        pid = launch(store.locations, plan.record.name, lock).pid
        undo.pop_all()
        lock.hand_over()
    return _mounted(plan, pid)


def serve(
    request: MountRequest,
    environment: Mapping[str, str],
    warn: Warn,
    pid: int,
    arguments: Callable[[MountedSandbox], list[str]],
) -> NoReturn:
    """Turn the calling process, which is *pid*, into the daemon that serves what *request* asks for.

    *arguments* are those of the daemon, for the sandbox that it will serve.
    """
    store, plan = _planned(request, environment, warn)
    with ExitStack() as undo:
        lock = prepare(store, plan, undo)
        become(store.locations, plan.record.name, lock, arguments(_mounted(plan, pid)))


def _planned(request: MountRequest, environment: Mapping[str, str], warn: Warn) -> tuple[Store, MountPlan]:
    store = Store(Locations.from_environment(environment))
    plan = plan_mount(store, request, environment)
    for warning in plan.warnings:
        warn(warning)
    return store, plan


def _mounted(plan: MountPlan, pid: int) -> MountedSandbox:
    record = plan.record
    return MountedSandbox(
        record.name,
        record.workspace,
        record.mountpoint,
        record.mode,
        pid,
        plan.previous is not None,
        plan.warnings,
    )


# What is made before a daemon starts


def prepare(store: Store, plan: MountPlan, undo: ExitStack) -> SandboxLock:
    """Make everything that the daemon needs; *undo* takes it back."""
    record = plan.record
    try:
        undo.callback(remove_directories, make_directories(store.locations.sandboxes))
        if plan.previous is None:
            _check_filesystem(store.locations.sandboxes)
        if record.workspace == store.locations.default_workspace:
            undo.callback(remove_directories, make_directories(record.workspace))
        lock = _hold(store, plan, undo)
        if plan.stale is not None:
            detach_dead(plan.stale)
            check_mountpoint(store, record, MountTable.read(), mkdir=True)
        if record.own_mountpoint:
            # The daemon makes it: nobody else would take it away after a command that was killed.
            undo.callback(remove_directories, [record.mountpoint])
            make_directories(record.mountpoint.parent)
        else:
            undo.callback(remove_directories, make_directories(record.mountpoint, 0o777))
        undo.callback(_detach_remains, record.mountpoint)
    except OSError as error:
        at = quoted(error.filename) if error.filename else "the state directory"
        from sandboxfs.service.review_session import free_hint

        hint = free_hint(error) or STATE_HINT
        raise MountFailed(f"cannot prepare the sandbox: {at}: {error.strerror}", hint=hint) from error
    return lock


def _check_filesystem(directory: Path) -> None:
    if not probe.user_xattrs(directory):
        raise MountFailed(
            f"the filesystem of the state directory {quoted(directory)} has no user extended attributes",
            hint=STATE_HINT,
        )


def _hold(store: Store, plan: MountPlan, undo: ExitStack) -> SandboxLock:
    """Create or take the sandbox of *plan*, and write its record."""
    name = plan.record.name
    if plan.previous is None:
        lock = store.create(plan.record)
        undo.callback(lock.release)
        undo.callback(store.remove, name)
        return lock
    taken = SandboxLock.acquire(store.places(name).lock)
    if taken is None:
        refuse_if_held(observe(store, plan.previous, MountTable.read()))
        raise SandboxBusy(f"sandbox '{name}' is held by another process")
    undo.callback(taken.release)
    if plan.record != plan.previous:
        # Otherwise not written: a sandbox on a full disk must be mountable, to delete something in it.
        undo.callback(_restore, store, plan.previous)
        store.save(plan.record)
    return taken


def _restore(store: Store, record: SandboxRecord) -> None:
    # The disk may be what failed; the record then keeps where the sandbox would have been mounted.
    with suppress(OSError):
        store.save(record)


def _detach_remains(mountpoint: Path) -> None:
    """Take away what a daemon that was killed while starting may have mounted."""
    mount = MountTable.read().at(mountpoint)
    if mount is not None and mount.ours:
        detach_dead(mount)
