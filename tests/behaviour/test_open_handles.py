"""Open files: they see what is written after them, and live on when their name is gone."""

import errno
import os

import pytest

from tests.support.claims import fails_with
from tests.support.drivers import Sandbox


def test_a_reader_opened_before_copy_up_sees_what_is_written_after(sandbox: Sandbox) -> None:
    with sandbox.open("file", os.O_RDONLY) as reader:
        assert reader.pread(100, 0) == b"lower text\n"
        sandbox.write("file", b"UPPER", flags=0)
        assert reader.pread(100, 0) == b"UPPER text\n"
        sandbox.append("file", b"more\n")
        assert reader.pread(100, 0) == b"UPPER text\nmore\n"


def test_a_reader_opened_before_a_truncating_open_sees_the_new_content(sandbox: Sandbox) -> None:
    with sandbox.open("file", os.O_RDONLY) as reader:
        assert reader.pread(5, 0) == b"lower"
        sandbox.write("file", b"anew")
        assert reader.pread(100, 0) == b"anew"
        assert reader.stat().st_size == 4


def test_a_reader_sees_mode_and_size_change(sandbox: Sandbox) -> None:
    with sandbox.open("file", os.O_RDONLY) as reader:
        sandbox.chmod("file", 0o600)
        sandbox.truncate("file", 2)
        assert reader.stat().st_mode & 0o7777 == 0o600
        assert reader.stat().st_size == 2
        assert reader.pread(100, 0) == b"lo"


def test_copy_up_while_many_readers_have_it_open_serves_them_all(sandbox: Sandbox) -> None:
    readers = [sandbox.open("dir/one", os.O_RDONLY) for _ in range(20)]
    sandbox.append("dir/one", b"more\n")
    for reader in readers:
        assert reader.pread(100, 0) == b"1\nmore\n"
        reader.close()


@pytest.mark.parametrize("name", ["file", "new", "hard1"])
def test_an_unlinked_file_lives_on_while_open(sandbox: Sandbox, name: str) -> None:
    sandbox.create("new", b"lower text\n")
    with sandbox.open(name, os.O_RDWR) as file:
        before = file.pread(100, 0)
        nlink = file.stat().st_nlink
        sandbox.unlink(name)
        assert not sandbox.exists(name)
        assert file.pread(100, 0) == before
        file.pwrite(b"gone", 0)
        file.truncate(4)
        assert file.pread(100, 0) == b"gone"
        assert file.stat().st_nlink == nlink - 1
        sandbox.create(name, b"another")
        assert file.pread(100, 0) == b"gone"
    assert sandbox.read(name) == b"another"


def test_an_unlinked_lower_file_that_was_only_read_lives_on(sandbox: Sandbox) -> None:
    with sandbox.open("file", os.O_RDONLY) as file:
        sandbox.unlink("file")
        assert file.pread(100, 0) == b"lower text\n"
        assert file.stat().st_size == 11
        assert file.stat().st_nlink == 0


@pytest.mark.parametrize("name", ["file", "new"])
def test_an_overwritten_file_lives_on_while_open(sandbox: Sandbox, name: str) -> None:
    sandbox.create("new", b"lower text\n")
    sandbox.create("replacement", b"replacement")
    with sandbox.open(name, os.O_RDWR) as file:
        sandbox.rename("replacement", name)
        assert file.pread(100, 0) == b"lower text\n"
        file.pwrite(b"LOWER", 0)
        assert file.pread(100, 0) == b"LOWER text\n"
        assert sandbox.read(name) == b"replacement"
    assert sandbox.read(name) == b"replacement"


def test_a_file_in_a_renamed_directory_goes_on_being_written(sandbox: Sandbox) -> None:
    with sandbox.open("dir/deep/leaf", os.O_RDWR) as file:
        sandbox.rename("dir", "moved")
        file.pwrite(b"LEAF", 0)
        sandbox.rename("moved/deep", "hollow/deep")
        file.pwrite(b"leaves", 0)
        assert sandbox.read("hollow/deep/leaf") == b"leaves"
    sandbox.remount()
    assert sandbox.read("hollow/deep/leaf") == b"leaves"


def test_a_file_opened_for_reading_cannot_be_written_and_the_reverse(sandbox: Sandbox) -> None:
    with sandbox.open("file", os.O_RDONLY) as file, fails_with(errno.EBADF):
        file.pwrite(b"x", 0)
    with sandbox.open("file", os.O_WRONLY) as file, fails_with(errno.EBADF):
        file.pread(1, 0)


def test_two_writers_of_one_file_see_each_other(sandbox: Sandbox) -> None:
    with sandbox.open("file", os.O_RDWR) as one, sandbox.open("file", os.O_RDWR) as two:
        one.pwrite(b"ONE", 0)
        two.pwrite(b"TWO", 4)
        assert one.pread(7, 0) == b"ONEeTWO"
        assert two.pread(3, 0) == b"ONE"


def test_what_was_written_and_synced_is_in_upper_at_once(sandbox: Sandbox) -> None:
    with sandbox.open("file", os.O_RDWR) as file:
        file.pwrite(b"SYNCED", 0)
        file.fsync()
        assert (sandbox.upper / "file").read_bytes() == b"SYNCEDtext\n"


def test_a_handle_of_a_large_lower_file_survives_its_copy_up(sandbox: Sandbox) -> None:
    content = os.urandom(3 << 20)
    (sandbox.lower / "other").write_bytes(content)
    sandbox.host_changed()
    sandbox.remount()
    with sandbox.open("other", os.O_RDONLY) as reader:
        assert reader.pread(1000, 2 << 20) == content[2 << 20 : (2 << 20) + 1000]
        sandbox.write("other", b"X", flags=0)
        assert reader.pread(1000, 0) == b"X" + content[1:1000]
        assert reader.pread(1000, 2 << 20) == content[2 << 20 : (2 << 20) + 1000]
