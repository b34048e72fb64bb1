"""Is what is asserted of a run decided by what happened, whatever the program does to hide it?"""

import mmap
import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from sandboxfs import Sandbox
from tests.support import runs
from tests.support.mount_driver import run_sandboxfs
from tests.support.tree import Tree, build, capture

pytestmark = pytest.mark.any_user

MARK = "no program of these tests has a mark"
PROJECT: Tree = {
    "file": "text\n",
    "dir/inner": "inner\n",
    "dir/deep/secret": "secret\n",
    "other/thing": "thing\n",
}
# More records than the smallest log has room for: 64 KiB, of which one file is kept.
FLOOD = "i=0; while [ $i -lt 600 ]; do : > other/flood$i; rm other/flood$i; i=$((i+1)); done"
SMALL_LOG = "[log]\nsize = 65536\nkeep = 1\n"


@pytest.fixture
def workspace(tmp_path: Path) -> Iterator[Path]:
    place = build(tmp_path / "workspace", PROJECT)
    before = capture(place)
    yield place
    runs.check_nothing_left(MARK)
    assert capture(place) == before


@pytest.fixture
def small_log(tmp_path: Path) -> Path:
    config = tmp_path / "config.toml"
    config.write_text(SMALL_LOG)
    return config


@pytest.mark.parametrize(
    ("options", "inside", "broken"),
    [
        (("--assert-no-writes", "dir/**"), "echo x > dir/new; rm dir/new", "'dir/new' was written"),
        (("--assert-writes-only", "other/**"), "echo x > new; rm new", "'new' was written"),
        (("--assert-no-denials", "--rule", "file=ro"), "(echo x > file)", "write denied for 'file'"),
    ],
)
def test_an_assertion_is_broken_also_when_the_log_has_forgotten_why(
    workspace: Path, small_log: Path, options: tuple[str, ...], inside: str, broken: str
) -> None:
    words = ("--config", str(small_log), *options, "--", "sh", "-c", f"{inside}; {FLOOD}")
    done = runs.run(*words, cwd=workspace, status=1)
    assert f"sandboxfs: does not hold: {broken}" in done.stderr
    assert "'dir/new'" not in run_sandboxfs("log", "-s", "workspace", "--op", "create").stdout


@pytest.mark.parametrize("level", ["denials", "writes", "all"])
def test_writes_are_asserted_about_at_every_level_of_the_log(workspace: Path, level: str) -> None:
    asserted = ("--assert-no-writes", "made", "--log-level", level)
    done = runs.run(*asserted, "--", "sh", "-c", "echo 1 > made; rm made", cwd=workspace, status=1)
    assert "does not hold: 'made' was written: --assert-no-writes 'made'" in done.stderr


@pytest.mark.parametrize(
    "inside",
    [
        pytest.param("mv dir away; echo x > away/deep/secret; mv away dir", id="written under another name"),
        pytest.param("mv dir away; mv away dir", id="moved away and back"),
        pytest.param("mv dir/deep elsewhere", id="moved away"),
        pytest.param("echo x > new; mv new dir/deep/secret", id="renamed over"),
        pytest.param("ln dir/deep/secret second; rm second", id="linked to"),
        pytest.param("echo x > new; rm dir/deep/secret; ln new dir/deep/secret", id="linked as"),
        pytest.param("chmod 600 dir/deep/secret; chmod 644 dir/deep/secret", id="mode"),
        pytest.param("touch -d @1 dir/deep/secret", id="times"),
        pytest.param(
            f'{runs.PYTHON} -c \'import os; os.setxattr("dir/deep/secret", "user.a", b"1");'
            'os.removexattr("dir/deep/secret", "user.a")\'',
            id="extended attribute",
        ),
        pytest.param(
            f'{runs.PYTHON} -c \'import mmap; f = open("dir/deep/secret", "r+b");'
            'mmap.mmap(f.fileno(), 0)[:1] = b"x"\'',
            id="memory map",
        ),
    ],
)
def test_every_way_to_write_what_was_not_to_be_written_is_seen(workspace: Path, inside: str) -> None:
    words = ("--log-level", "denials", "--assert-no-writes", "dir/deep/secret", "--", "sh", "-c", inside)
    done = runs.run(*words, cwd=workspace, status=1)
    assert "does not hold: 'dir/deep/secret' was written" in done.stderr


def test_moving_a_directory_that_holds_nothing_of_it_breaks_no_assertion(workspace: Path) -> None:
    inside = "mv other dir/other; mv dir/other other"
    for pattern in ("dir/deep/secret", "**/secret"):
        runs.run("--assert-no-writes", pattern, "--", "sh", "-c", inside, cwd=workspace)


def write_to_it(handle: int) -> None:
    os.pwrite(handle, b"x", 0)


def store_in_it(handle: int) -> None:
    mmap.mmap(handle, 0)[:1] = b"x"


@pytest.mark.parametrize("write", [write_to_it, store_in_it])
def test_writing_through_a_handle_from_before_the_run_breaks_an_assertion(
    workspace: Path, write: Callable[[int], None]
) -> None:
    with Sandbox(workspace) as sandbox:
        handle = os.open(sandbox.view / "file", os.O_RDWR)
        try:
            store_in_it(handle)
            words = ("--quiet", "-s", sandbox.name, "--assert-no-writes", "file", "--")
            # What was stored before it does not count.
            runs.run(*words, "true", cwd=workspace)
            with subprocess.Popen(
                runs.run_words(*words, "sh", "-c", "echo up; read line"),
                cwd=workspace,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            ) as running:
                assert running.stdout is not None
                assert running.stdout.readline() == "up\n"
                write(handle)
                _, complaint = running.communicate("go\n", timeout=runs.PATIENCE)
                assert (running.returncode, "does not hold: 'file' was written" in complaint) == (1, True)
        finally:
            os.close(handle)
        sandbox.discard()


def test_runs_that_share_a_view_assert_each_for_itself(workspace: Path) -> None:
    with Sandbox(workspace) as sandbox:
        words = ("--quiet", "-s", sandbox.name)
        runs.run(*words, "--assert-no-writes", "made", "--", "sh", "-c", ": > other/a", cwd=workspace)
        runs.run(*words, "--assert-no-writes", "other", "--", "sh", "-c", ": > made; rm made", cwd=workspace)
        runs.run(*words, "--assert-no-writes", "made", "--", "sh", "-c", ": > made", cwd=workspace, status=1)
        sandbox.discard()


def test_what_is_beside_the_workspace_is_asserted_about_as_well(workspace: Path, tmp_path: Path) -> None:
    runs.require("bubblewrap")
    library = build(tmp_path / "library", {"code": "code\n"})
    words = ("--allow", library, "--assert-no-writes", f"{library}/code", "--", "sh", "-c")
    done = runs.run(*words, f"cd {library}; mv code c; mv c code", cwd=workspace, status=1)
    assert f"does not hold: '{library}/code' was written" in done.stderr


def test_denials_are_told_at_the_end_also_when_the_log_has_forgotten_them(
    workspace: Path, small_log: Path
) -> None:
    words = ("--config", small_log, "--rule", "file=ro", "--", "sh", "-c")
    done = runs.run(*words, f"(echo x > file); (echo x > file); {FLOOD}", cwd=workspace)
    told = "sandboxfs: write denied for 'file': read-only by rule 'file = ro' (--rule) (2 times)\n"
    assert told in done.stderr


def test_python_is_told_of_denials_that_the_log_has_forgotten(workspace: Path, small_log: Path) -> None:
    from sandboxfs.state.locations import Locations

    settings = Locations.from_environment().config
    settings.parent.mkdir(parents=True, exist_ok=True)
    settings.write_text(small_log.read_text())
    with Sandbox(workspace, rules=["file=ro"]) as sandbox:
        sandbox.run(["sh", "-c", f"(echo x > file); {FLOOD}"], capture_output=True)
        assert [(one.access, one.path, one.times) for one in sandbox.denials()] == [("write", "file", 1)]
        sandbox.discard()


def test_a_run_from_inside_the_view_is_observed_as_any(workspace: Path) -> None:
    runs.require("bubblewrap")
    with Sandbox(workspace, rules=["file=ro"]) as sandbox:
        words = ("-s", sandbox.name, "--assert-no-writes", "dir/new", "--", "sh", "-c")
        inside = "(echo x > ../file); echo x > new; rm new"
        done = runs.run(*words, inside, cwd=sandbox.view / "dir", status=1)
        assert "does not hold: 'dir/new' was written" in done.stderr
        assert "sandboxfs: write denied for 'file'" in done.stderr
