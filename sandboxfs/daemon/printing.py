"""How does a person at the terminal hear of denials?

One line each; one that repeats the last is counted, and the count is told when something else comes.
"""

import time
from typing import TextIO

from sandboxfs.daemon.journal import Denial

# A run of equal denials is told of again after so many seconds.
_PATIENCE = 5.0


class DenialPrinter:
    """Writes denials to a stream, repeated ones folded."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._last = ""
        self._more = 0
        self._told = 0.0

    def __call__(self, denial: Denial) -> None:
        sentence = denial.sentence()
        now = time.monotonic()
        if sentence == self._last and now - self._told < _PATIENCE:
            self._more += 1
            return
        self.finish()
        self._last, self._told = sentence, now
        self._write(f"sandboxfs: {sentence}")

    def finish(self) -> None:
        """Tell of what was counted and not told yet."""
        if self._more:
            self._write(f"sandboxfs: {self._more} more of these")
            self._more = 0

    def _write(self, line: str) -> None:
        try:
            print(line, file=self._stream, flush=True)
        except (OSError, ValueError):
            # The terminal is gone; the log has it all.
            pass
