"""Locks and the lifeline: the process that holds a sandbox, and the runs that use it.

`runs.lock` is flock'ed, shared, for as long as a run uses the sandbox. A run that chooses its sandbox itself
takes one that no run uses (`claim`); a run whose sandbox was named joins other runs there (`share`). The
kernel releases the lock however the run ends.

The file `lock` is flock'ed for as long as a process serves or changes the sandbox, and holds that process's
id. A flock belongs to the open file, so `mount` takes the lock and hands the open file on to the daemon:
between the two there is no moment at which another command could take the lock. The kernel releases the lock
after a crash too; a stale file means nothing.

A daemon started by `run` serves its view for as long as a run uses the view. Every run holds the lifeline, a
FIFO, open for writing, the daemon for reading. When the last writer has gone, however that run ended, the
kernel tells the reader. Nothing is ever written. A daemon started by `mount` has no lifeline and stays until
its view is unmounted.
"""

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from fcntl import LOCK_EX, LOCK_NB, LOCK_SH, flock
from pathlib import Path, PurePath

from sandboxfs.errors import NoSuchSandbox
from sandboxfs.state.locations import SandboxPlaces

_FLAGS = os.O_CLOEXEC | os.O_NOFOLLOW
_MADE = os.O_RDWR | os.O_CREAT | _FLAGS


def claim(places: SandboxPlaces) -> int | None:
    """Use the sandbox; return the descriptor to hold meanwhile, None when another run uses it.

    Raises `NoSuchSandbox` when the sandbox is gone.
    """
    with _gate(places):
        descriptor = os.open(places.run_lock, _MADE, 0o600)
        if not _try_lock(descriptor, LOCK_EX):
            os.close(descriptor)
            return None
        # No process comes between the two locks: all pass the gate.
        flock(descriptor, LOCK_SH)
        return descriptor


def share(places: SandboxPlaces) -> int:
    """Use the sandbox beside other runs; return the descriptor to hold meanwhile."""
    with _gate(places):
        descriptor = os.open(places.run_lock, _MADE, 0o600)
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
                descriptor = os.open(path, _MADE, 0o600)
            except FileNotFoundError as error:
                raise NoSuchSandbox(f"no sandbox called '{path.parent.name}'") from error
            taken = _try_lock(descriptor, LOCK_EX)
            if taken and _still_names(path, descriptor):
                return cls(descriptor)
            # `holder` takes a shared lock for an instant only: after that a new attempt may succeed.
            looked_at = not taken and _try_lock(descriptor, LOCK_SH)
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
        descriptor = os.open(path, os.O_RDONLY | _FLAGS)
    except FileNotFoundError:
        return None
    try:
        if _try_lock(descriptor, LOCK_SH):
            return None
        text = os.pread(descriptor, 32, 0).strip()
        return Holder(int(text) if text.isdigit() else None, os.fstat(descriptor).st_mtime)
    finally:
        os.close(descriptor)


def _try_lock(descriptor: int, operation: int) -> bool:
    try:
        flock(descriptor, operation | LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _still_names(path: Path, descriptor: int) -> bool:
    try:
        return os.path.samestat(path.lstat(), os.fstat(descriptor))
    except FileNotFoundError:
        return False


def lifeline_path(places: SandboxPlaces) -> Path:
    return places.home / "lifeline"


def _closing(path: Path) -> Path:
    return path.with_name(path.name + ".closing")


def make_lifeline(path: Path) -> tuple[int, int]:
    """Make a lifeline at *path* in place of an old one; return the daemon's end and the end to hold.

    The caller holds the sandbox's lock.
    """
    for old in (path, _closing(path)):
        with suppress(FileNotFoundError):
            old.unlink()
    os.mkfifo(path, 0o600)
    reading = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        return reading, os.open(path, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        os.close(reading)
        raise


def hold_lifeline(path: Path) -> int | None:
    """Hold the lifeline at *path* too; None when the daemon has no lifeline, or is about to end."""
    try:
        return os.open(path, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError as error:
        # ENXIO: a FIFO without a reader, left by a daemon that died.
        if error.errno in (errno.ENOENT, errno.ENXIO):
            return None
        raise


def is_ending(path: Path) -> bool:
    """Say whether the daemon has seen the last run go and is about to end."""
    return os.path.lexists(_closing(path))


def nobody_holds(reading: int, path: Path) -> bool:
    """Say, in the daemon, whether no run holds the lifeline; if so, no run can open the lifeline any more.

    Called when the last writer has gone. A new run may open the FIFO at the same moment: so the FIFO is
    renamed first, then polled, and gets its name back when there is a writer.
    """
    with suppress(FileNotFoundError):
        path.rename(_closing(path))
    # Imported here: only a daemon asks.
    import select

    poll = select.poll()
    poll.register(reading, select.POLLIN)
    if any(events & select.POLLHUP for _, events in poll.poll(0)):
        return True
    with suppress(FileNotFoundError):
        _closing(path).rename(path)
    return False


def remove_lifeline(path: Path) -> None:
    for name in (path, _closing(path)):
        with suppress(OSError):
            name.unlink()


def read_destinations(descriptor: int) -> list[PurePath]:
    """Read the list of mount destinations in a home: the file that runs lock while they use that home."""
    text = os.pread(descriptor, os.fstat(descriptor).st_size, 0)
    return [PurePath(os.fsdecode(path)) for path in text.split(b"\0") if path]


def destinations_in(lock: Path) -> list[PurePath]:
    """Return the mount destinations that the last run has made in the home of the list at *lock*."""
    try:
        descriptor = os.open(lock, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError:
        return []
    try:
        return read_destinations(descriptor)
    finally:
        os.close(descriptor)
