"""Who comes after whom? In each round somebody else, for whoever comes next gets what the one before left.

A mount that ends gives the pages back that its files were read into, and the next one is given those. If
everybody always came after the same neighbour, what that one left would be counted as his own.

The rounds are the rows of a Latin square that is balanced for this, after E. J. Williams: in as many rounds
as there are competitors everybody is once at each place, and once right after each other one. With an odd
number of them it takes twice as many, every other one of them backwards.
"""

from collections.abc import Sequence
from typing import TypeVar

Somebody = TypeVar("Somebody")


def in_turn(everybody: Sequence[Somebody], number: int) -> list[Somebody]:
    """The order of round *number*."""
    count = len(everybody)
    # First, last, second, last but one and so on, as steps from the one who begins.
    steps = [place // 2 if place % 2 == 0 else count - 1 - place // 2 for place in range(count)]
    order = [everybody[(step + number) % count] for step in steps]
    return order[::-1] if count % 2 and number % 2 else order
