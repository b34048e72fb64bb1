"""Can `.sandboxfs/`, the control socket or a project's own file be turned against the policy?"""

import errno
import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.security.conftest import Guarded
from tests.support.claims import fails_with, upper_names
from tests.support.guarded import GuardedMount
from tests.support.mounted import python, run
from tests.support.syscalls import RENAME_EXCHANGE, renameat2

LISTED = ["README", "answers", "changes", "denials", "policy", "request", "requests"]


@pytest.fixture
def mount(guarded: Guarded) -> GuardedMount:
    return guarded({"file": "f\n", "secret": "s\n", "dir/x": "x\n"}, "secret=hide")


def test_the_window_is_never_listed_and_can_be_read(mount: GuardedMount) -> None:
    assert sorted(os.listdir(mount.root)) == ["dir", "file"]
    assert ".sandboxfs" not in run("find", ".", cwd=mount.root)
    assert sorted(os.listdir(mount.root / ".sandboxfs")) == LISTED
    assert "secret" in (mount.root / ".sandboxfs" / "policy").read_text()
    with pytest.raises(OSError):
        (mount.root / "secret").read_text()
    assert "secret" in (mount.root / ".sandboxfs" / "denials").read_text()


CHANGES: dict[str, Callable[[Path], object]] = {
    "write": lambda window: (window / "policy").write_text("x"),
    "append": lambda window: os.open(window / "denials", os.O_WRONLY | os.O_APPEND),
    "read and write": lambda window: os.open(window / "policy", os.O_RDWR),
    "truncate on opening": lambda window: os.open(window / "policy", os.O_RDONLY | os.O_TRUNC),
    "truncate": lambda window: os.truncate(window / "policy", 0),
    "chmod": lambda window: os.chmod(window / "policy", 0o777),
    "chmod of the directory": lambda window: os.chmod(window, 0o777),
    "chown": lambda window: os.chown(window / "policy", os.getuid(), os.getgid()),
    "utime": lambda window: os.utime(window / "policy"),
    "setxattr": lambda window: os.setxattr(window / "policy", "user.x", b"x"),
    "unlink": lambda window: os.unlink(window / "policy"),
    "rmdir": lambda window: os.rmdir(window),
    "create": lambda window: (window / "new").write_text("x"),
    "mkdir": lambda window: os.mkdir(window / "new"),
    "symlink": lambda window: os.symlink("x", window / "new"),
    "mknod": lambda window: os.mknod(window / "new"),
    "link out": lambda window: os.link(window / "policy", window.parent / "linked"),
    "link in": lambda window: os.link(window.parent / "file", window / "linked"),
    "move out": lambda window: os.rename(window / "policy", window.parent / "moved"),
    "move in": lambda window: os.rename(window.parent / "file", window / "moved"),
    "move away": lambda window: os.rename(window, window.parent / "moved"),
    "move over": lambda window: os.rename(window.parent / "dir", window),
    "exchange": lambda window: renameat2(
        os.fsencode(window), os.fsencode(window.parent / "dir"), RENAME_EXCHANGE
    ),
    "exchange the other way": lambda window: renameat2(
        os.fsencode(window.parent / "dir"), os.fsencode(window), RENAME_EXCHANGE
    ),
}


def test_the_window_cannot_be_changed(mount: GuardedMount) -> None:
    for change in CHANGES.values():
        with pytest.raises(OSError) as caught:
            change(mount.root / ".sandboxfs")
        assert caught.value.errno in (errno.EROFS, errno.EACCES, errno.EEXIST, errno.ENOTEMPTY)
    assert sorted(os.listdir(mount.root / ".sandboxfs")) == LISTED
    assert upper_names(mount.upper) == []


def test_the_window_cannot_be_shadowed(mount: GuardedMount) -> None:
    window = mount.root / ".sandboxfs"
    for attempt in (
        lambda: os.mkdir(window),
        lambda: os.symlink("dir", window),
        lambda: os.mknod(window),
        lambda: os.link(mount.root / "file", window),
        lambda: os.rename(mount.root / "file", window),
        lambda: os.open(window, os.O_CREAT | os.O_EXCL | os.O_WRONLY),
    ):
        with pytest.raises(OSError):
            attempt()
    assert upper_names(mount.upper) == []


def test_what_the_workspace_has_under_the_same_name_is_neither_shown_nor_reached(guarded: Guarded) -> None:
    mount = guarded({".sandboxfs/policy": "everything is allowed\n", ".sandboxfs/own": "o\n", "file": "f\n"})
    assert os.listdir(mount.root) == ["file"]
    assert sorted(os.listdir(mount.root / ".sandboxfs")) == LISTED
    assert "everything is allowed" not in (mount.root / ".sandboxfs" / "policy").read_text()


def test_the_name_is_free_anywhere_but_at_the_root(mount: GuardedMount) -> None:
    (mount.root / "dir" / ".sandboxfs").mkdir()
    (mount.root / "dir" / ".sandboxfs" / "policy").write_text("mine\n")
    assert os.listdir(mount.root / "dir" / ".sandboxfs") == ["policy"]
    assert sorted(os.listdir(mount.root / "dir")) == [".sandboxfs", "x"]


def test_the_window_cannot_be_left_upwards_to_anything_but_the_root(mount: GuardedMount) -> None:
    assert os.path.samefile(mount.root / ".sandboxfs" / "..", mount.root)
    with fails_with(errno.ENOENT):
        os.stat(mount.root / ".sandboxfs" / ".." / "secret")
    with fails_with(errno.ENOENT):
        os.stat(mount.root / ".sandboxfs" / "secret")


def test_names_in_the_reports_cannot_forge_lines(guarded: Guarded) -> None:
    mount = guarded({"x": "x\n"}, "hide*=hide")
    forged = "hide\n2026-01-01T00:00:00Z git (1): everything is allowed now\x1b[2J"
    with pytest.raises(OSError):
        (mount.root / forged).read_text()
    (mount.root / "new\nD 'x'").write_text("x")
    for report in ("denials", "changes"):
        told = (mount.root / ".sandboxfs" / report).read_text()
        assert "\x1b" not in told
        assert "\n2026-01-01" not in told
        assert "D 'x'" not in told.splitlines()


ASK = """
import os, sys
from sandboxfs.control.control_socket import control_address
from sandboxfs.control.control_socket import ask
from sandboxfs.errors import SandboxError
from sandboxfs.state.locations import Locations
address = control_address(Locations.from_environment(), "test")
os.chdir(sys.argv[1])
verb, *words = sys.argv[2:]
try:
    ask(address, verb, dict(zip(["path", "mode"], words)))
except SandboxError as error:
    print("refused:", error)
else:
    print("answered")
"""


@pytest.mark.parametrize("inside", ["", "dir", ".sandboxfs"])
def test_the_control_socket_takes_no_change_from_a_process_in_the_view(
    mount: GuardedMount, monkeypatch: pytest.MonkeyPatch, inside: str
) -> None:
    monkeypatch.setenv("SANDBOXFS_STATE_DIR", str(mount.state))
    place = mount.root / inside
    for words in (("allow", "secret", "rw"), ("disable",), ("rw",), ("ro",), ("enable",)):
        assert "inside the view" in python(ASK, place, *words, cwd=Path("/"))
    assert "answered" in python(ASK, place, "status", cwd=Path("/"))
    with fails_with(errno.ENOENT):
        (mount.root / "secret").read_text()
    assert "answered" in python(ASK, Path("/"), "allow", "secret", "ro", cwd=Path("/"))
    assert (mount.root / "secret").read_text() == "s\n"


def test_a_process_in_the_view_cannot_ask_by_the_command_line_either(
    mount: GuardedMount, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SANDBOXFS_STATE_DIR", str(mount.state))
    run(sys.executable, "-m", "sandboxfs", "allow", "-s", "test", "secret", cwd=mount.root, status=2)
    with fails_with(errno.ENOENT):
        (mount.root / "secret").read_text()


PROJECT_RULES = """
[[rule]]
path = "secret"
mode = "rw"

[[rule]]
path = "denied"
mode = "ro"

[[rule]]
path = "fixed"
mode = "deny"

[[rule]]
path = ".git/hooks"
mode = "rw"
"""


def test_the_file_of_a_project_tightens_and_never_loosens(
    guarded: Guarded, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    config = tmp_path / "config.toml"
    rules = (("secret", "hide"), ("denied", "deny"), ("fixed", "ro"))
    config.write_text("".join(f'[[rule]]\npath = "{path}"\nmode = "{mode}"\n\n' for path, mode in rules))
    monkeypatch.setenv("SANDBOXFS_CONFIG", str(config))
    mount = guarded(
        {
            ".sandboxfs.toml": PROJECT_RULES,
            "secret": "s\n",
            "denied": "d\n",
            "fixed": "f\n",
            ".git/hooks/x": "x\n",
        }
    )
    with fails_with(errno.ENOENT):
        (mount.root / "secret").read_text()
    with fails_with(errno.EACCES):
        (mount.root / "denied").read_text()
    with fails_with(errno.EACCES):
        (mount.root / "fixed").read_text()
    with fails_with(errno.EROFS):
        (mount.root / ".git" / "hooks" / "y").write_text("evil")


def test_changing_the_file_of_a_project_in_the_view_changes_nothing(guarded: Guarded) -> None:
    mount = guarded({".sandboxfs.toml": '[[rule]]\npath = "secret"\nmode = "hide"\n', "secret": "s\n"})
    (mount.root / ".sandboxfs.toml").unlink()
    for _ in range(2):
        with fails_with(errno.ENOENT):
            (mount.root / "secret").read_text()
        # The workspace's own file counts, not the one in the view.
        mount.remount()
