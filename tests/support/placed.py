"""How are the parts of a mount put wherever a test wants them?

Inside one another, under odd names, or on small filesystems of memory, which only root can mount.
"""

import os
import select
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.drivers import HostTree
from tests.support.mount_driver import MountDriver
from tests.support.mounted import PROJECT, run
from tests.support.mounts import detach_mount
from tests.support.syscalls import detach
from tests.support.tree import Snapshot, assert_same_tree, capture


class PlacedMount(MountDriver):
    """The sandbox *name* of *workspace*, at *view*, kept in *state*.

    What lies below *beside* in the workspace is not compared.
    """

    def __init__(
        self, workspace: Path, view: Path, state: Path, name: str = "test", beside: Path | None = None
    ) -> None:
        HostTree.__init__(self, view)
        self.name = name
        self.lower = workspace
        self.options = ()
        self.state = state
        self.home = state / "sandboxes" / name
        self.upper, self.work = (self.home / "roots" / "0" / part for part in ("upper", "work"))
        self.baseline = self.home / "baseline"
        self._beside = beside
        view.mkdir(parents=True, exist_ok=True)
        self.host_changed()
        self.start()

    def start(self) -> None:
        self.command("mount", "--name", self.name, "--", self.lower, self.root)
        assert self.is_mounted

    def command(self, *arguments: str | Path) -> str:
        """Run the command line, which must succeed, whatever bytes it prints."""
        env = {"SANDBOXFS_STATE_DIR": os.fspath(self.state)}
        return run(sys.executable, "-m", "sandboxfs", *arguments, cwd=PROJECT, env=env)

    def host_changed(self) -> None:
        self._pristine = self._captured()

    def check_unchanged(self) -> None:
        assert_same_tree(self._captured(), self._pristine, what="the workspace")

    def finish(self, check: Callable[[], None] = lambda: None) -> None:
        self.stop()
        check()
        self.check_unchanged()
        assert os.listdir(self.work) == [], "left behind in staging"

    def abandon(self) -> None:
        """End the daemon by force first: two that wait for each other answer nobody."""
        if self.is_mounted:
            kill_daemon(self)
            detach_mount(self.root)

    def _captured(self) -> Snapshot:
        found = capture(self.lower)
        if self._beside is None:
            return found
        inside = os.fsencode(self._beside.relative_to(self.lower))
        # Making the state directory moves the times of the directory it is in.
        around = os.path.dirname(inside) or b"."
        return {
            path: state
            for path, state in found.items()
            if path != around and path != inside and not path.startswith(inside + b"/")
        }


def kill_daemon(mount: MountDriver) -> None:
    """`kill -9` the daemon and wait until it is gone."""
    watch = os.pidfd_open(mount.pid)
    try:
        signal.pidfd_send_signal(watch, signal.SIGKILL)
        wait_for_end(watch)
    finally:
        os.close(watch)


def wait_for_end(watch: int, patience: float = 30.0) -> None:
    """Wait for the process behind a pidfd, which becomes readable when it ends."""
    ready, _, _ = select.select([watch], [], [], patience)
    assert ready, f"the process did not end within {patience} s"


@contextmanager
def small_filesystem(place: Path, size: str = "64m", inodes: int = 100_000) -> Iterator[Path]:
    """A tmpfs at *place*; it must not be in use at the end."""
    if os.geteuid() != 0:
        pytest.skip("only root can mount a filesystem of memory")
    place.mkdir(parents=True, exist_ok=True)
    options = f"size={size},nr_inodes={inodes},mode=755"
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "sandboxfs-test", place], check=True, timeout=30)
    try:
        yield place
    finally:
        detach(os.fsencode(place))
