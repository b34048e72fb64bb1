"""Lifeline: a FIFO by which a daemon learns that no run uses its view any more.

A daemon started by `run` serves its view for as long as a run uses the view. Every run holds the lifeline
open for writing, the daemon for reading. When the last writer has gone, however that run ended, the kernel
tells the reader. Nothing is ever written. A daemon started by `mount` has no lifeline and stays until its
view is unmounted.
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


def hold(path: Path) -> int | None:
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
