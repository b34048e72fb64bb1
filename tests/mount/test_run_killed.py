"""What is left of a run under Landlock when everything that would end it is killed?"""

import os
import signal
import subprocess
import time
from pathlib import Path

from tests.support import runs
from tests.support.tree import build

# Of this process's tests alone: others may run beside it.
MARK = f"sleep 14142{os.getpid()}.5"


def parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def test_the_program_ends_and_the_next_run_removes_its_temporary_directory(tmp_path: Path) -> None:
    runs.require("landlock")
    workspace = build(tmp_path / "workspace", {})
    inside = f"echo x > $TMPDIR/file; echo ready; exec {MARK}"
    words = runs.run_words("--confine", "landlock", "--quiet", "--", "sh", "-c", inside)
    with subprocess.Popen(words, cwd=workspace, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        runs.wait_for_program(*MARK.split())
        program = next(int(line.partition(":")[0]) for line in runs.processes_with(MARK) if ": sleep" in line)
        keeper = parent(program)
        assert parent(keeper) == process.pid
        for pid in (keeper, process.pid):
            os.kill(pid, signal.SIGSTOP)
        for pid in (keeper, process.pid):
            os.kill(pid, signal.SIGKILL)
    deadline = time.monotonic() + 30
    while runs.processes_with(MARK):
        assert time.monotonic() < deadline, "the program goes on"
        time.sleep(0.02)
    left = Path(os.environ["XDG_RUNTIME_DIR"], "sandboxfs/tmp")
    assert len(list(left.iterdir())) == 1
    runs.run("--confine", "landlock", "--", "true", cwd=workspace)
    runs.check_nothing_left(MARK)
