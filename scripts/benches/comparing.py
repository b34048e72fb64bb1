"""What do the times say? Medians, quartiles, ratios within a round, geometric means.

Pure: numbers in, numbers out.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from scripts.benches.measuring import quartiles
from scripts.benches.names import OTHERS, OWN, WORKLOAD
from scripts.benches.timing import Sample


@dataclass(frozen=True)
class Spread:
    median: float
    low: float
    high: float


@dataclass(frozen=True)
class Row:
    """What a row is called, what it counts as, and in which unit its numbers are."""

    name: str
    kind: str
    unit: str


@dataclass(frozen=True)
class Line:
    """One row with its numbers: of each competitor, and of one of them divided by each other one."""

    row: Row
    values: Mapping[str, Spread]
    ratios: Mapping[str, Spread]
    failed: Mapping[str, str]
    rounds: int
    taken: Mapping[str, Mapping[int, float]] = field(default_factory=dict)  # every number, by its round


@dataclass
class Book:
    """The samples of every row and competitor, by the number of the round."""

    samples: dict[tuple[str, str], dict[int, Sample]] = field(default_factory=dict)
    failures: dict[tuple[str, str], str] = field(default_factory=dict)

    def enter(self, row: str, competitor: str, number: int, sample: Sample) -> None:
        self.samples.setdefault((row, competitor), {})[number] = sample

    def refuse(self, row: str, competitor: str, why: str) -> None:
        """What failed once does not count at all: its other rounds may have been lucky."""
        self.failures.setdefault((row, competitor), why)


def compare(
    rows: Iterable[Row], book: Book, measure: Callable[[Sample], float | None], own: str = OWN
) -> list[Line]:
    """The lines of all rows of which anything is known, with the ratios of *own* to the others."""
    lines = [_line(row, book, measure, own) for row in rows]
    return [line for line in lines if line.values or line.failed]


def _line(row: Row, book: Book, measure: Callable[[Sample], float | None], own: str) -> Line:
    failed = {competitor: why for (name, competitor), why in book.failures.items() if name == row.name}
    taken = {
        competitor: {
            number: value for number, sample in samples.items() if (value := measure(sample)) is not None
        }
        for (name, competitor), samples in book.samples.items()
        if name == row.name and competitor not in failed
    }
    values = {competitor: spread(list(numbers.values())) for competitor, numbers in taken.items() if numbers}
    ratios = {
        other: found
        for other in OTHERS
        if other != own and (found := _ratio(taken.get(own, {}), taken.get(other, {}))) is not None
    }
    return Line(row, values, ratios, failed, max(map(len, taken.values()), default=0), taken)


def _ratio(above: Mapping[int, float], below: Mapping[int, float]) -> Spread | None:
    """The ratios within each round that has both; what was too short for the clocks has none.

    With what is taken off for disturbances, measured by another clock, it can come out below nothing.
    """
    both = [(above[number], below.get(number, 0)) for number in above]
    found = [one / other for one, other in both if one > 0 and other > 0]
    return spread(found) if found else None


def spread(values: Sequence[float]) -> Spread:
    low, middle, high = quartiles(list(values))
    return Spread(middle, low, high)


def geometric_mean(values: Sequence[float]) -> float | None:
    if not values:
        return None
    return math.exp(sum(math.log(value) for value in values) / len(values))


def workload_ratios(lines: Iterable[Line], other: str) -> dict[str, float]:
    """The ratio to *other* of each workload row that both have done."""
    return {
        line.row.name: line.ratios[other].median
        for line in lines
        if line.row.kind == WORKLOAD and other in line.ratios
    }
