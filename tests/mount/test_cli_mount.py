"""The verbs, from mount to rm, as a user types them."""

import base64
import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from sandboxfs.codec import restored
from sandboxfs.commit.records import COMMIT, Records, RecordSummary
from sandboxfs.hostfs.directory import HostDir
from sandboxfs.state.lock import holder
from tests.support import conditions
from tests.support.mount_driver import run_sandboxfs
from tests.support.mounts import detach_mount, mountpoints, new_mounts
from tests.support.tree import capture


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    workspace = tmp_path / "app"
    (workspace / "src").mkdir(parents=True)
    (workspace / "src" / "file").write_text("lower\n")
    return workspace


@pytest.fixture
def view(tmp_path: Path) -> Path:
    view = tmp_path / "view"
    view.mkdir()
    return view


@pytest.fixture(autouse=True)
def _nothing_stays_mounted_and_the_workspace_is_untouched(
    workspace: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[None]:
    before, mounted = capture(workspace), mountpoints()
    yield
    left = new_mounts(tmp_path_factory.getbasetemp(), mounted)
    for place in reversed(left):
        detach_mount(place)
    assert capture(workspace) == before


def done(*arguments: str | Path) -> str:
    """Run a command that must succeed; return what it wrote on stdout."""
    result = run_sandboxfs(*arguments)
    assert result.returncode == 0, result.stderr
    return result.stdout


def refused(status: int, *arguments: str | Path) -> str:
    """Run a command that must end with *status*; return what it wrote on stderr."""
    result = run_sandboxfs(*arguments)
    assert result.returncode == status, f"{result.returncode}: {result.stdout}{result.stderr}"
    assert result.stdout == ""
    return result.stderr


def status(*arguments: str) -> dict[str, object]:
    described = json.loads(done("status", "--json", *arguments))
    assert isinstance(described, dict)
    return described


def listed() -> list[tuple[str, str]]:
    """Name every sandbox with its state, sorted by name."""
    found = json.loads(done("list", "--json"))["sandboxes"]
    return sorted((one["name"], one["state"]) for one in found)


def home(name: str) -> Path:
    return Path(os.environ["SANDBOXFS_STATE_DIR"], "sandboxes", name)


def daemon(name: str) -> int:
    return int((home(name) / "lock").read_text())


def kill(pid: int, number: signal.Signals) -> None:
    """Send a signal that ends the process, and wait until it has ended."""
    descriptor = os.pidfd_open(pid)
    signal.pidfd_send_signal(descriptor, number)
    assert select.select([descriptor], [], [], 30)[0], "the daemon does not end"
    os.close(descriptor)


@contextmanager
def process_in(folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A process that stands in *folder* until its input is closed."""
    command = [sys.executable, "-c", "print(flush=True); input()"]
    with subprocess.Popen(command, cwd=folder, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        try:
            yield process
        finally:
            process.communicate(b"\n")


def test_the_view_is_ready_when_mount_returns_and_gone_when_unmount_does(workspace: Path, view: Path) -> None:
    assert done("mount", workspace, view) == f"{view}\n"
    assert (view / "src" / "file").read_text() == "lower\n"
    (view / "src" / "file").write_text("upper\n")
    assert holder(home("app") / "lock") is not None
    done("unmount", view)
    assert list(view.iterdir()) == []
    assert holder(home("app") / "lock") is None


def test_mounting_again_resumes_the_sandbox_with_its_changes(workspace: Path, view: Path) -> None:
    done("mount", workspace, view)
    (view / "new").write_text("kept")
    done("unmount", view)
    assert json.loads(done("mount", "--json", workspace, view))["resumed"] is True
    assert (view / "new").read_text() == "kept"
    done("unmount", view)
    assert listed() == [("app", "unmounted")]


def test_another_mountpoint_makes_another_sandbox_and_a_name_resumes_one(
    workspace: Path, view: Path, tmp_path: Path
) -> None:
    other = tmp_path / "other"
    done("mount", workspace, view)
    (view / "new").write_text("kept")
    done("mount", "--mkdir", workspace, other)
    assert listed() == [("app", "mounted"), ("app-2", "mounted")]
    assert not (other / "new").exists()
    done("unmount", view)
    done("unmount", other)
    done("mount", "--name", "app", workspace, other)
    assert (other / "new").read_text() == "kept"
    assert status("-s", "app")["mountpoint"] == str(other)
    done("unmount", other)
    assert done("mount", "--name", "app") == f"{other}\n"
    done("unmount", "-s", "app")


def test_without_arguments_the_workspace_and_the_mountpoint_are_our_own() -> None:
    made = Path(done("mount").strip())
    assert made == Path(os.environ["XDG_RUNTIME_DIR"], "sandboxfs", "mnt", "workspace")
    assert status()["workspace"] == str(Path(os.environ["SANDBOXFS_STATE_DIR"], "workspace"))
    (made / "new").write_text("x")
    done("unmount", made)
    assert not made.exists()
    assert Path(done("mount").strip()) == made
    assert (made / "new").read_text() == "x"
    done("unmount", made)


def test_the_environment_names_the_workspace_and_overrides_the_configured_mode(
    workspace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tmp_path / "config.toml"
    config.write_text(f'[workspace]\nroot = "{workspace}"\nmode = "ro"\n')
    monkeypatch.setenv("SANDBOXFS_CONFIG", str(config))
    made = Path(done("mount").strip())
    assert (made / "src" / "file").read_text() == "lower\n"
    assert status()["mode"] == "ro"
    with pytest.raises(OSError, match="Read-only"):
        (made / "new").touch()
    done("unmount", made)
    monkeypatch.setenv("SANDBOXFS_WORKSPACE", str(workspace))
    made = Path(done("mount").strip())
    assert status()["mode"] == "rw"
    (made / "new").touch()
    done("unmount", made)


def test_a_read_only_view_refuses_every_change(workspace: Path, view: Path) -> None:
    done("mount", "--read-only", workspace, view)
    with pytest.raises(OSError, match="Read-only"):
        (view / "src" / "file").write_text("changed")
    assert status()["mode"] == "ro"
    done("unmount", view)


def test_the_state_may_lie_inside_the_workspace(
    tmp_path: Path, view: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    outer = tmp_path / "outer"
    outer.mkdir()
    (outer / "file").touch()
    monkeypatch.setenv("SANDBOXFS_STATE_DIR", str(outer / "state"))
    done("mount", outer, view)
    assert os.listdir(view) == ["file"]
    done("unmount", view)


def test_a_workspace_with_an_odd_name_can_be_mounted(tmp_path: Path, view: Path) -> None:
    odd = Path(os.fsdecode(os.fsencode(tmp_path) + b"/od\xff d\n\\040"))
    odd.mkdir()
    (odd / "file").write_text("odd")
    inside = Path(os.fsdecode(os.fsencode(tmp_path) + b"/vi\xff e\n\\040"))
    inside.mkdir()
    told = json.loads(done("mount", "--json", "--name", "odd", odd, inside))
    assert base64.b64decode(told["mountpoint_bytes"]) == os.fsencode(inside)
    assert Path(str(restored(told)["workspace"])) == odd
    assert (inside / "file").read_text() == "odd"
    assert listed() == [("odd", "mounted")]
    assert Path(str(restored(status())["workspace"])) == odd
    done("unmount", "-s", "odd")


def test_the_mount_of_a_mounted_sandbox_is_refused_saying_where_and_by_whom(
    workspace: Path, view: Path, tmp_path: Path
) -> None:
    done("mount", workspace, view)
    told = refused(4, "mount", workspace, view)
    assert f"already mounted at '{view}' by process {daemon('app')}" in told
    refused(4, "mount", "--mkdir", "--name", "app", workspace, tmp_path / "elsewhere")
    assert not (tmp_path / "elsewhere").exists()
    assert "already the mount of sandbox 'app'" in refused(6, "mount", "--name", "b", workspace, view)
    assert listed() == [("app", "mounted")]
    done("unmount", view)


def test_of_many_mounts_at_once_one_wins_and_the_others_are_refused(workspace: Path, view: Path) -> None:
    command = [sys.executable, "-m", "sandboxfs", "mount", "--name", "app", str(workspace), str(view)]
    racing = [
        subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        for _ in range(4)
    ]
    told = [process.communicate(timeout=60)[1] for process in racing]
    statuses = sorted(process.returncode for process in racing)
    assert statuses[0] == 0, told
    assert set(statuses[1:]) <= {4, 6}, told
    assert mountpoints().count(view) == 1
    assert listed() == [("app", "mounted")]
    assert os.listdir(home("app").parent) == ["app"]
    done("unmount", view)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_ends_the_daemon_and_unmounts(workspace: Path, view: Path, number: signal.Signals) -> None:
    done("mount", workspace, view)
    kill(daemon("app"), number)
    assert view not in mountpoints()
    assert listed() == [("app", "unmounted")]
    log = (home("app") / "daemon.log").read_text()
    assert f"told to end by {number.name}" in log
    assert "Traceback" not in log


def test_in_the_foreground_it_serves_until_interrupted_and_exits_with_0(workspace: Path, view: Path) -> None:
    command = [sys.executable, "-m", "sandboxfs", "mount", "-f", "--json", str(workspace), str(view)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        said = ""
        while not said.endswith("}\n"):
            said += process.stdout.readline()
        assert json.loads(said)["pid"] == process.pid == daemon("app")
        assert (view / "src" / "file").read_text() == "lower\n"
        process.send_signal(signal.SIGINT)
        _, logged = process.communicate(timeout=30)
    assert process.returncode == 0, logged
    assert "told to end by SIGINT" in logged
    assert view not in mountpoints()


def test_a_dead_mount_is_shown_as_dead_and_unmounted(workspace: Path, view: Path) -> None:
    done("mount", workspace, view)
    kill(daemon("app"), signal.SIGKILL)
    assert listed() == [("app", "dead")]
    assert status()["state"] == "dead"
    whose = f"sandbox 'app' of '{workspace}'"
    assert run_sandboxfs("unmount", view).stderr == f"detached a dead mount: '{view}', {whose}\n"
    assert view not in mountpoints()
    assert run_sandboxfs("unmount", view).stderr == f"already unmounted: '{view}', {whose}\n"


def test_mounting_recovers_a_dead_mount_and_removes_what_was_staged(workspace: Path, view: Path) -> None:
    done("mount", workspace, view)
    (view / "new").write_text("kept")
    kill(daemon("app"), signal.SIGKILL)
    (home("app") / "roots" / "0" / "work" / "staged").write_text("half")
    done("mount", workspace, view)
    assert (view / "new").read_text() == "kept"
    assert os.listdir(home("app") / "roots" / "0" / "work") == []
    assert mountpoints().count(view) == 1
    done("unmount", view)


def test_a_dead_mount_is_detached_by_rm_and_by_another_sandbox(workspace: Path, view: Path) -> None:
    done("mount", workspace, view)
    kill(daemon("app"), signal.SIGKILL)
    done("mount", "--name", "second", workspace, view)
    assert listed() == [("app", "unmounted"), ("second", "mounted")]
    kill(daemon("second"), signal.SIGKILL)
    done("rm", "second")
    assert view not in mountpoints()
    assert listed() == [("app", "unmounted")]


def test_a_command_that_stands_in_a_dead_mount_works(workspace: Path, view: Path) -> None:
    done("mount", workspace, view)
    # -P as in the installed script: Python itself cannot import from a dead current directory.
    command = [sys.executable, "-P", "-m", "sandboxfs", "status", "--json"]
    # A process cannot be started in a dead directory, only be left in it: it waits for the daemon's end.
    script = f"import os; print(flush=True); input(); os.execv({command[0]!r}, {command!r})"
    started = subprocess.Popen(
        [sys.executable, "-c", script], cwd=view, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with started:
        assert started.stdout is not None
        started.stdout.readline()
        kill(daemon("app"), signal.SIGKILL)
        shown, _ = started.communicate("\n", timeout=30)
    assert started.returncode == 0
    assert json.loads(shown)["state"] == "dead"
    done("unmount", view)


def test_a_dead_mount_can_be_named_by_a_roundabout_path(workspace: Path, view: Path, tmp_path: Path) -> None:
    done("mount", workspace, view)
    kill(daemon("app"), signal.SIGKILL)
    (tmp_path / "alias").symlink_to("view")
    done("unmount", tmp_path / "x" / ".." / "alias")
    assert view not in mountpoints()


def test_rm_leaves_the_living_mount_of_another_sandbox_at_the_same_place_alone(
    workspace: Path, view: Path
) -> None:
    done("mount", "--name", "earlier", workspace, view)
    done("unmount", view)
    done("mount", "--name", "now", workspace, view)
    done("rm", "earlier")
    assert listed() == [("now", "mounted")]
    assert (view / "src" / "file").read_text() == "lower\n"
    done("unmount", view)


def test_an_interrupted_mount_leaves_no_daemon_and_no_sandbox(
    workspace: Path, view: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A daemon that never gets ready: its FUSE library says that it is being loaded, and waits.
    slow = tmp_path / "slow" / "pyfuse3"
    slow.mkdir(parents=True)
    os.mkfifo(tmp_path / "loading")
    told_to = f"open({str(tmp_path / 'loading')!r}, 'w').write(str(os.getpid()))"
    (slow / "__init__.py").write_text(f"import os, signal\n{told_to}\nsignal.pause()\n")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(slow.parent), os.environ["PYTHONPATH"]]))
    command = [sys.executable, "-m", "sandboxfs", "mount", str(workspace), str(view)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        pid = int((tmp_path / "loading").read_text())
        process.send_signal(signal.SIGINT)
        _, told = process.communicate(timeout=30)
    assert (process.returncode, told) == (130, "sandboxfs: interrupted\n")
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    assert not Path(os.environ["SANDBOXFS_STATE_DIR"]).exists()


def test_a_hung_daemon_hangs_neither_list_nor_status_nor_mount(workspace: Path, view: Path) -> None:
    done("mount", workspace, view)
    pid = daemon("app")
    os.kill(pid, signal.SIGSTOP)
    try:
        assert listed() == [("app", "mounted")]
        assert status()["pid"] == pid
        refused(4, "mount", workspace, view)
        refused(6, "mount", "--name", "b", workspace, view)
    finally:
        os.kill(pid, signal.SIGCONT)
    done("unmount", view)


def test_a_busy_mount_is_not_unmounted_and_its_users_are_named(workspace: Path, view: Path) -> None:
    done("mount", workspace, view)
    with process_in(view / "src") as user:
        told = refused(4, "unmount", view)
        assert f"in use by {Path(sys.executable).name} (pid {user.pid})\n" in told
        error = json.loads(refused(4, "unmount", "--json", view))["error"]
        assert [one["pid"] for one in error["users"]] == [user.pid]
        assert (view / "src" / "file").read_text() == "lower\n"
    done("unmount", view)


def test_a_lazy_unmount_detaches_at_once_and_serves_on_for_whoever_is_inside(
    workspace: Path, view: Path
) -> None:
    done("mount", workspace, view)
    inside = os.open(view / "src" / "file", os.O_RDONLY)
    pid = daemon("app")
    watch = os.pidfd_open(pid)
    done("unmount", "--lazy", view)
    assert view not in mountpoints()
    assert os.read(inside, 100) == b"lower\n"
    assert (status()["state"], status()["pid"]) == ("unmounted", pid)
    refused(4, "rm", "app")
    refused(4, "mount", workspace, view)
    os.close(inside)
    assert select.select([watch], [], [], 30)[0]
    os.close(watch)
    done("rm", "app")


def test_whoever_uses_the_view_in_another_mount_namespace_is_named_and_keeps_the_daemon(
    workspace: Path, view: Path
) -> None:
    apart = ["unshare", "-m"] if os.geteuid() == 0 else ["unshare", "-Urm"]
    ready = subprocess.run([*apart, "true"], capture_output=True, text=True, check=False)
    if ready.returncode:
        conditions.missing(f"no mount namespace can be made: {ready.stderr.strip()}")
    done("mount", workspace, view)
    watch = os.pidfd_open(daemon("app"))
    command = [*apart, "sh", "-c", "echo there; read line; cat file"]
    with subprocess.Popen(
        command, cwd=view / "src", stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as user:
        assert user.stdout is not None
        assert user.stdout.readline() == "there\n"
        told = refused(4, "unmount", view)
        assert f"other mount namespaces still use the view: sh (pid {user.pid})\n" in told
        assert view not in mountpoints()
        assert user.communicate("\n")[0] == "lower\n"
    assert select.select([watch], [], [], 60)[0], "the daemon does not end"
    os.close(watch)


def test_a_waiting_unmount_ends_when_the_last_user_does(workspace: Path, view: Path) -> None:
    done("mount", workspace, view)
    command = [sys.executable, "-m", "sandboxfs", "unmount", "--wait", str(view)]
    with process_in(view) as user:
        waiting = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        with pytest.raises(subprocess.TimeoutExpired):
            waiting.wait(1)
        assert user.poll() is None
    assert waiting.communicate(timeout=30)[1] == f"unmounted '{view}', sandbox 'app' of '{workspace}'\n"
    assert waiting.returncode == 0


def test_a_mount_of_another_state_directory_can_be_unmounted_by_its_place(
    workspace: Path, view: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done("mount", workspace, view)
    monkeypatch.setenv("SANDBOXFS_STATE_DIR", str(tmp_path / "other"))
    assert "already a mount" in refused(6, "mount", workspace, view)
    assert json.loads(done("unmount", "--json", view))["name"] is None
    assert view not in mountpoints()
    assert not (tmp_path / "other").exists()


def test_unmounting_what_no_sandbox_has_is_an_error(view: Path) -> None:
    refused(3, "unmount", view)
    refused(3, "unmount", "-s", "nowhere")
    refused(3, "unmount")


def test_the_current_directory_selects_the_sandbox(
    workspace: Path, view: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    second = tmp_path / "second"
    second.mkdir()
    done("mount", workspace, view)
    done("mount", "--mkdir", second, tmp_path / "view2")
    refused(2, "status")
    monkeypatch.chdir(second)
    assert status()["name"] == "second"
    monkeypatch.chdir(view / "src")
    assert status()["name"] == "app"
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SANDBOXFS_SANDBOX", "second")
    done("unmount")
    assert listed() == [("app", "mounted"), ("second", "unmounted")]
    done("unmount", "-s", "app")


def test_a_commit_that_was_interrupted_is_told_and_not_touched(workspace: Path, view: Path) -> None:
    done("mount", workspace, view)
    done("unmount", view)
    with HostDir.at(home("app")) as place, Records(place).new(RecordSummary.now(COMMIT, ())) as record:
        record.write("intent", {})
    told = "commit 1 was interrupted; the next commit, discard or undo brings it to its end"
    mounted = run_sandboxfs("mount", workspace, view)
    assert (mounted.returncode, mounted.stdout) == (0, f"{view}\n")
    assert f"sandboxfs: warning: {told}\n" in mounted.stderr
    assert told in done("status")
    assert status()["unfinished"] == {"id": 1, "kind": "commit", "running": False}
    joined = run_sandboxfs("run", "-s", "app", "--confine", "none", "--", "true")
    assert (joined.returncode, told in joined.stderr) == (0, True)
    done("unmount", view)
    assert json.loads(done("mount", "--json", workspace, view))["warnings"] == [told]
    done("unmount", view)
    own = run_sandboxfs("run", "-s", "app", "--confine", "none", "--", "true")
    assert (own.returncode, told in own.stderr) == (0, True)
    assert (home("app") / "commits" / "1" / "journal").exists()


def test_rm_refuses_a_mounted_sandbox_and_one_with_changes(workspace: Path, view: Path) -> None:
    done("mount", workspace, view)
    (view / "closed").mkdir()
    (view / "closed" / "file").touch()
    (view / "closed").chmod(0)
    refused(4, "rm", "app")
    refused(4, "rm", "--force", "app")
    done("unmount", view)
    assert "holds 1 change to" in refused(2, "rm", "app")
    assert listed() == [("app", "unmounted")]
    assert json.loads(done("rm", "--force", "--json", "app")) == {
        "version": 1,
        "removed": ["app"],
        "sandboxes": [{"name": "app", "workspace": str(workspace)}],
    }
    assert os.listdir(home("app").parent) == []
    refused(3, "rm", "app")


def test_rm_removes_all_or_none_of_what_is_named(workspace: Path, view: Path, tmp_path: Path) -> None:
    done("mount", workspace, view)
    done("unmount", view)
    refused(3, "rm", "app", "nowhere")
    assert listed() == [("app", "unmounted")]
    done("rm", "app", "app")
    assert listed() == []


def test_rm_removes_a_sandbox_whose_record_cannot_be_read_only_by_force(workspace: Path, view: Path) -> None:
    done("mount", workspace, view)
    done("unmount", view)
    (home("app") / "sandbox.toml").write_text("format = 99\n")
    assert "unknown format 99" in refused(2, "rm", "app")
    done("rm", "--force", "app")
    assert listed() == []


def test_status_tells_what_programs_rely_on(workspace: Path, view: Path) -> None:
    done("mount", workspace, view)
    (view / "big").write_bytes(b"x" * 200_000)
    described = status()
    rules = described["rules"]
    assert isinstance(rules, list)
    assert rules[-1] == {
        "pattern": "**",
        "mode": "rw",
        "source": "workspace mode",
        "kind": "workspace",
        "hits": 1,
    }
    varying = {"created": "", "last_used": "", "uptime": 0, "upper_bytes": 0, "bytes": 0, "rules": []}
    assert described | varying == varying | {
        "version": 1,
        "name": "app",
        "workspace": str(workspace),
        "mountpoint": str(view),
        "state": "mounted",
        "pid": daemon("app"),
        "mode": "rw",
        "companion_of": None,
        "enabled": True,
        "counters": {"reads": 0, "writes": 1, "denials": 0},
        "changes": 1,
        "conflicts": 0,
        "held": 0,
        "left_out": {"git": 0, "ignored": 0},
        "answering": True,
        "read_only": False,
        "allow_other": False,
        "bytes_complete": True,
        "upper_entries": 1,
        "upper_complete": True,
        "unfinished": None,
    }
    assert isinstance(described["upper_bytes"], int)
    assert described["upper_bytes"] >= 200_000
    shown = done("status")
    assert f"mounted (pid {daemon('app')}, for " in shown
    assert str(workspace) in shown
    done("unmount", view)


def test_list_shows_every_sandbox_and_tells_which_cannot_be_read(workspace: Path, view: Path) -> None:
    assert run_sandboxfs("list").stderr == "no sandboxes\n"
    done("mount", workspace, view)
    line = done("list").splitlines()[1].split()
    assert (line[:2], line[-2:]) == (["app", "mounted"], [str(workspace), str(view)])
    home("broken").mkdir()
    shown = run_sandboxfs("list", "--json")
    assert [one["name"] for one in json.loads(shown.stdout)["sandboxes"]] == ["app"]
    assert "cannot read sandbox 'broken'" in shown.stderr
    done("unmount", view)


def test_doctor_finds_that_this_machine_can_mount_and_leaves_nothing_behind() -> None:
    report = json.loads(done("doctor", "--json"))
    assert report["can_mount"] is True
    levels = {check["check"]: check["level"] for check in report["checks"]}
    assert levels["mount"] == levels["FUSE device"] == levels["extended attributes"] == "ok"
    assert not Path(os.environ["SANDBOXFS_STATE_DIR"]).exists()
