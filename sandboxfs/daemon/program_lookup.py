"""Program lookup: the executable of a process that opens a file, and its line of parents, from /proc.

The serving thread reads nothing of another process's memory: its arguments may lie in a page of the mount,
for which the daemon itself would have to answer. `arguments` reads those, and is for a thread of its own.
"""

import os
from typing import NamedTuple, Protocol

from sandboxfs.policy.grants import ProcessMark

# Parents that are looked at.
_PARENTS = 16
_ARGUMENT = 4096


class ProgramSeen(NamedTuple):
    """A process as it is shown to a person."""

    pid: int
    started: int
    exe: str | None
    command: str


class Processes(Protocol):
    """What is known of processes."""

    def exe(self, thread: int) -> str | None:
        """The executable of the process of a thread."""

    def line(self, thread: int) -> list[ProgramSeen]:
        """The process of a thread and its parents, the nearest first."""

    def marks(self, thread: int) -> tuple[ProcessMark, ...]:
        """The same, as marks."""

    def lives(self, mark: ProcessMark) -> bool:
        """Tell whether a process is still there."""


class ProgramLookup:
    """What /proc says of processes. Implements `Processes`."""

    def exe(self, thread: int) -> str | None:
        return _exe(thread)

    def line(self, thread: int) -> list[ProgramSeen]:
        return [
            ProgramSeen(pid, started, _exe(pid), _command(pid)) for pid, started in _line(_leader(thread))
        ]

    def marks(self, thread: int) -> tuple[ProcessMark, ...]:
        return tuple(ProcessMark(pid, started) for pid, started in _line(_leader(thread)))

    def lives(self, mark: ProcessMark) -> bool:
        found = _parent_and_start(mark.pid)
        return found is not None and found[1] == mark.started


def arguments(mark: ProcessMark) -> str | None:
    """Return the word by which a process was called. May wait for the mount, and so is for a thread."""
    try:
        with open(f"/proc/{mark.pid}/cmdline", "rb") as content:
            first = content.read(_ARGUMENT).split(b"\0")[0]
    except OSError:
        return None
    return os.fsdecode(first) if first and ProgramLookup().lives(mark) else None


def _exe(thread: int) -> str | None:
    try:
        return os.readlink(f"/proc/{thread}/exe")
    except OSError:
        return None


def _command(pid: int) -> str:
    try:
        with open(f"/proc/{pid}/comm", "rb") as content:
            return os.fsdecode(content.read().removesuffix(b"\n"))
    except OSError:
        return "?"


def _leader(thread: int) -> int:
    """Return the process of a thread; the thread itself where that cannot be told."""
    try:
        with open(f"/proc/{thread}/status", "rb") as content:
            head = content.read(512)
        start = head.index(b"\nTgid:\t") + 7
        return int(head[start : head.index(b"\n", start)])
    except (OSError, ValueError):
        return thread


def _line(pid: int) -> list[tuple[int, int]]:
    """Return a process and its parents, each with the time of its start."""
    line: list[tuple[int, int]] = []
    while pid > 0 and len(line) < _PARENTS:
        found = _parent_and_start(pid)
        if found is None:
            break
        line.append((pid, found[1]))
        pid = found[0]
    return line


def _parent_and_start(pid: int) -> tuple[int, int] | None:
    try:
        with open(f"/proc/{pid}/stat", "rb") as content:
            # The name is in parentheses, and may have any others in it.
            fields = content.read().rpartition(b")")[2].split()
        return int(fields[1]), int(fields[19])
    except (OSError, ValueError, IndexError):
        return None
