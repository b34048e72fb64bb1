"""Removing sandboxes: those that hold nothing, and by name, with every change that was not taken over.

A run that leaves nothing behind leaves no sandbox, and `prune` removes those that are empty. A sandbox is
empty together with its companions or not at all.

Each sandbox is held while it is removed and disappears from listings in one step. A commit that was
interrupted is brought to its end first: without its record the workspace would stay in the middle of it.
"""

import os
import stat
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Protocol

from sandboxfs.control.mount_table import MountTable, observe
from sandboxfs.control.unmount import detach_dead
from sandboxfs.errors import NoSuchSandbox, SandboxBusy, SandboxError, UsageError
from sandboxfs.paths import quoted
from sandboxfs.service.events import CallerContext, Events
from sandboxfs.service.mount_plan import refuse_if_held
from sandboxfs.service.workspace import is_another
from sandboxfs.state.disk import is_empty, released_reserve
from sandboxfs.state.locations import Locations, SandboxPlaces
from sandboxfs.state.lock import SandboxLock, claim, destinations_in
from sandboxfs.state.store import SandboxRecord, Store, check_name


class MadeView(Protocol):
    """What is known of the sandbox of a run's view when the run is over: was it there before?"""

    @property
    def resumed(self) -> bool: ...
    @property
    def store(self) -> Store: ...
    @property
    def record(self) -> SandboxRecord: ...


def remove_held(store: Store, name: str, record: SandboxRecord | None) -> None:
    """Remove the sandbox called *name*, whose lock the caller holds; an unreadable *record* is None."""
    try:
        if record is not None:
            mount = MountTable.read().at(record.mountpoint)
            if mount is not None and mount.ours:
                # A living one is of another sandbox that was given the same place.
                detach_dead(mount)
            if record.own_mountpoint:
                with suppress(OSError):
                    record.mountpoint.rmdir()
        store.remove(name)
    except OSError as error:
        raise UsageError(f"cannot remove sandbox '{name}': {error}") from error


IN_USE = "it is in use"


def companions_of(store: Store, name: str) -> list[SandboxRecord]:
    """Return the sandboxes that serve nothing but directories beside the one called *name*."""
    return [record for record in store.readable() if record.companion_of == name]


def remove_if_empty(store: Store, record: SandboxRecord, *, dry_run: bool = False) -> str | None:
    """Remove the sandbox of *record* with its companions if all are empty; return why not, if so."""
    family = [record, *companions_of(store, record.name)]
    with ExitStack() as held:
        try:
            for one in family:
                places = store.places(one.name)
                using = claim(places)
                lock = None if using is None else SandboxLock.acquire(places.lock)
                if using is not None:
                    held.callback(os.close, using)
                if lock is None:
                    return IN_USE
                held.callback(lock.release, used=False)
        except NoSuchSandbox:
            return IN_USE
        for one in family:
            holds = what_it_holds(store, one)
            if holds is not None:
                return holds
        for one in () if dry_run else reversed(family):
            remove_held(store, one.name, one)
    return None


def remove_made(views: Sequence[MadeView]) -> bool:
    """Remove the sandbox of a run, whose *views* are let go, if it was made for that run and is empty."""
    try:
        return not views[0].resumed and remove_if_empty(views[0].store, views[0].record) is None
    except SandboxError:
        # The sandbox stays, and 'prune' says why.
        return False


def remove_made_companions(views: Iterable[MadeView]) -> None:
    """Remove those companions of a run, whose *views* are let go, that were made for it and are empty."""
    for view in views:
        if not view.resumed:
            with suppress(SandboxError):
                remove_if_empty(view.store, view.record)


def what_it_holds(store: Store, record: SandboxRecord) -> str | None:
    """Say what is in the sandbox of *record* that somebody may want; None when it is empty."""
    places = store.places(record.name)
    if not is_empty(places.commits):
        return "it can undo a commit or discard"
    if not _is_untouched(places):
        return "programs left something in its home"
    if is_empty(places.upper):
        return None
    # Imported here: most sandboxes that are empty have an empty upper.
    from sandboxfs.review.scan import scan
    from sandboxfs.service.review import reviewed

    try:
        with reviewed(store, record) as layers:
            return "it holds changes" if scan(layers) else None
    except SandboxError as error:
        return f"its changes cannot be read: {error.message}"


def _is_untouched(places: SandboxPlaces) -> bool:
    """Say whether the private home has nothing but the mount destinations that sandboxfs made in it."""
    made = destinations_in(places.home_lock)
    ours = {parent for path in made for parent in (path, *path.parents)}
    pending = [PurePath()]
    while pending:
        directory = pending.pop()
        try:
            with os.scandir(places.private_home / directory) as listing:
                entries = list(listing)
        except FileNotFoundError:
            continue
        except OSError:
            return False
        for entry in entries:
            path = directory / entry.name
            status = entry.stat(follow_symlinks=False)
            empty_file = stat.S_ISREG(status.st_mode) and status.st_size == 0
            if path not in ours or not (stat.S_ISDIR(status.st_mode) or empty_file):
                return False
            if stat.S_ISDIR(status.st_mode):
                pending.append(path)
    return True


# By name, and all that are empty


@dataclass(frozen=True)
class RemovedSandbox:
    """A sandbox that was removed, or would be; nobody knows the *workspace* of one that cannot be read."""

    name: str
    workspace: Path | None

    def as_json(self) -> dict[str, object]:
        return {"name": self.name, "workspace": None if self.workspace is None else str(self.workspace)}


def remove_sandboxes(
    given: Sequence[str],
    caller: CallerContext,
    events: Events,
    removed: Callable[[RemovedSandbox], None],
    *,
    force: bool,
) -> tuple[RemovedSandbox, ...]:
    """Remove the sandboxes called as *given* with their companions; return all that went.

    One that is held is refused, and so is one with changes unless *force* is true. All are checked before the
    first is removed; *removed* is told of each sandbox when it has gone.
    """
    store = Store(Locations.from_environment(caller.environment))
    for name in given:
        check_name(name)
    names = dict.fromkeys(
        name for one in given for name in (one, *(other.name for other in companions_of(store, one)))
    )
    gone: list[RemovedSandbox] = []
    with released_reserve(store.locations):
        records = {name: _check(store, name, events, force=force) for name in names}
        for name, record in records.items():
            _remove(store, name, record)
            gone.append(RemovedSandbox(name, None if record is None else record.workspace))
            removed(gone[-1])
        store.sweep()
    return tuple(gone)


def _check(store: Store, name: str, events: Events, *, force: bool) -> SandboxRecord | None:
    """Raise unless the sandbox may be removed; None when it may although its record is unreadable."""
    try:
        record = store.load(name)
    except NoSuchSandbox:
        raise
    except SandboxError as error:
        if force:
            _refuse_interrupted(store, name)
            return None
        raise UsageError(error.message, hint=f"'sandboxfs rm --force {name}' removes it unread") from error
    sandbox = observe(store, record, MountTable.read())
    refuse_if_held(sandbox)
    if force and _is_gone(record):
        # Nothing is left that could be in the middle of anything.
        return record
    # Imported here, as all that reviews changes: the end of a run does without.
    from sandboxfs.service.review_session import bring_to_end

    try:
        bring_to_end(store, sandbox, events)
    except UsageError as error:
        error.hint = _by_hand(store, name)
        raise
    if not force and not is_empty(store.places(name).upper):
        _refuse_changes(store, record)
    return record


def _refuse_changes(store: Store, record: SandboxRecord) -> None:
    """Raise where a sandbox holds changes that a commit could take; ignored files alone are no reason."""
    from sandboxfs.service.listing import count_changes

    hint = f"'sandboxfs rm --force {record.name}' throws them away"
    try:
        counts = count_changes(store, record)
    except UsageError as error:
        raise UsageError(
            f"sandbox '{record.name}' holds something, and {error.message}", hint=hint
        ) from error
    number = counts.changes + counts.held + counts.git
    if number:
        what = f"{number:,} change{'' if number == 1 else 's'}"
        raise UsageError(
            f"sandbox '{record.name}' holds {what} to {str(record.workspace)!r}",
            hint=hint,
            details={
                "changes": counts.changes,
                "held": counts.held,
                "left_out": {"ignored": counts.ignored, "git": counts.git},
            },
        )


def _refuse_interrupted(store: Store, name: str) -> None:
    from sandboxfs.service.review_session import interrupted

    what = interrupted(store.places(name))
    if what is not None:
        raise UsageError(
            f"{what} of sandbox '{name}' was interrupted, and it is not known in which workspace",
            hint=_by_hand(store, name),
        )


def _refuse_begun(store: Store, record: SandboxRecord) -> None:
    """Refuse to remove what somebody began between the check and now; the sandbox is held."""
    from sandboxfs.service.review_session import interrupted

    if not _is_gone(record) and interrupted(store.places(record.name)) is not None:
        raise SandboxBusy(f"sandbox '{record.name}' is being reviewed by another process")


def _is_gone(record: SandboxRecord) -> bool:
    """Say whether the workspace is gone, or another directory is in its place."""
    try:
        os.lstat(record.workspace)
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return is_another(record)


def _by_hand(store: Store, name: str) -> str:
    return (
        "names that begin with '.sandboxfs-' in the workspace hold what it had; "
        f"if nothing is missed there, remove {quoted(store.places(name).home)} by hand"
    )


def _remove(store: Store, name: str, record: SandboxRecord | None) -> None:
    lock = SandboxLock.acquire(store.places(name).lock)
    if lock is None:
        raise SandboxBusy(f"sandbox '{name}' is held by another process")
    try:
        if record is not None:
            _refuse_begun(store, record)
        remove_held(store, name, record)
    finally:
        lock.release()


@dataclass(frozen=True)
class PrunedSandboxes:
    """The sandboxes that were *removed*, or would be, and those that were *kept*, each with the reason."""

    removed: tuple[RemovedSandbox, ...]
    kept: dict[str, str]


def remove_empty_sandboxes(caller: CallerContext, *, dry_run: bool) -> PrunedSandboxes:
    """Remove all sandboxes that hold nothing."""
    store = Store(Locations.from_environment(caller.environment))
    names = set(store.names())
    removed: list[RemovedSandbox] = []
    kept: dict[str, str] = {}
    for record in list(store.readable()):
        if record.companion_of is not None and record.companion_of in names:
            # It goes with the sandbox beside which it serves, or stays with it.
            continue
        family = [record, *companions_of(store, record.name)]
        why = remove_if_empty(store, record, dry_run=dry_run)
        if why is None:
            removed += [RemovedSandbox(one.name, one.workspace) for one in family]
        else:
            kept |= dict.fromkeys((one.name for one in family), why)
    if not dry_run:
        store.sweep()
    return PrunedSandboxes(tuple(removed), kept)
