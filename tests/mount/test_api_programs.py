"""Programs of a block: streams, signals, several at once; and sandboxes that are made, found and removed."""

import signal
import subprocess
import threading
from pathlib import Path

import pytest

from sandboxfs import DaemonLost, NoSuchSandbox, Sandbox, TimedOut, UsageError
from sandboxfs.api.sandbox import DEVNULL, PIPE, STDOUT, ConfineWord
from tests.support import runs
from tests.support.mount_driver import run_sandboxfs
from tests.support.tree import build

pytestmark = pytest.mark.any_user

FOREVER = "trap '' TERM HUP INT; echo begun; while :; do sleep 1; done"


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    return build(tmp_path / "workspace", {"file": "text\n", "dir/inner": "inner\n"})


def test_streams_of_a_program_carry_bytes(workspace: Path, confinement: ConfineWord) -> None:
    with (
        Sandbox(workspace, confine=confinement) as sandbox,
        sandbox.popen(["sh", "-c", "cat; echo err >&2; exit 3"], stdin=PIPE, stdout=PIPE, stderr=PIPE) as one,
    ):
        assert one.poll() is None
        assert one.communicate(b"\xff\r\n") == (b"\xff\r\n", b"err\n")
        assert one.wait() == one.returncode == 3


def test_a_program_is_talked_with_line_by_line(workspace: Path) -> None:
    script = "while read line; do echo got $line; done"
    with Sandbox(workspace) as sandbox, sandbox.popen(["sh", "-c", script], stdin=PIPE, stdout=PIPE) as one:
        assert one.stdin is not None
        assert one.stdout is not None
        for word in (b"a", b"b"):
            one.stdin.write(word + b"\n")
            one.stdin.flush()
            assert one.stdout.readline() == b"got " + word + b"\n"
        one.stdin.close()
        assert one.wait() == 0


def test_killing_ends_everything_that_a_program_started(workspace: Path, confinement: ConfineWord) -> None:
    with Sandbox(workspace, confine=confinement) as sandbox:
        one = sandbox.popen(["sh", "-c", f"({FOREVER}) & {FOREVER}"], stdout=PIPE, stderr=STDOUT)
        assert one.stdout is not None
        assert [one.stdout.readline() for _ in range(2)] == [b"begun\n"] * 2
        with pytest.raises(TimedOut, match="has not ended"):
            one.wait(0.1)
        one.kill()
        assert one.wait() == 128 + signal.SIGKILL
        assert one.stdout.read() == b""
        one.close()
        assert sandbox.run(["true"]).returncode == 0


def test_a_signal_is_passed_on(workspace: Path) -> None:
    script = "trap 'exit 3' TERM; echo begun; while :; do sleep 0.05; done"
    with Sandbox(workspace) as sandbox, sandbox.popen(["sh", "-c", script], stdout=PIPE) as one:
        assert one.stdout is not None
        assert one.stdout.readline() == b"begun\n"
        with pytest.raises(UsageError, match="not passed on"):
            one.send_signal(signal.SIGSTOP)
        one.terminate()
        assert one.wait() == 3


def test_programs_of_several_threads_run_at_once(workspace: Path, confinement: ConfineWord) -> None:
    meeting = "echo > $0.here; until [ -e $1.here ]; do sleep 0.05; done; echo met"
    outputs: list[str] = []
    with Sandbox(workspace, confine=confinement) as sandbox:

        def meet(one: str, other: str) -> None:
            words = ["sh", "-c", meeting, one, other]
            outputs.append(sandbox.run(words, capture_output=True, timeout=runs.PATIENCE).stdout)

        threads = [threading.Thread(target=meet, args=names) for names in (("a", "b"), ("b", "a"))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert outputs == ["met\n", "met\n"]
        assert sorted(change.path for change in sandbox.changes()) == ["a.here", "b.here"]


def test_blocks_of_several_threads_are_sandboxes_of_their_own(workspace: Path) -> None:
    seen: list[str] = []

    def use(word: str) -> None:
        with Sandbox(workspace, ephemeral=True) as sandbox:
            sandbox.run(["sh", "-c", f"echo {word} > made"])
            seen.append(sandbox.run(["cat", "made"], capture_output=True).stdout)

    threads = [threading.Thread(target=use, args=[word]) for word in ("a", "b")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(seen) == ["a\n", "b\n"]
    assert Sandbox.list() == ()


def test_a_block_ends_the_programs_that_still_run(workspace: Path) -> None:
    with Sandbox(workspace) as sandbox:
        one = sandbox.popen(["sh", "-c", FOREVER], stdout=PIPE)
        assert one.stdout is not None
        assert one.stdout.readline() == b"begun\n"
    assert one.returncode == 128 + signal.SIGKILL
    one.close()
    runs.check_nothing_left("no-such-mark")


def test_check_raises_what_subprocess_raises(workspace: Path) -> None:
    with Sandbox(workspace) as sandbox:
        with pytest.raises(subprocess.CalledProcessError) as caught:
            sandbox.run(["sh", "-c", "echo out; exit 3"], capture_output=True, check=True)
        assert (caught.value.returncode, caught.value.stdout) == (3, "out\n")
        assert sandbox.run(["true"], check=True).returncode == 0


def test_a_program_that_cannot_be_started_says_why(workspace: Path) -> None:
    (workspace / "text").write_text("no program")
    with Sandbox(workspace) as sandbox:
        missing = sandbox.run(["no-such-program"], capture_output=True)
        assert missing.returncode == 127
        assert missing.stderr == "sandboxfs: cannot run 'no-such-program': not found\n"
        assert sandbox.run(["./text"], capture_output=True).returncode == 126


def test_a_program_whose_view_is_lost_says_so(workspace: Path) -> None:
    with Sandbox(workspace) as sandbox:
        one = sandbox.popen(["sleep", "1000"], stdin=DEVNULL)
        done = run_sandboxfs("unmount", "--lazy", "-s", sandbox.name)
        assert done.returncode == 0, done.stderr
        one.kill()
        assert one.wait() == 128 + signal.SIGKILL
        with pytest.raises(DaemonLost):
            sandbox.popen(["true"])


def test_a_new_sandbox_leaves_the_changes_of_another_alone(workspace: Path) -> None:
    with Sandbox(workspace) as sandbox:
        sandbox.run(["sh", "-c", "echo x > made"])
        first = sandbox.name
    with Sandbox(workspace, new=True) as sandbox:
        assert sandbox.name != first
        assert sandbox.run(["test", "-e", "made"]).returncode == 1
        sandbox.run(["touch", "other"])
    assert {one.name for one in Sandbox.list()} == {first, sandbox_name(workspace, first)}
    with pytest.raises(UsageError, match="choose"):
        Sandbox(workspace, new=True, resume=True)


def sandbox_name(workspace: Path, besides: str) -> str:
    return next(one.name for one in Sandbox.list() if one.workspace == workspace and one.name != besides)


def test_an_ephemeral_sandbox_is_gone_with_its_changes(workspace: Path) -> None:
    with Sandbox(workspace, ephemeral=True) as sandbox:
        sandbox.run(["sh", "-c", "echo x > made; echo more >> file"])
        sandbox.commit("file")
        assert len(Sandbox.list()) == 1
    assert Sandbox.list() == ()
    assert (workspace / "file").read_text() == "text\nmore\n"
    assert not (workspace / "made").exists()


def test_sandboxes_are_made_found_and_removed_by_name(workspace: Path) -> None:
    with pytest.raises(NoSuchSandbox):
        Sandbox.open("trial")
    with Sandbox.create(workspace, name="trial", rules=["file=hide"]) as sandbox:
        assert sandbox.run(["test", "-e", "file"]).returncode == 1
        sandbox.run(["touch", "made"])
    (listed,) = Sandbox.list()
    assert (listed.name, listed.workspace, listed.state) == ("trial", workspace, "unmounted")
    with pytest.raises(UsageError, match="already"):
        Sandbox.create(workspace, name="trial")
    with Sandbox.open("trial") as sandbox:
        assert [change.path for change in sandbox.changes()] == ["made"]
        assert sandbox.run(["test", "-e", "file"]).returncode == 1
        assert Sandbox.list()[0].state == "mounted"
    with pytest.raises(UsageError, match="holds 1 change"):
        Sandbox.remove("trial")
    Sandbox.remove("trial", force=True)
    assert Sandbox.list() == ()
