"""Bad input gets a clear error, the right exit status, and nothing is created."""

import os
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.conditions import require_root, require_tool
from tests.support.mount_driver import run_sandboxfs
from tests.support.mounts import detach_mount, mountpoints, new_mounts
from tests.support.tree import capture

NOBODY = 65534


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A folder with everything that the commands below name."""
    (tmp_path / "app").mkdir()
    (tmp_path / "app" / "file").write_text("lower\n")
    (tmp_path / "file").touch()
    (tmp_path / "empty").mkdir()
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "entry").touch()
    (tmp_path / "dangling").symlink_to("nowhere")
    (tmp_path / "config.toml").write_text('[workspace]\nmood = "rw"\n')
    return tmp_path


@pytest.fixture(autouse=True)
def _nothing_is_mounted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    before = mountpoints()
    yield
    left = new_mounts(tmp_path_factory.getbasetemp(), before)
    for path in reversed(left):
        detach_mount(path)
    assert left == []


def state() -> Path:
    return Path(os.environ["SANDBOXFS_STATE_DIR"])


def assert_refused(status: int, complaint: str, *arguments: str, hint: str = "") -> None:
    result = run_sandboxfs(*arguments)
    assert result.returncode == status, f"{result.returncode}: {result.stderr}"
    assert result.stdout == ""
    assert result.stderr.startswith("sandboxfs: ")
    assert complaint in result.stderr.splitlines()[0]
    assert hint in result.stderr
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize(
    ("arguments", "status", "complaint"),
    [
        (["nowhere", "empty"], 2, "no such directory"),
        (["file", "empty"], 2, "not a directory"),
        (["dangling", "empty"], 2, "no such directory"),
        (["", "empty"], 2, "the workspace is empty"),
        (["app", ""], 2, "the mountpoint is empty"),
        (["app", "nowhere"], 6, "no such directory"),
        (["app", "no/where"], 6, "no such directory"),
        (["app", "file"], 6, "not a directory"),
        (["app", "file/below", "--mkdir"], 6, "ot a directory"),
        (["app", "full"], 6, "the directory is not empty"),
        (["app", "app"], 6, "it is the workspace"),
        (["app", "."], 6, "lies inside it"),
        (["app", "/"], 6, "lies inside it"),
        (["app", "/proc"], 6, "already a mount (proc)"),
        (["app", "empty", "--name", ""], 2, "the sandbox name is empty"),
        (["app", "empty", "--name", "a/b"], 2, "bad sandbox name 'a/b'"),
        (["app", "empty", "--name", ".."], 2, "bad sandbox name"),
        (["app", "empty", "--name", "-x"], 2, "expected one argument"),
        (["app", "empty", "--name", "x" * 65], 2, "bad sandbox name"),
        (["app", "empty", "--fly"], 2, "unrecognized arguments: --fly"),
        (["app", "empty", "more"], 2, "unrecognized arguments: more"),
    ],
)
def test_a_mount_that_cannot_be_is_refused_and_nothing_is_created(
    place: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], status: int, complaint: str
) -> None:
    monkeypatch.chdir(place)
    before = capture(place)
    assert_refused(status, complaint, "mount", *arguments)
    assert capture(place) == before
    assert not state().exists()


# Every verb that takes the name of a sandbox; those first that make something when the name is a good one.
_MAKING = (["run", "-s", "NAME", "true"], ["rm", "--force", "NAME"], ["gc", "-s", "NAME"])
_ONLY_NAMED = ("unmount", "status", "diff", "undo", "ro", "rw", "enable", "disable", "rules", "log")
_NAMING = (
    *_MAKING,
    *([verb, "-s", "NAME"] for verb in _ONLY_NAMED),
    ["shell", "-s", "NAME"],
    ["commit", "-s", "NAME", "--yes"],
    ["discard", "-s", "NAME", "--all", "--yes"],
    ["rm", "NAME"],
    ["why", "-s", "NAME", "file"],
    ["allow", "-s", "NAME", "file"],
    ["export", "-s", "NAME", "archive"],
)


@pytest.mark.parametrize("name", ["..", ".", "", "a/b", "../sandboxes/app", "app/", "app/../app"])
def test_a_name_that_leads_elsewhere_is_refused_by_every_verb_and_nothing_is_made(
    place: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    app, empty = str(place / "app"), str(place / "empty")
    assert run_sandboxfs("mount", app, empty).returncode == 0
    assert run_sandboxfs("unmount", empty).returncode == 0
    monkeypatch.chdir(place / "app")
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(place))
    before = capture(place), capture(state())
    complaint = f"bad sandbox name '{name}'" if name else "the sandbox name is empty"
    for verb in _NAMING if name == ".." else _MAKING:
        expected = 125 if verb[0] in ("run", "shell") else 2
        result = run_sandboxfs(*(word.replace("NAME", name) for word in verb))
        told = (result.returncode, result.stdout, result.stderr.splitlines()[:1])
        assert told == (expected, "", [f"sandboxfs: {complaint}"]), verb
        assert (capture(place), capture(state())) == before, verb


def test_a_missing_mountpoint_comes_with_the_offer_to_make_it(place: Path) -> None:
    assert_refused(6, "no such directory", "mount", str(place / "app"), str(place / "x"), hint="--mkdir")


def test_a_bad_configuration_is_refused_with_its_place(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SANDBOXFS_CONFIG", str(place / "config.toml"))
    complaint = f"{place / 'config.toml'}:2: 'workspace.mood': unknown key"
    assert_refused(2, complaint, "mount", str(place / "app"), str(place / "empty"))
    assert not state().exists()


def test_a_name_in_use_for_another_workspace_is_refused(place: Path) -> None:
    app, empty = str(place / "app"), str(place / "empty")
    assert run_sandboxfs("mount", "--name", "x", app, empty).returncode == 0
    assert run_sandboxfs("unmount", empty).returncode == 0
    record = (state() / "sandboxes" / "x" / "sandbox.toml").read_bytes()
    assert_refused(2, "name 'x' is in use", "mount", "--name", "x", str(place / "full"), empty)
    assert (state() / "sandboxes" / "x" / "sandbox.toml").read_bytes() == record


@pytest.mark.parametrize("names", [[], ["--name", "app"]])
def test_a_sandbox_of_an_unknown_format_is_never_guessed_at(place: Path, names: list[str]) -> None:
    app, empty = str(place / "app"), str(place / "empty")
    assert run_sandboxfs("mount", app, empty).returncode == 0
    assert run_sandboxfs("unmount", empty).returncode == 0
    record = state() / "sandboxes" / "app" / "sandbox.toml"
    record.write_text(record.read_text().replace("format = 1", "format = 2"))
    assert_refused(2, f"{record}: unknown format 2", "mount", *names, app, empty)
    assert os.listdir(state() / "sandboxes") == ["app"]


def test_the_state_directory_is_no_workspace_and_no_mountpoint(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SANDBOXFS_STATE_DIR", str(place / "empty"))
    assert_refused(2, "where sandboxes are kept", "mount", str(place / "empty"), str(place / "full"))
    assert_refused(6, "would cover the state", "mount", str(place / "app"), str(place / "empty"))
    (place / "empty" / "sandboxes" / "x").mkdir(parents=True)
    inside = str(place / "empty" / "sandboxes" / "x")
    assert_refused(2, "where sandboxes are kept", "mount", inside, str(place / "full"))
    assert_refused(6, "would cover the state", "mount", str(place / "app"), inside)


def test_a_state_directory_that_is_a_file_is_refused(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SANDBOXFS_STATE_DIR", str(place / "file" / "state"))
    assert_refused(6, "not a directory", "mount", str(place / "app"), str(place / "empty"))


def test_a_state_directory_without_extended_attributes_is_refused(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    require_root()
    plain = place / "plain"
    plain.mkdir()
    # ramfs knows no extended attributes.
    if subprocess.run(["mount", "-t", "ramfs", "ramfs", plain], check=False).returncode != 0:
        pytest.skip("cannot mount a ramfs here")
    try:
        monkeypatch.setenv("SANDBOXFS_STATE_DIR", str(plain / "state"))
        assert_refused(6, "no user extended attributes", "mount", str(place / "app"), str(place / "empty"))
        assert list(plain.iterdir()) == []
        assert run_sandboxfs("doctor").returncode == 6
        assert list(plain.iterdir()) == []
    finally:
        subprocess.run(["umount", plain], check=True)


def test_a_daemon_that_cannot_start_takes_the_new_sandbox_and_the_directories_with_it(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = place / "broken"
    (broken / "pyfuse3").mkdir(parents=True)
    (broken / "pyfuse3" / "__init__.py").write_text("raise ImportError('libfuse3 is missing')\n")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(broken), os.environ["PYTHONPATH"]]))
    for more in ([], ["-f"]):
        result = run_sandboxfs("mount", *more, str(place / "app"), str(place / "empty"))
        assert result.returncode != 0
        assert "libfuse3 is missing" in result.stderr
        sandboxes = state() / "sandboxes"
        assert not sandboxes.exists() or os.listdir(sandboxes) == []
        shutil.rmtree(state(), ignore_errors=True)
    result = run_sandboxfs("mount", "--mkdir", str(place / "app"), str(place / "new" / "view"))
    assert result.returncode == 7
    assert not (place / "new").exists()
    assert not state().exists()


def test_a_pyfuse3_that_works_in_another_way_is_named_with_the_versions_that_do(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    altering = place / "altering"
    altering.mkdir()
    # Python looks for a module of this name whenever it starts.
    (altering / "sitecustomize.py").write_text(
        "import pyfuse3\nasync def main(max_tasks): pass\npyfuse3.main = main\n"
    )
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(altering), os.environ["PYTHONPATH"]]))
    for more in ([], ["-f"]):
        result = run_sandboxfs("mount", *more, str(place / "app"), str(place / "empty"))
        assert result.returncode == 6, result.stderr
        assert "; sandboxfs works with pyfuse3>=" in result.stderr
        assert "\nhint: pip install 'pyfuse3>=" in result.stderr
        assert place / "empty" not in mountpoints()
        sandboxes = state() / "sandboxes"
        assert not sandboxes.exists() or os.listdir(sandboxes) == []


def confined(*arguments: str, options: list[str]) -> subprocess.CompletedProcess[str]:
    """Run the command line where bubblewrap's *options* change the machine."""
    command = [require_tool("bwrap"), "--dev-bind", "/", "/", *options, sys.executable, "-m", "sandboxfs"]
    return subprocess.run([*command, *arguments], capture_output=True, text=True, check=False, timeout=60)


def test_a_machine_without_the_fuse_device_is_told_how_to_get_it(place: Path) -> None:
    mount = ("mount", str(place / "app"), str(place / "empty"))
    result = confined(*mount, options=["--dev", "/dev"])
    if "bwrap:" in result.stderr:
        pytest.skip(result.stderr)
    assert result.returncode == 6
    assert result.stderr.startswith("sandboxfs: there is no /dev/fuse\nhint: modprobe fuse")
    assert not state().exists()
    report = confined("doctor", options=["--dev", "/dev"])
    assert report.returncode == 6
    assert "fail  FUSE device: there is no /dev/fuse\n      mend: modprobe fuse" in report.stdout


# In a mount table of its own, with another device in the place of /dev/fuse; then as an ordinary user.
WITH_DEVICE = """mount --bind "$1" /dev/fuse; shift
exec setpriv --reuid=65534 --regid=65534 --clear-groups "$@"
"""


def as_nobody(
    *arguments: str, path: str | None = None, device: Path | None = None
) -> subprocess.CompletedProcess[str]:
    """Run the command line as an ordinary user, who finds *device* at /dev/fuse."""
    words = [sys.executable, "-m", "sandboxfs", *arguments]
    if path is not None:
        words = ["env", f"PATH={path}", *words]
    if device is None:
        words = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups", *words]
    else:
        words = ["unshare", "--mount", "sh", "-ec", WITH_DEVICE, "sh", str(device), *words]
    return subprocess.run(words, capture_output=True, text=True, check=False, timeout=60, cwd="/")


@pytest.fixture
def fuse_device(tmp_path: Path) -> Callable[[int], Path]:
    """Make a FUSE device of the given mode."""

    def made(mode: int) -> Path:
        path = tmp_path / "fuse"
        os.mknod(path, stat.S_IFCHR, os.makedev(10, 229))
        path.chmod(mode)
        return path

    return made


@pytest.fixture
def reachable(place: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of `place`, for an ordinary user who can write to the state directory."""
    require_root()
    # pytest's directories are closed to others, in a parallel run one more of them.
    outermost = tmp_path_factory.getbasetemp().parents[1]
    for folder in (place, *place.parents):
        if folder.is_relative_to(outermost) and folder != Path(tempfile.gettempdir()):
            folder.chmod(folder.stat().st_mode | 0o055)
    for folder in (state().parent, place / "empty"):
        os.chown(folder, NOBODY, NOBODY)
    try:
        as_nobody("--version").check_returncode()
    except (PermissionError, subprocess.CalledProcessError):
        pytest.skip("an ordinary user cannot run this Python")
    return place


def test_a_workspace_that_may_not_be_read_is_refused(reachable: Path) -> None:
    (reachable / "app").chmod(0o700)
    result = as_nobody("mount", str(reachable / "app"), str(reachable / "empty"))
    assert result.returncode == 2
    assert "permission denied" in result.stderr


def test_a_mountpoint_that_may_not_be_written_is_refused(reachable: Path) -> None:
    os.chown(reachable / "empty", 0, 0)
    result = as_nobody("mount", str(reachable / "app"), str(reachable / "empty"))
    assert result.returncode == 6
    assert "permission denied" in result.stderr


def test_a_state_directory_that_may_not_be_written_is_refused(reachable: Path) -> None:
    os.chown(state().parent, 0, 0)
    state().parent.chmod(0o755)
    result = as_nobody("mount", str(reachable / "app"), str(reachable / "empty"))
    assert result.returncode == 6
    assert "cannot write in state directory" in result.stderr


def test_a_device_that_may_not_be_opened_is_told_with_its_mend(
    reachable: Path, fuse_device: Callable[[int], Path]
) -> None:
    device = fuse_device(0o600)
    result = as_nobody("mount", str(reachable / "app"), str(reachable / "empty"), device=device)
    assert result.returncode == 6
    assert "hint: chmod 666 /dev/fuse" in result.stderr
    assert not state().exists()


def test_an_ordinary_user_without_fusermount3_is_told_how_to_get_it(
    reachable: Path, fuse_device: Callable[[int], Path]
) -> None:
    device = fuse_device(0o666)
    result = as_nobody(
        "mount", str(reachable / "app"), str(reachable / "empty"), path="/nowhere", device=device
    )
    assert result.returncode == 6
    assert result.stderr.endswith("hint: apt install fuse3\n")
