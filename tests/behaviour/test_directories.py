"""Directories: made, removed and made again, with what the lower has below them in or out of sight."""

import errno

import pytest

from tests.conftest import MakeSandbox
from tests.support.claims import fails_with, is_opaque, is_whiteout, upper_names
from tests.support.conditions import require_root
from tests.support.drivers import Sandbox
from tests.support.tree import Directory


def test_a_lower_directory_shows_what_it_holds(sandbox: Sandbox) -> None:
    assert sorted(sandbox.names("dir")) == [b"deep", b"hard3", b"one", b"two"]
    assert sandbox.names("hollow") == []


def test_a_new_directory_is_empty_and_in_upper(sandbox: Sandbox) -> None:
    sandbox.mkdir("new", 0o750)
    assert sandbox.names("new") == []
    assert sandbox.stat("new").st_mode & 0o7777 == 0o750
    assert (sandbox.upper / "new").is_dir()


@pytest.mark.parametrize("name", ["file", "dir", "hollow", "link", "dangling", "fifo"])
def test_making_a_directory_over_a_lower_name_fails(sandbox: Sandbox, name: str) -> None:
    with fails_with(errno.EEXIST):
        sandbox.mkdir(name)


def test_an_empty_lower_directory_can_be_removed_and_leaves_a_whiteout(sandbox: Sandbox) -> None:
    sandbox.rmdir("hollow")
    assert not sandbox.exists("hollow")
    assert is_whiteout(sandbox.upper / "hollow")


def test_a_lower_directory_that_holds_something_cannot_be_removed(sandbox: Sandbox) -> None:
    with fails_with(errno.ENOTEMPTY):
        sandbox.rmdir("dir")
    assert sorted(sandbox.names("dir")) == [b"deep", b"hard3", b"one", b"two"]


def test_a_lower_directory_emptied_in_the_view_can_be_removed(sandbox: Sandbox) -> None:
    sandbox.remove_tree("dir")
    assert not sandbox.exists("dir")
    assert is_whiteout(sandbox.upper / "dir")
    assert (sandbox.lower / "dir" / "deep" / "leaf").exists()


def test_a_lower_directory_with_only_new_files_left_cannot_be_removed(sandbox: Sandbox) -> None:
    sandbox.create("hollow/new")
    with fails_with(errno.ENOTEMPTY):
        sandbox.rmdir("hollow")
    sandbox.unlink("hollow/new")
    sandbox.rmdir("hollow")


def test_a_directory_made_again_is_empty_and_opaque(sandbox: Sandbox) -> None:
    sandbox.remove_tree("dir")
    sandbox.mkdir("dir")
    assert sandbox.names("dir") == []
    assert is_opaque(sandbox.upper / "dir")
    sandbox.create("dir/mine")
    sandbox.remount()
    assert sandbox.names("dir") == [b"mine"]


def test_a_directory_made_where_a_lower_file_was_removed_shows_only_its_own(sandbox: Sandbox) -> None:
    sandbox.unlink("file")
    sandbox.mkdir("file")
    sandbox.create("file/inner", b"x")
    assert sandbox.names("file") == [b"inner"]
    sandbox.remount()
    assert sandbox.read("file/inner") == b"x"


def test_a_file_made_where_a_lower_directory_was_removed_hides_it(sandbox: Sandbox) -> None:
    sandbox.remove_tree("dir")
    sandbox.create("dir", b"now a file")
    sandbox.remount()
    assert sandbox.read("dir") == b"now a file"
    with fails_with(errno.ENOTDIR):
        sandbox.lstat("dir/one")


def test_a_directory_removed_made_and_removed_again_leaves_one_whiteout(sandbox: Sandbox) -> None:
    for _ in range(3):
        sandbox.rmdir("hollow")
        assert is_whiteout(sandbox.upper / "hollow")
        sandbox.mkdir("hollow")
    sandbox.rmdir("hollow")
    assert upper_names(sandbox.upper) == ["hollow"]


@pytest.mark.parametrize("name", ["file", "link", "dangling", "dirlink", "fifo"])
def test_rmdir_of_what_is_no_directory_fails(sandbox: Sandbox, name: str) -> None:
    with fails_with(errno.ENOTDIR):
        sandbox.rmdir(name)


@pytest.mark.parametrize("name", ["dir", "hollow"])
def test_unlink_of_a_directory_fails(sandbox: Sandbox, name: str) -> None:
    with fails_with(errno.EISDIR):
        sandbox.unlink(name)


def test_what_is_not_there_cannot_be_removed(sandbox: Sandbox) -> None:
    with fails_with(errno.ENOENT):
        sandbox.rmdir("missing")
    with fails_with(errno.ENOENT):
        sandbox.unlink("missing")
    with fails_with(errno.ENOENT):
        sandbox.mkdir("missing/inner")
    with fails_with(errno.ENOTDIR):
        sandbox.mkdir("file/inner")


def test_a_copied_up_directory_keeps_its_mode_owner_and_xattrs(make_sandbox: MakeSandbox) -> None:
    sandbox = make_sandbox({"d/": Directory(mode=0o2751, xattrs={"user.colour": b"blue"}), "d/in": "x"})
    before = sandbox.stat("d")
    sandbox.append("d/in", b"y")
    after = sandbox.stat("d")
    assert (after.st_mode, after.st_uid, after.st_gid) == (before.st_mode, before.st_uid, before.st_gid)
    assert after.st_mtime_ns == before.st_mtime_ns
    assert sandbox.getxattr("d", "user.colour") == b"blue"
    assert (sandbox.upper / "d").stat().st_mode == before.st_mode


def test_a_setgid_directory_hands_its_group_and_bit_on(make_sandbox: MakeSandbox) -> None:
    require_root()
    sandbox = make_sandbox({"d/": Directory(mode=0o2775)})
    sandbox.chown("d", -1, 12345)
    sandbox.chmod("d", 0o2775)
    sandbox.create("d/file")
    sandbox.mkdir("d/sub", 0o755)
    assert sandbox.stat("d/file").st_gid == 12345
    assert sandbox.stat("d/sub").st_gid == 12345
    assert sandbox.stat("d/sub").st_mode & 0o7777 == 0o2755
