"""How does everything end with the program where it has no process namespace of its own?

The starter adopts the orphans among its descendants, so that none can slip away. At the end all are stopped
first, because a stopped process starts no others, and then killed.
"""

import os
import signal
from contextlib import suppress
from pathlib import Path

from sandboxfs.confine import syscalls
from sandboxfs.confine.starter import Starter


class Keeper(Starter):
    """A starter outside of any namespace."""

    def keep(self) -> None:
        """Start the program, mind it, and leave no process of it behind."""
        syscalls.adopt_orphans()
        try:
            self.mind()
        finally:
            end_descendants()


def end_descendants() -> None:
    """End all descendants of this process, which adopts their orphans."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    stopped: set[int] = set()
    while fresh := descendants() - stopped:
        for pid in fresh:
            _signal(pid, signal.SIGSTOP)
        stopped |= fresh
    while True:
        for pid in descendants():
            _signal(pid, signal.SIGKILL)
        try:
            os.waitpid(-1, 0)
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return


def descendants() -> set[int]:
    """The processes that this one, or another of them, has started, as far as they have not ended."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(OSError, ValueError, IndexError):
                # The name in it may hold anything, so count from its closing parenthesis.
                fields = (entry / "stat").read_bytes().rpartition(b")")[2].split()
                if fields[0] != b"Z":
                    children.setdefault(int(fields[1]), []).append(int(entry.name))
    found: set[int] = set()
    pending = [os.getpid()]
    while pending:
        for child in children.get(pending.pop(), ()):
            if child not in found:
                found.add(child)
                pending.append(child)
    return found


def _signal(pid: int, number: signal.Signals) -> None:
    with suppress(OSError):
        os.kill(pid, number)
