"""Does `scripts/trace` see what goes on in a command and in a daemon?"""

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.any_user

TRACE = Path(__file__).parents[2] / "scripts" / "trace"


def test_a_command_and_an_answer_are_traced_and_each_has_its_own_files() -> None:
    done = subprocess.run(
        [sys.executable, TRACE, "--json", "diff", "open"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert list(found["diff"]) == ["command"]
    assert list(found["open"]) == ["daemon"]
    for traced in (found["diff"]["command"], found["open"]["daemon"]):
        assert traced["files"] == len(traced["entered"]) > 5
        assert traced["passes"] > traced["files"]
        assert traced["processes"] == 1
    # The command starts at the beginning, the answer in the middle.
    assert "__main__.py" in found["diff"]["command"]["entered"]
    assert not any("__main__" in file for file in found["open"]["daemon"]["entered"])
