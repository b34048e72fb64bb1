"""Does a daemon outlive the want of descriptors, and does one program leave the others some?"""

import errno
import os
import resource
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.mount.conftest import Mount
from tests.support.mount_driver import MountDriver, run_sandboxfs
from tests.support.mounted import companion, eventually, says, tell
from tests.support.tree import build

FILES = 600
LIMIT = 400

# Opens files until that fails, says how many it has and why there are no more, and keeps them.
HOARD = """
import errno, os, sys
held = []
try:
    for number in range(int(sys.argv[1])):
        held.append(os.open(f"files/{number}", os.O_RDONLY))
    why = "nothing"
except OSError as error:
    why = errno.errorcode[error.errno]
print(len(held), why, flush=True)
sys.stdin.readline()
"""


class FewDescriptors(MountDriver):
    """A mount whose daemon is started with a low limit of descriptors."""

    expected_complaints = ("resources",)

    def start(self) -> None:
        words = ["mount", "--name", "test", str(self.lower), str(self.root)]
        done = subprocess.run(
            ["sh", "-c", f'ulimit -n {LIMIT}; exec "$@"', "sh", sys.executable, "-m", "sandboxfs", *words],
            stdin=subprocess.DEVNULL,
            env=os.environ | {"SANDBOXFS_STATE_DIR": str(self.state)},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr


@contextmanager
def served(place: Path) -> Iterator[FewDescriptors]:
    workspace = build(place / "workspace", {f"files/{number}": "" for number in range(FILES)})
    mount = FewDescriptors(place, workspace)
    try:
        yield mount
        mount.stop()
    finally:
        mount.abandon()


@contextmanager
def hoarder(mount: MountDriver, count: int = FILES) -> Iterator[list[str]]:
    """A process that holds as many files of the view as it gets; what it says about that."""
    with companion(HOARD, str(count), cwd=mount.root) as process:
        yield says(process).split()
        tell(process, "end")


def mount_something(place: Path) -> None:
    """Have the mount table of the machine change."""
    workspace = build(place / "other", {"file": ""})
    for words in (
        ("mount", "--mkdir", "--name", "other", workspace, place / "other-view"),
        ("unmount", "-s", "other"),
    ):
        done = run_sandboxfs(*words, state=place / "other-state")
        assert done.returncode == 0, done.stderr


def test_a_process_that_hoards_files_is_refused_and_others_are_not(tmp_path: Path) -> None:
    with served(tmp_path) as mount:
        with hoarder(mount) as (count, why):
            assert why == "EMFILE"
            assert int(count) > LIMIT // 10
            with hoarder(mount, 20) as (others, nothing):
                assert (others, nothing) == ("20", "nothing")
            (mount.root / "new").write_text("new")
            assert (mount.root / "new").read_text() == "new"
            mount_something(tmp_path)
            assert run_sandboxfs("status", "-s", "test", state=mount.state).returncode == 0
        # What it gave back is there for the next.
        with hoarder(mount) as (again, _):
            assert abs(int(again) - int(count)) < 5


def test_threads_of_one_process_share_what_it_may_have(tmp_path: Path) -> None:
    program = HOARD.replace(
        'held.append(os.open(f"files/{number}", os.O_RDONLY))',
        "opened = lambda: held.append(os.open(f'files/{number}', os.O_RDONLY))\n"
        "        thread = __import__('threading').Thread(target=opened)\n"
        "        thread.start(); thread.join()\n"
        "        if len(held) <= number: raise OSError(errno.EMFILE, 'refused')",
    )
    with served(tmp_path) as mount, companion(program, str(FILES), cwd=mount.root) as process:
        _, why = says(process).split()
        assert why == "EMFILE"
        with hoarder(mount, 20) as (others, nothing):
            assert (others, nothing) == ("20", "nothing")
        tell(process, "end")


def test_a_daemon_without_any_descriptor_left_goes_on(mount: Mount, tmp_path: Path) -> None:
    view = mount({"file": "text", "dir/inner": "inner"})
    view.expected_complaints = ("resources", "cannot accept", "audit log cannot be written")
    assert (view.root / "file").read_text() == "text"
    before = resource.prlimit(view.pid, resource.RLIMIT_NOFILE)
    # None but those it has: the highest may be far above their count.
    resource.prlimit(view.pid, resource.RLIMIT_NOFILE, (1, before[1]))
    try:
        with pytest.raises(OSError) as refused:
            (view.root / "dir/inner").read_text()
        assert refused.value.errno in (errno.EMFILE, errno.EIO)
        (view.lower / "appeared").write_text("appeared")
        mount_something(tmp_path)
    finally:
        resource.prlimit(view.pid, resource.RLIMIT_NOFILE, before)
    assert (view.root / "dir/inner").read_text() == "inner"
    eventually(lambda: (view.root / "appeared").exists(), "what the host made shows")
    (view.lower / "appeared").unlink()
    eventually(lambda: not (view.root / "appeared").exists(), "what the host removed is gone")
    assert run_sandboxfs("status", "-s", "test", state=view.state).returncode == 0
    view.host_changed()


def test_a_daemon_takes_as_many_descriptors_as_it_may_have(mount: Mount) -> None:
    view = mount({"file": "text"})
    soft, hard = resource.prlimit(view.pid, resource.RLIMIT_NOFILE)
    assert soft == hard
