"""Review session: a sandbox held for commit, discard or undo, and recovery of what was interrupted.

One at a time: whoever commits, discards or undoes holds `review.lock`. Where a daemon serves the sandbox, it
is asked to edit the upper; where none does, the sandbox's own lock is taken as well, so that none can start.
What another command left unfinished is brought to its end first: its record is all that leads the workspace
out of the middle.

Where the workspace changed meanwhile (a conflict), or the host refused (no space, no permission), everything
is taken back, and the error says so. Where that could not be done for everything, the error names what is
left.
"""

import errno
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from fcntl import LOCK_UN, flock
from pathlib import Path

from sandboxfs.codec import Malformed
from sandboxfs.commit.finish import Recovered, ReviewTarget, UpperEditor, recover
from sandboxfs.commit.records import Records
from sandboxfs.commit.stage import CHANGING
from sandboxfs.control.control_socket import control_address
from sandboxfs.control.mount_table import MountTable, SandboxStatus, observe
from sandboxfs.control.upper_client import DaemonUpperClient, DirectUpperClient
from sandboxfs.errors import CommitConflict, SandboxBusy, SandboxError, UsageError
from sandboxfs.hostfs.directory import HostDir
from sandboxfs.hostfs.identity import ConcurrentChange
from sandboxfs.paths import nearest_existing, quoted
from sandboxfs.review.change import PathChange
from sandboxfs.review.summary import FlagContext
from sandboxfs.service.events import CallerContext, Events
from sandboxfs.service.mount_plan import refuse_if_held
from sandboxfs.service.review import flag_context, layer_paths
from sandboxfs.service.select import chosen_sandbox
from sandboxfs.service.workspace import check_same
from sandboxfs.state.disk import NO_ROOM, is_full
from sandboxfs.state.locations import Locations, SandboxPlaces
from sandboxfs.state.lock import SandboxLock, holder
from sandboxfs.state.store import Store
from sandboxfs.upper.sandbox_layers import Layers, open_layers

REVIEW_LOCK = "review.lock"


@contextmanager
def held_for_review(places: SandboxPlaces, *, used: bool = True) -> Iterator[None]:
    """Hold the sandbox for as long as the block runs; `SandboxBusy` when another command does.

    Housekeeping does not count as *used*.
    """
    lock = SandboxLock.acquire(places.home / REVIEW_LOCK)
    if lock is None:
        raise SandboxBusy(
            f"sandbox '{places.home.name}' is being reviewed by another process",
            hint="try again when it is done",
        )
    try:
        yield
    finally:
        lock.release(used=used)


FREE = (
    "'sandboxfs discard PATH' and then 'sandboxfs gc --older-than 0s' give room back; "
    "so does 'sandboxfs rm NAME'"
)
_DISK = (*NO_ROOM, errno.EROFS, errno.EIO)


def is_disk_error(error: BaseException) -> bool:
    """Say whether *error* is about a disk, and no mistake of ours."""
    return isinstance(error, OSError) and error.errno in _DISK


def free_hint(error: OSError) -> str | None:
    """Say what gives room back, where *error* is that the state directory has none."""
    return FREE if error.errno in NO_ROOM else None


def disk_error(
    doing: str, error: OSError, environment: Mapping[str, str], otherwise: str | None = None
) -> UsageError:
    """Tell that *doing* failed because of *error*; *otherwise* is what to say besides.

    The *environment* says where the state is kept.
    """
    state = nearest_existing(Locations.from_environment(environment).state)
    at = f" at {quoted(os.fsdecode(error.filename))}" if error.filename else ""
    if error.errno in NO_ROOM and is_full(state):
        return UsageError(f"{doing}: the file system of {quoted(state)} is full{at}", hint=_joined(otherwise))
    if error.errno == errno.EROFS and _is_read_only(state):
        return UsageError(f"{doing}: the file system of {quoted(state)} is read-only{at}", hint=otherwise)
    # Nobody tells whose quota it is, and what a full quota is about has free space.
    hint = _joined(otherwise) if error.errno == errno.EDQUOT else otherwise
    return UsageError(f"{doing}: {error.strerror}{at}", hint=hint)


def _joined(otherwise: str | None) -> str:
    return FREE if otherwise is None else f"{otherwise}; {FREE}"


def _is_read_only(path: Path) -> bool:
    return bool(os.statvfs(path).f_flag & os.ST_RDONLY)


UNCHANGED = "nothing was changed"
OTHERS = f"{UNCHANGED}; wait until it has been written, or name the other paths"


@contextmanager
def told(verb: str, environment: Mapping[str, str]) -> Iterator[None]:
    """Turn what can go wrong while *verb* is carried out into errors for a person."""
    try:
        yield
    except ConcurrentChange as surprise:
        message = f"cannot {verb} {quoted(surprise.path)}: {surprise.why}"
        hint = OTHERS if surprise.why == CHANGING else UNCHANGED
        raise _with_notes(CommitConflict(message, hint=hint), surprise) from surprise
    except BrokenPipeError:
        raise
    except OSError as error:
        raise _with_notes(disk_error(f"cannot {verb}", error, environment, UNCHANGED), error) from error


def _with_notes(error: SandboxError, cause: BaseException) -> SandboxError:
    left: Sequence[str] = getattr(cause, "__notes__", ())
    if left:
        error.hint = "; ".join(left)
        error.details["notes"] = list(left)
    return error


def conflict_error(verb: str, conflicts: Iterable[tuple[bytes, str]], hint: str) -> CommitConflict:
    """Make the error that names every conflict in its details."""
    found = list(conflicts)
    details = {"conflicts": [{"path": os.fsdecode(path), "why": why} for path, why in found]}
    if len(found) == 1:
        path, why = found[0]
        return CommitConflict(f"cannot {verb} {quoted(path)}: {why}", hint=hint, details=details)
    return CommitConflict(f"cannot {verb} {len(found):,} changes", hint=hint, details=details)


def why(finding: PathChange) -> tuple[bytes, str]:
    return finding.path, finding.conflict or "cannot be applied"


@dataclass(frozen=True)
class ReviewSession:
    """A sandbox that only this process reviews; *layers* are read anew for every plan."""

    store: Store
    sandbox: SandboxStatus
    site: ReviewTarget
    recovered: Recovered | None

    @contextmanager
    def layers(self) -> Iterator[Layers]:
        with open_layers(layer_paths(self.store, self.sandbox.record)) as layers:
            yield layers

    def flag_context(self) -> FlagContext:
        """What the flags of one plan are raised by, with a budget of its own."""
        return flag_context(self.sandbox.record)

    @property
    def mounts(self) -> frozenset[bytes]:
        """The mountpoints in the workspace, by their paths from there."""
        workspace = self.sandbox.record.workspace
        below = MountTable.read().below(workspace)
        return frozenset(os.fsencode(mount.mountpoint.relative_to(workspace)) for mount in below)


@contextmanager
def review_session(store: Store, sandbox: SandboxStatus, events: Events) -> Iterator[ReviewSession]:
    """Hold *sandbox* for a review that changes something."""
    places = store.places(sandbox.name)
    with ExitStack() as stack:
        _hold_review(places, sandbox.name, stack)
        editor = _editor(store, sandbox, stack)
        try:
            site = _open(places, sandbox, editor, stack)
        except OSError as error:
            where = quoted(os.fsdecode(error.filename)) if error.filename else f"sandbox '{sandbox.name}'"
            raise UsageError(f"cannot open {where}: {error.strerror}") from error
        yield ReviewSession(store, sandbox, site, _recovered(site, events))


def _hold_review(places: SandboxPlaces, name: str, stack: ExitStack) -> None:
    lock = SandboxLock.acquire(places.review_lock)
    if lock is None:
        by = holder(places.review_lock)
        who = "another process" if by is None or by.pid is None else f"process {by.pid}"
        raise SandboxBusy(f"sandbox '{name}' is being reviewed by {who}", hint="wait until it has ended")
    stack.callback(lock.release)
    # What the caller forked meanwhile has the lock as well.
    stack.callback(flock, lock.descriptor, LOCK_UN)


def _editor(store: Store, sandbox: SandboxStatus, stack: ExitStack) -> UpperEditor:
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
    return DirectUpperClient(places, sandbox.record.workspace)


def _daemon(store: Store, sandbox: SandboxStatus) -> UpperEditor:
    editor = DaemonUpperClient(control_address(store.locations, sandbox.name))
    # Now: when the workspace has changed it would be too late.
    editor.check()
    return editor


def _open(
    places: SandboxPlaces, sandbox: SandboxStatus, editor: UpperEditor, stack: ExitStack
) -> ReviewTarget:
    workspace, upper, index, home = (
        stack.enter_context(HostDir.at(path))
        for path in (sandbox.record.workspace, places.upper, places.index, places.home)
    )
    check_same(sandbox.record, workspace)
    baseline = stack.enter_context(HostDir.at(places.baseline)) if places.baseline.is_dir() else None
    return ReviewTarget(workspace, upper, index, baseline, Records(home), editor)


def _recovered(site: ReviewTarget, events: Events) -> Recovered | None:
    """Bring to its end what was interrupted, and say so."""
    try:
        done = recover(site)
    except OSError as error:
        raise disk_error("cannot recover what was interrupted", error, os.environ) from error
    except ConcurrentChange as surprise:
        why = f"{quoted(surprise.path)}: {surprise.why}"
        raise UsageError(f"cannot recover what was interrupted: {why}") from surprise
    except Malformed as error:
        raise UsageError(f"cannot recover what was interrupted: its journal is damaged: {error}") from error
    if done is None:
        return None
    word = "finished" if done.finished else "taken back"
    events.note(f"sandboxfs: {done.kind} {done.number} had been interrupted, and was {word}")
    for kept in done.kept:
        where = "" if kept.name is None else f"; what it had is kept in commits/{done.number}/pre"
        events.note(f"sandboxfs: left alone: {quoted(kept.path)}, which changed since{where}")
    return done


def chosen_status(name: str | None, caller: CallerContext, events: Events) -> tuple[Store, SandboxStatus]:
    """Return the sandbox that *caller* means to change, and the state that it is in."""
    store, record = chosen_sandbox(name, caller, events, changing=True)
    return store, observe(store, record, MountTable.read())


# Recovery without a change of its own


def interrupted(places: SandboxPlaces) -> str | None:
    """Name the commit, discard or undo that is not over; `UsageError` when its record cannot be read."""
    try:
        with HostDir.at(places.home) as home:
            record = Records(home).unfinished()
    except OSError as error:
        raise UsageError(f"cannot read {quoted(places.commits)}: {error.strerror}") from error
    if record is None:
        return None
    with record:
        return f"{record.about.kind} {record.number}"


def bring_to_end(store: Store, sandbox: SandboxStatus, events: Events) -> None:
    """Finish or take back what was interrupted, and say so; raise where that is impossible."""
    what = interrupted(store.places(sandbox.name))
    if what is None:
        return
    try:
        with review_session(store, sandbox, events):
            pass
    except SandboxBusy:
        raise
    except SandboxError as error:
        message = f"{what} of sandbox '{sandbox.name}' was interrupted and cannot be brought to its end"
        raise UsageError(f"{message}: {error.message}") from error
