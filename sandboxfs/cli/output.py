"""How are results written? Data on stdout, everything else on stderr."""

import json
import sys
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path

from sandboxfs.paths import quoted


def data(text: str) -> None:
    """Write *text*, a line of the result."""
    print(text, flush=True)


def document(value: object) -> None:
    """Write *value*, the whole result, as JSON."""
    data(json.dumps(value, indent=2))


def note(text: str) -> None:
    """Tell the person something that is not the result, if there is anybody to read it."""
    with suppress(OSError):
        print(text, file=sys.stderr, flush=True)


def warnings(sentences: Iterable[str]) -> None:
    """Tell the person what may not be meant as it is."""
    for sentence in sentences:
        note(f"sandboxfs: warning: {sentence}")


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Write *rows* in columns under *header*."""
    widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]
    for row in (header, *rows):
        data("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def shown(path: Path) -> str:
    """Show *path* plainly where that is unambiguous, quoted where it is not."""
    plain, safe = str(path), quoted(path)
    return plain if safe == f"'{plain}'" and " " not in plain else safe


def human_size(size: int) -> str:
    """Write a number of bytes for a person."""
    amount = float(size)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if amount < 1024:
            return f"{amount:.0f} {unit}" if unit == "B" else f"{amount:.1f} {unit}"
        amount /= 1024
    return f"{amount:.1f} TiB"


def human_duration(seconds: float) -> str:
    """Write a length of time for a person, by its two largest units."""
    whole = int(seconds)
    parts = [(whole // 86400, "d"), (whole // 3600 % 24, "h"), (whole // 60 % 60, "m"), (whole % 60, "s")]
    while len(parts) > 1 and parts[0][0] == 0:
        parts.pop(0)
    return " ".join(f"{amount}{unit}" for amount, unit in parts[:2])
