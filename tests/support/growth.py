"""How does the time of a piece of work grow with its input?"""

import gc
import time
from collections.abc import Callable

# Work on four times as much takes four times as long where it is linear, and sixteen times where quadratic.
LINEAR = 9
_SHORTEST = 0.004


def grows_linearly(work: Callable[[int], Callable[[], object]], size: int, largest: int = 1 << 24) -> bool:
    """Whether the function that *work* prepares for a size takes time linear in the size, about.

    The processor's time is measured, so that other programs do not matter, and from a size at which there is
    something to measure.
    """
    # A collection looks at all that the tests before have left, which takes longer than most of the work.
    gc.disable()
    try:
        while size < largest and _fastest(work(size)) < _SHORTEST:
            size *= 2
        first = _fastest(work(size))
        for _ in range(3):
            if _fastest(work(4 * size)) < LINEAR * max(first, _SHORTEST):
                return True
            first = _fastest(work(size))
        return False
    finally:
        gc.enable()


def _fastest(act: Callable[[], object]) -> float:
    times = []
    for _ in range(2):
        start = time.process_time()
        act()
        times.append(time.process_time() - start)
    return min(times)
