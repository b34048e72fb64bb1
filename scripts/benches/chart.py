"""How is the outcome drawn? An SVG by hand: a bar for each row, its ratio to fuse-overlayfs.

The scale is logarithmic, so that half the time and twice the time are as far from the line of equal time.
Colours are readable on light and on dark pages.
"""

import math
from collections.abc import Iterable
from xml.sax.saxutils import escape

from scripts.benches.comparing import Line, Spread
from scripts.benches.names import FUSE_OVERLAYFS, LATENCY, WORKLOAD
from scripts.benches.showing import Outcome, means

_LEFT, _WIDTH, _RIGHT, _STEP, _TOP = 220, 560, 80, 22, 76
_TICKS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100, 200, 500, 1000)
_FASTER, _SLOWER, _GREY = "#2a9d6f", "#c8553d", "#888888"


def drawn(outcome: Outcome, other: str = FUSE_OVERLAYFS) -> str:
    """The ratios to *other* as an SVG document."""
    bars = [(line.row.name, line.ratios[other]) for line in _ordered(outcome.lines) if other in line.ratios]
    if other in means(outcome.lines):
        mean = means(outcome.lines)[other]
        bars.append(("geometric mean of workloads", Spread(mean, mean, mean)))
    ticks = _ticks([spread for _, spread in bars])
    height = _TOP + _STEP * len(bars) + 16
    total = _LEFT + _WIDTH + _RIGHT
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{total}" height="{height}" '
        f'viewBox="0 0 {total} {height}" font-family="sans-serif" font-size="13" fill="{_GREY}">',
        _text(12, 22, f"Time of sandboxfs divided by that of {other}; shorter is better", "start", 15),
        _text(12, 42, outcome.machine, "start", 11),
    ]
    parts += [_tick(tick, ticks, height) for tick in ticks]
    for number, (name, spread) in enumerate(bars):
        parts += _bar(name, spread, _TOP + _STEP * number, ticks)
    return "\n".join([*parts, "</svg>", ""])


def _ordered(lines: Iterable[Line]) -> list[Line]:
    every = list(lines)
    return [line for kind in (WORKLOAD, LATENCY) for line in every if line.row.kind == kind]


def _ticks(spreads: list[Spread]) -> list[float]:
    """The marks of the scale: enough to hold every median and the line of equal time."""
    low = min([spread.median for spread in spreads] + [0.5])
    high = max([spread.median for spread in spreads] + [2])
    first = max((number for number, tick in enumerate(_TICKS) if tick <= low), default=0)
    last = min((number for number, tick in enumerate(_TICKS) if tick >= high), default=len(_TICKS) - 1)
    return list(_TICKS[first : last + 1])


def _across(ratio: float, ticks: list[float]) -> float:
    part = math.log(ratio / ticks[0]) / math.log(ticks[-1] / ticks[0])
    return _LEFT + _WIDTH * min(1.0, max(0.0, part))


def _tick(tick: float, ticks: list[float], height: int) -> str:
    across = _across(tick, ticks)
    width = 1.5 if tick == 1 else 0.4
    line = _line(across, _TOP - 8, across, height - 10, width)
    return f"{line}\n{_text(across, _TOP - 14, f'{tick:g}', 'middle', 11)}"


def _bar(name: str, spread: Spread, down: int, ticks: list[float]) -> list[str]:
    equal, end = _across(1, ticks), _across(spread.median, ticks)
    colour = _FASTER if spread.median <= 1 else _SLOWER
    middle = down + 7
    width = max(1.0, abs(end - equal))
    return [
        _text(_LEFT - 8, down + 12, name, "end", 13),
        f'<rect x="{min(equal, end):.1f}" y="{down}" width="{width:.1f}" height="14" fill="{colour}"/>',
        _line(_across(spread.low, ticks), middle, _across(spread.high, ticks), middle, 1.5),
        _text(_LEFT + _WIDTH + 12, down + 12, f"{spread.median:.2f}", "start", 13),
    ]


def _line(left: float, top: float, right: float, bottom: float, width: float) -> str:
    ends = f'x1="{left:.1f}" y1="{top:.1f}" x2="{right:.1f}" y2="{bottom:.1f}"'
    return f'<line {ends} stroke="{_GREY}" stroke-width="{width}"/>'


def _text(across: float, down: float, text: str, anchor: str, size: int) -> str:
    place = f'x="{across:.1f}" y="{down:.1f}"'
    return f'<text {place} text-anchor="{anchor}" font-size="{size}">{escape(text)}</text>'
