"""A commit into a directory that may not be written names it, and the start of the session does already."""

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from sandboxfs.hostfs.directory import HostDir
from sandboxfs.hostfs.probe import obstacle
from tests.support.mount_driver import run_sandboxfs
from tests.support.mounted import run
from tests.support.placed import small_filesystem

DROP = """
import ctypes, os, sys
from sandboxfs.commit.transaction import obstacle
from sandboxfs.hostfs.directory import HostDir
with HostDir.at("/") as top:
    os.setgroups([])
    os.setresgid(65534, 65534, 65534)
    os.setresuid(65534, 65534, 65534)
    # Otherwise /proc keeps a process that changed its user from its own descriptors.
    ctypes.CDLL(None).prctl(4, 1)
    print(obstacle(top))
"""


@pytest.fixture
def closed(tmp_path: Path) -> Iterator[tuple[Path, str]]:
    """A directory that this user may not write, and why."""
    if os.geteuid() != 0:
        yield Path("/usr/share"), "it belongs to root and you may not write there"
        return
    with small_filesystem(tmp_path / "disk", "1m", 50) as disk:
        (disk / "file").write_text("old\n")
        run("mount", "-o", "remount,ro", disk, cwd=tmp_path)
        yield disk, "its file system is read-only"


def test_a_directory_that_may_not_be_written_is_named_at_the_start_and_at_the_commit(
    closed: tuple[Path, str], tmp_path: Path
) -> None:
    workspace, why = closed
    view, state = tmp_path / "view", tmp_path / "state"
    view.mkdir()
    started = run_sandboxfs("mount", "--name", "test", workspace, view, state=state)
    try:
        assert started.returncode == 0, started.stderr
        assert f"warning: cannot commit into '{workspace}': {why}" in started.stderr
        (view / "new").write_text("new\n")
        finished = run_sandboxfs("commit", "--yes", "-s", "test", state=state)
        assert finished.returncode == 2
        assert f"cannot commit into the workspace's top directory: {why}" in finished.stderr
        assert ".sandboxfs-" not in finished.stderr
    finally:
        run_sandboxfs("unmount", "-s", "test", state=state)
    assert not (workspace / "new").exists()


def test_the_owner_of_a_directory_that_is_not_ours_is_named(tmp_path: Path) -> None:
    if os.geteuid() == 0:
        told = run(sys.executable, "-c", DROP, cwd=tmp_path).strip()
    else:
        with HostDir.at("/") as top:
            told = str(obstacle(top))
    assert told == "it belongs to root and you may not write there"


def test_a_directory_of_ones_own_is_no_obstacle_whatever_its_mode(tmp_path: Path) -> None:
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o500)
    with HostDir.at(closed) as directory:
        assert obstacle(directory) is None
