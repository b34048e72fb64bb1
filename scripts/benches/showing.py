"""How is the outcome shown on a terminal, and as JSON for programs?"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

from scripts.benches.comparing import Line, Spread, geometric_mean, workload_ratios
from scripts.benches.names import (
    LATENCY,
    MEGABYTES,
    MICROSECONDS,
    OTHERS,
    OWN,
    PLAIN,
    SINGLE,
    THINNEST,
    WORKLOAD,
)
from scripts.benches.targets import Floor, Verdict

_TITLES = {
    WORKLOAD: "workloads",
    LATENCY: "one operation",
    SINGLE: "mounting, starting, memory",
}

_CELL = 20


@dataclass(frozen=True)
class Outcome:
    """Everything that one run of the benchmark found."""

    machine: str
    conditions: Sequence[str]
    left_out: dict[str, str]
    lines: Sequence[Line]
    verdicts: Sequence[Verdict]
    measures: Mapping[str, Sequence[Line]]  # all that was taken; `lines` is the one of them to be shown
    floors: Sequence[Floor] = ()


def as_json(outcome: Outcome) -> dict[str, object]:
    return {
        "machine": outcome.machine,
        "conditions": list(outcome.conditions),
        "left_out": outcome.left_out,
        **{
            measure: {"rows": [_row(line) for line in lines], "geometric_means": means(lines)}
            for measure, lines in outcome.measures.items()
        },
        "targets": [{**asdict(verdict), "verdict": verdict.word} for verdict in outcome.verdicts],
        "floors": [asdict(floor) for floor in outcome.floors],
    }


def _row(line: Line) -> dict[str, object]:
    return {
        **asdict(line.row),
        "rounds": line.rounds,
        "values": {name: asdict(value) for name, value in line.values.items()},
        "ratios": {name: asdict(value) for name, value in line.ratios.items()},
        "failed": dict(line.failed),
        "taken": {name: dict(numbers) for name, numbers in line.taken.items()},
    }


def means(lines: Sequence[Line]) -> dict[str, float]:
    found = {other: geometric_mean(list(workload_ratios(lines, other).values())) for other in OTHERS}
    return {other: value for other, value in found.items() if value is not None}


def table(outcome: Outcome) -> str:
    """The rows, the means, the targets and their floors, and what was left out or failed."""
    lines = outcome.lines
    others = [other for other in OTHERS if any(other in line.ratios for line in lines)]
    text = [outcome.machine, *outcome.conditions]
    heads = "".join(f"{'/ ' + other:>{_CELL}}" for other in others)
    for kind, title in _TITLES.items():
        chosen = [line for line in lines if line.row.kind == kind]
        if chosen:
            text += ["", f"{title:<28}{'n':>2}{PLAIN:>10}{OWN:>11}{heads}"]
            text += [_shown(line, others) for line in chosen]
    found = means(lines)
    if found:
        cells = "".join(f"{_digits(found[other]) if other in found else '':>{_CELL}}" for other in others)
        text += ["", f"{'geometric mean of workloads':<51}{cells}"]
    text += ["", "targets", *map(_judged, outcome.verdicts)] if outcome.verdicts else []
    text += _floors(outcome.floors)
    failures = [
        f"  {line.row.name}, {name}: {why}" for line in lines for name, why in sorted(line.failed.items())
    ]
    text += ["", "not counted", *failures] if failures else []
    text += ["", *(f"{name} is left out: {why}" for name, why in outcome.left_out.items())]
    return "\n".join(text).rstrip()


def _shown(line: Line, others: Sequence[str]) -> str:
    numbers = [_number(line.values.get(name), line.row.unit) for name in (PLAIN, OWN)]
    ratios = "".join(_ratio(line, other) for other in others)
    return f"  {line.row.name:<26}{line.rounds:>2}{numbers[0]:>10}{numbers[1]:>11}{ratios}".rstrip()


def _number(value: Spread | None, unit: str) -> str:
    if value is None or value.median == 0:
        return "-"
    if unit == MICROSECONDS:
        return f"{value.median:.1f} us"
    if unit == MEGABYTES:
        return f"{value.median:.0f} MB"
    return f"{value.median:.3f} s" if value.median < 10 else f"{value.median:.1f} s"


def _ratio(line: Line, other: str) -> str:
    if other in line.failed:
        return f"{'failed':>{_CELL}}"
    if other not in line.ratios:
        return " " * _CELL
    value = line.ratios[other]
    around = f" ({_digits(value.low)}-{_digits(value.high)})" if value.low < value.high else ""
    return f"{_digits(value.median) + around:>{_CELL}}"


def _digits(ratio: float) -> str:
    """As many digits as mean something."""
    if ratio < 0.1:
        return f"{ratio:.1g}"
    return f"{ratio:.2f}" if ratio < 10 else f"{ratio:.1f}" if ratio < 100 else f"{ratio:.0f}"


def _judged(verdict: Verdict) -> str:
    found = "" if verdict.found is None else f"{verdict.found:.3g}"
    remark = f"   ({verdict.remark})" if verdict.remark else ""
    return f"  {verdict.target:<46}{found:>8}  at most {verdict.limit:<6g}{verdict.word}{remark}"


def _floors(floors: Sequence[Floor]) -> list[str]:
    if not floors:
        return []
    head = f"how low {THINNEST} could go"
    return ["", f"{head:<52}{OWN:>10}{THINNEST:>10}", *map(_lowest, floors)]


def _lowest(floor: Floor) -> str:
    lowest = "-" if floor.lowest is None else f"{floor.lowest:.3g}"
    return f"  {floor.target:<50}{floor.found:>10.3g}{lowest:>10}  at most {floor.limit:g}"
