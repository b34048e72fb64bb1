"""On a terminal long results go through the user's pager, and no other program."""

import os
import pty
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.reviewed import Stored


@pytest.fixture
def sandbox(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Stored]:
    made = Stored(tmp_path, {"a": "1\n", ".git/config": "[core]\n\tpager = touch paged-by-git\n"})
    made.write("a", b"two\033[2J\n")
    monkeypatch.chdir(made.host)
    monkeypatch.setenv("TERM", "xterm")
    yield made
    made.abandon()


def on_terminal(*words: str, **environment: str) -> tuple[int, str]:
    """Run `sandboxfs diff` with a terminal for stdout; its status and what the terminal got."""
    above, below = pty.openpty()
    try:
        process = subprocess.Popen(
            [sys.executable, "-m", "sandboxfs", "diff", *words],
            stdin=subprocess.DEVNULL,
            stdout=below,
            stderr=subprocess.DEVNULL,
            env={**{k: v for k, v in os.environ.items() if "PAGER" not in k and k != "LESS"}, **environment},
        )
    finally:
        os.close(below)
    got = bytearray()
    while True:
        try:
            part = os.read(above, 4096)
        except OSError:
            # The last one who had the terminal open is gone.
            break
        got += part
    os.close(above)
    return process.wait(), got.decode().replace("\r\n", "\n")


def test_a_terminal_gets_the_result_through_the_pager(sandbox: Stored) -> None:
    status, got = on_terminal(PAGER="sed s/^/paged:/")
    assert status == 0
    assert got.startswith("paged:\033[1mdiff --git a/a b/a\033[m\n")
    assert not (sandbox.host / "paged-by-git").exists()


def test_the_pager_is_told_to_pass_colours_on_and_to_leave_short_results(sandbox: Stored) -> None:
    assert on_terminal(PAGER="cat > /dev/null; echo $LESS")[1] == "FRX\n"
    assert on_terminal(PAGER="cat > /dev/null; echo $LESS", LESS="S")[1] == "S\n"


@pytest.mark.parametrize(
    "options", [{"words": ("--no-pager",), "PAGER": "false"}, {"PAGER": ""}, {"PAGER": "cat"}]
)
def test_a_terminal_can_do_without_a_pager(sandbox: Stored, options: dict[str, object]) -> None:
    words = options.get("words", ())
    assert isinstance(words, tuple)
    assert "diff --git a/a b/a" in on_terminal(*words, PAGER=str(options["PAGER"]))[1]


def test_a_terminal_never_gets_what_a_file_would_tell_it(sandbox: Stored) -> None:
    assert "+two^[[2J" in on_terminal("--no-pager", NO_COLOR="1")[1]
    assert "\033[2J" not in on_terminal("--no-pager")[1]


def test_a_pager_that_is_quit_early_ends_the_command_quietly(sandbox: Stored) -> None:
    sandbox.create("large", b"line\n" * 1_000_000)
    assert on_terminal(PAGER="head -n 1") == (0, "\033[1mdiff --git a/a b/a\033[m\n")


def test_the_first_change_is_shown_before_the_last_is_computed(sandbox: Stored) -> None:
    sandbox.create("z", b"last\n")
    command = [sys.executable, "-c", STREAMING]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stdin=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        assert process.stdout.readline() == b"diff --git a/a b/a\n"
        process.stdin.write(b"go on\n")
        process.stdin.close()
        assert b"+last\n" in process.stdout.read()
    assert process.returncode == 0


# Waits for a line before it reads the second file.
STREAMING = """
import sys
from sandboxfs.review import patch
load = patch.load
def waiting(found):
    if found.path == b"z":
        sys.stdin.readline()
    return load(found)
patch.load = waiting
from sandboxfs.cli.main import main
sys.exit(main(["diff"]))
"""


def test_the_pager_is_the_one_that_git_would_use_for_the_user(sandbox: Stored) -> None:
    home = Path(os.environ["HOME"])
    home.mkdir(exist_ok=True)

    def used(**environment: str) -> str:
        return on_terminal(**environment)[1]

    (home / ".gitconfig").write_text('[core]\n\tpager = "cat > /dev/null; echo configured"\n')
    pagers = {name: f"cat > /dev/null; echo {name}" for name in ("SANDBOXFS_PAGER", "GIT_PAGER", "PAGER")}
    for name in ("SANDBOXFS_PAGER", "GIT_PAGER"):
        assert used(**pagers) == f"{name}\n"
        del pagers[name]
    assert used(**pagers) == "configured\n"
    with (home / ".gitconfig").open("a") as file:
        file.write('[pager]\n\tdiff = "cat > /dev/null; echo of diff"\n')
    assert used(**pagers) == "of diff\n"
    with (home / ".gitconfig").open("a") as file:
        file.write("\tdiff = false\n")
    assert "diff --git a/a b/a" in used(**pagers)
    (home / ".gitconfig").write_text("")
    assert used(**pagers) == "PAGER\n"
    assert "diff --git a/a b/a" in used(GIT_PAGER="", PAGER="exit 1")
    assert not (sandbox.host / "paged-by-git").exists()
