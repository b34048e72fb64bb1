"""Does a run end when it is told to, whatever its program does?"""

import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support import runs
from tests.support.tree import build

pytestmark = pytest.mark.any_user

TRACED = "import ctypes, os, signal, time; ctypes.CDLL(None).ptrace(0, 0, 0, 0); "
MARK = "31.4159"


@pytest.fixture
def workspace(tmp_path: Path) -> Iterator[Path]:
    yield build(tmp_path / "workspace", {"file": "text\n"})
    runs.check_nothing_left(MARK)


@contextmanager
def started(confinement: str, *command: str, cwd: Path) -> Iterator["subprocess.Popen[str]"]:
    process = subprocess.Popen(
        runs.run_words("--confine", confinement, "--quiet", "--", *command),
        cwd=cwd,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate(timeout=runs.PATIENCE)


def test_a_program_that_asks_to_be_traced_gets_its_signals_and_goes_on(
    workspace: Path, confinement: str
) -> None:
    script = TRACED + (
        "signal.signal(signal.SIGUSR1, lambda *_: print('signalled', flush=True)); "
        "os.kill(os.getpid(), signal.SIGUSR1); ctypes.CDLL(None).ptrace(0, 0, 0, 0); "
        "os.execvp('sh', ['sh', '-c', 'echo went on'])"
    )
    words = ("--confine", confinement, "--", runs.PYTHON, "-I", "-c", script)
    assert runs.run(*words, cwd=workspace).stdout == "signalled\nwent on\n"


@pytest.mark.parametrize(
    "deed",
    [
        TRACED + "signal.raise_signal(signal.SIGCONT)",
        "import os, signal, time; os.kill(os.getpid(), signal.SIGSTOP)",
        "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN)",
    ],
    ids=["it asked to be traced", "it stopped itself", "it ignores the signal"],
)
def test_sigterm_ends_a_run_whatever_its_program_does(workspace: Path, confinement: str, deed: str) -> None:
    script = f"print('ready', flush=True); {deed}; time.sleep({MARK})"
    with started(confinement, runs.PYTHON, "-I", "-c", script, cwd=workspace) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGTERM)
        assert process.wait(runs.PATIENCE) == 143
