"""Starting a responder: the process that asks a command or a webhook about the questions of one session.

The responder is started before its daemon, so that both import at the same time, and waits at one end of a
channel. Whoever knows that the daemon serves tells the responder the daemon's process; the responder follows
the questions, says so, and both close the channel. A channel that closes without a word ends the responder.
The orders, among them the environment in which the command is to run, come in a file in memory.

The first process forks and ends, so that the responder is nobody's child: whoever mounts has nothing to wait
for and nothing to clear away.
"""

import json
import os
import socket
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import IO, TYPE_CHECKING

from sandboxfs.state.locations import Locations

if TYPE_CHECKING:
    import subprocess

# Seconds for the responder to follow: it imports meanwhile, on a machine that may be busy.
_PATIENCE = 30.0
_MESSAGE_LIMIT = 1 << 16


@dataclass(frozen=True)
class ResponderOrders:
    """Whose questions are answered, by what, and in which environment a command runs."""

    sandbox: str
    command: tuple[str, ...]
    url: str | None
    token_file: str | None
    environment: Mapping[str, str]

    def dump(self) -> bytes:
        # ASCII, so that names that are no valid UTF-8 pass as the surrogates of `surrogateescape`.
        return json.dumps(asdict(self)).encode()

    @classmethod
    def load(cls, file: IO[bytes]) -> "ResponderOrders":
        found = json.load(file)
        return cls(**found | {"command": tuple(found["command"])})


class StartingResponder:
    """A responder that waits for its daemon."""

    def __init__(self, process: "subprocess.Popen[bytes]", channel: socket.socket) -> None:
        self._process = process
        self.channel = channel

    @classmethod
    def start(cls, orders: ResponderOrders, locations: Locations) -> "StartingResponder":
        """Start a responder, which inherits its end of the channel, its orders and no stream."""
        # Imported here: most sessions ask nobody.
        import subprocess

        from sandboxfs.control.start_daemon import daemon_environment

        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        text = os.memfd_create("sandboxfs-responder")
        try:
            with theirs, open(text, "wb", closefd=False) as file:
                file.write(orders.dump())
                file.flush()
                os.lseek(text, 0, os.SEEK_SET)
                process = subprocess.Popen(
                    [sys.executable, "-P", "-m", "sandboxfs.responder", str(theirs.fileno()), str(text)],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    cwd="/",
                    env=daemon_environment(locations),
                    pass_fds=[theirs.fileno(), text],
                    start_new_session=True,
                )
        except BaseException:
            ours.close()
            raise
        finally:
            os.close(text)
        return cls(process, ours)

    def detach(self) -> None:
        """Wait until the responder is nobody's child."""
        self._process.wait()

    def follow(self, daemon: int) -> str | None:
        """Have the questions of the process *daemon* followed; return what prevents it."""
        self.detach()
        return have_follow(self.channel, daemon)

    def close(self) -> None:
        """End a responder that does not follow yet."""
        self.channel.close()
        self.detach()


def have_follow(channel: socket.socket, daemon: int) -> str | None:
    """Tell the responder at the other end of *channel* whom to follow; return what prevents it."""
    channel.settimeout(_PATIENCE)
    with channel:
        try:
            channel.send(json.dumps({"daemon": daemon}).encode())
            said = json.loads(channel.recv(_MESSAGE_LIMIT) or b"{}")
        except TimeoutError:
            return f"it took longer than {_PATIENCE:.0f} seconds"
        except OSError as error:
            return error.strerror or "it died"
    return None if said.get("following") else str(said.get("error", "it died"))


def receive_daemon(channel: socket.socket) -> int | None:
    """Return, in the responder, the daemon to follow; None when there will be none."""
    try:
        said = channel.recv(_MESSAGE_LIMIT)
    except ConnectionError:
        return None
    return int(json.loads(said)["daemon"]) if said else None


def report(channel: socket.socket, error: str | None = None) -> None:
    """Say, in the responder, that the questions are followed, or what prevents it."""
    said = {"following": True} if error is None else {"error": error}
    # Whoever waited may have been interrupted.
    with channel, suppress(OSError):
        channel.send(json.dumps(said).encode())
