"""A block of `Sandbox` and the programs in it: none outlives its embedder, none runs under other rules."""

import json
import os
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from sandboxfs import DaemonLost, Sandbox
from sandboxfs.commit.apply import apply_plan
from tests.support import runs
from tests.support.mount_driver import run_sandboxfs
from tests.support.mounts import mountpoints
from tests.support.tree import build

pytestmark = pytest.mark.any_user

PATIENCE = 60.0
EMBEDDER = """
import sys
from sandboxfs import Sandbox
with Sandbox(sys.argv[1], confine=sys.argv[2]) as sandbox:
    print(sandbox.view, flush=True)
    # Holds the pipe as long as anything of it is alive.
    sandbox.run(["sh", "-c", "trap '' TERM HUP; echo begun; while :; do sleep 1; done"])
"""


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    return build(tmp_path / "workspace", {"file": "text\n", "secret": "secret\n"})


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL, signal.SIGHUP])
def test_a_program_ends_with_the_process_that_embeds_it(
    workspace: Path, confinement: str, number: signal.Signals
) -> None:
    command = [sys.executable, "-c", EMBEDDER, str(workspace), confinement]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, bufsize=1) as embedder:
        assert embedder.stdout is not None
        assert embedder.stderr is not None
        view = Path(embedder.stdout.readline().strip())
        assert view in mountpoints()
        assert embedder.stdout.readline() == "begun\n"
        embedder.send_signal(number)
        # The end of the pipe: whoever had its other end is gone, the program too.
        assert select.select([embedder.stdout], [], [], PATIENCE)[0]
        assert embedder.stdout.read() == ""
        # The process that ran the program has nobody to tell how it ended, and says nothing of that.
        assert embedder.stderr.read() == ""
    runs.check_nothing_left(str(view))


FORKED = {
    "fork": "if os.fork() == 0: idle()",
    "pool": "pool = multiprocessing.get_context('fork').Pool(1); pool.apply_async(idle)",
}
FORKING = """
import multiprocessing, os, sys
from sandboxfs import Sandbox

def idle():
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    print(os.getpid(), file=sys.stderr, flush=True)
    os.read(0, 1)
    os._exit(0)

with Sandbox(sys.argv[1]) as sandbox:
    print(sandbox.view, flush=True)
    exec(sys.argv[2])
    sandbox.run(["sh", "-c", "echo begun; while :; do sleep 1; done"])
"""


@pytest.mark.parametrize("forked", FORKED)
def test_a_view_ends_with_the_process_that_embeds_it_whatever_was_forked_from_that(
    workspace: Path, forked: str
) -> None:
    command = [sys.executable, "-c", FORKING, str(workspace), FORKED[forked]]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True) as embedder:
        assert embedder.stdin is not None
        assert embedder.stdout is not None
        assert embedder.stderr is not None
        view = Path(embedder.stdout.readline().strip())
        helper = os.pidfd_open(int(embedder.stderr.readline()))
        assert embedder.stdout.readline() == "begun\n"
        embedder.kill()
        runs.check_nothing_left(str(view))
        assert not select.select([helper], [], [], 0)[0]
        embedder.stdin.close()
        assert select.select([helper], [], [], PATIENCE)[0]
        os.close(helper)


FORKED_RUN = """
import os, sys
from sandboxfs import Sandbox
with Sandbox(sys.argv[1]) as sandbox:
    child = os.fork()
    if child == 0:
        os._exit(sandbox.run(["cat", "file"]).returncode)
    forked = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    sys.exit(forked or sandbox.run(["cat", "file"]).returncode)
"""


def test_a_process_forked_in_a_block_runs_programs_and_leaves_the_view_to_the_block(workspace: Path) -> None:
    command = [sys.executable, "-c", FORKED_RUN, str(workspace)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "text\ntext\n"), done.stderr


def test_what_was_forked_during_a_commit_does_not_keep_the_sandbox_from_the_next(
    workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reading, writing = os.pipe()
    children = []

    def forking(*arguments: object, **options: object) -> object:
        child = os.fork()
        if child == 0:
            os.close(writing)
            os.read(reading, 1)
            os._exit(0)
        children.append(child)
        return apply_plan(*arguments, **options)  # type: ignore[arg-type]

    monkeypatch.setattr("sandboxfs.service.commit.apply_plan", forking)
    try:
        with Sandbox(workspace) as sandbox:
            assert sandbox.run(["touch", "made"]).returncode == 0
            sandbox.commit()
            sandbox.undo()
            assert [change.path for change in sandbox.changes()] == ["made"]
            sandbox.discard()
    finally:
        os.close(writing)
        for child in children:
            os.waitpid(child, 0)
        os.close(reading)
    assert children


def kill_daemon(sandbox: Sandbox) -> None:
    status = run_sandboxfs("status", "--json", "-s", sandbox.name)
    assert status.returncode == 0, status.stderr
    pid = int(json.loads(status.stdout)["pid"])
    watch = os.pidfd_open(pid)
    os.kill(pid, signal.SIGKILL)
    assert select.select([watch], [], [], PATIENCE)[0]
    os.close(watch)


def unmount(sandbox: Sandbox) -> None:
    done = run_sandboxfs("unmount", "-s", sandbox.name)
    assert done.returncode == 0, done.stderr


def unmount_and_mount_again(sandbox: Sandbox) -> None:
    unmount(sandbox)
    done = run_sandboxfs("mount", "--name", sandbox.name)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("lose", [kill_daemon, unmount, unmount_and_mount_again])
def test_a_program_does_not_run_when_the_view_of_its_block_is_gone(
    workspace: Path, lose: Callable[[Sandbox], None]
) -> None:
    with Sandbox(workspace, rules=["secret=hide"], mode="ro") as sandbox:
        assert sandbox.run(["test", "-e", "secret"]).returncode == 1
        name = sandbox.name
        lose(sandbox)
        with pytest.raises(DaemonLost):
            sandbox.run(["sh", "-c", "cat secret > stolen"])
    assert run_sandboxfs("diff", "--exit-code", "-s", name).stdout == ""
    run_sandboxfs("unmount", "-s", name)


def test_a_view_that_goes_while_a_program_runs_ends_the_program(workspace: Path) -> None:
    with Sandbox(workspace) as sandbox:
        killer = threading.Timer(1.0, kill_daemon, [sandbox])
        killer.start()
        with pytest.raises(DaemonLost):
            sandbox.run(["sleep", "1000"])
        killer.join()
