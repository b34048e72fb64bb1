"""Which processes use a mount?

Asked of /proc alone: open files by the mount id in their fdinfo, maps by device number, directories by the
text of their links, each in the process's own mount namespace. Nothing here looks at the mount, which may
hang. Processes of other users stay unseen without privilege.
"""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from sandboxfs.control.mounts import Mount, MountTable, parse_mountinfo


@dataclass(frozen=True)
class User:
    """A process that keeps a mount busy."""

    pid: int
    command: str

    def __str__(self) -> str:
        return f"{self.command} (pid {self.pid})"


def users_of(mount: Mount, *, besides: set[int]) -> list[User]:
    """List the processes that use *mount*, by pid, leaving out *besides* (the daemon itself)."""
    return _users(mount, besides, [mount])


def users_elsewhere(mount: Mount, *, besides: set[int]) -> list[User]:
    """List the processes of other mount namespaces that use *mount*, which is no longer mounted in this one.

    Its id is free, and the next to be mounted has it. Its device is so too once nobody uses it.
    """
    users = _users(mount, besides, [])
    # Somebody else's, then: whatever is mounted by a daemon is mounted in this namespace first.
    return [] if MountTable.read().has_device(mount.device) else users


def _users(mount: Mount, besides: set[int], here: list[Mount]) -> list[User]:
    """List the processes that use *mount*, or what of it is *here* if they are in this mount namespace."""
    users = []
    for entry in os.listdir("/proc"):
        if not entry.isdigit() or int(entry) in besides:
            continue
        process = Path("/proc", entry)
        try:
            if _uses(process, mount, here):
                users.append(User(int(entry), _command(process)))
        except OSError:
            # It ended, or it is not ours to look at.
            continue
    return sorted(users, key=lambda user: user.pid)


def _uses(process: Path, mount: Mount, here: list[Mount]) -> bool:
    copies = _copies(process, mount, here)
    return _stands_in(process, copies) or _has_open(process, copies) or _maps(process, mount)


def _copies(process: Path, mount: Mount, here: list[Mount]) -> list[Mount]:
    """The mount as the process's own mount namespace has it, under other ids and perhaps in other places."""
    try:
        if os.readlink(process / "ns/mnt") == os.readlink("/proc/self/ns/mnt"):
            return here
        table = parse_mountinfo((process / "mountinfo").read_bytes())
    except OSError:
        return here
    return [copy for copy in table if (copy.device, copy.fstype) == (mount.device, mount.fstype)]


def _stands_in(process: Path, copies: list[Mount]) -> bool:
    for link in ("cwd", "root", "exe"):
        try:
            target = Path(os.readlink(process / link))
        except OSError:
            continue
        if any(target.is_relative_to(copy.mountpoint) for copy in copies):
            return True
    return False


def _has_open(process: Path, copies: list[Mount]) -> bool:
    wanted = [f"mnt_id:\t{copy.mount_id}\n" for copy in copies]
    return any(line in text for text in _texts(process / "fdinfo") for line in wanted)


def _texts(directory: Path) -> Iterator[str]:
    try:
        names = os.listdir(directory)
    except OSError:
        return
    for name in names:
        try:
            yield (directory / name).read_text()
        except OSError:
            continue


def _maps(process: Path, mount: Mount) -> bool:
    major, _, minor = mount.device.partition(":")
    wanted = f"{int(major):02x}:{int(minor):02x}"
    try:
        lines = (process / "maps").read_text(errors="surrogateescape").splitlines()
    except OSError:
        return False
    return any(
        fields[3] == wanted for fields in (line.split(maxsplit=5) for line in lines) if len(fields) > 3
    )


def _command(process: Path) -> str:
    arguments = (process / "cmdline").read_bytes().split(b"\0")
    name = os.fsdecode(arguments[0]) or (process / "comm").read_text(errors="replace").strip()
    return os.path.basename(name) or "?"
