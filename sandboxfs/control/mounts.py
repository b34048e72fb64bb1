"""What is mounted where, asked of the kernel's table and never of the mounts?

Looking at a mountpoint whose daemon died fails, and whose daemon hangs, hangs. So nothing here touches a
path that the table lists as ours; `is_dead` is the one exception, and it looks from a thread it can leave
behind.
"""

import errno
import os
import re
import threading
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

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
    """Read the text of a mountinfo file; lines of an unknown shape are left out (see proc(5))."""
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


def mounts_below(place: Path) -> list[Mount]:
    """The mounts on places below *place*, which must be resolved; all other lines are hardly looked at."""
    content = _MOUNTINFO.read_bytes()
    if place != Path("/"):
        beginning = b" " + re.sub(rb"[ \t\n\\]", lambda found: b"\\%03o" % found[0][0], bytes(place)) + b"/"
        content = b"\n".join(line for line in content.splitlines() if beginning in line)
    return MountTable(parse_mountinfo(content)).below(place)


class MountTable:
    """The mounts that this process sees, as they were when it was read."""

    def __init__(self, mounts: Iterable[Mount]) -> None:
        self._mounts = list(mounts)
        # The last of several mounts on one place is the one on top.
        self._by_place = {mount.mountpoint: mount for mount in self._mounts}

    @classmethod
    def read(cls) -> "MountTable":
        return cls(parse_mountinfo(_MOUNTINFO.read_bytes()))

    def at(self, path: Path) -> Mount | None:
        """Return the mount on *path*, which must be resolved."""
        return self._by_place.get(path)

    def has_device(self, device: str) -> bool:
        """Say whether a filesystem with that device number is mounted."""
        return any(mount.device == device for mount in self._mounts)

    def below(self, path: Path) -> list[Mount]:
        """Return the mounts on places below *path*, which must be resolved."""
        return [
            mount
            for mount in self._mounts
            if mount.mountpoint != path and mount.mountpoint.is_relative_to(path)
        ]

    def resolve(self, path: str | Path, keep: Iterable[Path] = ()) -> Path:
        """Make *path* absolute and follow its links, looking at nothing that is or lies on our mounts.

        Nor is anything looked at that is or lies below one of *keep*, which must be resolved.
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
            if self._on_ours(here) or any(here.is_relative_to(place) for place in kept):
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

    def _on_ours(self, path: Path) -> bool:
        places = (self._by_place.get(place) for place in (path, *path.parents))
        nearest = next((mount for mount in places if mount is not None), None)
        return nearest is not None and nearest.ours


def is_dead(mount: Mount, patience: float = 2.0) -> bool:
    """Say whether the kernel has lost the daemon of *mount*; one that merely does not answer is not dead."""
    found: list[int | None] = []

    def look() -> None:
        try:
            os.statvfs(mount.mountpoint)
        except OSError as error:
            found.append(error.errno)

    # A request to a hung daemon can be waited for without end; the thread ends with this process.
    thread = threading.Thread(target=look, daemon=True)
    thread.start()
    thread.join(patience)
    return found == [errno.ENOTCONN]
