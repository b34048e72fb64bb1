"""What can this kernel be relied on to do? It is asked for its version, because it does not say."""

import os
import re
from functools import cache


def stores_well() -> bool:
    """Whether it clears what follows a file's end in its last page, when it is given what is in it."""
    return _version() >= (6, 11)


def drops_what_is_written_over() -> bool:
    """Whether a write around its pages has them written back before, and taken away before and after.

    Older ones take them away before it only: who reads meanwhile brings back what was there. Some have been
    mended since, which their version does not always tell.
    """
    return _version() >= (6, 18, 3)


@cache
def _version() -> tuple[int, ...]:
    numbers = re.match(r"(\d+)\.(\d+)(?:\.(\d+))?", os.uname().release)
    return tuple(int(number or 0) for number in numbers.groups()) if numbers is not None else (0,)
