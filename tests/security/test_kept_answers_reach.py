"""Can a program in the sandbox write itself an answer that is kept, or have one written?"""

import os
from pathlib import Path

import pytest

from tests.support import runs
from tests.support.tree import Tree, assert_same_tree, build, capture

CONFIG = '[[rule]]\npath = ".env"\nmode = "ask"\n'
GRANT = """
[[grant]]
workspace = "{}"
rule = ".env"
source = "user"
access = "read"
decision = "allow"
path = ".env"
"""
PLACES: Tree = {
    "w/app/.env": "SECRET=1\n",
    "w/app/.git/HEAD": "ref: refs/heads/main\n",
    ".config/sandboxfs/config.toml": CONFIG,
    "named.toml": CONFIG,
}


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's home, with a workspace in it and the user's configuration in its usual place."""
    made = build(tmp_path / "home", PLACES)
    monkeypatch.setenv("HOME", str(made))
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    monkeypatch.delenv("SANDBOXFS_CONFIG", raising=False)
    return made


@pytest.fixture(params=runs.CONFINEMENTS)
def confinement(request: pytest.FixtureRequest) -> str:
    """How a run is confined, in each way that there is."""
    runs.require(str(request.param))
    return str(request.param)


@pytest.mark.parametrize("kind", ["private", "cow"])
@pytest.mark.parametrize("named", [False, True])
def test_the_configuration_cannot_be_written_from_inside(
    home: Path, confinement: str, kind: str, named: bool
) -> None:
    before = capture(home)
    script = f"""
    for file in ~/.config/sandboxfs/config.toml {home}/.config/sandboxfs/config.toml {home}/named.toml \
        ~/named.toml .sandboxfs/policy .sandboxfs/../.sandboxfs.toml
    do
        mkdir -p "$(dirname $file)"; cat >> $file <<'END'
{GRANT.format(home / "w/app")}
END
        echo "$SANDBOXFS_CONFIG" > $SANDBOXFS_CONFIG; mv $file $file.old; ln -s /tmp $file
    done
    ls -l /proc/self/fd; cat .env; true
    """
    options = ("--config", str(home / "named.toml")) if named else ()
    words = ("--confine", confinement, "--home", kind, *options, "--", "sh", "-c", script)
    for _ in range(2):
        done = runs.run(*words, cwd=home / "w/app")
        assert "SECRET" not in done.stdout
        assert ".toml" not in done.stdout
        assert_same_tree(capture(home), before, what="the home")


def test_a_project_cannot_bring_answers_along(home: Path, confinement: str) -> None:
    (home / "w/app/.sandboxfs.toml").write_text(GRANT.format(home / "w/app"))
    done = runs.run("--confine", confinement, "--", "cat", ".env", cwd=home / "w/app", status=None)
    assert done.returncode not in (0, 1)
    assert "'grant': unknown key" in done.stderr
    assert "SECRET" not in done.stdout + done.stderr
    assert os.listdir(home / ".config/sandboxfs") == ["config.toml"]
