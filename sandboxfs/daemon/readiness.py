"""How does the daemon tell the command that started it how the start went?

One line of JSON through an inherited pipe, which is closed at once: it must not reach any process that the
daemon starts, or the command would wait for that process too.
"""

import json
import os
import sys
from collections.abc import Mapping

from sandboxfs.errors import SandboxError


class Starter:
    """Whoever started the daemon: a waiting command at the other end of a pipe, or a person at a terminal."""

    def __init__(self, pipe: int | None, announcement: str | None, *, as_json: bool) -> None:
        self._pipe = pipe
        self._announcement = announcement
        self._as_json = as_json
        if pipe is not None:
            os.set_inheritable(pipe, False)
        self.told = False

    def ready(self) -> None:
        """Tell that the view can be used."""
        self._send({"ready": True, "pid": os.getpid()})
        if self._announcement is not None:
            print(self._announcement, flush=True)

    def failed(self, error: SandboxError) -> None:
        """Tell why the view will not come; without effect once ready was told."""
        if self.told:
            return
        if self._pipe is None:
            print(error.as_text(as_json=self._as_json), file=sys.stderr)
        self._send({"error": error.as_json()})

    def _send(self, message: Mapping[str, object]) -> None:
        self.told = True
        pipe, self._pipe = self._pipe, None
        if pipe is None:
            return
        try:
            os.write(pipe, json.dumps(message).encode() + b"\n")
        except BrokenPipeError:
            # The command was interrupted; it ends the daemon by itself.
            pass
        finally:
            os.close(pipe)
