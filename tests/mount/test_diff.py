"""`sandboxfs diff` beside a mount: while programs work in it, after it is gone, and when nobody serves it."""

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from tests.mount.conftest import Mount
from tests.support.mount_driver import MountDriver, run_sandboxfs
from tests.support.mounts import detach_mount
from tests.support.reviewed import apply_patch, as_git_sees, host_states
from tests.support.tree import File, HardLink, Symlink, Tree, build

pytestmark = pytest.mark.any_user

TREE: Tree = {
    "src/main.py": "def main():\n    return 1\n",
    "src/lib/util.py": "x = 1\n" * 30,
    "src/lib/data.bin": bytes(range(256)),
    "docs/page": "text\n",
    "docs/old": "old\n",
    "tool": File("#!/bin/sh\n", mode=0o755),
    "link": Symlink("docs"),
    "hard1": "shared\n",
    "hard2": HardLink("hard1"),
    "secret": "hidden\n",
}


def work_in(view: Path) -> None:
    """What a program may do, with the kernel's own calls."""
    (view / "src/main.py").write_text("def main():\n    return 2\n")
    os.rename(view / "src/lib", view / "src/library")
    (view / "src/library/data.bin").write_bytes(bytes(range(255, -1, -1)))
    shutil.rmtree(view / "docs")
    (view / "docs").mkdir()
    (view / "docs/new page").write_text("new\n")
    (view / "tool").chmod(0o644)
    (view / "link").unlink()
    (view / "link").symlink_to("src")
    (view / "hard1").write_text("changed together\n")
    (view / "added").mkdir()
    (view / os.fsdecode(b"added/\xff\n")).write_text("odd\n")


def diff(mount: MountDriver, *words: str) -> "subprocess.CompletedProcess[str]":
    return run_sandboxfs("diff", "-s", "test", *words, state=mount.state)


EXPECTED = [
    'A\t"added/\\377\\n"',
    "A\tdocs/new page",
    "D\tdocs/old",
    "D\tdocs/page",
    "M\thard1",
    "M\thard2",
    "M\tlink",
    "R\tsrc/lib/\tsrc/library/",
    "M\tsrc/library/data.bin",
    "M\tsrc/main.py",
    "M\ttool\t[mode 755 -> 644]",
]


def test_what_a_program_did_is_shown_mounted_and_unmounted_and_can_be_applied(
    mount: Mount, tmp_path: Path
) -> None:
    sandbox = mount(TREE)
    work_in(sandbox.root)
    assert diff(sandbox, "--name-status").stdout.splitlines() == EXPECTED
    # By the names that things have where one stands, in the view or in the workspace.
    for place in (sandbox.root, sandbox.lower):
        asked = diff(sandbox, "--name-status", str(place / "docs"))
        assert asked.stdout.splitlines() == EXPECTED[1:4]
    told = run_sandboxfs("status", "-s", "test", "--json", state=sandbox.state)
    assert json.loads(told.stdout)["changes"] == len(EXPECTED)

    text = subprocess.run(
        [sys.executable, "-m", "sandboxfs", "diff", "-s", "test", "--binary"],
        env=os.environ | {"SANDBOXFS_STATE_DIR": str(sandbox.state)},
        capture_output=True,
        check=True,
    ).stdout
    copy = shutil.copytree(sandbox.lower, tmp_path / "copy", symlinks=True)
    apply_patch(text, copy)
    assert as_git_sees(host_states(copy)) == as_git_sees(host_states(sandbox.root))

    sandbox.stop()
    assert diff(sandbox, "--name-status").stdout.splitlines() == EXPECTED
    sandbox.start()
    assert diff(sandbox, "--name-status").stdout.splitlines() == EXPECTED


def test_the_program_itself_can_see_what_it_changed_but_nothing_hidden(mount: Mount) -> None:
    sandbox = mount(TREE, "--rule", "secret*=hide")
    work_in(sandbox.root)
    os.rename(sandbox.root / "src/main.py", sandbox.root / "src/moved.py")
    (sandbox.lower / "hard1").write_text("host\n")
    sandbox.host_changed()
    told = (sandbox.root / ".sandboxfs/changes").read_text()
    assert "R 'src/lib' -> 'src/library'\n" in told
    assert "R 'src/main.py' -> 'src/moved.py'\n" in told
    assert "M! 'hard1'\n" in told
    assert "A 'added/\\xff\\n'\n" in told
    assert "secret" not in told


def test_a_dead_daemon_keeps_nobody_from_looking(mount: Mount) -> None:
    sandbox = mount(TREE)
    work_in(sandbox.root)
    os.kill(sandbox.pid, signal.SIGKILL)
    assert diff(sandbox, "--name-status").stdout.splitlines() == EXPECTED
    detach_mount(sandbox.root)


def test_a_mountpoint_in_the_workspace_is_never_looked_at(tmp_path: Path) -> None:
    workspace = build(tmp_path / "workspace", {"sub/a": "1\n", "sub/inner/": ""})
    other = build(tmp_path / "other", {"file": "1\n"})
    state, view, inner = tmp_path / "state", tmp_path / "view", workspace / "sub/inner"
    view.mkdir()
    for name, below, place in (("other", other, inner), ("test", workspace, view)):
        done = run_sandboxfs("mount", "--name", name, below, place, state=state)
        assert done.returncode == 0, done.stderr
    daemon = int((state / "sandboxes/other/lock").read_text())
    try:
        (view / "new").write_text("1\n")
        os.rename(view / "sub", view / "moved")
        # Whoever asked the mount in the workspace now would wait for ever.
        os.kill(daemon, signal.SIGSTOP)
        try:
            shown = run_sandboxfs("diff", "-s", "test", state=state)
            assert "rename from sub/a\nrename to moved/a\n" in shown.stdout
            assert shown.stdout.count("diff --git") == 2
        finally:
            os.kill(daemon, signal.SIGCONT)
    finally:
        for place in (view, inner):
            assert run_sandboxfs("unmount", place, state=state).returncode == 0


def test_diff_ends_while_a_program_goes_on_writing(mount: Mount) -> None:
    sandbox = mount({"log": "start\n", "d/a": "1\n"})
    ended = threading.Event()

    def write() -> None:
        number = 0
        while not ended.is_set():
            number += 1
            with (sandbox.root / "log").open("a") as file:
                file.write(f"line {number}\n")
            (sandbox.root / f"d/f{number % 5}").write_text("x" * number)
            (sandbox.root / f"d/f{(number + 2) % 5}").unlink(missing_ok=True)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        for words in ((), ("--stat",), ("--json",), ("--name-status",)):
            shown = diff(sandbox, *words)
            assert shown.returncode == 0, shown.stderr
            assert "log" in shown.stdout
    finally:
        ended.set()
        writer.join()
