"""Does the benchmark take away what it says it does? A loop that is still there would be found of no use."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from scripts.benches.competitors import WITHOUT_LOOKING, OneWaits, Sandboxfs, shown
from scripts.benches.whole import bench_environment
from tests.support.mounts import mountpoints
from tests.support.tree import build

pytestmark = pytest.mark.any_user


def altered(place: Path, text: str) -> Sandboxfs:
    (place / "home").mkdir()
    return Sandboxfs(place / "own", bench_environment(place), altered=text)


def test_the_daemon_itself_is_altered(tmp_path: Path) -> None:
    build(tmp_path / "tree", {"file": "text\n"})
    starts = tmp_path / "starts"
    text = f"import os\nwith open({str(starts)!r}, 'a') as file:\n    print(os.getpid(), file=file)\n"
    with shown(altered(tmp_path, text), tmp_path / "tree") as view:
        assert (view.path / "file").read_text() == "text\n"
        assert str(view.daemon) in starts.read_text().split()
    assert tmp_path / "own" / "view" not in mountpoints()


def test_what_is_altered_is_still_a_filesystem(tmp_path: Path) -> None:
    build(tmp_path / "tree", {"file": "text\n", "dir/one": "1\n"})
    with shown(altered(tmp_path, WITHOUT_LOOKING), tmp_path / "tree") as view:
        (view.path / "made").write_text("made")
        os.rename(view.path / "dir", view.path / "moved")
        assert sorted(os.listdir(view.path)) == ["file", "made", "moved"]
        assert (view.path / "moved" / "one").read_text() == "1\n"
    assert sorted(os.listdir(tmp_path / "tree")) == ["dir", "file"]


# Where there is one processor, nothing would be taken away.
TWO_PROCESSORS = "import os; os.sched_getaffinity = lambda _: {0, 1}\n"


QUESTION = "from sandboxfs.fuse.connection import RequestLoop; print(RequestLoop()._looks)"


def test_what_is_taken_away_was_there_and_is_gone(tmp_path: Path) -> None:
    def answer(words: str) -> str:
        command = [sys.executable, "-c", TWO_PROCESSORS + words]
        done = subprocess.run(
            command, env=bench_environment(tmp_path), capture_output=True, text=True, check=True
        )
        return done.stdout.strip()

    assert answer(QUESTION) == "True"
    assert answer(WITHOUT_LOOKING + QUESTION) == "False"


def test_a_program_waits_in_the_view_all_the_while(tmp_path: Path) -> None:
    build(tmp_path / "tree", {"file": "text\n"})
    (tmp_path / "home").mkdir()
    before = (tmp_path / "tree").stat().st_mtime_ns
    waits = OneWaits(tmp_path / "own", bench_environment(tmp_path))
    with shown(waits, tmp_path / "tree") as view:
        assert os.listdir(view.path) == ["file"]
        listed = subprocess.run(
            [sys.executable, "-m", "sandboxfs", "asks", "-s", "bench", "--json"],
            env=waits.environ(),
            capture_output=True,
            text=True,
            check=True,
        )
        (question,) = json.loads(listed.stdout)["questions"]
        assert question["requests"] == 1
    assert (tmp_path / "tree").stat().st_mtime_ns == before
    assert tmp_path / "own" / "view" not in mountpoints()
