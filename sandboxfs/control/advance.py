"""How is a daemon started before it is known what it is to serve?

Importing what it needs takes a daemon longer than everything else. So a command may start one as its first
act: it imports, and waits at one end of a channel for its orders: which sandbox, whose state directory, and
the descriptors that go with them. When the channel is closed instead, however that comes, it ends; until
then it has touched nothing. When whoever started it was killed, it takes back what that one was making.
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


class Waiting:
    """A daemon that *waits* for its orders, until it has them or is ended."""

    def __init__(self, process: "subprocess.Popen[bytes]", channel: socket.socket) -> None:
        self.process = process
        self.channel = channel
        self.waits = True

    @classmethod
    def start(cls) -> "Waiting":
        """Start a daemon; it inherits nothing but its end of the channel."""
        # Imported here: a run that joins another does without.
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
        """Let it begin. When it has died already, its silence tells."""
        self.waits = False
        with suppress(BrokenPipeError, ConnectionResetError):
            socket.send_fds(self.channel, [orders], descriptors)

    def end_if_waiting(self) -> None:
        """End it if nobody had orders for it."""
        if self.waits:
            self.end()

    def end(self, patience: float = 0.0) -> None:
        """End it; one that has its orders unmounts by itself when it is given some *patience*."""
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
    # -P: the daemon must never look for a module where it is started, which may be in its own view.
    return [sys.executable, "-P", "-m", "sandboxfs.daemon"]


def package_environment() -> dict[str, str]:
    """Return this process's environment, from which another Python finds sandboxfs as this one did."""
    environment = dict(os.environ)
    package_parent = os.path.dirname(os.path.dirname(os.path.dirname(os.path.realpath(__file__))))
    if sys.path and os.path.realpath(sys.path[0]) == package_parent:
        # Running from a source tree that only the current directory made importable.
        environment["PYTHONPATH"] = os.pathsep.join(
            filter(None, [package_parent, os.environ.get("PYTHONPATH")])
        )
    return environment
