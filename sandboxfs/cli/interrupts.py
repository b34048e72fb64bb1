"""What becomes of Ctrl-C, and of being told to end, while something is being changed?

Up to the moment of the change they are taken as usual, and what was prepared is taken back. From then on they
wait until the change is complete: it takes a moment, and half of it would be worse than either end.
"""

import signal
from collections.abc import Callable
from functools import partial
from types import FrameType, TracebackType

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interrupts:
    """Turns signals into KeyboardInterrupt inside a with statement, until `hold` is called."""

    def __init__(self) -> None:
        self._held = False
        self._restore: list[Callable[[], object]] = []

    def hold(self) -> None:
        """Let everything wait from now on, to the end of the with statement."""
        self._held = True

    def __enter__(self) -> "Interrupts":
        for number in _SIGNALS:
            before = signal.signal(number, self._caught)
            # None: set by somebody else than Python, who cannot be given it back.
            self._restore.append(partial(signal.signal, number, signal.SIG_DFL if before is None else before))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for restore in self._restore:
            restore()

    def _caught(self, _number: int, _frame: FrameType | None) -> None:
        if not self._held:
            raise KeyboardInterrupt
