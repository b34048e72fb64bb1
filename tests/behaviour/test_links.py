"""Links: a symlink is its own text; a hard link is another name of one file, also after copy-up."""

import errno
import os

import pytest

from tests.support.claims import fails_with
from tests.support.drivers import Sandbox


def test_a_lower_symlink_reads_as_it_is(sandbox: Sandbox) -> None:
    assert sandbox.readlink("link") == b"file"
    assert sandbox.readlink("dangling") == b"nowhere"
    assert sandbox.read("link") == b"lower text\n"
    assert sandbox.read("dirlink/one") == b"1\n"


@pytest.mark.parametrize("target", [b"file", b"./dir/file", b"\xff odd", b"x" * 4000])
def test_a_new_symlink_holds_its_target(sandbox: Sandbox, target: bytes) -> None:
    sandbox.symlink(target, "new")
    assert sandbox.readlink("new") == target
    assert sandbox.lstat("new").st_size == len(target)
    sandbox.remount()
    assert sandbox.readlink("new") == target


def test_writing_through_a_symlink_changes_what_it_leads_to(sandbox: Sandbox) -> None:
    sandbox.append("link", b"more\n")
    assert sandbox.read("file") == b"lower text\nmore\n"
    assert sandbox.readlink("link") == b"file"


def test_readlink_of_a_file_fails(sandbox: Sandbox) -> None:
    with fails_with(errno.EINVAL):
        sandbox.readlink("file")


def test_lower_hard_links_are_one_file(sandbox: Sandbox) -> None:
    inodes = {sandbox.lstat(name).st_ino for name in ("hard1", "hard2", "dir/hard3")}
    assert len(inodes) == 1
    assert sandbox.lstat("hard1").st_nlink == 3


@pytest.mark.parametrize("changed", ["hard1", "hard2", "dir/hard3"])
def test_a_change_through_one_lower_hard_link_shows_through_all(sandbox: Sandbox, changed: str) -> None:
    sandbox.append(changed, b"more\n")
    for _ in range(2):
        for name in ("hard1", "hard2", "dir/hard3"):
            assert sandbox.read(name) == b"shared\nmore\n"
            assert sandbox.lstat(name).st_nlink == 3
        assert len({sandbox.lstat(name).st_ino for name in ("hard1", "hard2", "dir/hard3")}) == 1
        sandbox.remount()


def test_a_mode_set_through_one_hard_link_shows_through_all(sandbox: Sandbox) -> None:
    sandbox.chmod("hard2", 0o600)
    assert sandbox.stat("hard1").st_mode & 0o7777 == 0o600
    assert sandbox.stat("dir/hard3").st_mode & 0o7777 == 0o600


def test_removing_one_hard_link_lowers_the_count_of_the_others(sandbox: Sandbox) -> None:
    sandbox.unlink("hard1")
    for _ in range(2):
        assert sandbox.lstat("hard2").st_nlink == 2
        assert sandbox.read("dir/hard3") == b"shared\n"
        sandbox.remount()
    sandbox.append("hard2", b"more\n")
    assert sandbox.lstat("hard2").st_nlink == 2
    assert sandbox.read("dir/hard3") == b"shared\nmore\n"


@pytest.mark.parametrize("source", ["file", "hard1", "new"])
def test_a_new_hard_link_is_the_same_file(sandbox: Sandbox, source: str) -> None:
    sandbox.create("new", b"new")
    before = sandbox.lstat(source)
    sandbox.link(source, "hollow/again")
    for _ in range(2):
        for name in (source, "hollow/again"):
            status = sandbox.lstat(name)
            assert status.st_ino == before.st_ino
            assert status.st_nlink == before.st_nlink + 1
        sandbox.remount()
    sandbox.append("hollow/again", b"both")
    assert sandbox.read(source).endswith(b"both")


def test_a_file_lives_on_under_its_second_name(sandbox: Sandbox) -> None:
    sandbox.link("file", "second")
    sandbox.unlink("file")
    for _ in range(2):
        assert sandbox.read("second") == b"lower text\n"
        assert sandbox.lstat("second").st_nlink == 1
        assert not sandbox.exists("file")
        sandbox.remount()


def test_a_hard_link_to_a_symlink_is_the_symlink(sandbox: Sandbox) -> None:
    sandbox.link("link", "link2")
    assert sandbox.readlink("link2") == b"file"
    assert sandbox.lstat("link2").st_ino == sandbox.lstat("link").st_ino
    assert sandbox.lstat("link").st_nlink == 2


def test_a_hard_link_over_an_existing_name_fails(sandbox: Sandbox) -> None:
    for name in ("other", "dir", "dangling"):
        with fails_with(errno.EEXIST):
            sandbox.link("file", name)


def test_a_directory_takes_no_hard_link(sandbox: Sandbox) -> None:
    with fails_with(errno.EPERM):
        sandbox.link("dir", "dir2")


def test_a_hard_link_takes_the_place_of_a_deleted_lower_name(sandbox: Sandbox) -> None:
    sandbox.unlink("other")
    sandbox.link("file", "other")
    sandbox.remount()
    assert sandbox.read("other") == b"lower text\n"


def test_replacing_one_hard_link_by_rename_leaves_the_others(sandbox: Sandbox) -> None:
    sandbox.create("new", b"new")
    sandbox.rename("new", "hard1")
    for _ in range(2):
        assert sandbox.read("hard1") == b"new"
        assert sandbox.read("hard2") == b"shared\n"
        assert sandbox.lstat("hard2").st_nlink == 2
        assert sandbox.lstat("hard1").st_nlink == 1
        sandbox.remount()


def test_an_open_hard_link_sees_what_is_written_through_the_other(sandbox: Sandbox) -> None:
    with sandbox.open("hard1", os.O_RDONLY) as reader, sandbox.open("hard2", os.O_RDWR) as writer:
        writer.pwrite(b"SHARED", 0)
        assert reader.pread(6, 0) == b"SHARED"
