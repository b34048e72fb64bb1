"""A run whose program, a shell, is told from outside what to do next."""

import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support import runs

_END = "-- done"


class LiveRun:
    """A run of a shell in a workspace called `test`, whose words are written to its standard input."""

    def __init__(self, workspace: Path, *options: str | Path) -> None:
        self.state = Path(os.environ["SANDBOXFS_STATE_DIR"])
        self.process = subprocess.Popen(
            runs.run_words(*options, "--", "sh"),
            cwd=workspace,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            bufsize=1,
        )
        self.do()

    def say(self, script: str) -> None:
        """Have the shell do something; what it writes comes with the next `do`."""
        assert self.process.stdin is not None
        self.process.stdin.write(script + "\n")

    def do(self, script: str = ":") -> str:
        """Have the shell do something, and return what it wrote."""
        self.say(f"{{ {script}; }} 2>&1; echo '{_END}'")
        assert self.process.stdout is not None
        lines: list[str] = []
        for line in self.process.stdout:
            if line == f"{_END}\n":
                return "".join(lines)
            lines.append(line)
        raise AssertionError(f"the run ended: {''.join(lines)}")

    def end(self, status: int = 0) -> str:
        """Have the shell end; return what the run says of it."""
        _, said = self.process.communicate(timeout=runs.PATIENCE)
        assert self.process.returncode == status, f"{self.process.returncode}: {said}"
        return said

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()


@contextmanager
def live_run(workspace: Path, *options: str | Path) -> Iterator[LiveRun]:
    """A run in *workspace*, which is ended if it has not."""
    run = LiveRun(workspace, *options)
    try:
        yield run
    finally:
        if run.process.poll() is None:
            run.process.terminate()
        run.process.communicate(timeout=runs.PATIENCE)
