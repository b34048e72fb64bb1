"""How does the daemon tell the command that started it how the start went?

Through a channel to the command: the lifeline that the command is to hold, then one line of JSON. The channel
is closed at once: it must not reach any process that the daemon starts, or the command would wait for that
process too.
"""

import json
import os
import socket
import sys
from collections.abc import Mapping
from contextlib import suppress

from sandboxfs.errors import SandboxError


class Starter:
    """Whoever started the daemon: a command at the other end of a channel, or a person at a terminal."""

    def __init__(self, channel: socket.socket | None, announcement: str | None, *, as_json: bool) -> None:
        self._channel = channel
        self._announcement = announcement
        self._as_json = as_json
        self.told = False

    def hand_over(self, lifeline: int) -> None:
        """Give the command its end of a lifeline; where there is none left, nobody holds it."""
        if self._channel is not None:
            with suppress(ConnectionError):
                socket.send_fds(self._channel, [b"{}"], [lifeline])
        os.close(lifeline)

    def ready(self) -> None:
        """Tell that the view can be used."""
        self._send({"ready": True, "pid": os.getpid()})
        if self._announcement is not None:
            print(self._announcement, flush=True)

    def failed(self, error: SandboxError) -> None:
        """Tell why the view will not come; without effect once ready was told."""
        if self.told:
            return
        if self._channel is None:
            print(error.as_text(as_json=self._as_json), file=sys.stderr)
        self._send({"error": error.as_json()})

    def _send(self, message: Mapping[str, object]) -> None:
        self.told = True
        channel, self._channel = self._channel, None
        if channel is None:
            return
        # The command may have been interrupted; it ends the daemon by itself.
        with channel, suppress(ConnectionError):
            channel.send(json.dumps(message).encode())
