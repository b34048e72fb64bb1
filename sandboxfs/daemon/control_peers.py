"""Who is asking, and does it live inside the view?

The kernel says who connected; /proc says where that process stands. A process whose root or current
directory is on our mount lives in the view, and so does one for which our mount lies where it does not lie
for us: it was put into a world made of the view. Nothing here asks the mount anything, which would be asking
ourselves. A process that left the view before it asked is not recognised: keeping it from the socket is the
business of whatever confines it.
"""

import ctypes
import os
import socket
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from sandboxfs.control.mounts import FSTYPE, Mount, MountTable, parse_mountinfo

_AT_FDCWD = -100
_AT_STATX_DONT_SYNC = 0x4000
_STATX_SIZE = 256
# Where struct statx keeps stx_dev_major and stx_dev_minor.
_STATX_DEVICE = struct.Struct("@136xII")

_libc = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True)
class Peer:
    """The process that connected, as the kernel vouches for it; 0 for a *pid* that is not visible here."""

    pid: int
    uid: int
    gid: int

    @property
    def trusted(self) -> bool:
        """Say whether it may ask at all: our own user, and root."""
        return self.uid in (0, os.geteuid())


class _Connected(Protocol):
    def getsockopt(self, level: int, option: int, size: int, /) -> bytes: ...


def peer_of(connection: _Connected) -> Peer:
    """Ask the kernel who connected *connection*."""
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    pid, uid, gid = struct.unpack("3i", credentials)
    return Peer(pid, uid & 0xFFFFFFFF, gid & 0xFFFFFFFF)


class ViewWatch:
    """Tells the processes that live in the view mounted at *mountpoint*, for as long as it is served."""

    def __init__(self, mountpoint: Path) -> None:
        self._mountpoint = mountpoint
        self._device: str | None = None

    def objection(self, peer: Peer) -> str | None:
        """Say why *peer* is to be taken for a process inside the view; None when nothing speaks for it."""
        table = MountTable.read()
        mount = table.at(self._mountpoint)
        if mount is not None and mount.ours:
            # Remembered, because a mount that was detached lazily goes on being used.
            self._device = mount.device
        if self._device is None or peer.pid == 0:
            return None
        try:
            return _objection(peer.pid, self._device, self._mountpoint, table)
        except PermissionError:
            # Root is not ours to look at, and not ours to keep in.
            return None if peer.uid == 0 and os.geteuid() != 0 else "it cannot be told where it stands"
        except OSError:
            # A client waits for its answer; one that is gone has handed the connection to another process.
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
    """Return the number of the device that *path* leads to, as mountinfo has it, without asking the device.

    FUSE answers a statx that wants nothing, and may be out of date, from what the kernel knows: a daemon that
    hangs, or that is ourselves, is not asked.
    """
    answer = ctypes.create_string_buffer(_STATX_SIZE)
    if _libc.statx(_AT_FDCWD, os.fsencode(path), _AT_STATX_DONT_SYNC, 0, answer) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), path)
    major, minor = _STATX_DEVICE.unpack_from(answer.raw)
    return f"{major}:{minor}"
