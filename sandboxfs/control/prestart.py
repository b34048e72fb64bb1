"""Prestarting a daemon before its sandbox is known.

Imports take most of a daemon's start. So a command may start a daemon as its first act: the daemon imports,
and waits at one end of a channel for its orders: the sandbox, the state directory, and the descriptors that
go with them. When the channel is closed instead, for whatever reason, the daemon ends; until then the daemon
has touched nothing. When the command was killed, the daemon removes the sandbox that the command was making.
"""

import os
import signal
import socket
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import subprocess

# A message is no longer than this, and carries no more descriptors.
MESSAGE_LIMIT = 1 << 16
DESCRIPTOR_LIMIT = 4


class WaitingDaemon:
    """A prestarted daemon; it *waits* until the command gives it orders or ends it."""

    def __init__(self, process: "subprocess.Popen[bytes]", channel: socket.socket) -> None:
        self.process = process
        self.channel = channel
        self.waits = True

    @classmethod
    def start(cls) -> "WaitingDaemon":
        """Start a daemon, which inherits nothing but its end of the channel."""
        # Imported here: a run that joins another starts no daemon.
        import subprocess

        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            process = subprocess.Popen(
                [*daemon_command(), "--orders-fd", str(theirs.fileno()), str(os.getpid())],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                cwd="/",
                env=package_environment(),
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )
        return cls(process, ours)

    def give_orders(self, orders: bytes, descriptors: Sequence[int]) -> None:
        """Send the orders. If the daemon has died already, the missing answer will tell."""
        self.waits = False
        with suppress(BrokenPipeError, ConnectionResetError):
            socket.send_fds(self.channel, [orders], descriptors)

    def end_if_waiting(self) -> None:
        """End the daemon unless it got orders."""
        if self.waits:
            self.end()

    def end(self, patience: float = 0.0) -> None:
        """End the daemon; with *patience*, in seconds, a daemon that serves can unmount first."""
        self.waits = False
        self.channel.close()
        if patience:
            from subprocess import TimeoutExpired

            self.process.send_signal(signal.SIGTERM)
            with suppress(TimeoutExpired):
                self.process.wait(patience)
        self.process.kill()
        self.process.wait()


def daemon_command() -> list[str]:
    # -P: the daemon must never import from its current directory, which may be in its own view.
    return [sys.executable, "-P", "-m", "sandboxfs.daemon"]


def package_environment() -> dict[str, str]:
    """Return this process's environment, with which another Python finds sandboxfs as this process did."""
    environment = dict(os.environ)
    package_parent = os.path.dirname(os.path.dirname(os.path.dirname(os.path.realpath(__file__))))
    if sys.path and os.path.realpath(sys.path[0]) == package_parent:
        # sandboxfs was imported from a source tree that only the current directory made importable.
        environment["PYTHONPATH"] = os.pathsep.join(
            filter(None, [package_parent, os.environ.get("PYTHONPATH")])
        )
    return environment
