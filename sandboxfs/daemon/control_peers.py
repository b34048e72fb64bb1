"""Control peers: the processes that connect, which of them are inside the view, and their order of service.

The kernel names the process that connected; /proc tells where that process stands. A process is inside the
view when its root or current directory is on the daemon's mount, or when its mount namespace has the mount at
a path where the daemon's namespace does not: then the process was confined to the view. No request goes to
the mount, because the daemon itself would have to answer. A process that left the view before it connected is
not recognised: the confinement must keep such a process from the socket.

Every connection is accepted and then waits for a place. One process holds a few places, and all processes
inside the view together fewer. A free place goes to the process that holds the fewest. While a connection
waits, a client that neither sends nor receives loses its place after a moment. So no number of connections
keeps the owner's commands out.
"""

import ctypes
import os
import socket
import struct
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import trio

from sandboxfs.control.mount_table import FSTYPE, Mount, MountTable, parse_mountinfo
from sandboxfs.errors import SandboxBusy

_AT_FDCWD = -100
_AT_STATX_DONT_SYNC = 0x4000
_STATX_SIZE = 256
# The offset of stx_dev_major and stx_dev_minor in struct statx.
_STATX_DEVICE = struct.Struct("@136xII")

_libc = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True)
class Peer:
    """The process that connected, as the kernel reports it (SO_PEERCRED); a *pid* not visible here is 0."""

    pid: int
    uid: int
    gid: int

    @property
    def trusted(self) -> bool:
        """Say whether the peer may ask at all: the daemon's own user and root may."""
        return self.uid in (0, os.geteuid())


class _Connected(Protocol):
    def getsockopt(self, level: int, option: int, size: int, /) -> bytes: ...


def peer_of(connection: _Connected) -> Peer:
    """Ask the kernel who connected *connection*."""
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    pid, uid, gid = struct.unpack("3i", credentials)
    return Peer(pid, uid & 0xFFFFFFFF, gid & 0xFFFFFFFF)


class ViewWatch:
    """Recognises processes inside the view mounted at *mountpoint*, for as long as the view is served."""

    def __init__(self, mountpoint: Path) -> None:
        self._mountpoint = mountpoint
        self._device: str | None = None

    def objection(self, peer: Peer) -> str | None:
        """Return the reason to count *peer* as a process inside the view; None when there is no reason."""
        table = MountTable.read()
        mount = table.at(self._mountpoint)
        if mount is not None and mount.ours:
            # Remembered, because programs go on using a mount that was detached lazily.
            self._device = mount.device
        if self._device is None or peer.pid == 0:
            return None
        try:
            return _objection(peer.pid, self._device, self._mountpoint, table)
        except PermissionError:
            # The daemon may not look at root's processes, and does not confine root.
            return None if peer.uid == 0 and os.geteuid() != 0 else "it cannot be told where it stands"
        except OSError:
            # A client waits for its answer; a client that has ended gave the connection to another process.
            return "the process that connected is gone"


def _objection(pid: int, device: str, mountpoint: Path, table: MountTable) -> str | None:
    for link in ("root", "cwd"):
        if device_of(f"/proc/{pid}/{link}") == device:
            return f"its {'root' if link == 'root' else 'current'} directory is in the view"
    with open(f"/proc/{pid}/mountinfo", "rb") as content:
        seen = _places(parse_mountinfo(content.read()), device)
    if seen - _places(table.below(Path("/")), device) - {mountpoint}:
        return "it has the view where others have the workspace"
    return None


def _places(mounts: list[Mount], device: str) -> set[Path]:
    return {mount.mountpoint for mount in mounts if mount.device == device and mount.fstype == FSTYPE}


def device_of(path: str) -> str:
    """Return the device number of the object at *path*, as in mountinfo, without a request to its daemon.

    The kernel answers a statx with an empty mask and AT_STATX_DONT_SYNC from its cache. The daemon of the
    mount may hang, or be this process.
    """
    answer = ctypes.create_string_buffer(_STATX_SIZE)
    if _libc.statx(_AT_FDCWD, os.fsencode(path), _AT_STATX_DONT_SYNC, 0, answer) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), path)
    major, minor = _STATX_DEVICE.unpack_from(answer.raw)
    return f"{major}:{minor}"


# Places in all, for one process, and for all processes inside the view.
PLACES, EACH, INSIDE = 32, 8, 4
# The number of connections that may wait for a place; beyond it the process with most of them loses one.
_WAITING = 256
# Seconds that an idle client keeps a place while another connection waits.
_GRACE = 0.2
# Limits on one process's requests that only ask: the size of a burst, and then the rate a second.
_AT_ONCE, _RATE = 50, 100.0
_REMEMBERED = 1024


@dataclass(eq=False)
class ControlConnection:
    """One connection, waiting or served. *idle_since* is set while the client has to send or to receive."""

    process: int
    inside: bool
    given: trio.Event = field(default_factory=trio.Event)
    scope: trio.CancelScope = field(default_factory=trio.CancelScope)
    idle_since: float | None = None
    # The reason why the place was taken away.
    lost: SandboxBusy | None = None

    def client(self) -> None:
        """The client has to send or to receive."""
        self.idle_since = time.monotonic()

    def daemon(self) -> None:
        """The daemon has to answer."""
        self.idle_since = None

    def take_away(self, why: str) -> None:
        self.lost = SandboxBusy(why, hint="try again in a moment")
        self.scope.cancel()


class ControlConnections:
    """The places of one server."""

    def __init__(self, total: int = PLACES) -> None:
        self._total = total
        self._waiting: list[ControlConnection] = []
        self._held: list[ControlConnection] = []
        self._next_turn: dict[int, float] = {}

    async def serve(
        self, process: int, inside: Callable[[], bool], attend: Callable[[ControlConnection], Awaitable[None]]
    ) -> SandboxBusy | None:
        """Wait for a place and *attend* there; return the reason when the place was taken away.

        *inside* tells whether the process is inside the view; called only when places are wanted.
        """
        place = ControlConnection(process, len(self._held) >= INSIDE and inside())
        with place.scope:
            self._waiting.append(place)
            try:
                self._make_room()
                await self._wait(place)
                await attend(place)
            finally:
                for places in (self._waiting, self._held):
                    if place in places:
                        places.remove(place)
                self._give()
        return place.lost

    async def turn(self, process: int) -> None:
        """Wait until *process* may make its next request that only asks."""
        now = trio.current_time()
        if len(self._next_turn) > _REMEMBERED:
            self._next_turn = {one: at for one, at in self._next_turn.items() if at > now}
        at = max(now, self._next_turn.get(process, now)) + 1 / _RATE
        self._next_turn[process] = at
        await trio.sleep_until(at - _AT_ONCE / _RATE)

    async def _wait(self, place: ControlConnection) -> None:
        self._give()
        while not place.given.is_set():
            with trio.move_on_after(_GRACE):
                await place.given.wait()
            if not place.given.is_set():
                self._shed()

    def _give(self) -> None:
        """Give free places to waiting connections, the process that holds the fewest first."""
        while len(self._held) < self._total:
            held = Counter(place.process for place in self._held)
            inside = sum(place.inside for place in self._held)
            allowed = [
                place
                for place in self._waiting
                if held[place.process] < EACH and (not place.inside or inside < INSIDE)
            ]
            if not allowed:
                return
            chosen = min(allowed, key=lambda place: held[place.process])
            self._waiting.remove(chosen)
            self._held.append(chosen)
            chosen.client()
            chosen.given.set()

    def _shed(self) -> None:
        """Take a place from an idle client when no place is free."""
        if len(self._held) < self._total:
            return
        before = time.monotonic() - _GRACE
        idle = [place for place in self._held if place.idle_since is not None and place.idle_since <= before]
        if idle:
            held = Counter(place.process for place in self._held)
            # Of the process that holds most, the first connection: the one that has held its place longest.
            max(idle, key=lambda place: held[place.process]).take_away("others wait to ask the daemon")

    def _make_room(self) -> None:
        if len(self._waiting) > _WAITING:
            waiting = Counter(place.process for place in self._waiting)
            process, count = waiting.most_common(1)[0]
            newest = [place for place in self._waiting if place.process == process][-1]
            newest.take_away(f"{count} connections of process {process} wait to ask the daemon already")


class Turn:
    """Mutual exclusion of control requests; a request that waits too long is told which one is under way."""

    def __init__(self, patience: float) -> None:
        self._patience = patience
        self._lock = trio.Lock()
        self._holder = ""
        self._since = 0.0

    @asynccontextmanager
    async def taken(self, verb: str, process: int) -> AsyncIterator[None]:
        """Wait for the turn and hold it; after the patience raise `SandboxBusy`, naming the holder."""
        with trio.move_on_after(self._patience):
            await self._lock.acquire()
        if not self._lock.locked() or self._lock.statistics().owner is not trio.lowlevel.current_task():
            seconds = time.monotonic() - self._since
            raise SandboxBusy(
                f"'{verb}' waits for {self._holder}, which has been under way for {seconds:.0f} s",
                hint="try again when that is done",
            )
        self._holder, self._since = f"'{verb}' of process {process}", time.monotonic()
        try:
            yield
        finally:
            self._lock.release()
