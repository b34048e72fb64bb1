"""Line diff: which lines of two texts differ.

Common ends are cut off, lines become numbers, and the rest is divided at anchors: lines, or runs of lines,
that occur exactly once on both sides (patience). A region without anchors goes to Myers' linear-space search.
A search that has cost too much goes on from the furthest point it reached, so every answer is valid, minimal
for small texts and merely good for hopeless ones. Costs are counted, not timed: the answer is the same on
every machine.
"""

from bisect import bisect_left
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

# Below this many lines dividing costs more than searching, and the search is minimal.
_SMALL = 48
# In longer texts some line occurs twice, so that the check for equal order would be in vain.
_LIKELY_IN_ORDER = 4096
# Windows of repeated lines are tried only where a plain search would be long.
_REPETITIVE = 512
_WIDEST_WINDOW = 64
_DEEPEST = 32
# Edits searched in one direction before giving up on the minimum, while there is budget and after.
_GENEROUS, _THRIFTY, _POOR = 256, 64, 16
# Diagonals visited, over all searches of one pair of texts, before the next stage.
_GENEROUS_BUDGET, _THRIFTY_BUDGET = 2_000_000, 5_000_000
_FAR = 1 << 60

Region = tuple[int, int, int, int]


class Edit(NamedTuple):
    """Lines `old_start:old_end` were replaced by lines `new_start:new_end`; either range may be empty."""

    old_start: int
    old_end: int
    new_start: int
    new_end: int


def diff_lines(old: Sequence[bytes], new: Sequence[bytes]) -> list[Edit]:
    """Return the edits that turn *old* into *new*, in order; between two edits at least one line is common.

    A pure insertion or deletion that could stand in several places stands in the last one.
    """
    head, tail = _common_ends(old, new, (0, len(old), 0, len(new)))
    a_lines, b_lines = old[head : len(old) - tail], new[head : len(new) - tail]
    edits = _in_order(a_lines, b_lines) if len(a_lines) + len(b_lines) <= _LIKELY_IN_ORDER else None
    if edits is None:
        numbers: dict[bytes, int] = {}
        number = numbers.setdefault
        a = [number(line, len(numbers)) for line in a_lines]
        b = [number(line, len(numbers)) for line in b_lines]
        del numbers
        edits = _Division(a, b).edits()
    if head or tail:
        edits = [Edit(*(position + head for position in edit)) for edit in edits]
    return _slide_down(edits, old, new)


def _in_order(a: Sequence[bytes], b: Sequence[bytes]) -> list[Edit] | None:
    """Return the edits for two texts whose common lines are in the same order on both sides; otherwise None.

    This usual case needs no search: no common line changed, and no answer can be better.
    """
    common = set(a).intersection(b)
    a_places = [place for place, line in enumerate(a) if line in common]
    b_places = [place for place, line in enumerate(b) if line in common]
    if len(a_places) != len(b_places) or any(a[i] != b[j] for i, j in zip(a_places, b_places, strict=True)):
        return None
    edits = []
    a_done = b_done = 0
    for i, j in [*zip(a_places, b_places, strict=True), (len(a), len(b))]:
        if i > a_done or j > b_done:
            edits.append(Edit(a_done, i, b_done, j))
        a_done, b_done = i + 1, j + 1
    return edits


def _common_ends(a: Sequence[object], b: Sequence[object], region: Region) -> tuple[int, int]:
    """Count the equal items at the start and, not overlapping those, at the end of *region*."""
    a_low, a_high, b_low, b_high = region
    shorter = min(a_high - a_low, b_high - b_low)
    head = 0
    while head < shorter and a[a_low + head] == b[b_low + head]:
        head += 1
    tail = 0
    while tail < shorter - head and a[a_high - 1 - tail] == b[b_high - 1 - tail]:
        tail += 1
    return head, tail


class _Division:
    """Marks the changed items of two sequences of numbers, region by region."""

    def __init__(self, a: list[int], b: list[int]) -> None:
        self._a = a
        self._b = b
        self._changed_a = bytearray(len(a))
        self._changed_b = bytearray(len(b))
        self._search = _Search(self._changed_a, self._changed_b)

    def edits(self) -> list[Edit]:
        """Divide the whole, and read the edits off the marks."""
        regions: list[tuple[Region, int]] = [((0, len(self._a), 0, len(self._b)), 0)]
        while regions:
            region, depth = regions.pop()
            regions.extend((part, depth + 1) for part in self._divide(region, depth))
        return self._read()

    def _divide(self, region: Region, depth: int) -> list[Region]:
        """Mark the changes of *region*, or return the parts of it that are still to be marked."""
        head, tail = _common_ends(self._a, self._b, region)
        a_low, a_high, b_low, b_high = region
        a_low, a_high, b_low, b_high = a_low + head, a_high - tail, b_low + head, b_high - tail
        a_size, b_size = a_high - a_low, b_high - b_low
        if not a_size or not b_size:
            self._changed_a[a_low:a_high] = b"\1" * a_size
            self._changed_b[b_low:b_high] = b"\1" * b_size
            return []
        a, b = self._a[a_low:a_high], self._b[b_low:b_high]
        anchors = [] if a_size + b_size <= _SMALL or depth > _DEEPEST else _anchors(a, b)
        if not anchors:
            self._search.mark(a, b, a_low, b_low)
            return []
        parts = []
        a_done = b_done = 0
        for a_at, b_at in [*anchors, (a_size, b_size)]:
            if a_at > a_done or b_at > b_done:
                parts.append((a_low + a_done, a_low + a_at, b_low + b_done, b_low + b_at))
            a_done, b_done = a_at + 1, b_at + 1
        return parts

    def _read(self) -> list[Edit]:
        edits: list[Edit] = []
        a_at = b_at = 0
        a_size, b_size = len(self._changed_a), len(self._changed_b)
        while True:
            a_next, b_next = self._changed_a.find(1, a_at), self._changed_b.find(1, b_at)
            if a_next < 0 and b_next < 0:
                return edits
            common = min(next_ - at for next_, at in ((a_next, a_at), (b_next, b_at)) if next_ >= 0)
            a_at, b_at = a_at + common, b_at + common
            a_end, b_end = self._changed_a.find(0, a_at), self._changed_b.find(0, b_at)
            a_end = a_size if a_end < 0 else a_end
            b_end = b_size if b_end < 0 else b_end
            edits.append(Edit(a_at, a_end, b_at, b_end))
            a_at, b_at = a_end, b_end


def _anchors(a: list[int], b: list[int]) -> list[tuple[int, int]]:
    """Return positions in *a* and *b*, rising in both, of lines that surely belong together."""
    pairs = _unique_pairs(a, b)
    width = 1
    while not pairs and width < _WIDEST_WINDOW and len(a) + len(b) > _REPETITIVE:
        # A number now stands for a window of lines, twice as wide in each round.
        numbers: dict[tuple[int, int], int] = {}
        number = numbers.setdefault
        a = [number(pair, len(numbers)) for pair in zip(a, a[width:], strict=False)]
        b = [number(pair, len(numbers)) for pair in zip(b, b[width:], strict=False)]
        width *= 2
        pairs = _unique_pairs(a, b)
    return _longest_rising(pairs)


def _unique_pairs(a: list[int], b: list[int]) -> list[tuple[int, int]]:
    """Pair the positions of every number that occurs once in *a* and once in *b*, in the order of *a*."""
    in_b = _unique_positions(b)
    return [(at, in_b[number]) for number, at in _unique_positions(a).items() if number in in_b]


def _unique_positions(numbers: list[int]) -> dict[int, int]:
    last = dict(zip(numbers, range(len(numbers)), strict=True))
    if len(last) == len(numbers):
        return last
    first = dict(zip(reversed(numbers), range(len(numbers) - 1, -1, -1), strict=True))
    unique = [(at, number) for number, at in last.items() if first[number] == at]
    unique.sort()
    return {number: at for at, number in unique}


def _longest_rising(pairs: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return the longest run of *pairs*, already rising in the first item, that rises in the second too."""
    if all(left[1] < right[1] for left, right in pairwise(pairs)):
        return pairs
    ends: list[int] = []  # the smallest second item that ends a run of this length
    holders: list[int] = []  # the pair that holds it
    before = [-1] * len(pairs)
    for index, (_, value) in enumerate(pairs):
        length = bisect_left(ends, value)
        if length:
            before[index] = holders[length - 1]
        if length == len(ends):
            ends.append(value)
            holders.append(index)
        else:
            ends[length] = value
            holders[length] = index
    chain = []
    index = holders[-1]
    while index >= 0:
        chain.append(pairs[index])
        index = before[index]
    chain.reverse()
    return chain


def _slide_down(edits: list[Edit], old: Sequence[bytes], new: Sequence[bytes]) -> list[Edit]:
    """Move each pure insertion or deletion down as far as its text allows; join edits that then touch."""
    slid: list[Edit] = []
    next_start = len(old)
    for edit in reversed(edits):
        start, end, new_start, new_end = edit
        if start == end:
            while start < next_start and old[start] == new[new_start]:
                start, new_start, new_end = start + 1, new_start + 1, new_end + 1
            end = start
        elif new_start == new_end:
            while end < next_start and old[end] == old[start]:
                start, end, new_start = start + 1, end + 1, new_start + 1
            new_end = new_start
        if slid and end == slid[-1].old_start:
            follower = slid.pop()
            slid.append(Edit(start, follower.old_end, new_start, follower.new_end))
        else:
            slid.append(Edit(start, end, new_start, new_end))
        next_start = start
    slid.reverse()
    return slid


class _Search:
    """Marks the changed items of one pair of texts; the budget is shared by all its searches."""

    def __init__(self, changed_a: bytearray, changed_b: bytearray) -> None:
        self._changed_a = changed_a
        self._changed_b = changed_b
        self._spent = 0

    def mark(self, a: list[int], b: list[int], a_offset: int, b_offset: int) -> None:
        """Mark the differences between *a* and *b*, which start at the given offsets of the whole texts."""
        # A line that the other side lacks is changed in every answer, and would only make the search longer.
        common = set(a) & set(b)
        a_places = self._keep_common(a, common, self._changed_a, a_offset)
        b_places = self._keep_common(b, common, self._changed_b, b_offset)
        a = [a[place - a_offset] for place in a_places]
        b = [b[place - b_offset] for place in b_places]
        diagonals = _Diagonals(a, b)
        boxes = [(0, len(a), 0, len(b))]
        while boxes:
            a_low, a_high, b_low, b_high = _trimmed(a, b, boxes.pop())
            if a_low == a_high or b_low == b_high:
                for place in a_places[a_low:a_high]:
                    self._changed_a[place] = 1
                for place in b_places[b_low:b_high]:
                    self._changed_b[place] = 1
                continue
            a_at, b_at, cost = diagonals.split((a_low, a_high, b_low, b_high), self._patience())
            self._spent += cost
            boxes.append((a_low, a_at, b_low, b_at))
            boxes.append((a_at, a_high, b_at, b_high))

    def _patience(self) -> int:
        if self._spent < _GENEROUS_BUDGET:
            return _GENEROUS
        return _THRIFTY if self._spent < _THRIFTY_BUDGET else _POOR

    @staticmethod
    def _keep_common(numbers: list[int], common: set[int], changed: bytearray, offset: int) -> list[int]:
        places = []
        for place, number in enumerate(numbers, offset):
            if number in common:
                places.append(place)
            else:
                changed[place] = 1
        return places


def _trimmed(a: list[int], b: list[int], box: Region) -> Region:
    a_low, a_high, b_low, b_high = box
    while a_low < a_high and b_low < b_high and a[a_low] == b[b_low]:
        a_low, b_low = a_low + 1, b_low + 1
    while a_low < a_high and b_low < b_high and a[a_high - 1] == b[b_high - 1]:
        a_high, b_high = a_high - 1, b_high - 1
    return a_low, a_high, b_low, b_high


class _Diagonals:
    """The furthest points reached on each diagonal (position in a minus position in b), from both ends."""

    def __init__(self, a: list[int], b: list[int]) -> None:
        self._a = a
        self._b = b
        self._zero = len(b) + 1
        self._forward = [0] * (len(a) + len(b) + 3)
        self._backward = [0] * (len(a) + len(b) + 3)

    def split(self, box: Region, patience: int) -> tuple[int, int, int]:
        """Return a point inside *box* on a shortest path, or on a fair one, and the cost of the search.

        The box has no common line at either end, and neither of its sides is empty.
        """
        a_low, a_high, b_low, b_high = box
        zero, forward, backward = self._zero, self._forward, self._backward
        lowest, highest = a_low - b_high, a_high - b_low
        start, goal = a_low - b_low, a_high - b_high
        odd = (start - goal) & 1
        down = up = start
        left = right = goal
        forward[zero + start] = a_low
        backward[zero + goal] = a_high
        cost = 0
        for _ in range(patience):
            if down > lowest:
                down -= 1
                forward[zero + down - 1] = -1
            else:
                down += 1
            if up < highest:
                up += 1
                forward[zero + up + 1] = -1
            else:
                up -= 1
            met = self._advance(box, (down, up), (left, right) if odd else (1, 0))
            if met is not None:
                return *met, cost
            if left > lowest:
                left -= 1
                backward[zero + left - 1] = _FAR
            else:
                left += 1
            if right < highest:
                right += 1
                backward[zero + right + 1] = _FAR
            else:
                right -= 1
            met = self._retreat(box, (left, right), (1, 0) if odd else (down, up))
            if met is not None:
                return *met, cost
            cost += (up - down + right - left) // 2 + 2
        return *self._furthest(box, (down, up), (left, right)), cost

    def _advance(self, box: Region, own: tuple[int, int], other: tuple[int, int]) -> tuple[int, int] | None:
        """Take every forward diagonal one edit further; return the point where it met a backward one."""
        _, a_high, _, b_high = box
        a, b, zero, forward, backward = self._a, self._b, self._zero, self._forward, self._backward
        other_low, other_high = other
        for diagonal in range(own[1], own[0] - 1, -2):
            index = zero + diagonal
            below, above = forward[index - 1], forward[index + 1]
            x = below + 1 if below >= above else above
            y = x - diagonal
            while x < a_high and y < b_high and a[x] == b[y]:
                x, y = x + 1, y + 1
            forward[index] = x
            if other_low <= diagonal <= other_high and backward[index] <= x:
                return x, y
        return None

    def _retreat(self, box: Region, own: tuple[int, int], other: tuple[int, int]) -> tuple[int, int] | None:
        """Take every backward diagonal one edit further; return the point where it met a forward one."""
        a_low, _, b_low, _ = box
        a, b, zero, forward, backward = self._a, self._b, self._zero, self._forward, self._backward
        other_low, other_high = other
        for diagonal in range(own[1], own[0] - 1, -2):
            index = zero + diagonal
            below, above = backward[index - 1], backward[index + 1]
            x = below if below < above else above - 1
            y = x - diagonal
            while x > a_low and y > b_low and a[x - 1] == b[y - 1]:
                x, y = x - 1, y - 1
            backward[index] = x
            if other_low <= diagonal <= other_high and x <= forward[index]:
                return x, y
        return None

    def _furthest(self, box: Region, own: tuple[int, int], other: tuple[int, int]) -> tuple[int, int]:
        """Return the point that either direction took furthest from its corner, kept inside *box*."""
        a_low, a_high, b_low, b_high = box
        best, point = -1, (a_low, b_low)
        for diagonal in range(own[1], own[0] - 1, -2):
            x = min(self._forward[self._zero + diagonal], a_high, b_high + diagonal)
            if x + x - diagonal - a_low - b_low > best:
                best, point = x + x - diagonal - a_low - b_low, (x, x - diagonal)
        for diagonal in range(other[1], other[0] - 1, -2):
            x = max(self._backward[self._zero + diagonal], a_low, b_low + diagonal)
            if a_high + b_high - x - x + diagonal > best:
                best, point = a_high + b_high - x - x + diagonal, (x, x - diagonal)
        return point
