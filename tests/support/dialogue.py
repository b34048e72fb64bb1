"""A command that talks with a person: run on a terminal of its own, answered as soon as it has asked.

Nothing waits for time to pass: `expect` returns when the words appear, and fails when they do not come.
"""

import os
import pty
import select
import subprocess
import sys
import termios
import time
from collections.abc import Mapping, Sequence
from types import TracebackType

_DEADLINE = 60.0
# The first terminal that the leader of a session opens becomes its controlling one, and sends it signals.
_TAKE_TERMINAL = """\
import os, sys
os.close(os.open(os.ttyname(0), os.O_RDWR))
os.execv(sys.argv[1], sys.argv[1:])
"""
CTRL_C, CTRL_D = b"\x03", b"\x04"


class Dialogue:
    """One command and its terminal."""

    def __init__(
        self,
        command: Sequence[str],
        environment: Mapping[str, str] | None = None,
        cwd: str | os.PathLike[str] | None = None,
    ) -> None:
        self._master, terminal = pty.openpty()
        # Wide enough that no line is wrapped by the terminal.
        termios.tcsetwinsize(terminal, (50, 1000))
        try:
            self.process = subprocess.Popen(
                [sys.executable, "-c", _TAKE_TERMINAL, *command],
                stdin=terminal,
                stdout=terminal,
                stderr=terminal,
                env=None if environment is None else dict(environment),
                cwd=cwd,
                start_new_session=True,
            )
        finally:
            os.close(terminal)
        self._unread = b""
        self._ended = False

    def __enter__(self) -> "Dialogue":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        os.close(self._master)

    def expect(self, words: str) -> str:
        """Wait until *words* are shown; return all that was shown since the last time, up to them."""
        wanted = words.replace("\n", "\r\n").encode()
        deadline = time.monotonic() + _DEADLINE
        while wanted not in self._unread:
            assert self._more(deadline), f"{words!r} was not shown, but {self._unread.decode()!r}"
        end = self._unread.index(wanted) + len(wanted)
        shown, self._unread = self._unread[:end], self._unread[end:]
        return _plain(shown)

    def type(self, keys: bytes) -> None:
        """Press *keys*."""
        os.write(self._master, keys)

    def answer(self, question: str, answer: str) -> str:
        """Wait for *question* and answer it with a line; return all that was shown up to it."""
        shown = self.expect(question)
        self.type(answer.encode() + b"\n")
        return shown

    def finish(self) -> str:
        """Wait for the end of the command; return what it showed last."""
        deadline = time.monotonic() + _DEADLINE
        while self._more(deadline):
            continue
        assert self._ended, f"the command does not end, and showed {self._unread.decode()!r}"
        self.process.wait(_DEADLINE)
        return _plain(self._unread)

    def _more(self, deadline: float) -> bool:
        """Read what is there; return whether there may be more before the *deadline*."""
        if self._ended or not select.select([self._master], [], [], max(0.0, deadline - time.monotonic()))[0]:
            return False
        try:
            data = os.read(self._master, 65536)
        except OSError:
            # The kernel's way to say that nobody has the other end open any more.
            data = b""
        self._ended = not data
        self._unread += data
        return not self._ended


def _plain(shown: bytes) -> str:
    return shown.decode(errors="replace").replace("\r\n", "\n")
