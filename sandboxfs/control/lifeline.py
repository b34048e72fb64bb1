"""How does a daemon know that nobody needs it any more?

`run` serves a view for as long as a run uses it. Every run holds the sandbox's lifeline, a FIFO, open for
writing; the daemon reads, and when the last writer has gone, however it went, the kernel tells. Nothing is
ever written to it. A daemon started by `mount` has none and stays until it is unmounted.
"""

import errno
import os
import select
from contextlib import suppress
from pathlib import Path

from sandboxfs.state.locations import SandboxPlaces


def lifeline_path(places: SandboxPlaces) -> Path:
    return places.home / "lifeline"


def _closing(path: Path) -> Path:
    return path.with_name(path.name + ".closing")


def make_lifeline(path: Path) -> tuple[int, int]:
    """Make a lifeline at *path* in place of an old one; return the daemon's end and the one to hold.

    The caller has the sandbox's lock.
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


def hold(path: Path) -> int | None:
    """Hold the lifeline at *path* too; None when the daemon has none, or is about to end."""
    try:
        return os.open(path, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError as error:
        # ENXIO: one that a daemon which died has left.
        if error.errno in (errno.ENOENT, errno.ENXIO):
            return None
        raise


def is_ending(path: Path) -> bool:
    """Say whether the daemon has found itself alone and is about to end."""
    return os.path.lexists(_closing(path))


def nobody_holds(reading: int, path: Path) -> bool:
    """Settle, in the daemon, that nobody holds the lifeline; then nobody can take hold of it any more.

    Called when the last writer has gone. Somebody may just be coming: the name is taken away first.
    """
    with suppress(FileNotFoundError):
        path.rename(_closing(path))
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
