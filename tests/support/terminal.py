"""A terminal for a program, as a terminal emulator gives it one."""

import fcntl
import os
import select
import subprocess
import termios
import time
from collections.abc import Mapping
from pathlib import Path


class Terminal:
    """Runs a command as the leader of a session on a terminal of its own; *seen* is what it has shown."""

    def __init__(self, words: list[str], cwd: Path, env: Mapping[str, str] | None = None) -> None:
        self.master, slave = os.openpty()
        self.seen = ""
        self.process = subprocess.Popen(
            words,
            cwd=cwd,
            env=os.environ | {"TERM": "xterm"} | dict(env or {}),
            stdin=slave,
            stdout=slave,
            stderr=slave,
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        )
        os.close(slave)

    def type(self, text: str) -> None:
        os.write(self.master, text.encode())

    def wait_for(self, text: str, patience: float = 30.0) -> None:
        """Read on until *text* has been shown since it was last waited for."""
        deadline = time.monotonic() + patience
        while text not in self.seen:
            remaining = deadline - time.monotonic()
            assert remaining > 0, f"{text!r} was not shown: {self.seen!r}"
            self._read(remaining)
        self.seen = self.seen.partition(text)[2]

    def end(self, patience: float = 30.0) -> int:
        """Wait for the command to end and return its status; what it showed last is in *seen*."""
        deadline = time.monotonic() + patience
        while self._read(max(0.0, deadline - time.monotonic())):
            pass
        return self.process.wait(max(0.1, deadline - time.monotonic()))

    def hang_up(self) -> None:
        """Close the terminal, as closing its window does."""
        os.close(self.master)
        self.master = -1

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        if self.master >= 0:
            os.close(self.master)

    def _read(self, patience: float) -> bool:
        if not select.select([self.master], [], [], patience)[0]:
            return False
        try:
            chunk = os.read(self.master, 65536)
        except OSError:
            # EIO: nobody has the other side open any more.
            return False
        self.seen += chunk.decode(errors="replace")
        return bool(chunk)

    def __enter__(self) -> "Terminal":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
