"""How does a test run a program in a sandbox, and prove that nothing of it is left?"""

import os
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from tests.support import conditions
from tests.support.mounts import mountpoints

# Against hanging, no more: on a busy machine much of it may be needed.
PATIENCE = 180.0
# An interpreter that is there inside as well.
PYTHON = os.path.realpath(sys.executable)
CONFINEMENTS = ("bubblewrap", "landlock")


def require(confinement: str) -> None:
    """Skip the test unless this machine has that confinement."""
    from sandboxfs.confine.detect import try_bubblewrap, try_landlock

    found = try_bubblewrap() if confinement == "bubblewrap" else try_landlock()
    if found.problem is not None:
        conditions.missing(f"no {confinement}: {found.problem}")


def run_words(*words: str | Path) -> list[str]:
    return [sys.executable, "-m", "sandboxfs", "run", *map(str, words)]


def run(
    *words: str | Path,
    cwd: Path,
    status: int | None = 0,
    text: str | None = None,
    env: Mapping[str, str] | None = None,
) -> "subprocess.CompletedProcess[str]":
    """`sandboxfs run WORDS`, which must end with *status* if any."""
    done = subprocess.run(
        run_words(*words),
        cwd=cwd,
        env=os.environ | dict(env or {}),
        input=text,
        stdin=subprocess.DEVNULL if text is None else None,
        capture_output=True,
        text=True,
        errors="surrogateescape",
        timeout=PATIENCE,
        check=False,
    )
    if status is not None:
        assert done.returncode == status, f"{words} gave {done.returncode}:\n{done.stdout}{done.stderr}"
    return done


def processes_with(mark: str) -> list[str]:
    """The command lines of processes that have *mark* in theirs."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                words = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            except OSError:
                continue
            if mark in words:
                found.append(f"{entry.name}: {words}")
    return found


def wait_for_program(*words: str, within: float = PATIENCE) -> None:
    """Wait until a program with exactly these *words* runs, wherever."""
    deadline = time.monotonic() + within
    line = " ".join(words) + " "
    while not any(found.partition(": ")[2] == line for found in processes_with(line)):
        assert time.monotonic() < deadline, f"{line}does not run"
        time.sleep(0.02)


def check_nothing_left(mark: str, within: float = 60.0) -> None:
    """Wait until nothing is left of runs whose programs have *mark* in their command line."""
    deadline = time.monotonic() + within
    while left := left_behind(mark):
        assert time.monotonic() < deadline, f"left behind: {left}"
        time.sleep(0.02)


def left_behind(mark: str) -> list[str]:
    """What a run has left: processes with *mark* in their command line, daemons, mounts, directories."""
    state = Path(os.environ["SANDBOXFS_STATE_DIR"])
    runtime = Path(os.environ["XDG_RUNTIME_DIR"]) / "sandboxfs"
    left = processes_with(mark)
    left += [str(place) for place in mountpoints() if place.is_relative_to(runtime)]
    for folder in (runtime / "mnt", runtime / "tmp", runtime / "control"):
        left += [str(path) for path in folder.iterdir()] if folder.is_dir() else []
    left += [str(path) for path in state.glob("sandboxes/*/lifeline*")]
    left += [str(path) for path in state.glob("sandboxes/.*")]
    return left
