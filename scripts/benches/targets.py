"""What is asked of sandboxfs, and is it so? Each target beside what was found."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from scripts.benches.comparing import Line, geometric_mean, workload_ratios
from scripts.benches.names import (
    FUSE_OVERLAYFS,
    LATENCIES,
    LATENCY,
    MEMORY,
    MOUNT_READY,
    OVERLAYFS,
    OWN,
    PLAIN,
    RULES_OFF,
)

MEANS = {FUSE_OVERLAYFS: 0.75, OVERLAYFS: 3.0, RULES_OFF: 1.1}
ROW_LIMIT = 1.2
WARM_LIMITS = {"git status, warm": 1.3, "find, warm": 3.0, "grep -r, warm": 3.0}
_EXTREMES = 2
SINGLES = {MOUNT_READY: 0.3, MEMORY: 200.0}


@dataclass(frozen=True)
class Verdict:
    """One target: what was found, and what is to be added about it."""

    target: str
    limit: float
    found: float | None
    remark: str = ""

    @property
    def word(self) -> str:
        if self.found is None:
            return "not measured"
        return "within" if self.found <= self.limit else "OVER"


@dataclass(frozen=True)
class Floor:
    """A ratio that is over its target, and the lowest that it could be on pyfuse3."""

    target: str
    limit: float
    found: float
    lowest: float | None


def judge(lines: Sequence[Line]) -> list[Verdict]:
    """Every target, in the order in which they were set."""
    named = {line.row.name: line for line in lines}
    return [
        _mean(lines, FUSE_OVERLAYFS),
        _worst(lines),
        *(_ratio(named, row, FUSE_OVERLAYFS, ROW_LIMIT) for row in _latency_rows(lines)),
        *(_ratio(named, row, PLAIN, limit) for row, limit in WARM_LIMITS.items()),
        _mean(lines, OVERLAYFS),
        *(_single(named, row, limit) for row, limit in SINGLES.items()),
        _mean(lines, RULES_OFF),
    ]


def floors(lines: Sequence[Line], thinnest: Sequence[Line]) -> list[Floor]:
    """The ratios that are over their targets, each row by itself, beside those of the thinnest filesystem.

    *thinnest* has the same rows, with its ratios to the others; there are no floors where it took no part.
    """
    if not any(line.ratios for line in thinnest):
        return []
    lowest = {verdict.target: verdict.found for verdict in _ratios(thinnest)}
    return [
        Floor(verdict.target, verdict.limit, verdict.found, lowest.get(verdict.target))
        for verdict in _ratios(lines)
        if verdict.found is not None and verdict.found > verdict.limit
    ]


def _ratios(lines: Sequence[Line]) -> list[Verdict]:
    """The targets that are ratios to somebody else."""
    named = {line.row.name: line for line in lines}
    return [
        _mean(lines, FUSE_OVERLAYFS),
        *(_ratio(named, row, FUSE_OVERLAYFS, ROW_LIMIT) for row in workload_ratios(lines, FUSE_OVERLAYFS)),
        *(_ratio(named, row, FUSE_OVERLAYFS, ROW_LIMIT) for row in _latency_rows(lines)),
        *(_ratio(named, row, PLAIN, limit) for row, limit in WARM_LIMITS.items()),
        _mean(lines, OVERLAYFS),
    ]


def _latency_rows(lines: Sequence[Line]) -> Iterator[str]:
    measured = {line.row.name for line in lines if line.row.kind == LATENCY}
    yield from (row for row in LATENCIES if row in measured or not measured)


def _mean(lines: Sequence[Line], other: str) -> Verdict:
    ratios = sorted(workload_ratios(lines, other).values())
    remark = f"{len(ratios)} rows" if ratios else ""
    # A row that one of two does without copying is faster by a factor of hundreds, and moves the mean alone.
    inner = geometric_mean(ratios[_EXTREMES:-_EXTREMES])
    if inner is not None:
        remark += f"; {inner:.2f} without the {_EXTREMES} best and the {_EXTREMES} worst"
    return Verdict(f"geometric mean of workload rows / {other}", MEANS[other], geometric_mean(ratios), remark)


def _worst(lines: Sequence[Line]) -> Verdict:
    ratios = workload_ratios(lines, FUSE_OVERLAYFS)
    over = sorted((row for row in ratios if ratios[row] > ROW_LIMIT), key=lambda row: -ratios[row])
    remark = ", ".join(f"{row} {ratios[row]:.2f}" for row in over)
    found = max(ratios.values(), default=None)
    return Verdict(f"every single workload row / {FUSE_OVERLAYFS}", ROW_LIMIT, found, remark)


def _ratio(named: dict[str, Line], row: str, other: str, limit: float) -> Verdict:
    line = named.get(row)
    found = line.ratios[other].median if line is not None and other in line.ratios else None
    return Verdict(f"{row} / {other}", limit, found)


def _single(named: dict[str, Line], row: str, limit: float) -> Verdict:
    line = named.get(row)
    found = line.values[OWN].median if line is not None and OWN in line.values else None
    unit = "" if line is None else f" ({line.row.unit})"
    return Verdict(f"{row}{unit}", limit, found)
