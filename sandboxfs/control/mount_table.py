"""The kernel's mount table, and by it the state of each sandbox: mounted, unmounted, dead or busy.

A stat of a mountpoint whose daemon died fails, and one of a mountpoint whose daemon hangs waits without end.
So nothing here touches a path that the table lists as a sandboxfs mount. The one exception is `is_dead`,
whose thread can be left behind.

The lock of a sandbox says whether a daemon lives; the mount table says whether its mount is there.
"""

import errno
import os
import re
import threading
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

from sandboxfs.hostfs.directory import HostDir
from sandboxfs.state.lock import holder
from sandboxfs.state.store import SandboxRecord, Store

FSTYPE = "fuse.sandboxfs"
_MOUNTINFO = Path("/proc/self/mountinfo")


@dataclass(frozen=True)
class Mount:
    """One line of `/proc/self/mountinfo`."""

    mount_id: int
    device: str
    mountpoint: Path
    fstype: str
    source: str

    @property
    def ours(self) -> bool:
        return self.fstype == FSTYPE


def parse_mountinfo(content: bytes) -> list[Mount]:
    """Parse a mountinfo file; lines of an unknown shape are left out (see proc(5))."""
    mounts = []
    for line in content.splitlines():
        before, separator, after = line.partition(b" - ")
        fields, trailer = before.split(b" "), after.split(b" ")
        if not separator or len(fields) < 6 or len(trailer) < 2:
            continue
        mounts.append(
            Mount(
                mount_id=int(fields[0]),
                device=fields[2].decode(),
                mountpoint=Path(_unescape(fields[4])),
                fstype=_unescape(trailer[0]),
                source=_unescape(trailer[1]),
            )
        )
    return mounts


def _unescape(field: bytes) -> str:
    plain = re.sub(rb"\\([0-7]{3})", lambda match: bytes([int(match[1], 8) & 0xFF]), field)
    return os.fsdecode(plain)


def mounts_below(place: Path, content: bytes | None = None) -> list[Mount]:
    """The mounts below *place*, which must be resolved; all other lines are filtered out before parsing.

    *content* is the content of a mountinfo file that was read already.
    """
    if content is None:
        content = _MOUNTINFO.read_bytes()
    if place != Path("/"):
        beginning = b" " + re.sub(rb"[ \t\n\\]", lambda found: b"\\%03o" % found[0][0], bytes(place)) + b"/"
        content = b"\n".join(line for line in content.splitlines() if beginning in line)
    return MountTable(parse_mountinfo(content)).below(place)


class MountTable:
    """The mounts that this process saw when the table was read."""

    def __init__(self, mounts: Iterable[Mount]) -> None:
        self._mounts = list(mounts)
        # The last of several mounts on one mountpoint is on top.
        self._by_place = {mount.mountpoint: mount for mount in self._mounts}

    @classmethod
    def read(cls) -> "MountTable":
        return cls(parse_mountinfo(_MOUNTINFO.read_bytes()))

    def at(self, path: Path) -> Mount | None:
        """Return the mount on *path*, which must be resolved."""
        return self._by_place.get(path)

    def has_device(self, device: str) -> bool:
        """Say whether a filesystem with this device number is mounted."""
        return any(mount.device == device for mount in self._mounts)

    def below(self, path: Path) -> list[Mount]:
        """Return the mounts below *path*, which must be resolved."""
        return [
            mount
            for mount in self._mounts
            if mount.mountpoint != path and mount.mountpoint.is_relative_to(path)
        ]

    def resolve(self, path: str | Path, keep: Iterable[Path] = ()) -> Path:
        """Make *path* absolute and follow its links, without touching any path on a sandboxfs mount.

        Nor is any path touched that is, or lies below, one of *keep*, which must be resolved.
        """
        kept = list(keep)
        pending = list(reversed(Path(path).absolute().parts[1:]))
        here = Path("/")
        followed = 0
        while pending:
            part = pending.pop()
            if part == "..":
                here = here.parent
                continue
            here = here / part
            if self.on_ours(here) or any(here.is_relative_to(place) for place in kept):
                continue
            try:
                target = Path(here.readlink())
            except OSError:
                continue
            followed += 1
            if followed > 40:
                raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(path))
            here = Path("/") if target.is_absolute() else here.parent
            pending.extend(reversed([part for part in target.parts if part != "/"]))
        return here

    def on_ours(self, path: Path) -> bool:
        """Say whether *path*, which must be resolved, lies on a sandboxfs mount."""
        places = (self._by_place.get(place) for place in (path, *path.parents))
        nearest = next((mount for mount in places if mount is not None), None)
        return nearest is not None and nearest.ours


def reach_on_the_host(path: Path) -> HostDir:
    """Open the directory at *path*, following links; one on a sandboxfs mount is refused.

    Its daemon may be the caller, which would wait for itself, or wait for the caller's.
    """
    table = MountTable.read()
    place = table.resolve(path)
    if table.on_ours(place):
        raise OSError(errno.EXDEV, os.strerror(errno.EXDEV), str(path))
    return HostDir.at(place)


def is_dead(mount: Mount, patience: float = 2.0) -> bool:
    """Say whether the daemon of *mount* has ended; a mount whose daemon only does not answer is not dead."""
    found: list[int | None] = []

    def look() -> None:
        try:
            os.statvfs(mount.mountpoint)
        except OSError as error:
            found.append(error.errno)

    # A hung daemon may never answer the request; the thread ends with this process.
    thread = threading.Thread(target=look, daemon=True)
    thread.start()
    thread.join(patience)
    return found == [errno.ENOTCONN]


State = Literal["mounted", "unmounted", "dead"]


@dataclass(frozen=True)
class SandboxStatus:
    """The state of a sandbox at one moment.

    *pid* is the process that holds the sandbox. An unmounted sandbox with a *pid* is starting, is being
    changed by a command, or was detached and still serves programs that have its files open.
    """

    record: SandboxRecord
    state: State
    pid: int | None
    held: bool
    uptime: float | None
    mount: Mount | None

    @property
    def name(self) -> str:
        return self.record.name


def observe(store: Store, record: SandboxRecord, table: MountTable) -> SandboxStatus:
    """Return the state of the sandbox of *record*."""
    held_by = holder(store.places(record.name).lock)
    mount = table.at(record.mountpoint)
    if mount is not None and not mount.ours:
        mount = None
    if held_by is not None:
        state: State = "mounted" if mount is not None else "unmounted"
        uptime = max(0.0, time.time() - held_by.since)
        return SandboxStatus(record, state, held_by.pid, held=True, uptime=uptime, mount=mount)
    # Another sandbox may have the same mountpoint now: then the mount is that sandbox's, and not dead.
    if mount is not None and not _held_elsewhere(store, record):
        return SandboxStatus(record, "dead", None, held=False, uptime=None, mount=mount)
    return SandboxStatus(record, "unmounted", None, held=False, uptime=None, mount=None)


def _held_elsewhere(store: Store, record: SandboxRecord) -> bool:
    return any(
        other.name != record.name
        and other.mountpoint == record.mountpoint
        and holder(store.places(other.name).lock) is not None
        for other in store.readable()
    )


def last_use(store: Store, record: SandboxRecord) -> datetime:
    """Return when a process last began to serve or review the sandbox of *record*; while one does, now."""
    places = store.places(record.name)
    if holder(places.lock) is not None:
        return datetime.now(UTC)
    times = [record.created.timestamp()]
    for path in (places.lock, places.review_lock):
        with suppress(OSError):
            times.append(path.lstat().st_mtime)
    return datetime.fromtimestamp(max(times), UTC)
