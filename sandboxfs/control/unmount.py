"""Unmounting, the processes that keep a mount busy, and waiting for the end of daemons.

umount2 detaches where the call is allowed, otherwise `fusermount3`.

The processes that use a mount are found in /proc alone: by the mount id in fdinfo for open files, the device
number for maps, the text of the links for directories, each in the process's own mount namespace. Nothing
looks at the mount, which may hang. Without privilege, processes of other users stay unseen.
"""

import ctypes
import errno
import os
import select
import signal
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from sandboxfs.control.mount_table import Mount, MountTable, is_dead, parse_mountinfo
from sandboxfs.errors import MountFailed
from sandboxfs.paths import find_program, quoted


@dataclass(frozen=True)
class User:
    """A process that keeps a mount busy."""

    pid: int
    command: str

    def __str__(self) -> str:
        return f"{self.command} (pid {self.pid})"


def users_of(mount: Mount, *, besides: set[int]) -> list[User]:
    """List the processes that use *mount*, by pid, without those in *besides* (the daemon itself)."""
    return _users(mount, besides, [mount])


def users_elsewhere(mount: Mount, *, besides: set[int]) -> list[User]:
    """List the processes of other mount namespaces that use *mount*, which is no longer mounted in this one.

    The kernel gives the free mount id to the next mount, and the device number too once no process uses it.
    """
    users = _users(mount, besides, [])
    # A mount here with this device number is another one: every daemon mounts in this namespace first.
    return [] if MountTable.read().has_device(mount.device) else users


def _users(mount: Mount, besides: set[int], here: list[Mount]) -> list[User]:
    """List the processes that use *mount*; for those in this mount namespace its mounts are *here*."""
    users = []
    for entry in os.listdir("/proc"):
        if not entry.isdigit() or int(entry) in besides:
            continue
        process = Path("/proc", entry)
        try:
            if _uses(process, mount, here):
                users.append(User(int(entry), _command(process)))
        except OSError:
            # The process has ended, or this user may not look at it.
            continue
    return sorted(users, key=lambda user: user.pid)


def _uses(process: Path, mount: Mount, here: list[Mount]) -> bool:
    copies = _copies(process, mount, here)
    return _stands_in(process, copies) or _has_open(process, copies) or _maps(process, mount)


def _copies(process: Path, mount: Mount, here: list[Mount]) -> list[Mount]:
    """The mount as in the process's own mount namespace, under other ids and perhaps at other mountpoints."""
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


_MNT_DETACH = 2
_UMOUNT_NOFOLLOW = 8


def detach(mountpoint: Path, *, lazy: bool) -> None:
    """Unmount *mountpoint*; raise OSError EBUSY when it is in use, EINVAL when nothing is mounted there.

    With *lazy* the mount leaves the mountpoint at once, and lives on for processes that still use it.
    """
    flags = _UMOUNT_NOFOLLOW | (_MNT_DETACH if lazy else 0)
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.umount2(os.fsencode(mountpoint), flags) == 0:
        return
    failure = ctypes.get_errno()
    if failure != errno.EPERM:
        raise OSError(failure, os.strerror(failure), str(mountpoint))
    _detach_as_user(mountpoint, lazy=lazy)


def detach_dead(mount: Mount) -> bool:
    """Detach *mount* if its daemon died, and say whether the daemon died; a living mount is left alone."""
    if not is_dead(mount):
        return False
    try:
        detach(mount.mountpoint, lazy=True)
    except OSError as error:
        # EINVAL: another process was faster.
        if error.errno != errno.EINVAL:
            place = quoted(mount.mountpoint)
            raise MountFailed(f"cannot detach the dead mount at {place}: {error.strerror}") from error
    return True


def _detach_as_user(mountpoint: Path, *, lazy: bool) -> None:
    helper = find_program("fusermount3")
    if helper is None:
        raise MountFailed(f"cannot unmount {quoted(mountpoint)}: no fusermount3", hint="apt install fuse3")
    command = [str(helper), "-u", *(["-z"] if lazy else []), "--", os.fspath(mountpoint)]
    # The C locale, because fusermount3 gives the reason only in words.
    environment = {**os.environ, "LC_ALL": "C"}
    done = subprocess.run(command, capture_output=True, env=environment, check=False)
    if done.returncode == 0:
        return
    complaint = done.stderr.decode(errors="replace").strip()
    if "busy" in complaint:
        raise OSError(errno.EBUSY, os.strerror(errno.EBUSY), str(mountpoint))
    if "not found" in complaint or "not mounted" in complaint:
        raise OSError(errno.EINVAL, os.strerror(errno.EINVAL), str(mountpoint))
    raise MountFailed(f"cannot unmount {quoted(mountpoint)}: {complaint}")


class ProcessWatch:
    """Waits for the end of processes, by pidfd: a reused id is never mistaken for the process."""

    def __init__(self, pids: list[int]) -> None:
        self._descriptors: set[int] = set()
        for pid in pids:
            with suppress(OSError):
                self._descriptors.add(os.pidfd_open(pid))

    def wait_for_any(self, seconds: float) -> None:
        """Return when one of the processes has ended, or after *seconds*."""
        for descriptor in self._poll(seconds):
            self._descriptors.discard(descriptor)
            os.close(descriptor)

    def wait_for_all(self, seconds: float) -> bool:
        """Wait until every process has ended; False when none has ended for *seconds* and one still runs."""
        while self._descriptors:
            before = len(self._descriptors)
            self.wait_for_any(seconds)
            if len(self._descriptors) == before:
                return False
        return True

    def tell_to_end(self) -> None:
        """Send SIGTERM to the processes that still run."""
        for descriptor in self._descriptors:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(descriptor, signal.SIGTERM)

    def close(self) -> None:
        for descriptor in self._descriptors:
            os.close(descriptor)
        self._descriptors.clear()

    def __enter__(self) -> "ProcessWatch":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _poll(self, seconds: float) -> list[int]:
        poll = select.poll()
        for descriptor in self._descriptors:
            poll.register(descriptor, select.POLLIN)
        return [descriptor for descriptor, _ in poll.poll(seconds * 1000)]
