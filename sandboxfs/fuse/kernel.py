"""What can this kernel be relied on to do? It is asked for its version, because it does not say."""

import os
import re
from functools import cache


def stores_well() -> bool:
    """Whether it clears what follows a file's end in its last page, when it is given what is in it."""
    return _version() >= (6, 11)


def drops_what_is_written_over() -> bool:
    """Whether a write that goes around its pages takes away those that it makes wrong."""
    return _version() >= (6, 6)


@cache
def _version() -> tuple[int, int]:
    numbers = re.match(r"(\d+)\.(\d+)", os.uname().release)
    return (int(numbers[1]), int(numbers[2])) if numbers is not None else (0, 0)
