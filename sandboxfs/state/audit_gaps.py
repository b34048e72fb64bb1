"""What is missing from the audit log?

Losses are counted by reason until they can be told. Counted by the thread that records and by the one that
writes, hence the lock, which is only ever taken when something is lost.
"""

import threading
import time
from dataclasses import dataclass

from sandboxfs.state.audit_record import Happened, timestamp


@dataclass(frozen=True)
class _Loss:
    count: int
    first_ns: int
    last_ns: int

    def __add__(self, other: "_Loss") -> "_Loss":
        return _Loss(
            self.count + other.count, min(self.first_ns, other.first_ns), max(self.last_ns, other.last_ns)
        )


class Gaps:
    """The losses not told yet."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._losses: dict[str, _Loss] = {}
        self._taken: dict[str, _Loss] = {}

    @property
    def pending(self) -> bool:
        return bool(self._losses)

    def add(self, reason: str, count: int, first_ns: int, last_ns: int) -> None:
        """Count *count* records, of the time from *first_ns* to *last_ns*, as lost."""
        self._merge({reason: _Loss(count, first_ns, last_ns)})

    def take(self) -> list[Happened]:
        """Return a gap record for each reason, and count from nothing again."""
        if not self._losses:
            self._taken = {}
            return []
        with self._lock:
            self._taken, self._losses = self._losses, {}
        return [
            Happened(
                time.time_ns(),
                "gap",
                {
                    "lost": loss.count,
                    "reason": reason,
                    "first": timestamp(loss.first_ns),
                    "last": timestamp(loss.last_ns),
                },
            )
            for reason, loss in self._taken.items()
        ]

    def put_back(self) -> None:
        """Count what was taken last again: it could not be told."""
        taken, self._taken = self._taken, {}
        self._merge(taken)

    def _merge(self, losses: dict[str, _Loss]) -> None:
        with self._lock:
            for reason, loss in losses.items():
                known = self._losses.get(reason)
                self._losses[reason] = loss if known is None else known + loss
