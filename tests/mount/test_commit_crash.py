"""Commits, undos and discards that are killed, beside a live mount: the next command ends what they began.

Killed before every single host call they are in `tests/unit/commit/test_finish_recover.py`; here a real
process is killed at some moment, and a real daemon edits the upper.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.mount.conftest import Mount
from tests.support.mount_driver import MountDriver, run_sandboxfs
from tests.support.tree import Tree

pytestmark = pytest.mark.any_user

COUNT = 60
# From before the first step to after the last, on machines of any speed.
MOMENTS = [0.15, 0.22, 0.3, 0.4]
TREE: Tree = {f"d{number % 6}/f{number}": f"old {number}\n" for number in range(COUNT)}


def change(mounted: MountDriver) -> None:
    for number in range(COUNT):
        path = mounted.root / f"d{number % 6}/f{number}"
        if number % 3 == 0:
            path.unlink()
        else:
            path.write_text(f"new {number}\n")
    os.rename(mounted.root / "d5", mounted.root / "moved")
    (mounted.root / "made").mkdir()
    (mounted.root / "made/file").write_text("made\n")


def kill(mounted: MountDriver, seconds: float, *words: str) -> None:
    """Kill a command when it has run so long."""
    environment = os.environ | {"SANDBOXFS_STATE_DIR": str(mounted.state)}
    command = [sys.executable, "-m", "sandboxfs", *words, "-s", "test", "--yes"]
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as process:
        try:
            process.wait(seconds)
        except subprocess.TimeoutExpired:
            process.kill()


def recovered(mounted: MountDriver) -> None:
    """Any verb that changes something ends what was begun first; this one then has nothing to do."""
    done = run_sandboxfs("commit", "-s", "test", "--yes", "--hunk", "none", state=mounted.state)
    assert done.returncode == 2, done.stderr
    assert "no such hunk" in done.stderr


def files(root: Path) -> dict[str, bytes]:
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}


def changes(mounted: MountDriver) -> str:
    done = run_sandboxfs("diff", "-s", "test", "--name-status", state=mounted.state)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("seconds", MOMENTS)
def test_a_killed_commit_has_applied_all_or_nothing_and_the_view_is_as_it_was(
    mount: Mount, seconds: float
) -> None:
    mounted = mount(TREE)
    change(mounted)
    before, view = files(mounted.lower), files(mounted.root)
    kill(mounted, seconds, "commit")
    assert files(mounted.root) == view
    recovered(mounted)
    assert files(mounted.root) == view
    assert files(mounted.lower) == (before if changes(mounted) else view)
    mounted.host_changed()


@pytest.mark.parametrize("seconds", MOMENTS)
def test_a_killed_undo_has_taken_back_all_or_nothing_and_the_view_is_as_it_was(
    mount: Mount, seconds: float
) -> None:
    mounted = mount(TREE)
    change(mounted)
    before, view = files(mounted.lower), files(mounted.root)
    assert run_sandboxfs("commit", "-s", "test", "--yes", state=mounted.state).returncode == 0
    kill(mounted, seconds, "undo")
    recovered(mounted)
    assert files(mounted.root) == view
    assert files(mounted.lower) == (before if changes(mounted) else view)
    mounted.host_changed()


@pytest.mark.parametrize("seconds", MOMENTS)
def test_a_killed_discard_has_dropped_all_or_nothing(mount: Mount, seconds: float) -> None:
    mounted = mount(TREE)
    change(mounted)
    lower, view = files(mounted.lower), files(mounted.root)
    kill(mounted, seconds, "discard", "--all")
    recovered(mounted)
    assert files(mounted.root) == (view if changes(mounted) else lower)
    assert files(mounted.lower) == lower
