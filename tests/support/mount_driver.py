"""A real mount, made by the command a user would type, asked through the kernel.

The daemon is a process of its own. `stop` proves that it went, that nothing stayed mounted, and that it had
nothing to complain about.
"""

import fcntl
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.support.drivers import HostTree, Sandbox
from tests.support.mounts import detach_mount, mountpoints
from tests.support.tree import capture

_COMPLAINT = re.compile(r"\b(WARNING|ERROR|CRITICAL)\b|Traceback|Fatal Python error", re.IGNORECASE)
# Against hanging, no more: on a busy machine much of it may be needed.
_PATIENCE = 180


def run_sandboxfs(
    *arguments: str | Path,
    state: Path | None = None,
    cwd: Path | None = None,
    timeout: float = _PATIENCE,
    environment: Mapping[str, str] | None = None,
) -> "subprocess.CompletedProcess[str]":
    """Run the command line in the environment of the test; the caller looks at the exit status."""
    more = dict(environment or {})
    if state is not None:
        more["SANDBOXFS_STATE_DIR"] = str(state)
    return subprocess.run(
        [sys.executable, "-m", "sandboxfs", *arguments],
        stdin=subprocess.DEVNULL,
        cwd=cwd,
        env=os.environ | more,
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )


class MountDriver(HostTree, Sandbox):
    kind = "mount"
    # What a test brings about may be worth a warning in the daemon's log.
    expected_complaints: tuple[str, ...] = ()
    # What the commands are given beside the environment of the test.
    environment: Mapping[str, str] | None = None

    def __init__(
        self, place: Path, workspace: Path, *options: str, environment: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(place / "view")
        self.environment = environment
        self.lower = workspace
        self.options = options
        self.state = place / "state"
        self.home = self.state / "sandboxes" / "test"
        self.upper, self.work = (self.home / "roots" / "0" / part for part in ("upper", "work"))
        self.baseline = self.home / "baseline"
        self.root.mkdir(parents=True)
        self._pristine = capture(workspace)
        self.start()

    @property
    def log(self) -> str:
        path = self.home / "daemon.log"
        return path.read_text(errors="replace") if path.exists() else ""

    @property
    def is_mounted(self) -> bool:
        return self.root in mountpoints()

    @property
    def pid(self) -> int:
        """The daemon, which writes its pid into the lock that it holds."""
        return int((self.home / "lock").read_text())

    def start(self) -> None:
        done = run_sandboxfs(
            "mount",
            "--name",
            "test",
            *self.options,
            self.lower,
            self.root,
            state=self.state,
            environment=self.environment,
        )
        assert done.returncode == 0, f"mount failed: {done.stderr}\n{self.log}"
        assert self.is_mounted

    def stop(self) -> None:
        if not self.is_mounted:
            return
        done = run_sandboxfs("unmount", self.root, state=self.state, environment=self.environment)
        assert done.returncode == 0, f"unmount failed: {done.stderr}\n{self.log}"
        assert self.root not in mountpoints()
        self._check_daemon_gone()
        self.check_log()

    def check_log(self) -> None:
        complaints = [
            line
            for line in self.log.splitlines()
            if _COMPLAINT.search(line) and not any(expected in line for expected in self.expected_complaints)
        ]
        assert not complaints, f"the daemon complained:\n{self.log}"

    def _check_daemon_gone(self) -> None:
        with open(self.home / "lock", "rb") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                pytest.fail("the daemon lives on after unmount")

    def abandon(self) -> None:
        if self.is_mounted:
            sys.stderr.write(self.log)
            detach_mount(self.root)

    def forget(self) -> None:
        try:
            # 2: names and inodes, not pages.
            Path("/proc/sys/vm/drop_caches").write_text("2")
        except PermissionError:
            pytest.skip("only root can have the kernel forget")
