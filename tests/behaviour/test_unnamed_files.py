"""A file that lost its name while open is the program's own: it can be changed, and only the program sees it.

The names are taken away from lower files that nothing has changed before. That the workspace's own file is
untouched, the fixture proves when the test ends.
"""

import os
from collections.abc import Callable

import pytest

from tests.conftest import MakeSandbox
from tests.support.drivers import OpenFile, Sandbox
from tests.support.tree import File, HardLink, Tree

TREE: Tree = {
    "file": File("lower text\n", mode=0o644, xattrs={"user.colour": b"red"}),
    "other": "other\n",
    "dir/file": File("lower text\n", mode=0o644, xattrs={"user.colour": b"red"}),
    "hard": "shared\n",
    "harder": HardLink("hard"),
}


def unlink(sandbox: Sandbox) -> None:
    sandbox.unlink("file")


def rename_over_it(sandbox: Sandbox) -> None:
    sandbox.rename("other", "file")


def make_another(sandbox: Sandbox) -> None:
    sandbox.unlink("file")
    sandbox.create("file", b"another\n")


LOSSES = [unlink, rename_over_it, make_another]


def set_mode(file: OpenFile) -> object:
    file.chmod(0o600)
    return file.stat().st_mode & 0o7777 == 0o600


def set_owner(file: OpenFile) -> object:
    # Only root may give it to others.
    uid, gid = (1234, 4321) if os.geteuid() == 0 else (os.geteuid(), os.getegid())
    file.chown(uid, gid)
    status = file.stat()
    return (status.st_uid, status.st_gid) == (uid, gid)


def set_times(file: OpenFile) -> object:
    file.utime(1_000_000_001, 2_000_000_002)
    return file.stat().st_mtime_ns == 2_000_000_002


def set_attribute(file: OpenFile) -> object:
    file.setxattr("user.shape", b"round")
    return file.getxattr("user.shape") == b"round"


def remove_attribute(file: OpenFile) -> object:
    file.removexattr("user.colour")
    with pytest.raises(OSError):
        file.getxattr("user.colour")
    return True


def write_again(file: OpenFile) -> object:
    with file.reopen(os.O_RDWR) as writer:
        writer.pwrite(b"UPPER", 0)
        writer.fsync()
        assert writer.pread(100, 0) == b"UPPER text\n"
    return file.pread(100, 0) == b"UPPER text\n"


def empty_it(file: OpenFile) -> object:
    with file.reopen(os.O_WRONLY | os.O_TRUNC) as writer:
        writer.pwrite(b"anew", 0)
    return file.pread(100, 0) == b"anew"


def cut_it(file: OpenFile) -> object:
    with file.reopen(os.O_WRONLY) as writer:
        writer.truncate(5)
    return file.pread(100, 0) == b"lower"


CHANGES = [set_mode, set_owner, set_times, set_attribute, remove_attribute, write_again, empty_it, cut_it]


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("lose", LOSSES)
def test_a_file_without_a_name_takes_every_change(
    make_sandbox: MakeSandbox, lose: Callable[[Sandbox], None], change: Callable[[OpenFile], bool]
) -> None:
    sandbox = make_sandbox(TREE)
    with sandbox.open("file", os.O_RDONLY) as file:
        before = file.stat()
        lose(sandbox)
        assert change(file)
        after = file.stat()
        assert after.st_ino == before.st_ino
        assert after.st_nlink == 0


def test_what_was_not_changed_stays_as_it_was(make_sandbox: MakeSandbox) -> None:
    sandbox = make_sandbox(TREE)
    with sandbox.open("file", os.O_RDONLY) as file:
        before = file.stat()
        sandbox.unlink("file")
        file.chmod(0o600)
        after = file.stat()
        assert (after.st_uid, after.st_gid, after.st_size) == (before.st_uid, before.st_gid, before.st_size)
        assert after.st_mtime_ns == before.st_mtime_ns
        assert file.getxattr("user.colour") == b"red"
        assert file.pread(100, 0) == b"lower text\n"


def test_all_handles_of_a_file_without_a_name_see_its_changes(make_sandbox: MakeSandbox) -> None:
    sandbox = make_sandbox(TREE)
    readers = [sandbox.open("file", os.O_RDONLY) for _ in range(3)]
    sandbox.unlink("file")
    with readers[0].reopen(os.O_RDWR) as writer:
        writer.pwrite(b"UPPER", 0)
        for reader in readers:
            assert reader.pread(5, 0) == b"UPPER"
            assert reader.stat().st_ino == writer.stat().st_ino
            reader.close()
        assert writer.pread(100, 0) == b"UPPER text\n"


def test_the_last_handle_takes_the_file_with_it(make_sandbox: MakeSandbox) -> None:
    sandbox = make_sandbox(TREE)
    with sandbox.open("file", os.O_RDONLY) as file:
        sandbox.unlink("file")
        with file.reopen(os.O_RDWR) as writer:
            writer.pwrite(b"UPPER", 0)
            assert os.listdir(sandbox.work) == []
    assert not sandbox.exists("file")
    assert os.listdir(sandbox.work) == []
    sandbox.remount()
    assert not sandbox.exists("file")


def test_a_file_of_a_removed_directory_takes_changes(make_sandbox: MakeSandbox) -> None:
    sandbox = make_sandbox(TREE)
    with sandbox.open("dir/file", os.O_RDONLY) as file:
        sandbox.unlink("dir/file")
        sandbox.rmdir("dir")
        assert set_mode(file)
        assert write_again(file)


def test_a_lower_file_that_lost_all_its_names_takes_changes(make_sandbox: MakeSandbox) -> None:
    sandbox = make_sandbox(TREE)
    with sandbox.open("hard", os.O_RDONLY) as file:
        sandbox.unlink("hard")
        sandbox.unlink("harder")
        assert set_mode(file)
        with file.reopen(os.O_RDWR) as writer:
            writer.pwrite(b"SHARED", 0)
        assert file.pread(100, 0) == b"SHARED\n"
        assert file.stat().st_nlink == 0


def test_changes_of_a_file_without_a_name_add_up(make_sandbox: MakeSandbox) -> None:
    sandbox = make_sandbox(TREE)
    with sandbox.open("file", os.O_RDONLY) as file:
        sandbox.unlink("file")
        with file.reopen(os.O_RDWR) as writer:
            writer.pwrite(b"UPPER", 0)
            file.chmod(0o600)
            file.utime(1, 2_000_000_002)
            writer.pwrite(b"!", 5)
        assert file.pread(100, 0) == b"UPPER!text\n"
        assert file.stat().st_mode & 0o7777 == 0o600
