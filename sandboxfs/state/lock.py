"""Locks: the process that holds a sandbox, and the runs that use it.

`runs.lock` is flock'ed, shared, for as long as a run uses the sandbox. A run that chooses its sandbox itself
takes one that no run uses (`claim`); a run whose sandbox was named joins other runs there (`share`). The
kernel releases the lock however the run ends.

The file `lock` is flock'ed for as long as a process serves or changes the sandbox, and holds that process's
id. A flock belongs to the open file, so `mount` takes the lock and hands the open file on to the daemon:
between the two there is no moment at which another command could take the lock. The kernel releases the lock
after a crash too; a stale file means nothing.
"""

import errno
import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from fcntl import LOCK_EX, LOCK_NB, LOCK_SH, flock
from pathlib import Path

from sandboxfs.errors import NoSuchSandbox
from sandboxfs.state.locations import SandboxPlaces

_FLAGS = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW


def claim(places: SandboxPlaces) -> int | None:
    """Use the sandbox; return the descriptor to hold meanwhile, None when another run uses it.

    Raises `NoSuchSandbox` when the sandbox is gone.
    """
    with _gate(places):
        descriptor = os.open(places.run_lock, _FLAGS, 0o600)
        try:
            flock(descriptor, LOCK_EX | LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            return None
        # No process comes between the two locks: all pass the gate.
        flock(descriptor, LOCK_SH)
        return descriptor


def share(places: SandboxPlaces) -> int:
    """Use the sandbox beside other runs; return the descriptor to hold meanwhile."""
    with _gate(places):
        descriptor = os.open(places.run_lock, _FLAGS, 0o600)
        flock(descriptor, LOCK_SH)
        return descriptor


@contextmanager
def _gate(places: SandboxPlaces) -> Iterator[None]:
    """Let one process at a time take `runs.lock`, in a sandbox that still has its name."""
    missing = NoSuchSandbox(f"no sandbox called '{places.home.name}'")
    try:
        directory = os.open(places.home, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError as error:
        raise missing from error
    try:
        flock(directory, LOCK_EX)
        try:
            named = places.home.lstat()
        except FileNotFoundError as error:
            raise missing from error
        if not os.path.samestat(named, os.fstat(directory)):
            raise missing
        yield
    finally:
        os.close(directory)


_OPEN_FLAGS = os.O_CLOEXEC | os.O_NOFOLLOW


class SandboxLock:
    """An exclusive lock that this process holds."""

    def __init__(self, descriptor: int) -> None:
        """Hold the lock of the open file *descriptor*, taken here or inherited, and sign the file."""
        self.descriptor = descriptor
        before = os.fstat(descriptor)
        # A file without a signature was made by `acquire` just now, and its time tells of no use.
        self._before = before.st_mtime_ns if before.st_size else 0
        self.sign()

    @classmethod
    def acquire(cls, path: Path) -> "SandboxLock | None":
        """Take the lock at *path*, making the file; None when another process holds the lock.

        Raises `NoSuchSandbox` when the sandbox is gone or goes away meanwhile.
        """
        while True:
            try:
                descriptor = os.open(path, os.O_RDWR | os.O_CREAT | _OPEN_FLAGS, 0o600)
            except FileNotFoundError as error:
                raise NoSuchSandbox(f"no sandbox called '{path.parent.name}'") from error
            taken = _try_lock(descriptor, fcntl.LOCK_EX)
            if taken and _still_names(path, descriptor):
                return cls(descriptor)
            # `holder` takes a shared lock for an instant only: after that a new attempt may succeed.
            looked_at = not taken and _try_lock(descriptor, fcntl.LOCK_SH)
            os.close(descriptor)
            if not taken and not looked_at:
                return None

    def sign(self) -> None:
        """Write this process's id into the lock file."""
        text = b"%d\n" % os.getpid()
        try:
            # Written before the file is truncated: on a full disk the old text's block is all there is.
            os.pwrite(self.descriptor, text, 0)
            os.ftruncate(self.descriptor, len(text))
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise

    def hand_over(self) -> None:
        """Close this process's share of a lock that another process inherited."""
        os.close(self.descriptor)

    def release(self, *, used: bool = True) -> None:
        """Release the lock; the file stays, and its time tells when the sandbox was last *used*."""
        if not used:
            os.utime(self.descriptor, ns=(self._before, self._before))
        os.close(self.descriptor)


@dataclass(frozen=True)
class Holder:
    """The holder of a lock, *since* a time in seconds of the epoch; *pid* is None before the signature."""

    pid: int | None
    since: float


def holder(path: Path) -> Holder | None:
    """Return the holder of the lock at *path*, or None; neither waits nor keeps a process from the lock."""
    try:
        descriptor = os.open(path, os.O_RDONLY | _OPEN_FLAGS)
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
