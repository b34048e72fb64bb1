"""Which threads answer a request by themselves?

So many at once, as long as anything is served: what they write their answers to is closed in the end.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from threading import Condition

MOST_THREADS = 40
"""So many requests are answered by threads of their own at once; more of them take turns."""

# Seconds to wait for an answer that is being written.
_LAST_WORDS = 2.0


class Threads:
    """Counts the threads that answer."""

    def __init__(self) -> None:
        self._change = Condition()
        self._free = MOST_THREADS
        self._answering = 0
        self._serving = True

    def take(self) -> bool:
        with self._change:
            taken = self._serving and self._free > 0
            self._free -= taken
            return taken

    @contextmanager
    def given_back(self) -> Iterator[bool]:
        """Whether there is still somebody to answer; there is until the end of the block."""
        with self._change:
            serving = self._serving
            self._answering += serving
        try:
            yield serving
        finally:
            with self._change:
                self._free += 1
                self._answering -= serving
                self._change.notify_all()

    def end(self) -> None:
        """Have no thread answer from now on."""
        with self._change:
            self._serving = False
            self._change.wait_for(lambda: self._answering == 0, _LAST_WORDS)
