"""How does a person see that a command is still at work? One line on the terminal, after a second.

Nowhere else: in a pipe, a log or a test nobody looks at it.
"""

import sys
import time
from collections.abc import Callable
from types import TracebackType
from typing import TextIO

from sandboxfs.cli.output import human_size

_PATIENCE = 1.0
_INTERVAL = 0.1
_CLEAR = "\r\x1b[K"


class Progress:
    """A line that tells how much is done, in bytes or in things; gone at the end of the with statement."""

    def __init__(
        self,
        doing: str,
        stream: TextIO | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._doing = doing
        self._stream = sys.stderr if stream is None else stream
        self._clock = clock
        self._shows = self._stream.isatty()
        self._next = clock() + _PATIENCE
        self._shown = False
        self._done = 0
        self.total: int | None = None

    def __enter__(self) -> "Progress":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._shown:
            self._stream.write(_CLEAR)
            self._stream.flush()

    def phase(self, doing: str, total: int | None = None) -> None:
        """Begin to do something else."""
        self._doing, self._done, self.total = doing, 0, total

    def advance(self, count: int) -> None:
        """Note that *count* more bytes are dealt with."""
        self._done += count
        if self._is_due():
            self._show(self._amount())

    def __call__(self, done: int, total: int) -> None:
        """Note that *done* of *total* things are dealt with."""
        if self._is_due():
            self._show(f"{done:,} of {max(done, total):,}")

    def _is_due(self) -> bool:
        return self._shows and self._clock() >= self._next

    def _show(self, amount: str) -> None:
        self._next = self._clock() + _INTERVAL
        self._shown = True
        self._stream.write(f"{_CLEAR}{self._doing}: {amount}")
        self._stream.flush()

    def _amount(self) -> str:
        if not self.total:
            return human_size(self._done)
        share = min(100, self._done * 100 // self.total)
        return f"{human_size(self._done)} of {human_size(self.total)} ({share} %)"
