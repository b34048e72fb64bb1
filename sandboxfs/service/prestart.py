"""Prestart of a run's daemon: begun before anything else, because a daemon takes longest to begin.

Imports nothing that takes time: everything that the command needs is imported while the daemon imports.
"""

from collections.abc import Iterator
from contextlib import contextmanager, suppress

from sandboxfs.control.prestart import WaitingDaemon

__all__ = ["WaitingDaemon", "prestarted"]


@contextmanager
def prestarted(*, needed: bool) -> Iterator[WaitingDaemon | None]:
    """Have a daemon wait for orders where one is *needed*; one without orders ends with the block."""
    waiting = None
    if needed:
        # What cannot be done now fails again when it must be done, and is told then.
        with suppress(OSError):
            waiting = WaitingDaemon.start()
    try:
        yield waiting
    finally:
        if waiting is not None:
            waiting.end_if_waiting()
