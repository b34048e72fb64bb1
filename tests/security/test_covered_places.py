"""Does the view of a home or of an allowed directory lead around the rules of what lies inside it?

The workspace, and every place of `--allow`, has a view of its own. The view of the home around them shows an
empty directory in their place, whatever is mounted over it, and wherever the host moves them.
"""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.support import runs
from tests.support.mount_driver import run_sandboxfs
from tests.support.tree import Tree, assert_same_tree, build, capture

PLACES: Tree = {
    "w/app/config/secret": "the secret\n",
    "w/app/config/fixed": "fixed\n",
    "w/other/file": "other\n",
    "shelf/library/code": "code\n",
    "shelf/book": "book\n",
}
RULES = ("--rule", "config/secret=hide", "--rule", "config/fixed=ro")


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's home, with a workspace and a library in it."""
    made = build(tmp_path / "home", PLACES)
    monkeypatch.setenv("HOME", str(made))
    return made


@pytest.fixture(params=runs.CONFINEMENTS)
def confinement(request: pytest.FixtureRequest) -> str:
    """How a run is confined, in each way that there is."""
    runs.require(str(request.param))
    return str(request.param)


def run(
    home: Path, confinement: str, *words: str, status: int | None = 0
) -> "subprocess.CompletedProcess[str]":
    options = ("--confine", confinement, "--home", "cow")
    return runs.run(*options, *words, cwd=home / "w/app", status=status)


def test_the_home_shows_the_workspace_only_with_its_rules(home: Path, confinement: str) -> None:
    before = capture(home)
    script = """
    cat ~/w/app/config/secret; cat ~/w/../w/app/config/secret
    for file in ~/w/app/config/fixed ~/w/app/config/secret ~/w/app/.git; do echo x > $file; done
    rm -rf ~/w/app/config/fixed; cat ~/w/other/file
    """
    done = run(home, confinement, *RULES, "--", "sh", "-c", script)
    assert done.stdout == "other\n"
    assert_same_tree(capture(home), before, what="the home")
    assert run_sandboxfs("diff", "-s", "app.home", "--name-status").stdout == ""


def test_the_home_shows_an_allowed_directory_only_as_it_is_allowed(home: Path, confinement: str) -> None:
    script = "cat ~/shelf/book; echo x > ~/shelf/library/code; rm -rf ~/shelf/library; mv ~/shelf ~/s"
    run(home, confinement, "--allow", f"{home}/shelf/library:ro", "--", "sh", "-c", script, status=1)
    assert run_sandboxfs("diff", "-s", "app.home", "--name-status").stdout == ""
    assert run_sandboxfs("diff", "-s", "app.library", "--name-status").stdout == ""


def test_a_file_inside_a_companion_is_allowed_by_a_rule(home: Path) -> None:
    runs.require("bubblewrap")
    (home / ".npmrc").write_text("settings\n")
    script = "cat ~/.npmrc; echo x > ~/.npmrc; rm ~/.npmrc; ln -sf /oldroot/tmp ~/.npmrc; cat ~/.npmrc"
    words = ("--allow", f"{home}/.npmrc:ro", "--", "sh", "-c", script)
    for _ in range(2):
        assert run(home, "bubblewrap", *words).stdout == "settings\nsettings\n"
    assert run(home, "bubblewrap", "--", "cat", f"{home}/.npmrc", status=1).stdout == ""


def test_a_workspace_that_the_host_moves_is_shown_in_the_home_nowhere(home: Path, confinement: str) -> None:
    script = """
    echo ready
    while ! test -e ~/stop; do cat $(find ~ -name secret) ~/w/app/config/secret; done
    """
    process = subprocess.Popen(
        runs.run_words("--confine", confinement, "--home", "cow", *RULES, "--", "sh", "-c", script),
        cwd=home / "w/app",
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    for _ in range(50):
        for away in ("w/apart", "apart", "shelf/library/apart"):
            os.rename(home / "w/app", home / away)
            os.rename(home / away, home / "w/app")
        os.rename(home / "w", home / "elsewhere")
        (home / "w").mkdir()
        os.rename(home / "elsewhere/app", home / "w/app")
        os.rename(home / "w/app", home / "elsewhere/app")
        (home / "w").rmdir()
        os.rename(home / "elsewhere", home / "w")
    (home / "stop").touch()
    assert process.communicate(timeout=runs.PATIENCE)[0] == ""


@pytest.mark.parametrize(
    "script",
    ["rm -r ~/shelf; ln -s /oldroot{home}/w ~/shelf", "mv ~/shelf ~/moved; mkdir -p ~/shelf/library"],
)
def test_what_an_earlier_run_put_in_the_way_of_a_place_is_told(home: Path, script: str) -> None:
    runs.require("bubblewrap")
    before = capture(home)
    run(home, "bubblewrap", "--", "sh", "-c", script.format(home=home))
    words = ("--allow", f"{home}/shelf/library", "--", "cat", f"{home}/shelf/library/code")
    done = run(home, "bubblewrap", *words, status=125)
    assert f"cannot be shown: sandbox 'app.home' has replaced '{home}/shelf'" in done.stderr
    assert_same_tree(capture(home), before, what="the home")
    _, _, hint = done.stderr.partition("hint: sandboxfs ")
    run_sandboxfs(*hint.split(), "--yes", cwd=home / "w/app")
    assert run(home, "bubblewrap", *words).stdout == "code\n"


@pytest.mark.parametrize(
    "change",
    [
        "echo x > code",
        "cd ..; rm -r library",
        "cd ..; rm -r library; ln -s book library",
        "cd ..; rm -r library; echo x > library",
    ],
    ids=["a change in it", "a deletion", "a symlink", "a file"],
)
def test_changes_of_a_place_from_before_it_was_allowed_are_no_changes_of_the_home(
    home: Path, confinement: str, change: str
) -> None:
    run(home, confinement, "--", "sh", "-c", f"echo x > ~/shelf/book; cd ~/shelf/library; {change}")
    changed = run_sandboxfs("diff", "-s", "app.home", "--name-status").stdout
    assert "shelf/library" in changed
    done = run(home, confinement, "--allow", f"{home}/shelf/library", "--", "true")
    assert f"'app.home' has changes of '{home}/shelf/library' from before it had a view" in done.stderr
    changed = run_sandboxfs("diff", "-s", "app.home", "--name-status").stdout
    assert "shelf/book" in changed
    assert "library" not in changed
    shutil.rmtree(home / "shelf/library")
