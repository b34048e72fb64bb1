"""Mounting and unmounting: a view of a workspace, served by a daemon that outlives the caller, and its end.

The plan is checked first; then everything is made in an order in which each step can be taken back, so that a
mount that fails leaves nothing behind: the sandbox and its lock, its record, the mountpoint. Whoever starts a
daemon prepares the mount so (`prepare`).

Unmounting returns when the daemon has gone, so that the sandbox can be mounted again or removed at once. Its
changes stay.
"""

import errno
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, NoReturn

from sandboxfs.control.mount_table import Mount, MountTable, SandboxStatus, State, observe
from sandboxfs.control.start_daemon import become, launch
from sandboxfs.control.unmount import ProcessWatch, User, detach, detach_dead, users_elsewhere, users_of
from sandboxfs.errors import DaemonLost, MountFailed, NoSuchSandbox, SandboxBusy, UsageError
from sandboxfs.paths import make_directories, quoted, remove_directories
from sandboxfs.service.mount_plan import (
    STATE_HINT,
    MountPlan,
    MountRequest,
    check_mountpoint,
    plan_mount,
    refuse_if_held,
)
from sandboxfs.service.responder import begin_to_answer, start_responder
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

    *warn* hears, before anything is made, what may not be meant as it is, and in the end when what is to be
    asked cannot be.
    """
    store, plan = _planned(request, environment, warn)
    with ExitStack() as undo:
        lock = prepare(store, plan, undo)
        responder = start_responder(store, plan.record, environment, request.current)
        if responder is not None:
            undo.callback(responder.close)
        pid = launch(store.locations, plan.record.name, lock).pid
        undo.pop_all()
        lock.hand_over()
    # Before the mount is told of: the first question must find somebody.
    troubles = begin_to_answer(responder, pid)
    for trouble in troubles:
        warn(trouble)
    mounted = _mounted(plan, pid)
    return replace(mounted, warnings=(*mounted.warnings, *troubles))


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
        responder = start_responder(store, plan.record, environment, request.current)
        if responder is not None:
            undo.callback(responder.close)
            responder.detach()
        channel = None if responder is None else responder.channel
        become(store.locations, plan.record.name, lock, arguments(_mounted(plan, pid)), channel)


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
    # Imported here: it takes longer than all else, and whoever resumes or unmounts does without.
    from sandboxfs.hostfs import probe

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


# Unmounting

# How long a daemon may take to end once nothing uses its mount, in seconds.
PATIENCE = 15.0
# How long it takes when nothing keeps it.
_PROMPTLY = 1.0
# A process may stop using a mount without ending, which nothing tells.
_LOOK_AGAIN = 0.25


@dataclass(frozen=True)
class Unmounted:
    """What was unmounted, in which state it *was*, and *how* that came: nothing, a dead mount, or a session.

    A mount of another state directory has no *record* that we know.
    """

    mountpoint: Path
    record: SandboxRecord | None
    was: State
    how: Literal["already", "detached", "ended"]


@dataclass(frozen=True)
class _Target:
    """What to unmount."""

    mountpoint: Path
    mount: Mount | None
    sandbox: SandboxStatus | None

    @property
    def was(self) -> State:
        return "mounted" if self.sandbox is None else self.sandbox.state


def unmount(
    place: SandboxRecord | str, environment: Mapping[str, str], *, lazy: bool = False, wait: bool = False
) -> Unmounted:
    """Unmount a sandbox, or what is at a path; what is not mounted is no error.

    A view that is in use is refused, unless *wait* waits until it is not, or *lazy* detaches it at once and
    leaves what is open to who uses it. A dead mount is detached.
    """
    target = _find(Store(Locations.from_environment(environment)), place)
    return Unmounted(
        target.mountpoint,
        None if target.sandbox is None else target.sandbox.record,
        target.was,
        _end(target, lazy=lazy, wait=wait),
    )


def _end(target: _Target, *, lazy: bool, wait: bool) -> Literal["already", "detached", "ended"]:
    if target.mount is None:
        return "already"
    if target.was == "dead" and detach_dead(target.mount):
        return "detached"
    end_session(target.mount, target.sandbox, lazy=lazy, wait=wait)
    return "ended"


def end_session(mount: Mount, sandbox: SandboxStatus | None, *, lazy: bool, wait: bool) -> None:
    """Take a living *mount* away and, unless *lazy*, wait until the daemon of *sandbox* has gone."""
    daemon = [] if sandbox is None or sandbox.pid is None else [sandbox.pid]
    with ProcessWatch(daemon) as watch:
        _detach(mount, set(daemon), lazy=lazy, wait=wait)
        if lazy or watch.wait_for_all(_PROMPTLY):
            return
        # A mount namespace made meanwhile (a container) has a copy of the mount, which keeps the daemon.
        users = users_elsewhere(mount, besides=set(daemon))
        if users:
            raise SandboxBusy(
                f"unmounted {quoted(mount.mountpoint)}, but other mount namespaces still use the view: "
                + ", ".join(map(str, users[:10])),
                hint=f"the daemon (pid {daemon[0]}) ends when they do",
            )
        watch.tell_to_end()
        if not watch.wait_for_all(PATIENCE):
            raise DaemonLost(
                f"unmounted {quoted(mount.mountpoint)}, but the daemon (pid {daemon[0]}) does not end",
                hint=f"kill {daemon[0]}",
            )


def _find(store: Store, named: SandboxRecord | str) -> _Target:
    table = MountTable.read()
    if isinstance(named, SandboxRecord):
        sandbox = observe(store, named, table)
        return _Target(sandbox.record.mountpoint, sandbox.mount, sandbox)
    try:
        place = table.resolve(named)
    except (OSError, ValueError) as error:
        raise UsageError(f"cannot use {quoted(named)}: {error}") from error
    here = [observe(store, record, table) for record in store.readable() if record.mountpoint == place]
    # Several sandboxes may have had this place in turn: the living one is meant, else the dead one.
    here.sort(key=lambda sandbox: ("mounted", "dead", "unmounted").index(sandbox.state))
    mount = table.at(place)
    if here:
        return _Target(place, here[0].mount, here[0])
    if mount is not None and mount.ours:
        return _Target(place, mount, None)
    raise NoSuchSandbox(f"no sandbox is mounted at {quoted(place)}", hint="see 'sandboxfs list'")


def _detach(mount: Mount, daemon: set[int], *, lazy: bool, wait: bool) -> None:
    while True:
        try:
            return detach(mount.mountpoint, lazy=lazy)
        except OSError as error:
            if error.errno == errno.EINVAL:
                # Somebody else was faster.
                return None
            if error.errno != errno.EBUSY:
                raise MountFailed(f"cannot unmount {quoted(mount.mountpoint)}: {error.strerror}") from error
        users = users_of(mount, besides=daemon)
        if not wait:
            raise _busy(mount, users)
        with ProcessWatch([user.pid for user in users]) as watch:
            watch.wait_for_any(_LOOK_AGAIN)


def _busy(mount: Mount, users: list[User]) -> SandboxBusy:
    inside = MountTable.read().below(mount.mountpoint)
    shown = [str(user) for user in users[:10]] + ["…"] * (len(users) > 10)
    shown += [f"the mount at {quoted(other.mountpoint)}" for other in inside]
    by = ", ".join(shown) if shown else "a process that this user may not see"
    return SandboxBusy(
        f"cannot unmount {quoted(mount.mountpoint)}: in use by {by}",
        hint="end it, or use --wait to wait for it or --lazy to detach at once",
        details={"users": [{"pid": user.pid, "command": user.command} for user in users]},
    )
