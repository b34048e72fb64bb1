"""Unmounting: the serving of a sandbox ends, its changes stay.

Returns when the daemon has gone, so that the sandbox can be mounted again or removed at once.
"""

import errno
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from sandboxfs.control.mount_table import Mount, MountTable, SandboxStatus, State, observe
from sandboxfs.control.unmount import ProcessWatch, User, detach, detach_dead, users_elsewhere, users_of
from sandboxfs.errors import DaemonLost, MountFailed, NoSuchSandbox, SandboxBusy, UsageError
from sandboxfs.paths import quoted
from sandboxfs.state.locations import Locations
from sandboxfs.state.store import SandboxRecord, Store

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
