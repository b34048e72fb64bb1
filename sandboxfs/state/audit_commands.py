"""Which program made a request?

The kernel names a thread; people know processes. Only files of /proc that never wait for the process are
read: it may hold its memory map while it waits for us. A process that has ended has no name any more, so
whoever queues a record lets the name be looked up soon: before a denial is answered, right after a change is.
"""

import time
from typing import NamedTuple

_FRESH = 1.0
_MEMORABLE = 3.0
_CACHE_LIMIT = 4096


class Process(NamedTuple):
    """A process and the name of the command it runs, at most 15 characters of it, as the kernel keeps it."""

    pid: int
    command: str | None


def process_of(thread: int) -> Process | None:
    """Find the process that *thread* belongs to; None when it has ended or cannot be seen."""
    try:
        with open(f"/proc/{thread}/status", "rb") as status:  # noqa: PTH123 - Path costs as much as the read
            head = status.read(512)
        name, pid = _named(head), _leader(head)
        if pid != thread:
            # Threads may have names of their own.
            with open(f"/proc/{pid}/comm", "rb") as comm:  # noqa: PTH123
                name = comm.read().removesuffix(b"\n")
    except (OSError, ValueError):
        return None
    return Process(pid, name.decode("utf-8", "surrogateescape"))


def _named(status: bytes) -> bytes:
    start = status.index(b"Name:\t") + 6
    # The kernel writes a newline and a backslash in the name as \n and \\.
    escaped = status[start : status.index(b"\n", start)]
    return escaped.replace(b"\\n", b"\n").replace(b"\\\\", b"\\")


def _leader(status: bytes) -> int:
    start = status.index(b"\nTgid:\t") + 7
    return int(status[start : status.index(b"\n", start)])


class CommandNames:
    """The processes seen lately. Names are looked at again after a second: ids are reused, programs exec."""

    def __init__(self) -> None:
        self._seen: dict[int, tuple[float, Process]] = {}

    def of(self, thread: int) -> Process:
        """Find the process of *thread*, also when it has ended since it was last asked for."""
        now = time.monotonic()
        known = self._seen.get(thread)
        if known is not None and now - known[0] < _FRESH:
            return known[1]
        found = process_of(thread)
        if found is not None:
            if len(self._seen) >= _CACHE_LIMIT:
                self._seen.clear()
            self._seen[thread] = (now, found)
            return found
        if known is not None and now - known[0] < _MEMORABLE:
            return known[1]
        return Process(thread, None)
