"""Standard streams that are closed or cannot be written are borne."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

COMMAND = f"exec '{sys.executable}' -m sandboxfs"


def shell(words: str, status: int) -> "subprocess.CompletedProcess[str]":
    """Run a line of a shell with a sandboxfs in it."""
    line = ["sh", "-c", f"{COMMAND} {words}"]
    done = subprocess.run(line, capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False)
    assert done.returncode == status, f"{words} gave {done.returncode}:\n{done.stdout}{done.stderr}"
    return done


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
@pytest.mark.parametrize(
    ("verb", "status"), [("list", 0), ("--version", 0), ("run --help", 0), ("status", 3), ("fly", 2)]
)
def test_a_closed_stream_is_as_one_that_leads_nowhere(verb: str, status: int, closed: str) -> None:
    done = shell(f"{verb} {closed}", status)
    assert "Traceback" not in done.stderr
    if "2>&-" in closed and status:
        assert done.stdout == ""


def test_a_file_that_is_opened_does_not_become_the_output() -> None:
    told = "import os; from sandboxfs.cli.main import set_up; set_up(); print(os.open('/', os.O_RDONLY) > 2)"
    line = f"'{sys.executable}' -c \"{told}\" <&- 2>&-"
    done = subprocess.run(["sh", "-c", line], capture_output=True, text=True, check=False)
    assert done.stdout == "True\n"


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="there is no /dev/full")
@pytest.mark.parametrize("words", ["list --json", "--version", "--help", "config show", "doctor --json"])
def test_output_that_cannot_be_written_is_an_error_and_no_bug(words: str) -> None:
    done = shell(f"{words} >/dev/full", 2)
    assert "cannot write the output: No space left on device" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="there is no /dev/full")
def test_a_message_that_cannot_be_written_changes_no_status() -> None:
    shell("fly 2>/dev/full", 2)


def test_standard_output_to_a_file_is_whole(tmp_path: Path) -> None:
    shell(f"--help >'{tmp_path}/out'", 0)
    assert (tmp_path / "out").read_text() == shell("--help", 0).stdout
