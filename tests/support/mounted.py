"""How does a test get a mount, a part of one, and programs that work in it?

Mounting takes a second, so the tests of a module may share a mount: each then works in an `Area`, a directory
of its own in the workspace, whose lower side is proved unchanged when the test ends. Programs run with a time
limit, because the worst that a filesystem can do is not to answer.
"""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import pytest

from tests.support.claims import Limit
from tests.support.mount_driver import MountDriver
from tests.support.tree import Tree, assert_same_tree, build, capture

PROJECT = Path(__file__).parents[2]
# On PYTHONPATH, it lets a test into the daemon.
INSIDE = PROJECT / "tests" / "support" / "inside"
# Against hanging, no more: on a busy machine much of it may be needed.
PATIENCE = 180.0
# The view may lag behind the host for this long, in seconds.
PROMPTLY = 1.0


class SharedMount(MountDriver):
    """A mount for the tests of a module, each in an area of its own."""

    def __init__(self, place: Path) -> None:
        self.areas: list[Area] = []
        super().__init__(place, build(place / "workspace", {}))

    def finish(self, check: Callable[[], None] = lambda: None) -> None:
        self.stop()
        check()
        for area in self.areas:
            area.check_unchanged()
        assert os.listdir(self.work) == [], "left behind in staging"


class Area:
    """One test's part of a shared mount: the same directory as *lower*, in the *view* and in *upper*."""

    def __init__(self, mount: SharedMount, name: str, tree: Tree) -> None:
        self.mount = mount
        self.lower = build(mount.lower / name, tree)
        self.view = mount.root / name
        self.upper = mount.upper / name
        self.host_changed()
        mount.areas.append(self)

    def host_changed(self) -> None:
        """Say that the test itself has just changed the workspace."""
        self._pristine = capture(self.lower)

    def check_unchanged(self) -> None:
        assert_same_tree(capture(self.lower), self._pristine, what="the workspace")


M = TypeVar("M", bound=MountDriver)


@contextmanager
def serving(mount: M) -> Iterator[M]:
    """Prove at the end that *mount* kept its promises, and leave nothing mounted in any case."""
    try:
        yield mount
        mount.finish()
    finally:
        mount.abandon()


@contextmanager
def package_found(*more: Path) -> Iterator[pytest.MonkeyPatch]:
    """Let commands find the package, for fixtures that are older than the environment of a test."""
    with pytest.MonkeyPatch.context() as patch:
        path = [*map(str, more), str(PROJECT), os.environ.get("PYTHONPATH")]
        patch.setenv("PYTHONPATH", os.pathsep.join(filter(None, path)))
        yield patch


def run(
    *command: str | bytes | Path,
    cwd: Path,
    env: Mapping[str, str] | None = None,
    text: str | None = None,
    status: int | None = 0,
    timeout: float = PATIENCE,
) -> str:
    """Run a program and return what it printed; it must end in time, with the expected *status* if any."""
    done = subprocess.run(
        command,
        cwd=cwd,
        env=os.environ | dict(env or {}),
        input=text,
        stdin=subprocess.DEVNULL if text is None else None,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="surrogateescape",
        timeout=timeout,
        check=False,
    )
    if status is not None:
        assert done.returncode == status, f"{command} gave {done.returncode}:\n{done.stdout}"
    return done.stdout


def python(code: str, *arguments: str | Path, cwd: Path, timeout: float = PATIENCE) -> str:
    """Run Python code in another process."""
    return run(sys.executable, "-c", code, *arguments, cwd=cwd, timeout=timeout)


@contextmanager
def companion(code: str, *arguments: str | Path, cwd: Path) -> Iterator["subprocess.Popen[str]"]:
    """Another process, talking line by line through its standard input and output; it ends with the block."""
    process = subprocess.Popen(
        [sys.executable, "-u", "-c", code, *arguments],
        cwd=cwd,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate(timeout=PATIENCE)


def says(process: "subprocess.Popen[str]") -> str:
    """The next line that a companion prints."""
    assert process.stdout is not None
    return process.stdout.readline().strip()


def tell(process: "subprocess.Popen[str]", line: str) -> None:
    assert process.stdin is not None
    process.stdin.write(line + "\n")
    process.stdin.flush()


def eventually(holds: Callable[[], bool], what: str, within: float = PROMPTLY) -> None:
    """Wait until *holds*; what the kernel's caches do when they expire, nothing tells."""
    limit = Limit(within)
    while not holds():
        if limit.is_over:
            raise AssertionError(f"not within {within} s: {what}")
        time.sleep(0.01)
