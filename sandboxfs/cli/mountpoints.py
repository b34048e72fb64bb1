"""May a view be mounted on this place?

A place that the kernel lists as a mount of ours is only looked at when it is known not to hang.
"""

import os
import stat
from pathlib import Path

from sandboxfs.control.mounts import Mount, MountTable, is_dead
from sandboxfs.errors import MountFailed
from sandboxfs.paths import nearest_existing, quoted
from sandboxfs.state.lock import holder
from sandboxfs.state.record import SandboxRecord
from sandboxfs.state.store import Store


def check_mountpoint(store: Store, record: SandboxRecord, table: MountTable, *, mkdir: bool) -> Mount | None:
    """Raise `MountFailed` unless *record* can be mounted where it says.

    Returns the dead mount that has to be taken away first, if there is one. A missing mountpoint is fine
    when it is ours to make or *mkdir* says so.
    """
    place = record.mountpoint
    _check_relations(store, record)
    mount = table.at(place)
    if mount is not None:
        _refuse_living(store, mount)
        return mount
    try:
        _check_directory(place, may_make=mkdir or record.own_mountpoint)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise _unusable(place, reason or "unusable") from error
    return None


def _unusable(place: Path, reason: str, hint: str | None = None) -> MountFailed:
    return MountFailed(f"cannot mount at {quoted(place)}: {reason}", hint=hint)


def _check_relations(store: Store, record: SandboxRecord) -> None:
    place = record.mountpoint
    if place == record.workspace:
        raise _unusable(
            place, "it is the workspace", "choose another mountpoint; it may lie inside the workspace"
        )
    if record.workspace.is_relative_to(place):
        raise _unusable(place, f"the workspace {quoted(record.workspace)} lies inside it")
    if store.locations.state.is_relative_to(place) or place.is_relative_to(store.locations.sandboxes):
        raise _unusable(place, f"it would cover the state directory {quoted(store.locations.state)}")


def _refuse_living(store: Store, mount: Mount) -> None:
    place = mount.mountpoint
    if not mount.ours:
        raise _unusable(place, f"already a mount ({mount.fstype})")
    for other in store.readable():
        if other.mountpoint == place and holder(store.places(other.name).lock) is not None:
            raise _unusable(
                place,
                f"already the mount of sandbox '{other.name}'",
                f"end it with 'sandboxfs unmount -s {other.name}'",
            )
    if not is_dead(mount):
        raise _unusable(
            place, f"already a mount ({mount.fstype})", f"end it with 'sandboxfs unmount {place}'"
        )


def _check_directory(place: Path, *, may_make: bool) -> None:
    try:
        status = place.lstat()
    except FileNotFoundError:
        if not may_make:
            raise _unusable(place, "no such directory", "make it, or use --mkdir") from None
        parent = nearest_existing(place)
        if not parent.is_dir():
            raise _unusable(place, f"{quoted(parent)} is not a directory") from None
        if not os.access(parent, os.W_OK | os.X_OK):
            raise _unusable(place, f"cannot write in {quoted(parent)}") from None
        return
    if not stat.S_ISDIR(status.st_mode):
        raise _unusable(place, "not a directory")
    with os.scandir(place) as entries:
        if next(entries, None) is not None:
            raise _unusable(
                place, "the directory is not empty", "choose an empty directory, or a new one with --mkdir"
            )
    if not os.access(place, os.W_OK):
        raise _unusable(place, "permission denied")
