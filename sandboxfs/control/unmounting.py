"""How is a mount taken away, and how does one know that its daemon has gone?

Detaching goes through the system call where that is allowed and through `fusermount3` where it is not.
"""

import ctypes
import errno
import os
import select
import shutil
import signal
import subprocess
from contextlib import suppress
from pathlib import Path

from sandboxfs.control.mounts import Mount, is_dead
from sandboxfs.errors import MountFailed
from sandboxfs.paths import quoted

_MNT_DETACH = 2
_UMOUNT_NOFOLLOW = 8


def detach(mountpoint: Path, *, lazy: bool) -> None:
    """Unmount *mountpoint*; raise OSError EBUSY when it is in use, EINVAL when nothing is mounted there.

    With *lazy* the name goes at once and the mount lives on for whoever still uses it.
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
    """Detach *mount* if its daemon died, and say whether it did; a living one is left alone."""
    if not is_dead(mount):
        return False
    try:
        detach(mount.mountpoint, lazy=True)
    except OSError as error:
        # EINVAL: somebody else was faster.
        if error.errno != errno.EINVAL:
            place = quoted(mount.mountpoint)
            raise MountFailed(f"cannot detach the dead mount at {place}: {error.strerror}") from error
    return True


def _detach_as_user(mountpoint: Path, *, lazy: bool) -> None:
    helper = shutil.which("fusermount3")
    if helper is None:
        raise MountFailed(f"cannot unmount {quoted(mountpoint)}: no fusermount3", hint="apt install fuse3")
    command = [helper, "-u", *(["-z"] if lazy else []), "--", os.fspath(mountpoint)]
    # The C locale, because the reason is told only in words.
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
    """Tells when one of some processes ends, never mistaking a reused id for the process."""

    def __init__(self, pids: list[int]) -> None:
        self._descriptors: set[int] = set()
        for pid in pids:
            with suppress(OSError):
                self._descriptors.add(os.pidfd_open(pid))

    def wait_for_any(self, seconds: float) -> None:
        """Return when one of the processes ended, or after *seconds*."""
        for descriptor in self._poll(seconds):
            self._descriptors.discard(descriptor)
            os.close(descriptor)

    def wait_for_all(self, seconds: float) -> bool:
        """Wait until every process ended; False when one still runs *seconds* after the last news."""
        while self._descriptors:
            before = len(self._descriptors)
            self.wait_for_any(seconds)
            if len(self._descriptors) == before:
                return False
        return True

    def tell_to_end(self) -> None:
        """Send SIGTERM to those that still run."""
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
