"""The differ: valid on everything, minimal on small texts, bounded on hopeless ones."""

import random
import time
from collections.abc import Callable, Sequence
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandboxfs.review.text_diff import Edit, diff_lines

few_lines = st.lists(st.sampled_from([b"a\n", b"b\n", b"c\n", b"d\n"]), max_size=24)
many_lines = st.lists(st.integers(0, 60).map(lambda number: b"%d\n" % number), max_size=160)


def patched(old: Sequence[bytes], new: Sequence[bytes], edits: list[Edit]) -> list[bytes]:
    """Carry *edits* out on *old*, checking that what lies between them is common."""
    result: list[bytes] = []
    at = 0
    for edit in edits:
        assert at <= edit.old_start <= edit.old_end
        result += old[at : edit.old_start]
        assert len(result) == edit.new_start, "what lies between two edits is as long on both sides"
        result += new[edit.new_start : edit.new_end]
        at = edit.old_end
    return result + list(old[at:])


def size(edits: list[Edit]) -> int:
    return sum(edit.old_end - edit.old_start + edit.new_end - edit.new_start for edit in edits)


def common_length(a: Sequence[bytes], b: Sequence[bytes]) -> int:
    row = [0] * (len(b) + 1)
    for left in a:
        previous = row
        row = [0]
        for index, right in enumerate(b):
            row.append(previous[index] + 1 if left == right else max(previous[index + 1], row[index]))
    return row[-1]


@given(few_lines, few_lines)
def test_edits_turn_the_old_text_into_the_new_one_with_the_fewest_lines(
    old: list[bytes], new: list[bytes]
) -> None:
    edits = diff_lines(old, new)
    assert patched(old, new, edits) == new
    assert size(edits) == len(old) + len(new) - 2 * common_length(old, new)


@given(many_lines, many_lines)
def test_edits_are_valid_where_anchors_divide_the_text(old: list[bytes], new: list[bytes]) -> None:
    edits = diff_lines(old, new)
    assert patched(old, new, edits) == new
    assert all(left.old_end < right.old_start for left, right in pairwise(edits))
    assert all(edit.old_start < edit.old_end or edit.new_start < edit.new_end for edit in edits)


@given(many_lines)
def test_equal_texts_have_no_edits(lines: list[bytes]) -> None:
    assert diff_lines(lines, list(lines)) == []


def test_insertion_among_equal_lines_stands_last() -> None:
    assert diff_lines([b"x\n"] * 3 + [b"y\n"], [b"x\n"] * 5 + [b"y\n"]) == [Edit(3, 3, 3, 5)]


def test_moved_block_is_one_deletion_and_one_insertion() -> None:
    lines = [b"%d\n" % number for number in range(200)]
    moved = lines[:20] + lines[30:150] + lines[20:30] + lines[150:]
    assert diff_lines(lines, moved) == [Edit(20, 30, 20, 20), Edit(150, 150, 140, 150)]


def scattered(lines: list[bytes], edits: int, seed: int) -> list[bytes]:
    chance = random.Random(seed)
    result = list(lines)
    for number in range(edits):
        at = chance.randrange(len(result))
        result[at : at + chance.randrange(3)] = [b"edit %d\n" % number] * chance.randrange(1, 3)
    return result


def test_twenty_megabytes_with_a_thousand_edits_take_seconds_and_find_about_those() -> None:
    lines = [b"line %d of a text that is long enough\n" % (number // 2) for number in range(500_000)]
    new = scattered(lines, 1_000, 1)
    began = time.process_time()
    edits = diff_lines(lines, new)
    assert time.process_time() - began < 6, "generous: the target is 3 s on a quiet machine"
    assert patched(lines, new, edits) == new
    assert size(edits) < 3_500


def test_repetitive_text_without_a_single_unique_line_is_divided_by_runs_of_lines() -> None:
    chance = random.Random(2)
    words = [b"%d\n" % number for number in range(300)]
    lines = [chance.choice(words) for _ in range(100_000)]
    new = scattered(lines, 300, 3)
    edits = diff_lines(lines, new)
    assert patched(lines, new, edits) == new
    assert size(edits) < 1_200


HOPELESS: dict[str, Callable[[random.Random], tuple[list[bytes], list[bytes]]]] = {
    "all lines different": lambda chance: (
        [b"a%d\n" % number for number in range(50_000)],
        [b"b%d\n" % number for number in range(50_000)],
    ),
    "all lines equal": lambda chance: ([b"x\n"] * 50_000, [b"x\n"] * 30_000),
    "reversed": lambda chance: (
        [b"%d\n" % number for number in range(50_000)],
        [b"%d\n" % number for number in reversed(range(50_000))],
    ),
    "random lines of four kinds": lambda chance: (
        chance.choices([b"a\n", b"b\n", b"c\n", b"d\n"], k=50_000),
        chance.choices([b"a\n", b"b\n", b"c\n", b"d\n"], k=50_000),
    ),
    "shuffled": lambda chance: (
        [b"%d\n" % number for number in range(50_000)],
        chance.sample([b"%d\n" % number for number in range(50_000)], 50_000),
    ),
}


@pytest.mark.parametrize("kind", HOPELESS)
def test_hopeless_pair_is_answered_in_bounded_time(kind: str) -> None:
    old, new = HOPELESS[kind](random.Random(4))
    began = time.process_time()
    edits = diff_lines(old, new)
    assert time.process_time() - began < 12, "generous: a few seconds on a quiet machine"
    assert patched(old, new, edits) == new
