"""`sandboxfs unmount`: end the serving of a sandbox; its changes stay.

Returns when the daemon has gone, so that the sandbox can be mounted again or removed at once.
"""

import argparse
import errno
from dataclasses import dataclass
from pathlib import Path

from sandboxfs.cli import output
from sandboxfs.cli.parser import Parser, add_sandbox_option, verb_parser
from sandboxfs.control.mounts import Mount, MountTable
from sandboxfs.control.sandboxes import Sandbox, observe, select
from sandboxfs.control.unmounting import ProcessWatch, detach, detach_dead
from sandboxfs.control.users import User, users_elsewhere, users_of
from sandboxfs.errors import DaemonLost, MountFailed, NoSuchSandbox, SandboxBusy, UsageError
from sandboxfs.paths import quoted
from sandboxfs.state.locations import Locations
from sandboxfs.state.store import Store

DESCRIPTION = """\
End the serving of a sandbox and return when its daemon has gone. The changes stay in
the sandbox; mounting it again shows them again. A mount whose daemon died is detached.
Unmounting what is not mounted is no error."""

EXAMPLES = ["sandboxfs unmount /mnt/app", "sandboxfs unmount -s app", "sandboxfs unmount --wait /mnt/app"]

# How long a daemon may take to end once nothing uses its mount, in seconds.
PATIENCE = 15.0
# How long it takes when nothing keeps it.
_PROMPTLY = 1.0
# A process may stop using a mount without ending, which nothing tells.
_LOOK_AGAIN = 0.25


class Arguments(argparse.Namespace):
    mountpoint: str | None
    sandbox: str | None
    lazy: bool
    wait: bool
    json: bool


def parser() -> Parser:
    made = verb_parser(
        "unmount", DESCRIPTION, EXAMPLES, [NoSuchSandbox, SandboxBusy, MountFailed, DaemonLost]
    )
    made.add_argument("mountpoint", nargs="?", metavar="MOUNTPOINT", help="where the view is")
    add_sandbox_option(made)
    how = made.add_mutually_exclusive_group()
    how.add_argument("--lazy", action="store_true", help="detach at once; who uses it keeps what is open")
    how.add_argument("--wait", action="store_true", help="when it is in use, wait until it is not")
    return made


@dataclass(frozen=True)
class _Target:
    """What to unmount; a mount of another state directory has no *sandbox* that we know."""

    mountpoint: Path
    mount: Mount | None
    sandbox: Sandbox | None


def run(words: list[str]) -> int:
    arguments = parser().parse_args(words, namespace=Arguments())
    if arguments.mountpoint is not None and arguments.sandbox is not None:
        raise UsageError("name either a mountpoint or a sandbox, not both")
    target = _find(Store(Locations.from_environment()), arguments)
    was = "mounted" if target.sandbox is None else target.sandbox.state
    if target.mount is None:
        _tell(arguments, target, was, f"already unmounted: {quoted(target.mountpoint)}")
        return 0
    if was == "dead" and detach_dead(target.mount):
        _tell(arguments, target, was, f"detached a dead mount: {quoted(target.mountpoint)}")
        return 0
    end_session(target.mount, target.sandbox, lazy=arguments.lazy, wait=arguments.wait)
    _tell(arguments, target, was, f"unmounted {quoted(target.mountpoint)}")
    return 0


def end_session(mount: Mount, sandbox: Sandbox | None, *, lazy: bool, wait: bool) -> None:
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


def _find(store: Store, arguments: Arguments) -> _Target:
    table = MountTable.read()
    if arguments.mountpoint is None:
        sandbox = observe(store, select(store, arguments.sandbox), table)
        return _Target(sandbox.record.mountpoint, sandbox.mount, sandbox)
    try:
        place = table.resolve(arguments.mountpoint)
    except (OSError, ValueError) as error:
        raise UsageError(f"cannot use {quoted(arguments.mountpoint)}: {error}") from error
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


def _tell(arguments: Arguments, target: _Target, was: str, sentence: str) -> None:
    if not arguments.json:
        output.note(sentence)
        return
    name = None if target.sandbox is None else target.sandbox.name
    output.document({"name": name, "mountpoint": str(target.mountpoint), "was": was, "lazy": arguments.lazy})
