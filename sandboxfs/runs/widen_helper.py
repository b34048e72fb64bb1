"""Widening helper: the process that has one further directory served and mounts it for a running program.

It is started by the process of a run (`widening`), with nothing but one end of a channel, and does one thing:
the directory is checked as one of `--allow` is at the start, its companion is started or joined, and the view
mounted where the program sees it. What it has started it holds until the run, which holds it as well by then,
or has died, closes the channel: the lifeline of the view goes with the process.
"""

import json
import os
import socket
import sys
import time
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from sandboxfs.codec import decode
from sandboxfs.confine.home import Home
from sandboxfs.confine.late_mounts import ProgramNamespaces
from sandboxfs.confine.mounts import find_system, interpreter_directory
from sandboxfs.control.control_socket import ask, control_address
from sandboxfs.control.mount_table import Mount, MountTable, parse_mountinfo
from sandboxfs.control.prestart import WaitingDaemon
from sandboxfs.errors import DaemonLost, SandboxError, UsageError
from sandboxfs.paths import quoted
from sandboxfs.policy.assertions import Assertions
from sandboxfs.policy.config import Allow
from sandboxfs.policy.model import Mode, RuleSource, SourceKind
from sandboxfs.runs.open_views import ViewStarter
from sandboxfs.runs.run_views import Root, RunRequest, RunView, begin, join_view, sort_out
from sandboxfs.service.remove import remove_made_companions
from sandboxfs.state.locations import Locations
from sandboxfs.state.store import SandboxRecord, Store

_MESSAGE_LIMIT = 1 << 16


@dataclass(frozen=True)
class HelperOrders:
    """What to do for the program that *process*, a bubblewrap, confines in a run of the sandbox *sandbox*.

    With a *mode*, *path* is to be shown; without one, the view of *companion* is to be shown no more. With
    *deny* nothing in that is to be used any more, as long as its daemon lives.
    """

    sandbox: str
    process: int
    path: str
    mode: str | None
    companion: str | None
    deny: bool
    current: str | None
    home: str
    home_kind: str
    no_writes: tuple[str, ...]
    writes_only: tuple[str, ...]


@dataclass(frozen=True)
class HelperReport:
    """What was done: the companion called *name* is mounted, or *problem* says why nothing is."""

    problem: str | None = None
    name: str | None = None
    observation: str | None = None
    when: int = 0
    resumed: bool = True


def carry_out(orders: HelperOrders) -> HelperReport:
    """Do what is ordered. The view that was started, if any, is held until this process ends."""
    store = Store(Locations.from_environment())
    namespaces = ProgramNamespaces.of(orders.process)
    if orders.mode is None:
        record = store.load(orders.companion or "")
        if orders.deny:
            # What is open, and mapped, goes on to be in the kernel's memory, whoever serves it or not.
            about = {"path": str(record.workspace), "mode": Mode.DENY.value}
            ask(control_address(store.locations, record.name), "allow", about)
        namespaces.unmount(record.workspace, _device(record))
        return HelperReport(name=record.name)
    # It imports meanwhile, and takes away what this process leaves unfinished when it is killed.
    waiting = WaitingDaemon.start()
    try:
        return _show(orders, orders.mode, store, namespaces, waiting)
    finally:
        waiting.end_if_waiting()


def _show(
    orders: HelperOrders, mode: str, store: Store, namespaces: ProgramNamespaces, waiting: WaitingDaemon
) -> HelperReport:
    first = store.load(orders.sandbox)
    root = checked_root(orders.path, mode, first, Path(orders.home), Home(orders.home_kind))
    _check_mounts(root.path, namespaces)
    view = _view(store, first, root, orders, waiting)
    when = time.time_ns()
    try:
        (start,) = begin([view], when, Assertions(orders.no_writes, orders.writes_only))
        namespaces.mount(view.record.mountpoint, root.path, _device(view.record))
    except SandboxError:
        view.let_go()
        remove_made_companions([view])
        raise
    return HelperReport(None, view.record.name, start.observation, when, view.resumed)


def checked_root(path: str, mode: str, first: SandboxRecord, home: Path, kind: Home) -> Root:
    """Return the directory at *path*, which the host knows by no other name; raise as for `--allow`."""
    allow = Allow(path, Mode(mode), RuleSource(SourceKind.RUNTIME, "widening"))
    beside = sort_out([allow], first.workspace, home, kind)
    if not beside.roots:
        raise UsageError(f"cannot allow {quoted(path)} now: it is not a directory")
    (root,) = beside.roots
    if root.path != Path(path):
        raise UsageError(f"cannot allow {quoted(path)} now: it is {quoted(root.path)}")
    if root.path.is_relative_to(first.workspace):
        raise UsageError(f"cannot allow {quoted(path)} now: it is in the workspace, where rules decide")
    if kind is Home.COW and root.path.is_relative_to(home):
        raise UsageError(f"cannot allow {quoted(path)} now: it is in the home, which is shown already")
    return root


def _check_mounts(place: Path, namespaces: ProgramNamespaces) -> None:
    """Refuse a place at which the program has a mount, or around one: it would be covered."""
    living = {mount.device for mount in MountTable.read().below(Path("/")) if mount.ours}
    for mount in parse_mountinfo(namespaces.mount_table()):
        seen = mount.mountpoint
        if seen == place and mount.ours and mount.device not in living:
            # Left by a helper that was killed: its daemon has ended.
            namespaces.unmount(place, _number_of(mount))
        elif seen.is_relative_to(place):
            where = "it is shown already" if seen == place else f"{quoted(seen)} in it is shown already"
            raise UsageError(f"cannot allow {quoted(place)} now: {where}")
        if mount.ours and place.is_relative_to(seen):
            raise UsageError(
                f"cannot allow {quoted(place)} now: it is in {quoted(seen)}, which is shown already"
            )


def _view(
    store: Store, first: SandboxRecord, root: Root, orders: HelperOrders, waiting: WaitingDaemon
) -> RunView:
    for name in filter(store.exists, first.companions):
        if store.load(name).workspace == root.path:
            view = join_view(store, name)
            if view is not None and view.record.mode != root.mode.value:
                view.let_go()
                raise UsageError(f"{quoted(root.path)} is served as '{view.record.mode}' already")
            if view is not None:
                return view
    request = RunRequest(sandbox=first.name, home=Home(orders.home_kind), current=orders.current)
    system = find_system(interpreter_directory())
    starter = ViewStarter(store, request, os.environ, Path(orders.home), system, at_own_path=True)
    return starter.start_companion(first, root, waiting)


def _device(record: SandboxRecord) -> int:
    mount = MountTable.read().at(record.mountpoint)
    if mount is None or not mount.ours:
        raise DaemonLost(f"sandbox '{record.name}' is not mounted")
    return _number_of(mount)


def _number_of(mount: Mount) -> int:
    major, minor = map(int, mount.device.split(":"))
    return os.makedev(major, minor)


def main() -> None:
    """Carry out the orders on the channel whose descriptor is the one argument."""
    channel = socket.socket(fileno=int(sys.argv[1]))
    channel.set_inheritable(False)
    try:
        report = carry_out(decode(HelperOrders, json.loads(channel.recv(_MESSAGE_LIMIT))))
    except SandboxError as error:
        report = HelperReport(error.message)
    except OSError as error:
        report = HelperReport(f"it cannot be shown: {error}")
    # The run may be gone: then nobody takes hold of what was made.
    with suppress(OSError):
        channel.send(json.dumps(asdict(report)).encode())
        channel.recv(1)


if __name__ == "__main__":
    main()
