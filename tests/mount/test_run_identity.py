"""Does a run give its program the user's git identity, and a shell a prompt that says where it is?"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import conditions, runs
from tests.support.terminal import Terminal
from tests.support.tree import Tree, build

COMMIT = "git add . && git commit -q -m message && git log --format='%an <%ae>'"
UNKNOWN = "git config --get user.name; git config --get user.email"


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository without a commit, and a user who has told git who they are."""
    conditions.require_tool("git")
    for name in ("GIT_CONFIG_GLOBAL", "GIT_CONFIG_NOSYSTEM", "GIT_CONFIG_SYSTEM"):
        monkeypatch.delenv(name, raising=False)
    made = build(tmp_path / "app", {"file": "text\n"})
    subprocess.run(["git", "init", "-q", str(made)], check=True)
    settings: Tree = {
        ".gitconfig": '[user]\n\tname = "A \\"B\\" \\\\ C"\n\temail = a@example.org\n'
        f'[includeIf "gitdir:{tmp_path}/work/"]\n\tpath = work\n',
        "work": "[user]\n\temail = a@work.example\n",
    }
    build(Path(os.environ["HOME"]), settings)
    return made


def run(repository: Path, confinement: str, *words: str, env: dict[str, str] | None = None) -> str:
    script = words[-1]
    options = ("--confine", confinement, *words[:-1], "--", "sh", "-c", script)
    return runs.run(*options, cwd=repository, status=None, env=env).stdout


def test_the_users_git_identity_is_known_inside(repository: Path, confinement: str) -> None:
    assert run(repository, confinement, COMMIT) == 'A "B" \\ C <a@example.org>\n'


def test_the_identity_is_the_one_for_this_repository(repository: Path, confinement: str) -> None:
    (repository.parent / "work").mkdir()
    repository = repository.rename(repository.parent / "work/app")
    assert run(repository, confinement, COMMIT) == 'A "B" \\ C <a@work.example>\n'


def test_what_the_repository_says_goes_before_the_identity(repository: Path, confinement: str) -> None:
    subprocess.run(["git", "-C", str(repository), "config", "user.name", "Its Own"], check=True)
    assert run(repository, confinement, COMMIT) == "Its Own <a@example.org>\n"


def test_what_the_programs_own_home_says_goes_before_the_identity(repository: Path, confinement: str) -> None:
    script = f"git config --global user.name Inside; {COMMIT}"
    assert run(repository, confinement, script) == "Inside <a@example.org>\n"


def test_the_system_wide_configuration_of_the_user_is_left_alone(repository: Path, confinement: str) -> None:
    assert run(repository, confinement, UNKNOWN, env={"GIT_CONFIG_NOSYSTEM": "1"}) == ""
    assert run(repository, confinement, "--env", "GIT_CONFIG_SYSTEM=/dev/null", UNKNOWN) == ""
    assert run(repository, confinement, "--home", "cow", "echo $GIT_CONFIG_SYSTEM; " + COMMIT) == (
        '\nA "B" \\ C <a@example.org>\n'
    )


def test_who_has_told_git_nothing_is_unknown_inside(repository: Path, confinement: str) -> None:
    (Path(os.environ["HOME"]) / ".gitconfig").unlink()
    assert run(repository, confinement, f"echo $GIT_CONFIG_SYSTEM; {UNKNOWN}") == "\n"


def test_the_file_with_the_identity_cannot_be_changed_under_bubblewrap(repository: Path) -> None:
    runs.require("bubblewrap")
    script = "echo > $GIT_CONFIG_SYSTEM; rm -f $GIT_CONFIG_SYSTEM; git config --get user.email"
    assert run(repository, "bubblewrap", script) == "a@example.org\n"


def shell(repository: Path, *options: str, program: str) -> Terminal:
    words = [sys.executable, "-m", "sandboxfs", "shell", *options]
    return Terminal(words, cwd=repository, env={"SHELL": program})


@pytest.mark.parametrize("program", ["/bin/bash", "/bin/sh"])
def test_a_shell_says_in_its_prompt_where_it_is(repository: Path, confinement: str, program: str) -> None:
    with shell(repository, "--confine", confinement, program=program) as terminal:
        terminal.wait_for(f"a shell in sandbox 'app' of '{repository}'; 'exit' leaves it", runs.PATIENCE)
        terminal.wait_for("[sandbox app] ", runs.PATIENCE)
        terminal.type("true\n")
        terminal.wait_for("[sandbox app] ", runs.PATIENCE)
        terminal.type("exit 3\n")
        terminal.wait_for("left sandbox 'app'", runs.PATIENCE)
        assert terminal.end(runs.PATIENCE) == 3


@pytest.mark.parametrize(
    "settings",
    ["PS1='mine> '\n", "PROMPT_COMMAND='PS1=\"mine> \"'\n", "PROMPT_COMMAND=('PS1=\"mine> \"' true)\n"],
)
def test_the_mark_stands_before_the_prompt_that_a_user_has_made(repository: Path, settings: str) -> None:
    runs.require("bubblewrap")
    (Path(os.environ["HOME"]) / ".bashrc").write_text(settings)
    with shell(repository, "--home", "cow", program="/bin/bash") as terminal:
        for _ in range(2):
            terminal.wait_for("[sandbox app] mine> ", runs.PATIENCE)
            terminal.type("true\n")
        terminal.type("exit\n")
        terminal.end(runs.PATIENCE)


def test_a_quiet_shell_says_nothing_at_its_start_and_end(repository: Path) -> None:
    with shell(repository, "--quiet", program="/bin/sh") as terminal:
        terminal.wait_for("[sandbox app] ", runs.PATIENCE)
        terminal.type("exit\n")
        terminal.end(runs.PATIENCE)
        assert "left sandbox" not in terminal.seen
