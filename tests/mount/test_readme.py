"""The README's examples, run as printed: in order, in one shell, on a terminal, with an empty home."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support import runs
from tests.support.dialogue import Dialogue
from tests.support.mounts import detach_mount, mountpoints
from tests.support.tree import File, Tree, build

pytestmark = pytest.mark.any_user

README = Path(__file__).parents[2] / "README.md"
_PROMPT = ">@@ "
# Installing needs the network, and is what the other examples come after.
_INSTALLING = ("sudo ", "uv ", "scripts/")
# What a person answers, by the question.
_ANSWERS = {
    "sandboxfs commit": [("[y/N] ", "y")],
    "sandboxfs discard --all": [("[y/N] ", "y")],
    "sandboxfs undo": [("[y/N] ", "y")],
    "sandboxfs run --review": [("? ", "k")],
    "sandboxfs shell": [("[sandbox app] ", "exit")],
}
# What fails on purpose.
_STATUSES = {"echo x >> ~/view/migrations": 1, "sandboxfs why": 1}

_MAKEFILE = """\
all:
\tmkdir -p build && cp README.md build/
tidy:
\tsed -i 's/[ \\t]*$$//' src/greet.py
test:
\tgrep -q app README.md
"""
PROJECT: Tree = {
    "README.md": "# app\n",
    "Makefile": _MAKEFILE,
    "notes.txt": "a note\n",
    "src/greet.py": "print('Hello')   \n",
}
# What further examples speak of, made when the first ones have shown the project as it is.
MORE: Tree = {
    "install.sh": File("#!/bin/sh\necho installed > installed\n", mode=0o755),
    "package.json": '{"name": "app", "version": "1.0.0"}\n',
    "migrations/001.sql": "create table t (a int);\n",
    ".env": "SECRET=1\n",
}


@dataclass(frozen=True)
class Block:
    """One block of code: its language and its text."""

    language: str
    text: str

    def commands(self) -> Iterator[tuple[str, list[str]]]:
        """Each command, and the lines that it is said to print."""
        for part in re.split(r"^\$ ", self.text, flags=re.MULTILINE)[1:]:
            command, *printed = part.rstrip("\n").split("\n")
            yield re.sub(r"\s{2,}# .*", "", command), [line for line in printed if line != "…"]


def blocks() -> list[Block]:
    found = re.findall(r"^```(\w+)\n(.*?)^```", README.read_text(), re.MULTILINE | re.DOTALL)
    return [Block(language, text) for language, text in found]


def home_with_a_project() -> Path:
    home = Path(os.environ["HOME"])
    build(home / "projects/app", PROJECT)
    build(home / "projects/lib", {"lib.txt": "lib\n"})
    commands = home / ".local/bin"
    commands.mkdir(parents=True)
    for name, text in {
        "sandboxfs": f'#!/bin/sh\nexec "{sys.executable}" -m sandboxfs "$@"\n',
        "claude": '#!/bin/sh\n[ -n "$ANTHROPIC_API_KEY" ] && echo "by an agent" > agent.txt\n',
    }.items():
        (commands / name).write_text(text)
        (commands / name).chmod(0o755)
    return home


def _of_our_own(name: str) -> bool:
    """Whether a variable leads sandboxfs away from where it keeps things in a user's home."""
    return name.startswith("SANDBOXFS_") or (name.startswith("XDG_") and name.endswith("_HOME"))


class Shell:
    """An interactive shell on a terminal, in which a person types."""

    def __init__(self, home: Path) -> None:
        environment = {
            **{name: value for name, value in os.environ.items() if not _of_our_own(name)},
            "PATH": f"{home}/.local/bin:{os.environ['PATH']}",
            "PS1": f"<$?{_PROMPT}",
            "PAGER": "cat",
            "TERM": "dumb",
            "SHELL": "/bin/sh",
            "ANTHROPIC_API_KEY": "stand-in",
        }
        self.dialogue = Dialogue(["/bin/bash", "--norc", "--noediting"], environment, home)
        self.dialogue.expect(_PROMPT)

    def type(self, command: str) -> tuple[int, str]:
        """Give *command*, answer what it asks; return its status and what was shown."""
        self.dialogue.type(command.encode() + b"\n")
        self.dialogue.expect("\n")
        shown = ""
        for start, answers in _ANSWERS.items():
            for question, answer in answers if command.startswith(start) else ():
                shown += self.dialogue.answer(question, answer)
        shown += self.dialogue.expect(_PROMPT)
        before, _, status = shown.removesuffix(_PROMPT).rpartition("<")
        return int(status), before


def _words(text: str) -> str:
    """One blank between words: a terminal lines columns up with tabs."""
    return " ".join(text.split())


def check(shell: Shell, block: Block, home: Path) -> None:
    for command, printed in block.commands():
        if command.startswith(_INSTALLING):
            continue
        status, shown = shell.type(command)
        expected = next((code for start, code in _STATUSES.items() if command.startswith(start)), 0)
        assert status == expected, f"$ {command}\n{shown}"
        rest = _words(shown)
        for line in printed:
            wanted = _words(line.replace("/home/you", str(home)))
            assert wanted in rest, f"$ {command}\nis said to print\n{wanted}\nand printed\n{shown}"
            rest = rest.partition(wanted)[2]


@contextmanager
def unmounted_in_the_end(view: Path) -> Iterator[None]:
    try:
        yield
    finally:
        if view in mountpoints():
            detach_mount(view)


def test_the_examples_of_the_readme_run_as_printed() -> None:
    home = home_with_a_project()
    shell = Shell(home)
    with shell.dialogue, unmounted_in_the_end(home / "view"):
        for number, block in enumerate(blocks()):
            if number == 2:
                build(home / "projects/app", MORE)
            match block.language:
                case "console":
                    check(shell, block, home)
                case "python":
                    (home / "example.py").write_text(block.text)
                    status, shown = shell.type(f"{sys.executable} ~/example.py")
                    assert status == 0, shown
                case "toml":
                    config = home / ".config/sandboxfs/config.toml"
                    config.parent.mkdir(parents=True)
                    config.write_text(block.text)
                case other:
                    raise AssertionError(f"nobody knows how to try a block of {other}")
        shell.type("sandboxfs unmount ~/view")
    runs.check_nothing_left("no-such-mark")


def test_installing_without_a_tool_works_in_an_empty_home(tmp_path: Path) -> None:
    found = re.search(r"^`(python3 -m venv [^`]*)`", README.read_text(), re.MULTILINE)
    assert found is not None
    making, installing, *rest = found[1].split(" && ")
    # These two need the network; a program takes the place of what they make.
    assert (making, installing) == (
        "python3 -m venv ~/.local/sandboxfs",
        "~/.local/sandboxfs/bin/pip install .",
    )
    build(tmp_path, {".local/sandboxfs/bin/sandboxfs": File("#!/bin/sh\necho installed\n", mode=0o755)})
    script = " && ".join([*rest, "~/.local/bin/sandboxfs"])
    done = subprocess.run(
        ["/bin/sh", "-c", script],
        env=os.environ | {"HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "installed\n"), done.stderr
