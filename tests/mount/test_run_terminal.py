"""Do interactive programs behave in a run as they do outside? Asked in a terminal with a screen."""

import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import conditions, runs
from tests.support.tmux import PROMPT, Tmux
from tests.support.tree import build

pytestmark = pytest.mark.any_user

# Of this process's tests alone: others may run beside it.
SLEEP = ("sleep", f"5{os.getpid()}")
# Answers every line with one that nobody typed: what is typed need not show while the terminal changes hands.
ANSWER = f"{os.getpid()}."
ANSWERING = ("sed", "-u", f"s/^/{ANSWER}/")
LINES = "".join(f"line {number}\n" for number in range(1, 201))
TUI = """
import curses
def main(screen):
    curses.curs_set(0)
    while True:
        screen.erase()
        screen.addstr(2, 4, "size %d %d" % screen.getmaxyx())
        screen.refresh()
        key = screen.getch()
        if key == ord("q"):
            return
        screen.addstr(3, 4, "key %d" % key)
        screen.refresh()
        screen.getch()
curses.wrapper(main)
"""


@pytest.fixture(params=runs.CONFINEMENTS)
def terminal(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Tmux]:
    """A shell in a workspace, in which `s` runs a program in the sandbox."""
    runs.require(str(request.param))
    workspace = build(
        tmp_path / "workspace", {"lines": LINES, "tui.py": TUI, "job": f"s {' '.join(SLEEP)}\necho went on\n"}
    )
    (tmp_path / "s").write_text(
        f'#!/bin/sh\nexec {sys.executable} -m sandboxfs run --quiet --confine {request.param} -- "$@"\n'
    )
    (tmp_path / "s").chmod(0o755)
    with Tmux(workspace, tmp_path) as shell:
        shell.enter(f"PATH={tmp_path}:$PATH")
        yield shell


@pytest.mark.parametrize("shell", ["bash --norc", "dash -i"])
def test_a_shell_inside_has_job_control(terminal: Tmux, shell: str) -> None:
    conditions.require_tool(shell.split()[0])
    terminal.enter(f"s env PS1='inside> ' {shell}")
    terminal.wait_for("\ninside>")
    terminal.enter(" ".join(SLEEP))
    runs.wait_for_program(*SLEEP)
    terminal.type("C-z")
    terminal.wait_for("Stopped")
    terminal.enter("clear; fg")
    terminal.wait_for_top(" ".join(SLEEP))
    terminal.press_until("C-c", "inside>")
    terminal.enter("echo status $?")
    terminal.wait_for("status 130")
    terminal.enter("exit")
    terminal.wait_for(f"\n{PROMPT}")


def test_a_program_can_be_stopped_and_brought_back(terminal: Tmux) -> None:
    terminal.enter(f"s {' '.join(ANSWERING)}")
    runs.wait_for_program(*ANSWERING)
    terminal.enter("hello")
    terminal.wait_for(f"{ANSWER}hello")
    terminal.type("C-z")
    terminal.wait_for("Stopped")
    terminal.enter("jobs; echo here")
    terminal.wait_for("\nhere\n")
    terminal.clear()
    terminal.enter("fg")
    terminal.wait_for_top(f"{PROMPT} fg\ns {' '.join(ANSWERING)}\n")
    terminal.enter("again")
    terminal.wait_for(f"{ANSWER}again")
    terminal.type("C-d")
    terminal.enter("echo status $?")
    terminal.wait_for("status 0")


def test_a_program_in_the_background_stops_when_it_reads_and_can_be_brought_back(terminal: Tmux) -> None:
    terminal.enter(f"s {' '.join(ANSWERING)} &")
    runs.wait_for_program(*ANSWERING)
    # Bash tells of it with the next prompt.
    while "Stopped" not in terminal.screen:
        terminal.type("Enter")
    terminal.clear()
    terminal.enter("fg")
    terminal.wait_for_top(f"{PROMPT} fg\ns {' '.join(ANSWERING)}\n")
    terminal.enter("hello")
    terminal.wait_for(f"{ANSWER}hello")
    terminal.type("C-d")
    terminal.wait_for(f"\n{PROMPT}")


def test_an_editor_works_stops_and_comes_back(terminal: Tmux) -> None:
    editor = next((name for name in ("vim", "vi") if shutil.which(name)), None) or conditions.require_tool(
        "vi"
    )
    terminal.enter(f"s {editor} -u NONE lines")
    terminal.wait_for("line 25")
    terminal.type("dd")
    terminal.type("C-z")
    terminal.wait_for("Stopped")
    terminal.enter("clear; fg")
    terminal.wait_for("line 25")
    terminal.enter(":wq")
    terminal.wait_for(PROMPT)
    terminal.clear()
    terminal.enter("s head -n 1 lines; head -n 1 lines")
    terminal.wait_for("line 2\nline 1\n")


def test_a_pager_works_also_when_its_input_is_a_pipe(terminal: Tmux) -> None:
    for command in ("s less lines", "cat lines | s less"):
        terminal.clear()
        terminal.enter(command)
        terminal.wait_for("line 28")
        terminal.type(" ")
        terminal.wait_for("line 57")
        terminal.type("q")
        terminal.wait_for(PROMPT)


def test_a_full_screen_program_gets_keys_and_the_size(terminal: Tmux) -> None:
    terminal.enter(f"s {runs.PYTHON} tui.py")
    terminal.wait_for("size 30 100")
    terminal.type("x")
    terminal.wait_for("key 120")
    terminal.type("x")
    terminal.type("q")
    terminal.wait_for(PROMPT)


def test_an_interrupt_ends_the_script_around_as_well(terminal: Tmux) -> None:
    terminal.enter("bash job")
    runs.wait_for_program(*SLEEP)
    terminal.type("C-c")
    terminal.wait_for("^C")
    terminal.enter("echo status $?")
    assert "went on" not in terminal.wait_for("status 130")


def test_a_killed_program_leaves_the_terminal_usable(terminal: Tmux) -> None:
    terminal.enter("s sh -c 'stty raw -echo; kill -9 $$'")
    terminal.enter("echo status $?")
    terminal.wait_for("status 137")
