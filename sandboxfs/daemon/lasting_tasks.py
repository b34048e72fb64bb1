"""Daemon tasks that are restarted when they fail, and work in threads.

An exception out of a task would end the daemon and unmount the view under the programs that work there. So a
task that fails, most often for want of descriptors, memory, threads or disk space, starts again after a
delay, as often as needed.
"""

import logging
from collections.abc import Awaitable, Callable
from typing import TypeVar, TypeVarTuple

import trio

log = logging.getLogger(__name__)

# In seconds; the delay doubles with each failure.
_FIRST_DELAY, _LONGEST_DELAY = 0.1, 5.0

T = TypeVar("T")
Ts = TypeVarTuple("Ts")


async def endure(what: str, task: Callable[[], Awaitable[None]]) -> None:
    """Run *task* to its end, and again after a delay whenever it fails."""
    delay = _FIRST_DELAY
    while True:
        began = trio.current_time()
        try:
            await task()
            return
        except Exception as error:
            if trio.current_time() - began > _LONGEST_DELAY:
                delay = _FIRST_DELAY
            _complain(what, error, delay)
        await trio.sleep(delay)
        delay = min(2 * delay, _LONGEST_DELAY)


async def in_a_thread(work: Callable[[*Ts], T], *args: *Ts) -> T:
    """Do *work* in a thread; when the system cannot start one, try again until it can."""
    delay = _FIRST_DELAY
    while True:
        begun: list[bool] = []

        def noted(*args: *Ts) -> T:
            begun.append(True)  # noqa: B023 - read in the same turn
            return work(*args)

        try:
            return await trio.to_thread.run_sync(noted, *args)
        except RuntimeError as error:
            if begun:
                raise
            _complain("starting a thread", error, delay)
        await trio.sleep(delay)
        delay = min(2 * delay, _LONGEST_DELAY)


def _complain(what: str, error: Exception, delay: float) -> None:
    causes = [error]
    while causes and isinstance(causes[0], ExceptionGroup):
        causes = [*causes[0].exceptions, *causes[1:]]
    if all(isinstance(cause, OSError | MemoryError | RuntimeError) for cause in causes):
        reasons = "; ".join(dict.fromkeys(map(str, causes)))
        log.warning("%s failed, resources may be short: %s; again in %g s", what, reasons, delay)
    else:
        log.error("bug in %s; again in %g s", what, delay, exc_info=error)
