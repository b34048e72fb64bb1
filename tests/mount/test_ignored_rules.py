"""Do rules about what git ignores hold in a mount, follow the host, and are they the same in reviews?"""

import json
import os
import signal
import subprocess
from pathlib import Path

import pytest

from tests.mount.conftest import Mount
from tests.support.asked import following, output, soon, started
from tests.support.mount_driver import MountDriver, run_sandboxfs
from tests.support.tree import Tree

TREE: Tree = {
    ".gitignore": "# secrets\n*.pem\n/build/\n",
    "src/.gitignore": "*.log\n",
    "key.pem": "SECRET=1\n",
    "tracked.pem": "public\n",
    "src/a.c": "int a;\n",
    "src/x.log": "log\n",
    "build/out.o": "object\n",
    "build/keep.txt": "kept\n",
    "mine.txt": "mine\n",
}


def git(top: Path, *words: str) -> str:
    return subprocess.run(
        ["git", "-c", "user.name=a", "-c", "user.email=a@b", *words],
        cwd=top,
        check=True,
        capture_output=True,
        text=True,
    ).stdout


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    home = tmp_path / "home"
    (home / ".config/git").mkdir(parents=True)
    (home / ".config/git/ignore").write_text("mine.txt\n")
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    monkeypatch.delenv("GIT_CONFIG_GLOBAL", raising=False)
    return tmp_path / "config.toml"


def mounted(mount: Mount, config: Path, rules: str, project: str = "") -> MountDriver:
    config.write_text(rules)
    tree = dict(TREE) | ({".sandboxfs.toml": project} if project else {})
    view = mount(tree, "--config", str(config))
    view.stop()
    git(view.lower, "init", "-q", "--template=")
    git(view.lower, "add", "-f", "tracked.pem", "build/keep.txt", "src/a.c")
    view.host_changed()
    view.start()
    return view


def can_read(view: MountDriver, path: str) -> bool:
    done = subprocess.run(["cat", path], cwd=view.root, capture_output=True, check=False)
    return done.returncode == 0


def why(view: MountDriver, path: str, access: str = "read") -> dict[str, object]:
    done = run_sandboxfs("why", path, access, "-s", "test", "--json", state=view.state, cwd=view.lower)
    found: dict[str, object] = json.loads(done.stdout)
    return found


DENY = '[[rule]]\nignored = true\nmode = "deny"\n'


def test_what_git_ignores_is_denied_and_nothing_else(mount: Mount, config: Path) -> None:
    view = mounted(mount, config, DENY)
    found = {path: can_read(view, path) for path in TREE if isinstance(path, str)}
    assert found == {
        ".gitignore": True,
        "src/.gitignore": True,
        "key.pem": False,
        "tracked.pem": True,
        "src/a.c": True,
        "src/x.log": False,
        "build/out.o": False,
        "build/keep.txt": True,
        "mine.txt": False,
    }
    # Names that nothing has yet, and none of git's own.
    for name in ("src/new.pem", "build/new"):
        with pytest.raises(PermissionError):
            (view.root / name).write_text("x")
    (view.root / "src/new.c").write_text("x")
    assert git(view.root, "status", "--porcelain", "src").splitlines()[-1].endswith("src/new.c")
    told = why(view, "src/new.pem")
    assert told["ignored_by"] == ".gitignore:2 *.pem"
    assert str(told["sentence"]).endswith(
        f"denied by rule '** = deny, ignored' ({config}:1), ignored by '.gitignore:2 *.pem'"
    )
    assert why(view, "mine.txt")["ignored_by"] == "core.excludesFile:1 mine.txt"
    assert "ignored_by" not in why(view, "src/a.c")
    assert "ignored = true" in (view.root / ".sandboxfs/policy").read_text()
    assert "deny, ignored" in run_sandboxfs("rules", "-s", "test", state=view.state).stdout
    view.stop()
    assert why(view, "src/new.pem")["ignored_by"] == ".gitignore:2 *.pem"


def test_what_is_hidden_is_not_listed_nor_reported(mount: Mount, config: Path) -> None:
    view = mounted(mount, config, DENY.replace("deny", "hide"))
    assert sorted(os.listdir(view.root)) == [".git", ".gitignore", "build", "src", "tracked.pem"]
    assert os.listdir(view.root / "build") == ["keep.txt"]
    with pytest.raises(FileNotFoundError):
        (view.root / "key.pem").stat()
    with pytest.raises(PermissionError):
        (view.root / "other.pem").write_text("")
    (view.root / "seen").write_text("")
    assert (view.root / ".sandboxfs/changes").read_text() == "A 'seen'\n"


def test_a_program_cannot_change_what_is_ignored(mount: Mount, config: Path) -> None:
    view = mounted(mount, config, DENY)
    (view.root / ".gitignore").write_text("")
    (view.root / "src/.gitignore").unlink()
    git(view.root, "add", "src/a.c", ".gitignore")
    (view.root / ".git/info").mkdir(exist_ok=True)
    (view.root / ".git/info/exclude").write_text("!*\n")
    (view.root / "src/.gitignore").write_text("*.c\n")
    view.forget()
    assert not can_read(view, "key.pem")
    assert not can_read(view, "src/x.log")
    assert can_read(view, "src/a.c")


def test_no_rename_or_link_brings_it_out(mount: Mount, config: Path) -> None:
    view = mounted(mount, config, '[[rule]]\npath = "**"\nignored = true\nmode = "ask"\n')
    for source, to in (("key.pem", "open.txt"), ("src/x.log", "x.log"), ("build/out.o", "out.o")):
        for action in (os.rename, os.link):
            with pytest.raises(PermissionError):
                action(view.root / source, view.root / to)
    # In `other` the host ignores no log; in `src2/deep` its own rules would not be there.
    with pytest.raises(PermissionError):
        os.rename(view.root / "src", view.root / "other")
    (view.root / "src/made.log").write_text("of the sandbox")
    os.rename(view.root / "src/made.log", view.root / "made.txt")
    assert not can_read(view, "src/x.log")
    with following(view) as person, started("cat", "key.pem", cwd=view.root) as program:
        question = person.question()
        assert question["rule"]["ignored"] is True
        person.answer(question)
        assert output(program) == "SECRET=1\n"


def test_decisions_follow_the_host(mount: Mount, config: Path) -> None:
    view = mounted(mount, config, DENY)
    assert can_read(view, "src/a.c")
    held = (view.root / "src/a.c").open()
    (view.lower / ".gitignore").write_text("*.c\n")
    (view.lower / "src/a.c").touch()
    soon(lambda: can_read(view, "key.pem"))
    # It is tracked.
    assert can_read(view, "src/a.c")
    git(view.lower, "rm", "-q", "--cached", "src/a.c")
    soon(lambda: not can_read(view, "src/a.c"))
    with pytest.raises(PermissionError):
        held.read()
    held.close()
    git(view.lower, "add", "-f", "src/a.c")
    soon(lambda: can_read(view, "src/a.c"))
    (Path(os.environ["HOME"]) / ".config/git/ignore").write_text("")
    soon(lambda: can_read(view, "mine.txt"))
    (view.lower / ".git/info").mkdir()
    (view.lower / ".git/info/exclude").write_text("mine.txt\n")
    soon(lambda: not can_read(view, "mine.txt"))
    view.host_changed()


def test_what_is_held_is_judged_alike_in_reviews(mount: Mount, config: Path) -> None:
    view = mounted(mount, config, '[[rule]]\nignored = true\nmode = "hold"\n')
    for name in ("key.pem", "tracked.pem", "src/a.c", "src/x.log", "src/new.log", "build/keep.txt"):
        (view.root / name).write_text("changed\n")
    done = run_sandboxfs("diff", "-s", "test", "--json", "--ignored", state=view.state)
    changes = json.loads(done.stdout)["changes"]
    held = {change["path"] for change in changes if change["held"]}
    assert held == {"key.pem", "src/x.log", "src/new.log"}
    assert {change["path"] for change in changes} >= {"tracked.pem", "src/a.c", "build/keep.txt"}


def test_a_project_may_tighten_and_a_user_may_except(mount: Mount, config: Path) -> None:
    rules = '[[rule]]\npath = "src"\nignored = true\nmode = "rw"\n[[rule]]\npath = "src"\nmode = "ro"\n'
    view = mounted(mount, config, rules, project=DENY)
    # The project's rule is stricter; the exception is for the user's own rule behind it.
    assert not can_read(view, "src/x.log")
    assert not can_read(view, "key.pem")
    with pytest.raises(OSError, match="Read-only"):
        (view.root / "src/a.c").write_text("")
    view.stop()
    (view.lower / ".sandboxfs.toml").unlink()
    view.host_changed()
    view.start()
    assert can_read(view, "key.pem")
    (view.root / "src/x.log").write_text("mine")
    with pytest.raises(OSError, match="Read-only"):
        (view.root / "src/a.c").write_text("")


def test_a_repository_that_is_said_to_be_in_the_view_is_not_looked_for_there(
    mount: Mount, config: Path
) -> None:
    view = mounted(mount, config, DENY)
    view.stop()
    link = view.lower.parent / "link"
    link.symlink_to(view.root)
    for name, to in (("one", view.root / "src"), ("two", link / "src")):
        (view.lower / name).mkdir()
        (view.lower / name / ".git").write_text(f"gitdir: {to}\n")
        (view.lower / name / "key.pem").write_text("SECRET=1\n")
    (view.lower / "three").mkdir()
    (view.lower / "three/.git").symlink_to(link / "src")
    (view.lower / "three/key.pem").write_text("SECRET=1\n")
    view.host_changed()
    view.start()
    for name in ("one", "two", "three"):
        program = subprocess.Popen(["cat", f"{name}/key.pem"], cwd=view.root, stderr=subprocess.DEVNULL)
        try:
            assert program.wait(10) == 1
        except subprocess.TimeoutExpired:
            # The daemon waits for itself: nobody else can end this.
            os.kill(view.pid, signal.SIGKILL)
            raise
    assert why(view, "one/key.pem")["allowed"] is False
