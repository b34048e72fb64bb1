"""What becomes of a run whose terminal is closed?"""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import runs
from tests.support.terminal import Terminal
from tests.support.tree import build

pytestmark = pytest.mark.any_user

# Of this process's tests alone: others may run beside it.
MARK = f"sleep 16180{os.getpid()}.5"
# It ignores that its terminal is closed, and so does everything that it starts.
STUBBORN = f"trap '' HUP; {MARK} & (setsid {MARK} &); echo ready; exec {MARK}"
# It ends by itself, later than one that does not is ended.
PATIENT = "trap '' HUP; echo ready; sleep 8; exit 3"


@pytest.fixture
def workspace(tmp_path: Path) -> Iterator[Path]:
    yield build(tmp_path / "workspace", {"file": "text"})
    runs.check_nothing_left(MARK)


def test_a_program_that_ignores_that_its_terminal_is_closed_is_ended(
    workspace: Path, confinement: str
) -> None:
    words = runs.run_words("--confine", confinement, "--", "sh", "-c", STUBBORN)
    with Terminal(words, cwd=workspace) as terminal:
        terminal.wait_for("ready")
        terminal.hang_up()
        assert terminal.process.wait(60) == 128 + signal.SIGHUP


def test_it_is_ended_also_when_only_the_program_is_told(workspace: Path, tmp_path: Path) -> None:
    told = tmp_path / "status"
    words = runs.run_words("--", "sh", "-c", STUBBORN)
    # The shell is the one that is told, with whoever has the terminal, and says nothing to the command.
    script = f'trap "" HUP; (trap - HUP; exec "$@"); echo $? > {told}'
    with Terminal(["sh", "-c", script, "sh", *words], cwd=workspace) as terminal:
        terminal.wait_for("ready")
        terminal.hang_up()
        terminal.process.wait(60)
    assert told.read_text() == f"{128 + signal.SIGHUP}\n"


def test_a_command_that_was_told_to_ignore_it_goes_on(workspace: Path) -> None:
    words = runs.run_words("--", "sh", "-c", PATIENT)
    with Terminal(["sh", "-c", 'trap "" HUP; exec "$@"', "sh", *words], cwd=workspace) as terminal:
        terminal.wait_for("ready")
        terminal.hang_up()
        assert terminal.process.wait(60) == 3


def test_the_signal_alone_ends_nothing_while_the_terminal_is_there(workspace: Path) -> None:
    with Terminal(runs.run_words("--", "sh", "-c", PATIENT), cwd=workspace) as terminal:
        terminal.wait_for("ready")
        terminal.process.send_signal(signal.SIGHUP)
        assert terminal.process.wait(60) == 3
