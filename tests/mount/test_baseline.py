"""The baseline outlives the daemon, however it ends, and older sandboxes get one."""

import os
import shutil

from sandboxfs.hostfs.directory import HostDir
from sandboxfs.upper.baseline import Baseline
from tests.mount.conftest import Mount
from tests.support.mount_driver import MountDriver
from tests.support.placed import kill_daemon


def contents(sandbox: MountDriver) -> dict[bytes, bytes | None]:
    with HostDir.at(sandbox.baseline) as directory:
        baseline = Baseline.load(directory)
        return {one.path: baseline.content(one) for one in baseline.below(b"")}


def test_what_was_noted_survives_the_daemon_being_killed(mount: Mount) -> None:
    sandbox = mount({"changed": "1\n", "deleted": "2\n", "later": "3\n"})
    sandbox.append("changed", b"more")
    sandbox.unlink("deleted")
    kill_daemon(sandbox)
    assert contents(sandbox) == {b"changed": b"1\n", b"deleted": None}
    sandbox.start()
    sandbox.create("deleted", b"again")
    sandbox.append("later", b"more")
    assert contents(sandbox) == {b"changed": b"1\n", b"deleted": b"2\n", b"later": b"3\n"}


def test_a_sandbox_without_a_baseline_gets_one_when_it_is_mounted(mount: Mount) -> None:
    sandbox = mount({"file": "1\n", "other": "2\n"})
    sandbox.append("file", b"more")
    sandbox.stop()
    shutil.rmtree(sandbox.baseline)
    sandbox.start()
    sandbox.append("other", b"more")
    assert contents(sandbox) == {b"other": b"2\n"}
    assert sandbox.baseline.stat().st_mode & 0o7777 == 0o700


def test_the_baseline_is_for_its_owner_only(mount: Mount) -> None:
    sandbox = mount({"file": "1\n"})
    sandbox.unlink("file")
    for name in os.listdir(sandbox.baseline):
        assert (sandbox.baseline / name).stat().st_mode & 0o077 == 0
