"""No tree that a program makes is too deep for a verb, and none makes a sandbox impossible to remove."""

import os
import subprocess
from pathlib import Path

import pytest

from tests.mount.conftest import Mount
from tests.support.mount_driver import MountDriver, run_sandboxfs
from tests.support.mounted import python

pytestmark = pytest.mark.any_user

# Argument: levels, and the length of each name. Only by steps: no path that is so long can be named.
NEST = """
import os, sys
name = "d" * int(sys.argv[2])
for level in range(int(sys.argv[1])):
    os.mkdir(name)
    os.chdir(name)
with open("file", "w") as file:
    file.write("deep")
"""
LEVELS = """
import os, sys
levels = 0
while os.path.isdir("d" * int(sys.argv[1])):
    os.chdir("d" * int(sys.argv[1]))
    levels += 1
print(levels, open("file").read())
"""


@pytest.fixture
def mounted(mount: Mount) -> MountDriver:
    return mount({"file": "old\n", "dir/inner": "inner\n"})


@pytest.fixture
def unmounted(tmp_path: Path) -> Path:
    """The state directory of a sandbox `test` that nobody serves."""
    workspace, view, state = tmp_path / "workspace", tmp_path / "view", tmp_path / "state"
    workspace.mkdir()
    view.mkdir()
    for words in (["mount", "--name", "test", workspace, view], ["unmount", "-s", "test"]):
        assert run_sandboxfs(*words, state=state).returncode == 0
    return state


def told(state: Path, *words: str, status: int = 0) -> "subprocess.CompletedProcess[str]":
    finished = run_sandboxfs(words[0], *words[1:], state=state)
    assert finished.returncode == status, finished.stderr[-2000:]
    assert "RecursionError" not in finished.stderr
    return finished


def test_every_verb_bears_a_tree_that_is_too_deep_to_be_named(mounted: MountDriver) -> None:
    python(NEST, "2500", "1", cwd=mounted.root)
    (mounted.root / "file").write_text("new\n")
    state = mounted.state
    told(state, "status", "-s", "test")
    assert "levels deep" in told(state, "diff", "--stat", "-s", "test").stderr
    assert "levels deep" in told(state, "commit", "--yes", "-s", "test", status=5).stderr
    told(state, "commit", "--yes", "-s", "test", "file")
    mounted.host_changed()
    assert (mounted.lower / "file").read_text() == "new\n"
    told(state, "discard", "--all", "--yes", "-s", "test")
    assert sorted(os.listdir(mounted.root)) == ["dir", "file"]
    told(state, "undo", "--yes", "-s", "test")
    assert python(LEVELS, "1", cwd=mounted.root).split() == ["2500", "deep"]
    told(state, "discard", "--all", "--yes", "-s", "test")
    told(state, "gc", "--older-than", "0s", "-s", "test")


def test_a_program_in_a_deep_directory_is_told_that_it_was_discarded(mounted: MountDriver) -> None:
    python(NEST, "600", "1", cwd=mounted.root)
    opened = os.open(mounted.root / "/".join("d" * 550), os.O_RDONLY | os.O_DIRECTORY)
    try:
        told(mounted.state, "discard", "--all", "--yes", "-s", "test")
        (mounted.root / "d").mkdir()
        # Only the type of a directory that went with others is known: ordinary users get no permission.
        with pytest.raises(OSError, match=r"No such file|Stale|Permission denied"):
            os.mkdir("new", dir_fd=opened)
    finally:
        os.close(opened)
    assert os.listdir(mounted.root / "d") == []
    told(mounted.state, "gc", "--older-than", "0s", "-s", "test")


def test_ten_thousand_levels_of_the_longest_names_are_reviewed_dropped_and_brought_back(
    unmounted: Path,
) -> None:
    upper = unmounted / "sandboxes" / "test" / "roots" / "0" / "upper"
    python(NEST, "10000", "255", cwd=upper)
    assert "levels deep" in told(unmounted, "commit", "--yes", "-s", "test", status=5).stderr
    assert told(unmounted, "diff", "--name-status", "-s", "test").stdout.startswith("A\t")
    told(unmounted, "discard", "--all", "--yes", "-s", "test")
    assert os.listdir(upper) == []
    told(unmounted, "undo", "--yes", "-s", "test")
    assert python(LEVELS, "255", cwd=upper).split() == ["10000", "deep"]
    told(unmounted, "discard", "--all", "--yes", "-s", "test")
    told(unmounted, "gc", "--older-than", "0s", "-s", "test")
    told(unmounted, "rm", "test")
    assert os.listdir(unmounted / "sandboxes") == []


def test_a_sandbox_whose_home_and_view_are_deep_can_be_removed(unmounted: Path) -> None:
    home = unmounted / "sandboxes" / "test"
    (home / "home").mkdir()
    python(NEST, "10000", "255", cwd=home / "home")
    python(NEST, "3000", "1", cwd=home / "roots" / "0" / "upper")
    told(unmounted, "rm", "--force", "test")
    assert os.listdir(unmounted / "sandboxes") == []
