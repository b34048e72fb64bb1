"""`sandboxfs rm`: remove sandboxes, and with them every change that was not taken over.

Each sandbox is held while it is removed and disappears from listings in one step. A commit that was
interrupted is brought to its end first: without its record the workspace would stay in the middle of it.
"""

import argparse
import os
from contextlib import suppress
from pathlib import Path

from sandboxfs.cli import output
from sandboxfs.cli.parser import Parser, verb_parser
from sandboxfs.cli.planning import refuse_if_held
from sandboxfs.cli.recovering import bring_to_end, interrupted
from sandboxfs.control.mounts import MountTable
from sandboxfs.control.sandboxes import observe
from sandboxfs.control.unmounting import detach_dead
from sandboxfs.errors import NoSuchSandbox, SandboxBusy, SandboxError, UsageError
from sandboxfs.paths import quoted
from sandboxfs.state.locations import Locations
from sandboxfs.state.lock import SandboxLock
from sandboxfs.state.record import SandboxRecord
from sandboxfs.state.store import Store, check_name
from sandboxfs.state.tree import is_empty

DESCRIPTION = """\
Remove sandboxes with everything in them. A mounted sandbox is refused; one that holds
changes, or whose record cannot be read, is removed only with --force. The workspace is
not touched, except to finish or take back a commit that was interrupted; a sandbox for
which that fails stays."""

EXAMPLES = ["sandboxfs rm app", "sandboxfs rm --force app trial"]


class Arguments(argparse.Namespace):
    names: list[str]
    force: bool
    json: bool


def parser() -> Parser:
    made = verb_parser("rm", DESCRIPTION, EXAMPLES, [NoSuchSandbox, SandboxBusy])
    made.add_argument("names", nargs="+", metavar="NAME", help="a sandbox to remove")
    made.add_argument("--force", action="store_true", help="remove it even if it holds changes")
    return made


def run(words: list[str]) -> int:
    arguments = parser().parse_args(words, namespace=Arguments())
    store = Store(Locations.from_environment())
    names = list(
        dict.fromkeys(name for given in arguments.names for name in (given, *_companions(store, given)))
    )
    # All are checked before the first is removed.
    records = {name: _check(store, name, force=arguments.force) for name in names}
    for name, record in records.items():
        _remove(store, name, record)
        if not arguments.json:
            output.note(f"removed sandbox '{name}'")
    store.sweep()
    if arguments.json:
        output.document({"removed": names})
    return 0


def _companions(store: Store, name: str) -> list[str]:
    """The sandboxes that serve nothing but directories beside the one called *name*."""
    return [record.name for record in store.readable() if record.companion_of == name]


def _check(store: Store, name: str, *, force: bool) -> SandboxRecord | None:
    """Raise unless the sandbox may be removed; None when it may although its record is unreadable."""
    check_name(name)
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
    if force and _is_gone(record.workspace):
        # Nothing is left that could be in the middle of anything.
        return record
    try:
        bring_to_end(store, sandbox)
    except UsageError as error:
        error.hint = _by_hand(store, name)
        raise
    if not force and not is_empty(store.places(name).upper):
        raise UsageError(
            f"sandbox '{name}' holds changes to {str(record.workspace)!r}",
            hint=f"'sandboxfs rm --force {name}' throws them away",
        )
    return record


def _refuse_interrupted(store: Store, name: str) -> None:
    what = interrupted(store.places(name))
    if what is not None:
        raise UsageError(
            f"{what} of sandbox '{name}' was interrupted, and it is not known in which workspace",
            hint=_by_hand(store, name),
        )


def _refuse_begun(store: Store, record: SandboxRecord) -> None:
    """Refuse to remove what somebody began between the check and now; the sandbox is held."""
    if not _is_gone(record.workspace) and interrupted(store.places(record.name)) is not None:
        raise SandboxBusy(f"sandbox '{record.name}' is being reviewed by another process")


def _is_gone(workspace: Path) -> bool:
    try:
        os.lstat(workspace)
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return False


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
    finally:
        lock.release()
