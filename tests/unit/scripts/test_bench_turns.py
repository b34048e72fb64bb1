"""Does everybody come after everybody else?"""

from collections import Counter
from itertools import pairwise

import pytest

from scripts.benches.turns import in_turn


@pytest.mark.parametrize("count", range(1, 8))
def test_everybody_comes_right_after_each_other_one_equally_often(count: int) -> None:
    rounds = count if count % 2 == 0 else 2 * count
    orders = [in_turn(range(count), number) for number in range(rounds)]
    followed = Counter(pair for order in orders for pair in pairwise(order))
    assert len(followed) == count * (count - 1)
    assert set(followed.values()) <= {rounds // count}


@pytest.mark.parametrize("count", range(1, 8))
def test_everybody_is_at_each_place_equally_often(count: int) -> None:
    rounds = count if count % 2 == 0 else 2 * count
    placed = Counter(
        (place, one) for number in range(rounds) for place, one in enumerate(in_turn(range(count), number))
    )
    assert len(placed) == count * count
    assert set(placed.values()) == {rounds // count}


def test_nobody_comes_twice_after_the_same_in_the_first_rounds_of_six() -> None:
    pairs = [pair for number in range(6) for pair in pairwise(in_turn("abcdef", number))]
    assert len(pairs) == len(set(pairs))
