"""A terminal with a screen that a test can look at, and a person's shell in it."""

import os
import subprocess
import time
from pathlib import Path

from tests.support import conditions

# A screen has no spaces at the end of a line.
PROMPT = "outside>"


class Tmux:
    """An interactive bash in *directory*, in a tmux of the test's own."""

    def __init__(self, directory: Path, place: Path) -> None:
        self._program = conditions.require_tool("tmux")
        # Addresses of sockets are short.
        self._socket = os.path.relpath(place / "tmux", place)
        self._place = place
        # The user of a test may have no shell to log in with.
        self._environment = {**os.environ, "SHELL": "/bin/sh"}
        self._environment.pop("TMUX", None)
        (place / "bashrc").write_text(f"PS1='{PROMPT} '\n")
        shell = ("bash", "--rcfile", str(place / "bashrc"), "-i")
        size = ("-x", "100", "-y", "30")
        self._run("-f", "/dev/null", "new-session", "-d", "-c", str(directory), *size, *shell)
        try:
            self.wait_for(PROMPT)
        except BaseException:
            self._run("kill-server")
            raise

    def _run(self, *words: str) -> str:
        done = subprocess.run(
            [self._program, "-S", self._socket, *words],
            cwd=self._place,
            env=self._environment,
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def type(self, *keys: str) -> None:
        """Press keys: texts, and names of keys such as `Enter` and `C-z`."""
        self._run("send-keys", *keys)

    def enter(self, line: str) -> None:
        self._run("send-keys", "-l", line)
        self._run("send-keys", "Enter")

    @property
    def screen(self) -> str:
        return self._run("capture-pane", "-p")

    def wait_for(self, text: str, patience: float = 30.0) -> str:
        """Wait until *text* is on the screen, and return the screen."""
        deadline = time.monotonic() + patience
        # A screen does not tell when it changes.
        while text not in (shown := self.screen):
            assert time.monotonic() < deadline, f"{text!r} is not on the screen:\n{shown}"
            time.sleep(0.03)
        return shown

    def wait_for_top(self, text: str) -> None:
        """Wait until *text* is what the screen begins with."""
        deadline = time.monotonic() + 30
        while not (shown := self.screen).startswith(text):
            assert time.monotonic() < deadline, f"{text!r} is not at the top:\n{shown}"
            time.sleep(0.03)

    def press_until(self, key: str, prompt: str) -> None:
        """Press a key until *prompt* comes last: a shell that hands its terminal over may swallow a key."""
        deadline = time.monotonic() + 30
        while not (shown := self.screen.rstrip()).endswith(prompt):
            assert time.monotonic() < deadline, shown
            self.type(key)
            time.sleep(0.2)

    def clear(self) -> None:
        self.enter("clear")
        deadline = time.monotonic() + 30
        while self.screen.strip() != PROMPT:
            assert time.monotonic() < deadline, self.screen
            time.sleep(0.03)

    def __enter__(self) -> "Tmux":
        return self

    def __exit__(self, *_: object) -> None:
        self._run("kill-server")
