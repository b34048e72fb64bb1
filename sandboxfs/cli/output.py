"""Output of commands: data on stdout, the rest on stderr; tables, sizes, times; pager and colours of results.

The pager is `SANDBOXFS_PAGER`, `GIT_PAGER`, `pager.diff` and `core.pager` of the user's own git
configuration, `PAGER` and `less`, the first that is set. Nothing that a repository, the workspace or the view
configures is ever run.

In colour, where that is wanted, and harmless: what a program wrote into a file must not move the cursor,
rename the window or hide lines, so control characters are made visible. What goes to a file or another
program stays as it is, byte for byte.
"""

import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path
from typing import IO, Protocol

from sandboxfs import codec
from sandboxfs.paths import INVISIBLE, quoted

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


# Pager

_DEFAULT = "less"


def pager_command() -> str | None:
    """Return the command that shows long output; None when the user wants none or there is none."""
    chosen = _chosen()
    if chosen is None:
        import shutil

        return _DEFAULT if shutil.which(_DEFAULT) else None
    return chosen if chosen.strip() not in ("", "cat") else None


def _chosen() -> str | None:
    for name in ("SANDBOXFS_PAGER", "GIT_PAGER"):
        if name in os.environ:
            return os.environ[name]
    # Imported late, as it is read only where something is paged.
    from sandboxfs.service.workspace import as_boolean, user_setting

    of_diff = user_setting("pager.diff")
    if of_diff is not None:
        paged = as_boolean(of_diff)
        if paged is None:
            return of_diff
        if not paged:
            return ""
    configured = user_setting("core.pager")
    return os.environ.get("PAGER") if configured is None else configured


@contextmanager
def paged(*, wanted: bool) -> Iterator[IO[bytes]]:
    """Give a stream to write the result to; whoever quits the pager early has seen enough."""
    command = pager_command() if wanted and sys.stdout.isatty() else None
    sys.stdout.flush()
    if command is None:
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()
        return
    # Imported late: most results need no pager.
    import subprocess

    environment = {"LESS": "FRX", "LV": "-c", **os.environ}
    # The shell that runs it is what makes options in $PAGER work, as everywhere.
    pager = subprocess.Popen(["sh", "-c", command], stdin=subprocess.PIPE, env=environment)
    stream = pager.stdin or sys.stdout.buffer
    try:
        yield stream
    except (BrokenPipeError, KeyboardInterrupt):
        # Quit, or Ctrl-C, which the pager gets as well and may take for something else than its end.
        pass
    finally:
        try:
            stream.close()
        except BrokenPipeError:
            pass
        _wait(pager.wait)


def _wait(ended: Callable[[], int]) -> None:
    """Let the person read on; only the pager ends itself."""
    while True:
        try:
            ended()
            return
        except KeyboardInterrupt:
            continue


# Colours

_RESET = b"\033[m"
_BOLD, _RED, _GREEN, _CYAN = b"\033[1m", b"\033[31m", b"\033[32m", b"\033[36m"
# Compiled where they are used first: most commands paint nothing.
_BAR = r"( .* \| +\d+ )(\+*)(-*)(.*)"
_ODD = rb"[\x00-\x08\x0b-\x1f\x7f-\xff]"
_HARMFUL = f"[\x00-\x08\x0b-\x1f\x7f-\x9f\udc80-\udcff]|{INVISIBLE}"


def wants_colour(choice: str, *, terminal: bool) -> bool:
    """Whether to use colour, for the `--color` *choice* of `auto`, `always` or `never`."""
    if choice == "auto":
        return terminal and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
    return choice == "always"


def harmless(text: bytes) -> bytes:
    """Make everything in *text* visible that a terminal would obey, hide, reorder, or not understand."""
    if not re.search(_ODD, text):
        return text
    return re.sub(_HARMFUL, _visible, text.decode("utf-8", "surrogateescape")).encode()


def _visible(match: re.Match[str]) -> str:
    code = ord(match[0])
    if code < 0x20:
        return "^" + chr(code + 0x40)
    if 0xDC80 <= code <= 0xDCFF:
        return f"<{code - 0xDC00:02X}>"
    return "^?" if code == 0x7F else f"<U+{code:04X}>"


class Painter:
    """Writes patches and summaries for one place."""

    def __init__(self, *, colour: bool, terminal: bool) -> None:
        self.colour = colour
        self.terminal = terminal

    def patch(self, text: bytes) -> bytes:
        """Paint a patch."""
        if self.terminal:
            text = harmless(text)
        return b"".join(_painted(text)) if self.colour else text

    def stat(self, line: str) -> str:
        """Paint a row of a summary: the signs of its bar."""
        row = re.fullmatch(_BAR, line) if self.colour else None
        if row is None:
            return line
        start, added, removed, rest = row.groups()
        return start + _sgr(_GREEN, added) + _sgr(_RED, removed) + rest


def _sgr(style: bytes, text: str) -> str:
    return style.decode() + text + _RESET.decode() if text else ""


def _painted(text: bytes) -> Iterator[bytes]:
    in_hunk = False
    for line in text.splitlines(keepends=True):
        if line.startswith(b"@@ "):
            in_hunk = True
            place, mark, section = line[3:].partition(b" @@")
            yield _CYAN + b"@@ " + place + mark + _RESET + section
            continue
        if line.startswith(b"diff --git "):
            in_hunk = False
        style = _style(line, in_hunk)
        body = line.rstrip(b"\n")
        yield style + body + _RESET + line[len(body) :] if style else line


def _style(line: bytes, in_hunk: bool) -> bytes:
    if not in_hunk:
        return _BOLD
    return {b"+": _GREEN, b"-": _RED}.get(line[:1], b"")
