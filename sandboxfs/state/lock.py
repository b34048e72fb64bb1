"""Who holds a sandbox?

The lock file of a sandbox is flock'ed for as long as a process serves or changes it, and holds that
process's id. The lock belongs to the open file, so `mount` takes it and hands the open file on to the
daemon: between the two there is no moment at which another command could step in. Kernel and crash release
it; a stale file means nothing.
"""

import errno
import fcntl
import os
from dataclasses import dataclass
from pathlib import Path

from sandboxfs.errors import NoSuchSandbox

_FLAGS = os.O_CLOEXEC | os.O_NOFOLLOW


class SandboxLock:
    """An exclusive lock that this process holds."""

    def __init__(self, descriptor: int) -> None:
        """Hold the lock of the open file *descriptor*, taken here or inherited, and sign it."""
        self.descriptor = descriptor
        self.sign()

    @classmethod
    def acquire(cls, path: Path) -> "SandboxLock | None":
        """Take the lock at *path*, making the file; None when another process holds it.

        Raises `NoSuchSandbox` when the sandbox is gone or goes away meanwhile.
        """
        while True:
            try:
                descriptor = os.open(path, os.O_RDWR | os.O_CREAT | _FLAGS, 0o600)
            except FileNotFoundError as error:
                raise NoSuchSandbox(f"no sandbox called '{path.parent.name}'") from error
            taken = _try_lock(descriptor, fcntl.LOCK_EX)
            if taken and _still_names(path, descriptor):
                return cls(descriptor)
            # A shared lock is only ever held for the instant of a look: then it is worth trying again.
            looked_at = not taken and _try_lock(descriptor, fcntl.LOCK_SH)
            os.close(descriptor)
            if not taken and not looked_at:
                return None

    def sign(self) -> None:
        """Write this process's id into the lock file."""
        text = b"%d\n" % os.getpid()
        try:
            # Without making room first: on a full disk the old text's place is all there is.
            os.pwrite(self.descriptor, text, 0)
            os.ftruncate(self.descriptor, len(text))
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise

    def hand_over(self) -> None:
        """Close this process's share of a lock that another process inherited."""
        os.close(self.descriptor)

    def release(self) -> None:
        """Give the lock up; the file stays and means nothing."""
        os.close(self.descriptor)


@dataclass(frozen=True)
class Holder:
    """Who holds a lock, and since when, in seconds of the epoch; *pid* is None before it has signed."""

    pid: int | None
    since: float


def holder(path: Path) -> Holder | None:
    """Say who holds the lock at *path*, or None; waits for nobody and keeps nobody out."""
    try:
        descriptor = os.open(path, os.O_RDONLY | _FLAGS)
    except FileNotFoundError:
        return None
    try:
        if _try_lock(descriptor, fcntl.LOCK_SH):
            return None
        text = os.pread(descriptor, 32, 0).strip()
        return Holder(int(text) if text.isdigit() else None, os.fstat(descriptor).st_mtime)
    finally:
        os.close(descriptor)


def _try_lock(descriptor: int, operation: int) -> bool:
    try:
        fcntl.flock(descriptor, operation | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _still_names(path: Path, descriptor: int) -> bool:
    try:
        return os.path.samestat(path.lstat(), os.fstat(descriptor))
    except FileNotFoundError:
        return False
