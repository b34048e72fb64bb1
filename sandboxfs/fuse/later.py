"""How is a request answered whose work is done beside? See `sandboxfs.overlay.later`."""

from collections.abc import Awaitable, Callable
from typing import TypeVar, cast

from sandboxfs.overlay.later import Later

T = TypeVar("T")

DoBeside = Callable[[Callable[[], object]], Awaitable[object]]
"""Does work while other requests are answered, and gives its result."""


async def at_once(work: Callable[[], object]) -> object:
    """Do work while everybody waits."""
    return work()


async def finish(beside: DoBeside, later: Later, again: Callable[[], T]) -> T:
    """Have the work done that a request was given up for; its answer, by that or by asking *again*."""
    while True:
        try:
            result = await beside(later.work)
            return cast(T, result) if later.answers else again()
        except Later as another:
            following = another
        finally:
            later.over()
        later = following
