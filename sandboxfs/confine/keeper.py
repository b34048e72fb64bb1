"""How does everything end with the program where it has no process namespace of its own?

The starter adopts the orphans among its descendants, so that none can slip away. At the end all are stopped
first, because a stopped process starts no others, and then killed. It does not give up where the list of
processes cannot be read, for want of a descriptor say: children can be told from other processes without.
"""

import errno
import os
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from sandboxfs.confine import syscalls
from sandboxfs.confine.starter import Orders, Starter

# What reading about a process gives when it has ended, or is not for us to look at.
_NOT_OURS = {errno.ENOENT, errno.ESRCH, errno.EACCES, errno.EPERM}
# The most that any kernel of 64 bits has.
_MOST_PROCESSES = 1 << 22
_LONGEST_PAUSE = 0.1


class Keeper(Starter):
    """A starter outside of any namespace."""

    def __init__(self, channel: int, orders: Orders, restrict: Callable[[], None] | None = None) -> None:
        keeper = os.getpid()

        def restrict_and_bind() -> None:
            if restrict is not None:
                restrict()
            # The program itself, if not what it has started, ends also with a keeper that is killed.
            syscalls.end_with_parent(keeper)

        super().__init__(channel, orders, restrict_and_bind)

    def keep(self) -> None:
        """Start the program, mind it, and leave no process of it behind."""
        syscalls.adopt_orphans()
        highest = highest_process()
        try:
            self.mind()
        finally:
            end_descendants(highest)


def highest_process() -> int:
    """The highest number that a process can have."""
    try:
        return int(Path("/proc/sys/kernel/pid_max").read_bytes())
    except (OSError, ValueError):
        return _MOST_PROCESSES


def end_descendants(highest: int) -> None:
    """End all descendants of this process, which adopts their orphans; no process is above *highest*."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    stopped: set[int] = set()
    with suppress(OSError):
        while fresh := descendants() - stopped:
            for pid in fresh:
                _signal(pid, signal.SIGSTOP)
            stopped |= fresh
    pause = 0.001
    while True:
        try:
            found = descendants()
        except OSError:
            # As each ends, those below it become our children.
            found = children(highest)
        for pid in found:
            _signal(pid, signal.SIGKILL)
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return
        time.sleep(pause)
        pause = min(2 * pause, _LONGEST_PAUSE)


def descendants() -> set[int]:
    """The processes that this one, or another of them, has started, as far as they have not been waited for.

    One that looks as if it had ended may go on in another thread than its first.
    """
    below: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            parent = _parent(entry)
            if parent is not None:
                below.setdefault(parent, []).append(int(entry.name))
    found: set[int] = set()
    pending = [os.getpid()]
    while pending:
        for child in below.get(pending.pop(), ()):
            if child not in found:
                found.add(child)
                pending.append(child)
    return found


def _parent(process: Path) -> int | None:
    """Who has started a *process*; None when it is gone or nothing may be known of it."""
    try:
        # The name in it may hold anything, so count from its closing parenthesis.
        fields = (process / "stat").read_bytes().rpartition(b")")[2].split()
    except OSError as error:
        if error.errno in _NOT_OURS:
            return None
        raise
    return int(fields[1])


def children(highest: int) -> set[int]:
    """The processes that have this one as their parent, found by asking for each up to *highest*."""
    return {pid for pid in range(1, highest + 1) if _is_child(pid)}


def _is_child(pid: int) -> bool:
    try:
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except OSError:
        return False
    return True


def _signal(pid: int, number: signal.Signals) -> None:
    with suppress(OSError):
        os.kill(pid, number)
