"""A program that locks directories makes no sandbox impossible to review or to remove.

Run as an ordinary user: root enters any directory.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

import pytest

from tests.support import conditions
from tests.support.mounts import detach_mount, mountpoints
from tests.support.tree import build

NOBODY = 65534
# An ordinary user, who may open /dev/fuse whatever its mode is on this machine.
AS_NOBODY = f"""mount --bind "$1" /dev/fuse; shift
exec setpriv --reuid={NOBODY} --regid={NOBODY} --clear-groups "$@"
"""
# What is done while the view is served. Every command below sees mounts of its own.
SERVED = f"""
sandboxfs() {{ {sys.executable} -m sandboxfs "$@"; }}
sandboxfs mount --name app "$0/app" "$0/view" > "$0/home/mounted"
sandboxfs diff -s app --name-status
sandboxfs discard -s app --all --yes
echo --
sandboxfs diff -s app --name-status
sandboxfs undo -s app --yes
echo --
sandboxfs diff -s app --name-status
sandboxfs unmount -s app
"""


class Command(Protocol):
    def __call__(self, *words: str, expect: int = 0) -> str: ...


DEEDS = {
    "the top": "echo x >> f; echo n > new; chmod 0 .",
    "directories": "echo x >> d/g; echo n > d/e/new; mkdir -p m/n; echo q > m/n/q; chmod 0 m/n m d/e d",
    "all, with attributes": f"""
        echo n > d/e/new
        {sys.executable} -c 'import os; [os.setxattr(d, "user.a", b"1") for d in ("d/e", "d", ".")]'
        chmod 0 d/e d .
    """,
}


@pytest.fixture
def place() -> Iterator[Path]:
    """A directory of the ordinary user, with a workspace and an empty view; pytest's are closed to others."""
    conditions.require_root()
    conditions.require_tool("setpriv")
    outermost = Path(tempfile.mkdtemp())
    outermost.chmod(0o755)
    place = outermost / "place"
    build(place / "app", {"f": "1\n", "d/g": "2\n", "d/e/h": "3\n"})
    for name in ("home", "run", "view"):
        (place / name).mkdir(mode=0o700)
    subprocess.run(["chown", "-R", f"{NOBODY}:{NOBODY}", place], check=True)
    os.mknod(outermost / "fuse", 0o020666, os.makedev(10, 229))
    (outermost / "fuse").chmod(0o666)
    yield place
    for mount in reversed([one for one in mountpoints() if one.is_relative_to(outermost)]):
        detach_mount(mount)
    shutil.rmtree(outermost)


@pytest.fixture
def done(place: Path) -> Command:
    """Runs a command as the ordinary user; what it wrote on stdout, and on stderr where it failed."""

    def run(*words: str, expect: int = 0) -> str:
        program = [sys.executable, "-m", "sandboxfs"] if words[0] != "sh" else []
        result = subprocess.run(
            ["unshare", "--mount", "sh", "-ec", AS_NOBODY, "sh", place.parent / "fuse", *program, *words],
            env={
                **os.environ,
                "HOME": str(place / "home"),
                "XDG_CONFIG_HOME": str(place / "home/config"),
                "XDG_RUNTIME_DIR": str(place / "run"),
                "SANDBOXFS_STATE_DIR": str(place / "state"),
            },
            cwd=place / "home",
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
        assert result.returncode == expect, (words, result.stdout, result.stderr)
        return result.stdout if expect == 0 else result.stderr

    return run


def state(place: Path) -> list[tuple[str, int]]:
    """What the workspace has, with modes; root sees all."""
    top = place / "app"
    return sorted((str(path.relative_to(top)), path.lstat().st_mode) for path in (top, *top.rglob("*")))


@pytest.mark.parametrize("deed", DEEDS)
def test_what_a_program_locked_can_be_reviewed_and_removed(place: Path, done: Command, deed: str) -> None:
    app, of = str(place / "app"), ("-s", "app")
    before = state(place)
    done("run", "--workspace", app, "--env-all", "--", "sh", "-c", DEEDS[deed])
    names = done("diff", *of, "--name-status")
    number = names.count("\n")
    assert number >= 3
    if " ." in DEEDS[deed]:
        assert "M\t./\t[mode " in names
        assert "whether a program took the permission away" in done("run", *of, "true", expect=125)
    assert f"{number}\n" in done("status", *of)
    assert done("list").splitlines()[1].split()[2:4] == ["locked", "?"]
    (listed,) = json.loads(done("list", "--json"))["sandboxes"]
    assert (listed["changes"], listed["uncounted"]) == (None, "locked")
    done("export", *of, str(place / "archive.tar"))
    shown = done("sh", "-ec", SERVED, str(place)).split("--\n")
    assert [part.count("\n") for part in shown] == [number, 0, number]
    assert done("diff", *of, "--name-status").count("\n") == number
    done("discard", *of, "--all", "--yes")
    assert done("diff", *of) == ""
    done("undo", *of, "--yes")
    assert state(place) == before
    done("commit", *of, "--yes")
    assert len(state(place)) > len(before)
    done("undo", *of, "--yes")
    assert state(place) == before
    assert done("diff", *of, "--name-status").count("\n") == number
    done("gc", *of, "--older-than", "0s")
    assert "holds" in done("rm", "app", expect=2)
    done("rm", "--force", "app")
    assert os.listdir(place / "state/sandboxes") == []
