"""Which view does a run use, and who ends it?

A run starts the daemon of its sandbox (`starting`), or joins one that serves it already. It holds the
lifeline of every daemon that a run has started; the last run to let go of it ends the daemon. One started by
`mount` stays.
"""

import os
import select
from contextlib import suppress
from dataclasses import dataclass
from fcntl import LOCK_EX, LOCK_NB, LOCK_SH, flock
from pathlib import Path

from sandboxfs.control.lifeline import hold, is_ending, lifeline_path, remove_lifeline
from sandboxfs.control.mounts import MountTable
from sandboxfs.control.sandboxes import Sandbox, observe
from sandboxfs.state.audit_file import AUDIT_NAME
from sandboxfs.state.lock import holder
from sandboxfs.state.record import SandboxRecord
from sandboxfs.state.store import Store

# How long a daemon may take to end, or another command to let go of a sandbox, in seconds.
_PATIENCE = 15.0
_LOOK_AGAIN = 0.25


@dataclass
class View:
    """A view that is served while this process holds its *lifeline*, None for one that stays anyway."""

    store: Store
    record: SandboxRecord
    pid: int
    watch: int
    lifeline: int | None
    joined: bool
    resumed: bool
    # About a policy that may not be meant as it is written, and a commit that was interrupted.
    warnings: tuple[str, ...] = ()

    @property
    def audit_log(self) -> Path:
        return self.store.places(self.record.name).home / AUDIT_NAME

    @property
    def died(self) -> bool:
        """Whether the daemon has ended, which it should not while it is held."""
        return bool(select.select([self.watch], [], [], 0)[0])

    def let_go(self) -> None:
        """Stop using it; return when the daemon has ended, unless others use it. May be called twice."""
        if self.watch < 0:
            return
        died = self.died
        path = lifeline_path(self.store.places(self.record.name))
        if self.lifeline is not None:
            os.close(self.lifeline)
            self.lifeline = None
            self._await_end(path)
        os.close(self.watch)
        self.watch = -1
        with suppress(ChildProcessError):
            os.waitpid(self.pid, os.WNOHANG)
        if died:
            self._clear_away()

    def _await_end(self, path: Path) -> None:
        waited = 0.0
        while waited < _PATIENCE and not select.select([self.watch], [], [], _LOOK_AGAIN)[0]:
            waited += _LOOK_AGAIN
            if _held_by_others(path):
                return

    def _clear_away(self) -> None:
        """Take away what a daemon that was killed has left."""
        from sandboxfs.control.address import control_address
        from sandboxfs.control.unmounting import detach_dead

        mount = MountTable.read().at(self.record.mountpoint)
        if mount is not None and mount.ours:
            detach_dead(mount)
        if self.record.own_mountpoint:
            with suppress(OSError):
                self.record.mountpoint.rmdir()
        places = self.store.places(self.record.name)
        if holder(places.lock) is None:
            remove_lifeline(lifeline_path(places))
            address = control_address(self.store.locations, self.record.name)
            for path in (address.link, address.socket):
                with suppress(OSError):
                    path.unlink()


@dataclass(frozen=True)
class Beginning:
    """Where the audit log of a view ended when a run began, and when that was."""

    view: View
    when: int
    log: tuple[int, int] | None = None

    @classmethod
    def of(cls, view: View, when: int) -> "Beginning":
        try:
            status = view.audit_log.stat()
        except OSError:
            return cls(view, when)
        return cls(view, when, (status.st_ino, status.st_size))


def _held_by_others(path: Path) -> bool:
    other = hold(path)
    if other is None:
        return False
    try:
        flock(other, LOCK_EX | LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(other)
    return False


def join_view(store: Store, name: str) -> View | None:
    """Use the view of the sandbox called *name* if it is served; None when it is not."""
    while True:
        sandbox = observe(store, store.load(name), MountTable.read())
        if not sandbox.held:
            return None
        joined = _join(store, sandbox)
        if joined is not None:
            return joined
        # It is being started, changed by a command, or about to end.
        if sandbox.pid is None or not _wait_for(sandbox.pid):
            from sandboxfs.cli.planning import refuse_if_held

            refuse_if_held(observe(store, sandbox.record, MountTable.read()))


def _join(store: Store, sandbox: Sandbox) -> View | None:
    path = lifeline_path(store.places(sandbox.name))
    if sandbox.pid is None or sandbox.state != "mounted" or is_ending(path):
        return None
    lifeline = hold(path)
    if lifeline is None and is_ending(path):
        return None
    if lifeline is not None:
        flock(lifeline, LOCK_SH)
    try:
        watch = os.pidfd_open(sandbox.pid)
    except ProcessLookupError:
        if lifeline is not None:
            os.close(lifeline)
        return None
    return View(
        store,
        sandbox.record,
        sandbox.pid,
        watch,
        lifeline,
        joined=True,
        resumed=True,
        warnings=_interruption(store, sandbox),
    )


def _interruption(store: Store, sandbox: Sandbox) -> tuple[str, ...]:
    from sandboxfs.cli.record_list import interruption

    found = interruption(store.places(sandbox.name))
    return () if found is None else (found,)


def _wait_for(pid: int) -> bool:
    from sandboxfs.control.unmounting import ProcessWatch

    with ProcessWatch([pid]) as watch:
        return watch.wait_for_all(_PATIENCE)
