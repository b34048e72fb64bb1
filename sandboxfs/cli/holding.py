"""How does one command keep others from reviewing the same sandbox at the same time?

By the lock `review.lock`. The sandbox's own lock is another: a daemon holds that while it serves.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from sandboxfs.errors import SandboxBusy
from sandboxfs.state.locations import SandboxPlaces
from sandboxfs.state.lock import SandboxLock

REVIEW_LOCK = "review.lock"


@contextmanager
def held_for_review(places: SandboxPlaces) -> Iterator[None]:
    """Hold the sandbox for as long as the block runs; `SandboxBusy` when another command does."""
    lock = SandboxLock.acquire(places.home / REVIEW_LOCK)
    if lock is None:
        raise SandboxBusy(
            f"sandbox '{places.home.name}' is being reviewed by another process",
            hint="try again when it is done",
        )
    try:
        yield
    finally:
        lock.release()
