"""What is made before a daemon is started, and taken back when it does not start?

Shared by the verbs that mount. The sandbox and its lock, its record, and the mountpoint, in an order in which
each step can be undone.
"""

from contextlib import ExitStack, suppress
from pathlib import Path

from sandboxfs.cli.mountpoints import check_mountpoint
from sandboxfs.cli.planning import STATE_HINT, MountPlan, refuse_if_held
from sandboxfs.control.mounts import MountTable
from sandboxfs.control.sandboxes import observe
from sandboxfs.control.unmounting import detach_dead
from sandboxfs.errors import MountFailed, SandboxBusy
from sandboxfs.layers import probe
from sandboxfs.paths import make_directories, quoted, remove_directories
from sandboxfs.state.lock import SandboxLock
from sandboxfs.state.record import SandboxRecord
from sandboxfs.state.store import Store


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
        raise MountFailed(f"cannot prepare the sandbox: {at}: {error.strerror}", hint=STATE_HINT) from error
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
