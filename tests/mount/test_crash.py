"""What is left when the daemon is killed, told to end, or has a bug?"""

import errno
import json
import os
import random
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.mount.conftest import Mount
from tests.support import conditions
from tests.support.mount_driver import MountDriver, run_sandboxfs
from tests.support.mounted import companion, eventually, run, says
from tests.support.mounts import detach_mount
from tests.support.placed import kill_daemon, wait_for_end
from tests.support.tree import Symlink, Tree, build

# Far longer than anything here takes: whatever does not end by then hangs.
QUICKLY = 60.0
SIZE = 600_000
FILES = 12

BUSY: Tree = {
    **{f"copied/{number}": b"%x" % number * SIZE for number in range(FILES)},
    **{f"saved/{number}": b"%x" % number * SIZE for number in range(FILES)},
    **{f"moving/{number}/deep/leaf": f"{number}" for number in range(FILES)},
    "hard": "hard",
}

# Copies files up, saves them as editors do, moves directories, links and removes; keeps a log that is synced
# before it says so. Each line printed is a promise.
KEEP_BUSY = """
import os, random, sys
size, files, seed = int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
chance = random.Random(seed)
log = os.open("log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
for turn in range(10**9):
    number = chance.randrange(files)
    os.chmod(f"copied/{number}", 0o600 + chance.randrange(8))
    with open("saved/temporary", "wb") as file:
        file.write(bytes([chance.choice(b"abcdef")]) * size)
    os.rename("saved/temporary", f"saved/{number}")
    place = next(name for name in (f"moving/{number}", f"moved-{number}") if os.path.lexists(name))
    os.rename(place, f"moved-{number}" if place.startswith("moving") else f"moving/{number}")
    if not os.path.lexists(f"link-{number}"):
        os.link("hard", f"link-{number}")
    else:
        os.unlink(f"link-{number}")
    os.makedirs(f"new/{number}", exist_ok=True)
    os.rmdir(f"new/{number}")
    os.write(log, f"{seed} {turn}\\n".encode())
    os.fsync(log)
    print(f"{seed} {turn}")
"""


def check_whole(files: list[Path]) -> None:
    """Every one of *files* is one letter from beginning to end."""
    assert files
    for path in files:
        content = path.read_bytes()
        assert len(content) == SIZE, f"{path} has {len(content)} bytes"
        assert len(set(content)) == 1, f"{path} is a mixture"


def check_moving(view: Path) -> None:
    for number in range(FILES):
        places = [view / f"moving/{number}", view / f"moved-{number}"]
        there = [place for place in places if os.path.lexists(place)]
        assert len(there) == 1, f"{number} is at {there}"
        assert (there[0] / "deep/leaf").read_text() == f"{number}"


def test_killed_at_any_moment_of_a_workload_it_leaves_whole_files_and_recovers_by_itself(
    mount: Mount,
) -> None:
    sandbox = mount(BUSY)
    promised: list[str] = []
    chance = random.Random(2)
    for seed in range(10):
        with companion(KEEP_BUSY, str(SIZE), str(FILES), str(seed), cwd=sandbox.root) as worker:
            for _ in range(chance.randrange(1, 6)):
                promised.append(says(worker))
            # Somewhere in the middle of the next turn.
            until = time.monotonic() + chance.random() * 0.03
            while time.monotonic() < until:
                pass
            kill_daemon(sandbox)
        upper = sandbox.upper
        check_whole([path for path in (upper / "copied").iterdir() if path.is_file()])
        check_whole([upper / "saved" / f"{n}" for n in range(FILES) if (upper / "saved" / f"{n}").exists()])
        for path in (upper / "copied").iterdir():
            assert path.read_bytes() == (sandbox.lower / "copied" / path.name).read_bytes()
        # Nobody cleaned up: the next mount does.
        assert sandbox.is_mounted
        sandbox.start()
        assert os.listdir(sandbox.work) == []
        assert set(promised) <= set((sandbox.root / "log").read_text().splitlines())
        check_whole(list((sandbox.root / "copied").iterdir()))
        check_whole([sandbox.root / "saved" / f"{number}" for number in range(FILES)])
        check_moving(sandbox.root)


def test_killed_in_the_middle_of_a_large_copy_up_it_leaves_nothing_of_the_copy(mount: Mount) -> None:
    sandbox = mount({"other": "other"})
    block = random.Random(3).randbytes(1 << 20)
    with open(sandbox.lower / "large", "wb") as large:
        for number in range(300):
            large.write(number.to_bytes(4, "little") + block[4:])
    sandbox.host_changed()
    before = (sandbox.root / "large").stat()
    for attempt in range(3):
        while not killed_while_copying(sandbox, attempt * 0.01):
            pass
        sandbox.start()
        assert os.listdir(sandbox.work) == []
        after = (sandbox.root / "large").stat()
        assert (after.st_size, after.st_mtime_ns, after.st_mode, after.st_ino) == (
            before.st_size,
            before.st_mtime_ns,
            before.st_mode,
            before.st_ino,
        )
    run("cmp", sandbox.root / "large", sandbox.lower / "large", cwd=sandbox.lower)


def killed_while_copying(sandbox: MountDriver, longer: float) -> bool:
    """Kill the daemon *longer* seconds into a copy-up. One that was done by then must be whole, and goes."""
    copier = subprocess.Popen(["chmod", "600", sandbox.root / "large"], stderr=subprocess.DEVNULL)
    wait_for_staging(sandbox, longer)
    kill_daemon(sandbox)
    failed = copier.wait(QUICKLY) != 0
    if not (sandbox.upper / "large").exists():
        assert failed
        return True
    # A busy machine let us wait for so long.
    run("cmp", sandbox.upper / "large", sandbox.lower / "large", cwd=sandbox.lower)
    sandbox.start()
    done = run_sandboxfs("discard", "-s", "test", "--all", "--yes", state=sandbox.state)
    assert done.returncode == 0, done.stderr
    return False


def wait_for_staging(sandbox: MountDriver, longer: float) -> None:
    """Return while a copy is being made, *longer* seconds after it began."""
    deadline = time.monotonic() + QUICKLY
    while not os.listdir(sandbox.work):
        assert time.monotonic() < deadline, "no copy was begun"
    until = time.monotonic() + longer
    while time.monotonic() < until:
        pass


def test_what_was_written_before_the_kill_is_there_after_it(mount: Mount) -> None:
    sandbox = mount({"file": "old\n", "gone": "", "dir/leaf": "leaf\n"})
    (sandbox.root / "file").write_text("new\n")
    (sandbox.root / "gone").unlink()
    (sandbox.root / "dir").rename(sandbox.root / "moved")
    (sandbox.root / "made").mkdir()
    kill_daemon(sandbox)
    sandbox.start()
    assert sorted(os.listdir(sandbox.root)) == ["file", "made", "moved"]
    assert (sandbox.root / "file").read_text() == "new\n"
    assert (sandbox.root / "moved/leaf").read_text() == "leaf\n"


def test_commands_work_on_a_dead_mount_without_hanging(mount: Mount) -> None:
    sandbox = mount({"file": ""})
    kill_daemon(sandbox)
    with pytest.raises(OSError) as lost:
        os.listdir(sandbox.root)
    assert lost.value.errno == errno.ENOTCONN
    listed = run_sandboxfs("list", "--json", state=sandbox.state, timeout=QUICKLY)
    assert [entry["state"] for entry in json.loads(listed.stdout)["sandboxes"]] == ["dead"]
    status = run_sandboxfs("status", "--json", state=sandbox.state, timeout=QUICKLY)
    described = json.loads(status.stdout)
    assert (described["state"], described["pid"]) == ("dead", None)
    unmounted = run_sandboxfs("unmount", sandbox.root, state=sandbox.state, timeout=QUICKLY)
    assert unmounted.returncode == 0, unmounted.stderr
    assert not sandbox.is_mounted
    status = run_sandboxfs("status", "--json", state=sandbox.state, timeout=QUICKLY)
    assert json.loads(status.stdout)["state"] == "unmounted"
    sandbox.start()


def test_a_dead_mount_is_recovered_while_a_process_still_sits_in_it(mount: Mount) -> None:
    sandbox = mount({"dir/file": "text"})
    with companion("print('there'); input()", cwd=sandbox.root / "dir") as sitting:
        assert says(sitting) == "there"
        kill_daemon(sandbox)
        sandbox.start()
        assert (sandbox.root / "dir/file").read_text() == "text"


def test_commands_do_not_wait_for_a_daemon_that_hangs(mount: Mount) -> None:
    sandbox = mount({"file": ""})
    os.kill(sandbox.pid, signal.SIGSTOP)
    try:
        for command in (("list",), ("status",), ("list", "--json"), ("status", "--json")):
            done = run_sandboxfs(*command, state=sandbox.state, timeout=QUICKLY)
            assert done.returncode == 0, done.stderr
            assert "mounted" in done.stdout
    finally:
        os.kill(sandbox.pid, signal.SIGCONT)
    assert os.listdir(sandbox.root) == ["file"]


# Being told to end


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
@pytest.mark.parametrize("busy", [False, True], ids=["idle", "busy"])
def test_a_signal_unmounts_cleanly(mount: Mount, number: signal.Signals, busy: bool) -> None:
    sandbox = mount({"file": "text"})
    (sandbox.root / "file").write_text("changed")
    where = sandbox.root if busy else sandbox.lower
    with companion("print('there'); input()", cwd=where) as sitting:
        assert says(sitting) == "there"
        watch = os.pidfd_open(sandbox.pid)
        signal.pidfd_send_signal(watch, number)
        wait_for_end(watch)
        os.close(watch)
        assert not sandbox.is_mounted
    assert number.name in sandbox.log
    assert "Traceback" not in sandbox.log
    assert os.listdir(sandbox.root) == []
    sandbox.start()
    assert (sandbox.root / "file").read_text() == "changed"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_ends_a_foreground_mount_with_status_0(mount: Mount, number: signal.Signals) -> None:
    sandbox = mount({"file": "text"})
    sandbox.stop()
    command = [sys.executable, "-m", "sandboxfs", "mount", "-f", "--name", "test"]
    environment = os.environ | {"SANDBOXFS_STATE_DIR": str(sandbox.state)}
    with subprocess.Popen(
        [*command, sandbox.lower, sandbox.root], env=environment, stdout=subprocess.PIPE, text=True
    ) as foreground:
        assert says(foreground) == str(sandbox.root)
        assert os.listdir(sandbox.root) == ["file"]
        foreground.send_signal(number)
        assert foreground.wait(QUICKLY) == 0
    assert not sandbox.is_mounted


def test_unmounting_ends_the_daemon_although_another_namespace_has_a_copy_of_the_mount(mount: Mount) -> None:
    sandbox = mount({"file": "text"})
    apart = ["unshare", "-m"] if os.geteuid() == 0 else ["unshare", "-Urm"]
    ready = subprocess.run([*apart, "true"], capture_output=True, text=True, check=False, timeout=QUICKLY)
    if ready.returncode:
        conditions.missing(f"no mount namespace can be made: {ready.stderr.strip()}")
    with subprocess.Popen(
        [*apart, "sh", "-c", "echo apart; exec sleep 600"], stdout=subprocess.PIPE, text=True
    ) as other:
        try:
            assert says(other) == "apart"
            sandbox.stop()
        finally:
            other.kill()


# Bugs


def fails_with_eio(action: Callable[[], object]) -> None:
    with pytest.raises(OSError) as failure:
        action()
    assert failure.value.errno == errno.EIO, failure.value


def list_directory(path: Path) -> object:
    return os.listdir(path)


ASKING: dict[str, Callable[[Path], object]] = {
    "lookup": lambda view: (view / "not looked up yet").stat(),
    "setattr": lambda view: (view / "file").chmod(0o600),
    "readlink": lambda view: os.readlink(view / "link"),
    "mknod": lambda view: os.mkfifo(view / "new fifo"),
    "mkdir": lambda view: (view / "new dir").mkdir(),
    "symlink": lambda view: (view / "new link").symlink_to("x"),
    "link": lambda view: os.link(view / "file", view / "new name"),
    "unlink": lambda view: (view / "file").unlink(),
    "rmdir": lambda view: (view / "hollow").rmdir(),
    "rename": lambda view: (view / "file").rename(view / "renamed"),
    "open": lambda view: (view / "file").read_bytes(),
    "create": lambda view: (view / "new").write_bytes(b"new"),
    # Small files are given along when they are opened.
    "read": lambda view: (view / "large").read_bytes(),
    "write": lambda view: (view / "file").write_bytes(b"new"),
    "opendir": list_directory,
    "readdir": list_directory,
    "releasedir": list_directory,
    "statfs": os.statvfs,
    "getxattr": lambda view: os.getxattr(view / "file", "user.test"),
    "setxattr": lambda view: os.setxattr(view / "file", "user.test", b"value"),
    "listxattr": lambda view: os.listxattr(view / "file"),
    "removexattr": lambda view: os.removexattr(view / "file", "user.test"),
}


def test_a_bug_in_a_handler_gives_that_caller_eio_and_a_traceback_and_the_mount_lives(
    mount: Mount, order: Path
) -> None:
    sandbox = mount({"file": "text", "large": "x" * SIZE, "link": Symlink("file"), "hollow/": ""})
    for verb, action in ASKING.items():
        (sandbox.root / "file").stat()
        (sandbox.root / "hollow").stat()
        order.write_text(verb)
        fails_with_eio(lambda action=action: action(sandbox.root))  # type: ignore[misc]
        order.write_text("")
        assert f"injected into {verb}" in sandbox.log
        assert (sandbox.root / "file").exists(), f"after a bug in {verb}"
    # Nobody waits for the answer to these.
    for verb in ("release", "forget"):
        order.write_text(verb)
        (sandbox.root / "file").write_text("new text")
        (sandbox.root / "file").unlink()
        eventually(lambda verb=verb: f"injected into {verb}" in sandbox.log, verb)  # type: ignore[misc]
        order.write_text("")
        (sandbox.root / "file").write_text("new text")
    assert sandbox.log.count("Traceback") >= len(ASKING)
    assert (sandbox.root / "file").read_text() == "new text"
    # Looked at; what is left to complain of from here on is not wanted.
    os.truncate(sandbox.home / "daemon.log", 0)


def test_the_own_mountpoint_cannot_be_written_without_its_mount(tmp_path: Path) -> None:
    workspace = build(tmp_path / "workspace", {"file": "text\n"})
    made = run_sandboxfs("mount", "--name", "app", workspace)
    view = Path(made.stdout.strip())
    assert (view / "file").read_text() == "text\n"
    pid = json.loads(run_sandboxfs("status", "-s", "app", "--json").stdout)["pid"]
    watch = os.pidfd_open(pid)
    signal.pidfd_send_signal(watch, signal.SIGKILL)
    wait_for_end(watch)
    os.close(watch)
    detach_mount(view)
    assert stat.S_IMODE(view.stat().st_mode) == 0
    if os.geteuid() != 0:
        with pytest.raises(PermissionError):
            (view / "lost").write_text("lost")
    # The next mount copes with what is left, and takes it away in the end.
    again = run_sandboxfs("mount", "--name", "app", workspace)
    assert (view / "file").read_text() == "text\n", again.stderr
    assert run_sandboxfs("unmount", "-s", "app").returncode == 0
    assert not view.exists()
