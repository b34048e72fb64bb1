"""How does a verb get hold of a sandbox to change what it has changed?

One at a time: whoever commits, discards or undoes holds `review.lock`. Where a daemon serves the sandbox, it
is asked to settle the upper; where none does, the sandbox's own lock is taken as well, so that none can
start. What another command left unfinished is brought to its end first.
"""

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from sandboxfs.changes.journal_json import BadJournal
from sandboxfs.changes.layers import Layers, open_layers
from sandboxfs.changes.records import Records
from sandboxfs.changes.recovery import Recovered, recover
from sandboxfs.changes.site import Settler, Site
from sandboxfs.changes.steps import Surprise
from sandboxfs.cli import output
from sandboxfs.cli.planning import refuse_if_held
from sandboxfs.cli.reviewing import layer_paths
from sandboxfs.control.address import control_address
from sandboxfs.control.mounts import MountTable
from sandboxfs.control.sandboxes import Sandbox, observe
from sandboxfs.control.settling import DaemonSettler, DirectSettler
from sandboxfs.errors import SandboxBusy, UsageError
from sandboxfs.layers.hostdir import HostDir
from sandboxfs.paths import quoted
from sandboxfs.state.locations import SandboxPlaces
from sandboxfs.state.lock import SandboxLock, holder
from sandboxfs.state.store import Store


@dataclass(frozen=True)
class Bench:
    """A sandbox that only this process reviews; *layers* are read anew for every plan."""

    store: Store
    sandbox: Sandbox
    site: Site
    recovered: Recovered | None

    @contextmanager
    def layers(self) -> Iterator[Layers]:
        with open_layers(layer_paths(self.store, self.sandbox.record)) as layers:
            yield layers

    @property
    def root(self) -> bytes:
        return os.fsencode(self.sandbox.record.workspace)

    @property
    def mounts(self) -> frozenset[bytes]:
        """The mountpoints in the workspace, by their paths from there."""
        workspace = self.sandbox.record.workspace
        below = MountTable.read().below(workspace)
        return frozenset(os.fsencode(mount.mountpoint.relative_to(workspace)) for mount in below)


@contextmanager
def bench(store: Store, sandbox: Sandbox) -> Iterator[Bench]:
    """Hold *sandbox* for a review that changes something."""
    places = store.places(sandbox.name)
    with ExitStack() as stack:
        _hold_review(places, sandbox.name, stack)
        settler = _settler(store, sandbox, stack)
        try:
            site = _open(places, sandbox, settler, stack)
        except OSError as error:
            where = quoted(os.fsdecode(error.filename)) if error.filename else f"sandbox '{sandbox.name}'"
            raise UsageError(f"cannot open {where}: {error.strerror}") from error
        yield Bench(store, sandbox, site, _recovered(site))


def _hold_review(places: SandboxPlaces, name: str, stack: ExitStack) -> None:
    lock = SandboxLock.acquire(places.review_lock)
    if lock is None:
        by = holder(places.review_lock)
        who = "another process" if by is None or by.pid is None else f"process {by.pid}"
        raise SandboxBusy(f"sandbox '{name}' is being reviewed by {who}", hint="wait until it has ended")
    stack.callback(lock.release)


def _settler(store: Store, sandbox: Sandbox, stack: ExitStack) -> Settler:
    """Find out who may change the upper."""
    if sandbox.state == "mounted":
        return _daemon(store, sandbox)
    places = store.places(sandbox.name)
    lock = SandboxLock.acquire(places.lock)
    if lock is None:
        # A daemon may have begun to serve it in this very moment.
        now = observe(store, sandbox.record, MountTable.read())
        if now.state == "mounted":
            return _daemon(store, sandbox)
        refuse_if_held(now)
        raise SandboxBusy(f"sandbox '{sandbox.name}' is held by another process")
    stack.callback(lock.release)
    return DirectSettler(places, sandbox.record.workspace)


def _daemon(store: Store, sandbox: Sandbox) -> Settler:
    settler = DaemonSettler(control_address(store.locations, sandbox.name))
    # Now: when the workspace has changed it would be too late.
    settler.check()
    return settler


def _open(places: SandboxPlaces, sandbox: Sandbox, settler: Settler, stack: ExitStack) -> Site:
    workspace, upper, index, home = (
        stack.enter_context(HostDir.at(path))
        for path in (sandbox.record.workspace, places.upper, places.index, places.home)
    )
    baseline = stack.enter_context(HostDir.at(places.baseline)) if places.baseline.is_dir() else None
    return Site(workspace, upper, index, baseline, Records(home), settler)


def _recovered(site: Site) -> Recovered | None:
    """Bring to its end what was interrupted, and say so."""
    try:
        done = recover(site)
    except OSError as error:
        raise UsageError(f"cannot recover what was interrupted: {error.strerror}") from error
    except Surprise as surprise:
        why = f"{quoted(surprise.path)}: {surprise.why}"
        raise UsageError(f"cannot recover what was interrupted: {why}") from surprise
    except BadJournal as error:
        raise UsageError(f"cannot recover what was interrupted: its journal is damaged: {error}") from error
    if done is None:
        return None
    word = "finished" if done.finished else "taken back"
    output.note(f"sandboxfs: {done.kind} {done.number} had been interrupted, and was {word}")
    for kept in done.kept:
        where = "" if kept.name is None else f"; what it had is kept in commits/{done.number}/pre"
        output.note(f"sandboxfs: left alone: {quoted(kept.path)}, which changed since{where}")
    return done
