"""Has a program a say in where the mounts of a later run, or of one beside it, land?

The workspace lies in the home, so bubblewrap mounts inside a directory that programs write and that lasts. A
program cannot see the host, but while bubblewrap makes mount destinations the host is at `/oldroot`.
"""

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support import runs
from tests.support.tree import Snapshot, Tree, assert_same_tree, build, capture

PLACES: Tree = {
    "projects/app/file": "text\n",
    "projects/app/src/deep/leaf": "leaf\n",
    "conf/settings": "settings\n",
    "library/code": "code\n",
    "elsewhere/thing": "thing\n",
}

# Tries everything that takes a name away, and says what each gave; *there* is put in its place.
SWAP = """
import ctypes, errno, os, sys
libc = ctypes.CDLL(None, use_errno=True)
there, *names = sys.argv[1:]
def attempt(what, call):
    try:
        call()
        print(what, "succeeded", flush=True)
    except OSError as error:
        print(what, errno.errorcode[error.errno], flush=True)
def exchange(name, other):
    if libc.renameat2(-100, os.fsencode(name), -100, os.fsencode(other), 2):
        raise OSError(ctypes.get_errno(), "")
for name in names:
    link = os.path.expanduser("~/link")
    if not os.path.islink(link):
        os.symlink(there, link)
    attempt("rename", lambda: os.rename(name, name + ".old"))
    attempt("rename-elsewhere", lambda: os.rename(name, os.path.expanduser("~/other")))
    attempt("exchange", lambda: exchange(name, link))
    attempt("replace", lambda: os.rename(link, name))
    attempt("rmdir", lambda: os.rmdir(name))
"""
SWAPS = 5


class Home:
    """A home with a workspace in it, and the private home of its sandbox."""

    def __init__(self, place: Path) -> None:
        self.place = build(place, PLACES)
        self.workspace = self.place / "projects/app"
        self.before: Snapshot = capture(self.place)
        self.private = Path(os.environ["SANDBOXFS_STATE_DIR"]) / "sandboxes/app/home"

    def check(self) -> None:
        assert_same_tree(capture(self.place), self.before, what="the home on the host")

    def run(self, *words: str | Path, status: int | None = 0) -> "subprocess.CompletedProcess[str]":
        done = runs.run("--confine", "bubblewrap", *words, cwd=self.workspace, status=status)
        self.check()
        return done


@pytest.fixture(params=["itself", "through a link"])
def home(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Home]:
    """The home of the user, which may be a link to another place."""
    runs.require("bubblewrap")
    made = Home(tmp_path / "home")
    named = made.place
    if request.param != "itself":
        named = tmp_path / "linked"
        named.symlink_to(made.place)
    monkeypatch.setenv("HOME", str(named))
    yield made
    made.check()


@contextmanager
def going_on(home: Home, *words: str | Path) -> Iterator["subprocess.Popen[str]"]:
    """A run that goes on until the block ends, and has printed its first line when the block begins."""
    process = subprocess.Popen(
        runs.run_words(*words),
        cwd=home.workspace,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline()
        yield process
    finally:
        process.terminate()
        process.communicate(timeout=runs.PATIENCE)


@pytest.mark.parametrize("kind", ["private", "cow"])
def test_no_directory_on_the_way_to_a_mount_can_be_renamed_exchanged_or_removed(
    home: Home, kind: str
) -> None:
    names = [str(home.place / name) for name in ("projects", "projects/app", "conf", "library")]
    options: tuple[str, ...] = ("--home", kind, "--allow", f"{home.place}/library")
    options += ("--allow", f"{home.place}/conf/settings:ro") if kind == "private" else ()
    names = names if kind == "private" else [name for name in names if not name.endswith("conf")]
    done = home.run(*options, "--", runs.PYTHON, "-I", "-c", SWAP, "/oldroot/elsewhere", *names)
    outcomes = [line.split()[1] for line in done.stdout.splitlines()]
    assert len(outcomes) == SWAPS * len(names)
    assert set(outcomes) <= {"EBUSY", "EXDEV", "ENOTEMPTY", "EISDIR", "ENOTDIR"}, done.stdout


@pytest.mark.parametrize(
    ("script", "aside"),
    [
        ("ln -s /oldroot{home}/elsewhere conf", "conf"),
        ("ln -s /oldroot{home}/projects/app conf", "conf"),
        ("mkdir conf; ln -s /oldroot{home}/elsewhere/made conf/settings", "conf/settings"),
        ("mkdir conf; ln -s /newroot/../oldroot{home}/elsewhere/made conf/settings", "conf/settings"),
        ("echo text > conf", "conf"),
        ("mkfifo conf", "conf"),
        ("mkdir -p conf/settings/in/it", "conf/settings"),
        ("mkdir conf; mkfifo conf/settings", "conf/settings"),
        ("mkdir conf; echo forged > conf/settings", None),
        ("mkdir conf; chmod 0 conf", None),
        ("chmod 0 .", None),
    ],
)
def test_what_a_program_leaves_in_its_home_leads_no_mount_astray(
    home: Home, script: str, aside: str | None
) -> None:
    home.run("--", "sh", "-c", f"cd; {script.format(home=home.place)}")
    words = ("--allow", f"{home.place}/conf/settings:ro", "--", "cat", home.place / "conf/settings")
    done = home.run(*words)
    assert done.stdout == "settings\n"
    assert (f"in the sandbox's home '{aside}' is now '{aside}.aside-" in done.stderr) is (aside is not None)
    # What was moved is out of the way for good.
    assert "aside" not in home.run(*words).stderr


def test_a_link_in_the_place_of_the_workspaces_parent_is_moved_aside(home: Home) -> None:
    home.run("--", "touch", "made")
    # As it was left before programs were kept from doing it themselves.
    (home.private / "projects/app").rmdir()
    (home.private / "projects").rmdir()
    (home.private / "projects").symlink_to(f"/oldroot{home.workspace}")
    done = home.run("--", "cat", home.workspace / "file")
    assert done.stdout == "text\n"
    assert "'projects' is now 'projects.aside-" in done.stderr


def test_a_new_mount_in_a_home_is_refused_while_another_run_uses_the_home(home: Home) -> None:
    words = (
        "-s",
        "app",
        "--allow",
        f"{home.place}/conf/settings:ro",
        "--",
        "cat",
        home.place / "conf/settings",
    )
    with going_on(home, "--", "sh", "-c", "touch made; echo ready; sleep 1000"):
        done = home.run(*words, status=125)
        assert "another run uses this sandbox's home, without 'conf/settings' mounted in it" in done.stderr
        assert home.run("-s", "app", "--", "cat", "file").stdout == "text\n"
    assert home.run(*words).stdout == "settings\n"


def test_a_run_keeps_in_place_what_the_run_before_it_mounts(home: Home) -> None:
    allowed = home.place / "conf/settings"
    with going_on(home, "--allow", f"{allowed}:ro", "--", "sh", "-c", "echo ready; sleep 1000"):
        # Gone on the host, it is not mounted in the second run, where its name is kept all the same.
        allowed.unlink()
        home.before = capture(home.place)
        names = (home.place / "conf", home.place / "projects", allowed)
        done = home.run("-s", "app", "--", runs.PYTHON, "-I", "-c", SWAP, "/oldroot", *names)
        assert "succeeded" not in done.stdout


@pytest.mark.parametrize(("first", "second"), [("bubblewrap", "landlock"), ("landlock", "bubblewrap")])
def test_a_home_is_not_shared_by_runs_of_different_confinements(home: Home, first: str, second: str) -> None:
    runs.require("landlock")
    with going_on(home, "--confine", first, "--", "sh", "-c", "echo ready; sleep 1000"):
        words = ("-s", "app", "--confine", second, "--", "true")
        done = runs.run(*words, cwd=home.workspace, status=125)
        assert "another run uses this sandbox's home" in done.stderr


@pytest.mark.parametrize("kind", ["private", "cow"])
def test_a_program_that_swaps_names_without_end_leads_no_joining_run_astray(home: Home, kind: str) -> None:
    loop = f"""
import os, sys
sys.argv = ["", "/oldroot{home.place}/elsewhere", "{home.place}/projects", "{home.place}/projects/app"]
print("ready", flush=True)
out = open(os.devnull, "w")
sys.stdout = out
text = {SWAP!r}
while True:
    exec(text)
"""
    with going_on(home, "--home", kind, "--", runs.PYTHON, "-I", "-c", loop):
        for _ in range(5):
            done = home.run("-s", "app", "--home", kind, "--", "cat", home.workspace / "file")
            assert done.stdout == "text\n"
