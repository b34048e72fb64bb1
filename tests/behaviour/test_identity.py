"""Identity: a file has one number for as long as it lives, whatever happens to it or to the session."""

import os

import pytest

from tests.conftest import MakeSandbox
from tests.support.drivers import HostTree, Sandbox

THINGS = ["file", "dir", "dir/deep", "link", "fifo", "hard1", "tagged"]


def identity(sandbox: Sandbox, name: str) -> tuple[int, int]:
    status = sandbox.lstat(name)
    return status.st_dev, status.st_ino


def copy_up(sandbox: Sandbox, name: str) -> None:
    sandbox.utime(name, 10**18, 10**18)


@pytest.mark.parametrize("name", THINGS)
def test_copy_up_keeps_the_inode_number(sandbox: Sandbox, name: str) -> None:
    before = identity(sandbox, name)
    copy_up(sandbox, name)
    assert identity(sandbox, name) == before
    assert (sandbox.upper / name).is_symlink() or (sandbox.upper / name).exists()


@pytest.mark.parametrize("name", THINGS)
def test_a_remount_keeps_the_inode_number(sandbox: Sandbox, name: str) -> None:
    before = sandbox.lstat(name).st_ino
    sandbox.remount()
    assert sandbox.lstat(name).st_ino == before
    copy_up(sandbox, name)
    sandbox.remount()
    assert sandbox.lstat(name).st_ino == before


@pytest.mark.parametrize("name", THINGS)
def test_being_forgotten_keeps_the_inode_number(sandbox: Sandbox, name: str) -> None:
    before = identity(sandbox, name)
    sandbox.forget()
    assert identity(sandbox, name) == before
    copy_up(sandbox, name)
    sandbox.forget()
    assert identity(sandbox, name) == before


@pytest.mark.parametrize("name", ["file", "dir", "link", "fifo", "hard1"])
def test_renaming_keeps_the_inode_number(sandbox: Sandbox, name: str) -> None:
    before = identity(sandbox, name)
    sandbox.rename(name, "hollow/moved")
    assert identity(sandbox, "hollow/moved") == before
    sandbox.forget()
    assert identity(sandbox, "hollow/moved") == before


def test_what_is_below_a_renamed_directory_keeps_its_inode_number(sandbox: Sandbox) -> None:
    before = sandbox.lstat("dir/deep/leaf").st_ino
    sandbox.rename("dir", "moved")
    for _ in range(2):
        assert sandbox.lstat("moved/deep/leaf").st_ino == before
        sandbox.remount()
    sandbox.append("moved/deep/leaf", b"x")
    for _ in range(2):
        assert sandbox.lstat("moved/deep/leaf").st_ino == before
        sandbox.remount()


def test_new_things_keep_their_inode_number_over_a_remount(sandbox: Sandbox) -> None:
    sandbox.create("new")
    sandbox.mkdir("newdir")
    sandbox.symlink("x", "newlink")
    sandbox.mkfifo("newfifo")
    before = {name: sandbox.lstat(name).st_ino for name in ("new", "newdir", "newlink", "newfifo")}
    sandbox.remount()
    assert {name: sandbox.lstat(name).st_ino for name in before} == before


def test_all_things_have_different_inode_numbers_but_hard_links(sandbox: Sandbox) -> None:
    sandbox.create("new")
    sandbox.mkdir("newdir")
    sandbox.append("file", b"x")
    names = [name for name in sandbox.names() if not name.startswith(b"hard")]
    inodes = [sandbox.lstat(name).st_ino for name in names] + [sandbox.lstat(".").st_ino]
    assert len(inodes) == len(set(inodes))


def test_a_replaced_file_is_another_file(sandbox: Sandbox) -> None:
    before = sandbox.lstat("file").st_ino
    sandbox.create("new", b"new")
    new = sandbox.lstat("new").st_ino
    sandbox.rename("new", "file")
    assert sandbox.lstat("file").st_ino == new != before


def test_numbers_that_the_host_uses_again_do_not_confuse_files(make_sandbox: MakeSandbox) -> None:
    sandbox = make_sandbox({"keep": "keep"})
    for turn in range(50):
        sandbox.create("short-lived", b"%d" % turn)
        assert sandbox.read("short-lived") == b"%d" % turn
        sandbox.unlink("short-lived")
        sandbox.mkdir("short-lived")
        assert sandbox.names("short-lived") == []
        sandbox.rmdir("short-lived")
        sandbox.symlink(b"%d" % turn, "short-lived")
        assert sandbox.readlink("short-lived") == b"%d" % turn
        sandbox.unlink("short-lived")


def test_listing_shows_the_same_inode_numbers_as_looking(make_sandbox: MakeSandbox) -> None:
    sandbox = make_sandbox({"d/a": "a", "d/b": "b", "d/sub/": ""})
    sandbox.append("d/a", b"x")
    sandbox.create("d/new")
    if not isinstance(sandbox, HostTree):
        pytest.skip("the core lists entries, whose numbers are those of lookup")
    with os.scandir(sandbox.at("d")) as entries:
        listed = {entry.name: entry.inode() for entry in entries}
    assert listed == {name: sandbox.lstat(b"d/" + name).st_ino for name in listed}
