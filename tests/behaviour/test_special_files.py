"""FIFOs, sockets and devices: made, shown, moved and copied up without being opened."""

import os
import stat

import pytest

from tests.conftest import MakeSandbox
from tests.support.claims import is_whiteout
from tests.support.conditions import require_root
from tests.support.drivers import HostTree, Sandbox
from tests.support.tree import Sock


def test_a_lower_fifo_is_a_fifo(sandbox: Sandbox) -> None:
    assert stat.S_ISFIFO(sandbox.lstat("fifo").st_mode)


def test_a_lower_socket_is_a_socket(make_sandbox: MakeSandbox) -> None:
    sandbox = make_sandbox({"sock": Sock(mode=0o600)})
    assert sandbox.lstat("sock").st_mode == stat.S_IFSOCK | 0o600
    sandbox.chmod("sock", 0o666)
    assert sandbox.lstat("sock").st_mode == stat.S_IFSOCK | 0o666
    sandbox.remount()
    assert sandbox.lstat("sock").st_mode == stat.S_IFSOCK | 0o666


@pytest.mark.parametrize("kind", [stat.S_IFIFO, stat.S_IFSOCK, stat.S_IFREG], ids=["fifo", "socket", "file"])
def test_mknod_makes_what_was_asked_for(sandbox: Sandbox, kind: int) -> None:
    sandbox.mknod("new", kind | 0o640)
    for _ in range(2):
        assert sandbox.lstat("new").st_mode == kind | 0o640
        sandbox.remount()


def test_a_device_keeps_its_numbers(sandbox: Sandbox) -> None:
    require_root()
    sandbox.mknod("null", stat.S_IFCHR | 0o666, os.makedev(1, 3))
    for _ in range(2):
        status = sandbox.lstat("null")
        assert status.st_mode == stat.S_IFCHR | 0o666
        assert status.st_rdev == os.makedev(1, 3)
        sandbox.remount()


def test_a_lower_fifo_can_be_renamed_linked_and_removed(sandbox: Sandbox) -> None:
    sandbox.link("fifo", "fifo2")
    assert sandbox.lstat("fifo2").st_nlink == 2
    sandbox.rename("fifo", "hollow/fifo")
    assert stat.S_ISFIFO(sandbox.lstat("hollow/fifo").st_mode)
    sandbox.unlink("hollow/fifo")
    assert stat.S_ISFIFO(sandbox.lstat("fifo2").st_mode)
    assert is_whiteout(sandbox.upper / "fifo")


def test_bytes_go_through_a_fifo_in_the_view(sandbox: Sandbox) -> None:
    if not isinstance(sandbox, HostTree):
        pytest.skip("the kernel moves the bytes of a FIFO")
    fd = os.open(sandbox.at("fifo"), os.O_RDWR)
    try:
        os.write(fd, b"through")
        assert os.read(fd, 7) == b"through"
    finally:
        os.close(fd)
