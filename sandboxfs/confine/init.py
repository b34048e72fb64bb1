"""The init process of a confined program: its parent, in the same namespace.

The first process of a run. Under bubblewrap it is process 1 of the program's own process namespace, started
from this file's text, so it imports nothing but a few modules that start fast, and none of sandboxfs.
Elsewhere it is forked from the command. It starts the program in a process group of its own, hands it the
terminal, reports over a channel how it fares, and ends everything when the program ends or the command goes
away.
"""

from __future__ import annotations

import errno
import os
import select
import signal
import sys

# What `typing` has under this name; importing it would take a third of the time until the program starts.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import NoReturn

# What a terminal or a shell sends to a job. The starter outlives them; the program gets them as it would
# outside.
_SHRUGGED_OFF = (
    signal.SIGHUP,
    signal.SIGINT,
    signal.SIGQUIT,
    signal.SIGTERM,
    signal.SIGUSR1,
    signal.SIGUSR2,
    signal.SIGTSTP,
    signal.SIGTTIN,
    signal.SIGTTOU,
)
_ENDING = (signal.SIGTERM, signal.SIGHUP)
# Python ignores these at its start; programs expect them not to be.
_PYTHONS_OWN = (signal.SIGPIPE, signal.SIGXFSZ)


class InitOrders:
    """What to start and how; *ignored* are the signals that the program is to ignore, as the command did."""

    def __init__(
        self,
        command: list[bytes],
        environment: dict[bytes, bytes],
        directory: bytes,
        *,
        terminal: bool,
        foreground: bool,
        ignored: list[int],
    ) -> None:
        self.command = command
        self.environment = environment
        self.directory = directory
        self.terminal = terminal
        self.foreground = foreground
        self.ignored = ignored

    def dump(self) -> bytes:
        """Write the orders so that `parse` reads them: nothing in them can hold a NUL."""
        head = [
            self.directory,
            b"1" if self.terminal else b"0",
            b"1" if self.foreground else b"0",
            b",".join(b"%d" % number for number in self.ignored),
            b"%d" % len(self.command),
        ]
        entries = [name + b"=" + value for name, value in self.environment.items()]
        return b"\0".join(head + self.command + entries)

    @property
    def offline(self) -> bool:
        """Whether the program was told that it has no network."""
        return b"SANDBOXFS_NETWORK_DISABLED" in self.environment

    @classmethod
    def parse(cls, text: bytes) -> InitOrders:
        directory, terminal, foreground, ignored, count, *rest = text.split(b"\0")
        entries = rest[int(count) :]
        return cls(
            rest[: int(count)],
            {name: value for name, _, value in (entry.partition(b"=") for entry in entries)},
            directory,
            terminal=terminal == b"1",
            foreground=foreground == b"1",
            ignored=[int(number) for number in ignored.split(b",") if number],
        )


class Init:
    """Starts one program and minds it. *restrict* is called in its process just before it starts."""

    def __init__(self, channel: int, orders: InitOrders, restrict: Callable[[], None] | None = None) -> None:
        self._channel = channel
        self._orders = orders
        self._restrict = restrict
        self._received = b""
        self._program = 0
        self._stopped = False
        self._terminal = -1
        os.set_inheritable(channel, False)

    def mind(self) -> None:
        """Start the program and stay until it has ended or nobody listens any more."""
        waking, wakened = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        for number in _SHRUGGED_OFF:
            signal.signal(number, signal.SIG_IGN)
        signal.set_wakeup_fd(wakened, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        if self._orders.terminal:
            self._open_terminal()
        if not self._start():
            return
        poll = select.poll()
        poll.register(self._channel, select.POLLIN)
        poll.register(waking, select.POLLIN)
        while True:
            ready = [descriptor for descriptor, _ in poll.poll()]
            if waking in ready:
                os.read(waking, 4096)
                if self._reap():
                    return
            if self._channel in ready and not self._obey():
                return

    def _open_terminal(self) -> None:
        try:
            self._terminal = os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC)
        except OSError:
            self._terminal = -1

    def _start(self) -> bool:
        """Start the program; False when it could not be, which has been reported."""
        failing, failed = os.pipe2(os.O_CLOEXEC)
        self._program = os.fork()
        if self._program == 0:
            self._become_program(failed)
        os.close(failed)
        # Both sides do it, so that neither can be too late for the other.
        self._set_group(self._program)
        complaint = os.read(failing, 65536)
        os.close(failing)
        if complaint:
            os.waitpid(self._program, 0)
            self._say(b"failed " + complaint)
            return False
        return True

    def _set_group(self, pid: int) -> None:
        try:
            os.setpgid(pid, pid)
        except OSError:
            # It has started already, in its group.
            pass
        if self._orders.foreground:
            self._hand_terminal_over(pid or os.getpid())

    def _hand_terminal_over(self, group: int) -> None:
        if self._terminal >= 0:
            try:
                os.tcsetpgrp(self._terminal, group)
            except OSError:
                # The terminal was closed, or the program has gone already.
                pass

    def _become_program(self, failed: int) -> NoReturn:
        stage = b"confine"
        try:
            self._set_group(0)
            for number in (*_SHRUGGED_OFF, *_PYTHONS_OWN, signal.SIGCHLD):
                signal.signal(number, signal.SIG_IGN if number in self._orders.ignored else signal.SIG_DFL)
            stage = b"enter"
            os.chdir(self._orders.directory)
            stage = b"confine"
            if self._restrict is not None:
                self._restrict()
            stage = b"start"
            _execute(self._orders.command, self._orders.environment)
        except OSError as error:
            os.write(failed, b"%d %s" % (error.errno or 0, stage))
        except BaseException as error:
            os.write(failed, b"0 " + stage + b" " + repr(error).encode(errors="replace"))
        finally:
            os._exit(127)

    def _reap(self) -> bool:
        """Take note of children that stopped or ended; True when the program has ended."""
        ended = False
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG | os.WUNTRACED)
            except ChildProcessError:
                return ended
            if pid == 0:
                return ended
            if os.WIFSTOPPED(status) and _let_go(pid, os.WSTOPSIG(status)):
                continue
            if pid != self._program:
                continue
            if os.WIFSTOPPED(status):
                self._stopped = True
                self._say(b"stopped %d" % os.WSTOPSIG(status))
            else:
                if status and self._orders.offline and _tried_network():
                    self._say(b"offline")
                self._say(b"ended %d" % status)
                ended = True

    def _obey(self) -> bool:
        """Do what the command asks; False when it is gone."""
        try:
            chunk = os.read(self._channel, 4096)
        except OSError:
            return False
        if not chunk:
            return False
        *lines, self._received = (self._received + chunk).split(b"\n")
        for line in lines:
            word, _, argument = line.partition(b" ")
            if word == b"signal":
                self._signal(self._program, int(argument))
                if self._stopped and int(argument) in _ENDING:
                    # A stopped program would not get it.
                    self._continue()
            elif word == b"continue":
                if argument == b"1":
                    self._hand_terminal_over(self._program)
                self._continue()
        return True

    def _continue(self) -> None:
        self._stopped = False
        self._signal(-self._program, signal.SIGCONT)

    def _signal(self, pid: int, number: int) -> None:
        try:
            os.kill(pid, number)
        except OSError:
            pass

    def _say(self, line: bytes) -> None:
        try:
            os.write(self._channel, line + b"\n")
        except OSError:
            pass


# What the kernel counts in a network namespace without a network: packets for which there is no way, and
# those to a name server on this machine, which is not there.
_UNREACHED = (b"OutNoRoutes", b"NoPorts", b"Ip6OutNoRoutes", b"Udp6NoPorts")


def _tried_network() -> bool:
    """Whether anything in this network namespace tried to reach something outside."""
    if os.getpid() != 1:
        # Nothing of its own is counted where there is no namespace.
        return False
    counted: list[tuple[bytes, bytes]] = []
    try:
        with open("/proc/net/snmp", "rb") as table:  # noqa: PTH123 - pathlib would have to be imported
            lines = table.read().splitlines()
        for names, values in zip(lines[::2], lines[1::2], strict=False):
            counted += zip(names.split(), values.split(), strict=False)
        with open("/proc/net/snmp6", "rb") as table:  # noqa: PTH123
            counted += [(name, value) for name, value in (line.split() for line in table)]
    except (OSError, ValueError):
        # A kernel without IPv6, or without these tables.
        pass
    return any(name in _UNREACHED and value != b"0" for name, value in counted)


def _let_go(pid: int, number: int) -> bool:
    """Let a process go on that asked to be traced by its parent, which is this one; False for others.

    Nobody would ever continue it: it would stop at every signal, SIGTERM too, and stay so. It gets signal
    *number*, at which it stopped, unless the kernel sent that one for the tracer (SIGTRAP).
    """
    import ctypes

    libc = ctypes.CDLL(None)
    libc.ptrace.argtypes = (ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p)
    passed_on = 0 if number == signal.SIGTRAP else number
    return bool(libc.ptrace(17, pid, None, passed_on) == 0)  # PTRACE_DETACH


def _execute(command: list[bytes], environment: dict[bytes, bytes]) -> NoReturn:
    """Become *command*, found as a shell finds it; raises the OSError that says why not."""
    name = command[0]
    places = [name]
    if b"/" not in name:
        path = environment.get(b"PATH") or os.fsencode(os.defpath)
        places = [(place or b".") + b"/" + name for place in path.split(b":")]
    refusal = OSError(errno.ENOENT, os.strerror(errno.ENOENT))
    for place in places:
        try:
            os.execve(place, command, environment)  # noqa: S606 - a shell would change the words
        except OSError as error:
            refusal = _worse(refusal, error, place)
            if error.errno == errno.ENOEXEC:
                # A script that does not say by what it is to be run.
                os.execve(b"/bin/sh", [b"/bin/sh", place, *command[1:]], environment)  # noqa: S606
    raise refusal


def _worse(before: OSError, error: OSError, place: bytes) -> OSError:
    """Choose what to report: a file that is there and cannot be run says more than one that is not there."""
    if error.errno in (errno.ENOENT, errno.ENOTDIR):
        if os.path.lexists(place) and error.errno == errno.ENOENT:
            # It is there: what is not is the interpreter that it names.
            return OSError(errno.ELIBBAD, "its interpreter is missing")
        return before
    return error if before.errno == errno.ENOENT else before


def main() -> None:
    """Be process 1 of a namespace; the arguments are the descriptors of the channel and of the orders."""
    channel, orders = int(sys.argv[1]), int(sys.argv[2])
    _become_unreachable()
    close_on_start()
    with open(orders, "rb") as text:
        read = InitOrders.parse(text.read())
    Init(channel, read).mind()
    _end_the_others()
    os._exit(0)


def _end_the_others() -> None:
    """End every other process of the namespace, and wait until the last has gone.

    The kernel would do so too, but only after it has closed this process's descriptors: the lock on the home
    must not be free while a program can still write there.
    """
    if os.getpid() != 1:
        return
    try:
        os.kill(-1, signal.SIGKILL)
    except OSError:
        # There is no other process.
        pass
    while True:
        try:
            os.waitpid(-1, 0)
        except ChildProcessError:
            return


def close_on_start() -> None:
    """Have every descriptor but the standard ones closed when a process becomes another program."""
    for name in os.listdir("/proc/self/fd"):  # noqa: PTH208 - pathlib would have to be imported
        if int(name) > 2:
            try:
                os.set_inheritable(int(name), False)
            except OSError:
                # The one that listed the directory is gone already.
                continue


def _become_unreachable() -> None:
    """Keep the program from taking this process over as a debugger would."""
    import ctypes

    ctypes.CDLL(None).prctl(4, 0, 0, 0, 0)  # PR_SET_DUMPABLE


if __name__ == "__main__":
    main()
