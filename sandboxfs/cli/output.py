"""Output of commands: data on stdout, the rest on stderr; tables, sizes, durations and local times."""

import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Protocol

from sandboxfs import codec
from sandboxfs.paths import quoted

# A terminal that is narrower breaks lines itself.
_NARROWEST = 40


class NamedSandbox(Protocol):
    """What is about one sandbox: the sandbox's name, and its workspace."""

    @property
    def name(self) -> str: ...

    @property
    def workspace(self) -> Path: ...


def data(text: str) -> None:
    """Write *text*, a line of the result."""
    print(text, flush=True)


def document(value: Mapping[str, object]) -> None:
    """Write *value*, the whole result, as JSON."""
    data(codec.document(value))


def note(text: str) -> None:
    """Tell the person something that is not the result, if there is anybody to read it."""
    with suppress(OSError):
        print(text, file=sys.stderr, flush=True)


def warnings(sentences: Iterable[str]) -> None:
    """Tell the person what may not be meant as it is."""
    for sentence in sentences:
        note(f"sandboxfs: warning: {sentence}")


def terminal_width() -> int:
    """Return how many characters fit in a line: `$COLUMNS`, else what the terminal has, else 80."""
    try:
        width = int(os.environ.get("COLUMNS") or os.get_terminal_size(1).columns)
    except (OSError, ValueError):
        width = 0
    return max(width, _NARROWEST) if width > 0 else 80


def nearest(word: str, known: Iterable[str]) -> str | None:
    """Return the one of *known* that a person who typed *word* probably meant."""
    # Imported here: most people type what they mean.
    import difflib

    return next(iter(difflib.get_close_matches(word, list(known), n=1)), None)


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Write *rows* in columns under *header*."""
    widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]
    for row in (header, *rows):
        data("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def shown(path: Path) -> str:
    """Show *path* plainly where that is unambiguous, quoted where it is not."""
    plain, safe = str(path), quoted(path)
    return plain if safe == f"'{plain}'" and " " not in plain else safe


def named(sandbox: NamedSandbox) -> str:
    """Name a sandbox together with its workspace, as every result does."""
    return f"'{sandbox.name}' of {quoted(sandbox.workspace)}"


def local_time(when: datetime | str) -> str:
    """Write a time for a person, where the person is; one that is no time is written as it is."""
    try:
        moment = datetime.fromisoformat(when) if isinstance(when, str) else when
        return moment.astimezone().strftime("%Y-%m-%d %H:%M:%S")
    except (ValueError, OverflowError, OSError):
        return str(when)


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
