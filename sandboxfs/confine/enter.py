"""Entering confinement: a forked child executes bubblewrap, sets up Landlock for the program, or neither.

The child becomes the starter, the init process of the program. Bubblewrap runs the starter's text as process
1 of the program's world. Otherwise the child is the starter itself; its own child closes Landlock around
itself just before it becomes the program. Nothing else that was open stays so.

Where the program has no process namespace, the starter is a subreaper, and everything ends with the program.
The subreaper adopts the orphans among its descendants, so that none can slip away. At the end all are stopped
first, because a stopped process starts no others, and then killed. The subreaper does not give up where the
list of processes cannot be read, for want of a descriptor say: children can be told from other processes
without.
"""

import errno
import os
import signal
import sys
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

from sandboxfs.confine import init, kernel_calls, landlock, seccomp
from sandboxfs.confine.init import Init, InitOrders, close_on_start
from sandboxfs.confine.mounts import bubblewrap_arguments
from sandboxfs.confine.program_values import BubblewrapConfinement, ConfinedProgram, LandlockConfinement

# What reading about a process gives when it has ended, or is not for us to look at.
_NOT_OURS = {errno.ENOENT, errno.ESRCH, errno.EACCES, errno.EPERM}
# The most that any kernel of 64 bits has.
_MOST_PROCESSES = 1 << 22
_LONGEST_PAUSE = 0.1


class Subreaper(Init):
    """A starter outside of any namespace."""

    def __init__(
        self,
        channel: int,
        orders: InitOrders,
        restrict: Callable[[], None] | None = None,
        started: Callable[[], None] | None = None,
    ) -> None:
        """Prepare; *restrict* is called in the program's process, *started* in this one once it runs."""
        keeper = os.getpid()
        self._started = started

        def restrict_and_bind() -> None:
            if restrict is not None:
                restrict()
            # The program itself, if not what it has started, ends also with a keeper that is killed.
            kernel_calls.end_with_parent(keeper)

        super().__init__(channel, orders, restrict_and_bind)

    def _start(self) -> bool:
        began = super()._start()
        if began and self._started is not None:
            self._started()
        return began

    def keep(self) -> None:
        """Start the program, mind it, and leave no process of it behind."""
        kernel_calls.adopt_orphans()
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


Become = Callable[[int, InitOrders], NoReturn]


def entrance(program: ConfinedProgram) -> Become:
    """Return what turns a forked child into the init process of *program*; all it needs has been read."""
    match program.confinement:
        case BubblewrapConfinement() as confinement:
            return through_bubblewrap(confinement, program.held)
        case LandlockConfinement() as confinement:
            return within_landlock(confinement)
        case None:
            return unconfined()


def through_bubblewrap(confinement: BubblewrapConfinement, held: Iterable[int] = ()) -> Become:
    """Confine with bubblewrap; read everything that can fail for want of a file now.

    The starter keeps the descriptors *held* open until every process of the program has ended.
    """
    text = Path(init.__file__).read_bytes()
    machine = os.uname().machine
    filtered = seccomp.build_filter(machine) if seccomp.known(machine) else None
    mounts = confinement.mounts

    def become(channel: int, orders: InitOrders) -> NoReturn:
        close_on_start()
        script, written = _in_memory(text), _in_memory(orders.dump())
        filter_descriptor = None if filtered is None else _in_memory(filtered)
        texts = [_in_memory(content) for _, content in mounts.texts]
        words = bubblewrap_arguments(
            mounts, filter_descriptor=filter_descriptor, sizes=confinement.sizes, texts=texts
        )
        inside = _interpreter(f"/proc/self/fd/{script}", str(channel), str(written))
        options = _in_memory(b"\0".join(map(os.fsencode, words)) + b"\0")
        for descriptor in (channel, *held):
            os.set_inheritable(descriptor, True)
        if confinement.keep_from_abstract:
            landlock.keep_from_abstract_sockets()
        # Its environment is its own: the program's comes with the orders, and is none of bubblewrap's.
        arguments = ["bwrap", "--args", str(options), "--", *inside]
        os.execve(confinement.program, arguments, {"LC_ALL": "C"})  # noqa: S606

    return become


def within_landlock(confinement: LandlockConfinement) -> Become:
    """Confine with Landlock."""
    # Imported here: bubblewrap needs nothing of it.
    from sandboxfs.confine.attribute_calls import Attendant

    rules, attended, temporary = confinement.rules, confinement.attended, confinement.temporary
    machine = os.uname().machine
    # Landlock does not keep a program from sockets in the file system, nor from any network but TCP; of other
    # processes it keeps it from memory and signals only, and of files not from what needs no opened one.
    filtered = None
    if seccomp.known(machine):
        filtered = seccomp.build_filter(
            machine, local=False, internet=rules.network, alone=False, attended=attended
        )

    def become(channel: int, orders: InitOrders) -> NoReturn:
        close_on_start()
        # Made and removed by the starter, which outlives a command that is killed.
        if temporary is not None:
            temporary.make()
        try:
            enclosure = landlock.Enclosure(rules, confinement.abi)
            attendant = Attendant(rules.whole, filtered) if attended and filtered is not None else None

            def restrict() -> None:
                enclosure.enter()
                if attendant is not None:
                    attendant.begin()
                elif filtered is not None:
                    kernel_calls.install_filter(filtered)

            Subreaper(channel, orders, restrict, None if attendant is None else attendant.attend).keep()
        finally:
            # What the program made impossible to remove must not change how it ended.
            with suppress(OSError):
                if temporary is not None:
                    temporary.remove()
        os._exit(0)

    return become


def unconfined() -> Become:
    """Confine nothing; the program still ends with the run."""

    def become(channel: int, orders: InitOrders) -> NoReturn:
        close_on_start()
        Subreaper(channel, orders).keep()
        os._exit(0)

    return become


def _interpreter(*arguments: str) -> list[str]:
    # -I and -S: nothing of the user's environment or of packages; the text brings all it needs.
    return [os.path.realpath(sys.executable), "-I", "-S", "-B", *arguments]


def _in_memory(content: bytes) -> int:
    descriptor = os.memfd_create("sandboxfs", 0)
    with open(descriptor, "wb", closefd=False) as file:
        file.write(content)
    os.lseek(descriptor, 0, os.SEEK_SET)
    return descriptor
