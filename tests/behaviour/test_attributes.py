"""Attributes: mode and owner of lower things change in the view, never in the workspace."""

import os
import stat

import pytest

from tests.support.claims import upper_names
from tests.support.conditions import require_root
from tests.support.drivers import Sandbox
from tests.support.tree import LONG_AGO


@pytest.mark.parametrize("name", ["file", "empty", "script", "dir", "hollow", "fifo", "hard1"])
def test_chmod_of_a_lower_thing_shows_in_the_view(sandbox: Sandbox, name: str) -> None:
    kind = stat.S_IFMT(sandbox.stat(name).st_mode)
    sandbox.chmod(name, 0o741)
    for _ in range(2):
        assert sandbox.stat(name).st_mode == kind | 0o741
        sandbox.remount()


def test_chmod_keeps_content_and_modification_time(sandbox: Sandbox) -> None:
    sandbox.chmod("file", 0o600)
    assert sandbox.read("file") == b"lower text\n"
    assert sandbox.stat("file").st_mtime_ns == LONG_AGO


def test_chmod_of_a_lower_directory_copies_nothing_below_it(sandbox: Sandbox) -> None:
    sandbox.chmod("dir", 0o700)
    assert upper_names(sandbox.upper) == ["dir"]
    assert sorted(sandbox.names("dir")) == [b"deep", b"hard3", b"one", b"two"]


def test_the_special_mode_bits_are_kept(sandbox: Sandbox) -> None:
    sandbox.chmod("script", 0o4755)
    sandbox.chmod("dir", 0o3775)
    assert sandbox.stat("script").st_mode & 0o7777 == 0o4755
    assert sandbox.stat("dir").st_mode & 0o7777 == 0o3775


@pytest.mark.parametrize("name", ["file", "dir", "link", "dangling", "fifo", "hard1"])
def test_chown_of_a_lower_thing_shows_in_the_view(sandbox: Sandbox, name: str) -> None:
    require_root()
    sandbox.chown(name, 1234, 5678)
    for _ in range(2):
        status = sandbox.lstat(name)
        assert (status.st_uid, status.st_gid) == (1234, 5678)
        sandbox.remount()
    sandbox.chown(name, -1, 99)
    assert (sandbox.lstat(name).st_uid, sandbox.lstat(name).st_gid) == (1234, 99)


def test_copy_up_keeps_a_foreign_owner(sandbox: Sandbox) -> None:
    require_root()
    os.chown(sandbox.lower / "file", 1234, 5678)
    sandbox.host_changed()
    sandbox.remount()
    sandbox.append("file", b"x")
    status = sandbox.stat("file")
    assert (status.st_uid, status.st_gid) == (1234, 5678)


def test_new_things_belong_to_who_made_them(sandbox: Sandbox) -> None:
    sandbox.create("new")
    sandbox.mkdir("newdir")
    sandbox.symlink("x", "newlink")
    for name in ("new", "newdir", "newlink"):
        status = sandbox.lstat(name)
        assert (status.st_uid, status.st_gid) == (os.getuid(), os.getgid())


@pytest.mark.parametrize("mode", [0o644, 0o600, 0o777, 0o444, 0o000])
def test_a_new_file_has_the_mode_that_was_asked_for(sandbox: Sandbox, mode: int) -> None:
    sandbox.create("new", mode=mode)
    assert sandbox.stat("new").st_mode & 0o7777 == mode


def test_the_root_of_the_view_looks_like_the_workspace(sandbox: Sandbox) -> None:
    view, host = sandbox.stat("."), os.stat(sandbox.lower)
    assert view.st_mode == host.st_mode
    assert (view.st_uid, view.st_gid) == (host.st_uid, host.st_gid)
    assert view.st_mtime_ns == host.st_mtime_ns


def test_chmod_of_the_root_of_the_view_stays_in_the_view(sandbox: Sandbox) -> None:
    sandbox.chmod(".", 0o711)
    for _ in range(2):
        assert sandbox.stat(".").st_mode & 0o7777 == 0o711
        sandbox.remount()


def test_size_and_blocks_are_those_of_the_content(sandbox: Sandbox) -> None:
    assert sandbox.stat("file").st_size == 11
    sandbox.append("file", b"x" * 10_000)
    status = sandbox.stat("file")
    assert status.st_size == 10_011
    assert status.st_blocks * 512 >= 10_011
