"""Tests that are interrupted leave nothing mounted: what they share, and what they have for themselves."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import runs
from tests.support.asked import soon
from tests.support.mounts import mountpoints

pytestmark = pytest.mark.any_user

PROJECT = Path(__file__).parents[2]
# One test of a mount that is shared, and one of a mount of its own; both wait until they are interrupted.
WAITING = """
import time
import pytest

@pytest.mark.mount
@pytest.mark.parametrize("own", [False, pytest.param(True, marks=pytest.mark.own_mount)])
@pytest.mark.parametrize("make_sandbox", ["mount"], indirect=True)
def test_that_waits(make_sandbox, own):
    make_sandbox({"file": "text"})
    print("waits", flush=True)
    time.sleep(1000)
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_session_ends_its_mounts(tmp_path: Path, number: signal.Signals) -> None:
    base = tmp_path / "base"
    test = tmp_path / "test_waiting.py"
    test.write_text(WAITING)
    # The fixtures are those of the conftest, which pytest finds above the tests that it is told of.
    words = ["-p", "tests.conftest", "-p", "no:cacheprovider", "-c", str(PROJECT / "pyproject.toml")]
    words += [f"--rootdir={PROJECT}", f"--basetemp={base}", "-n", "2", str(test)]

    def mounted() -> list[Path]:
        return [path for path in mountpoints() if path.is_relative_to(base)]

    with subprocess.Popen(
        [sys.executable, "-m", "pytest", *words],
        cwd=PROJECT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    ) as session:
        try:
            soon(lambda: len(mounted()) == 2 or session.poll() is not None, runs.PATIENCE)
            assert session.poll() is None, session.communicate()[0].decode()
            # As a terminal does it: to all processes of the job.
            os.killpg(session.pid, number)
            session.communicate(timeout=runs.PATIENCE)
        finally:
            session.kill()
    assert mounted() == []
