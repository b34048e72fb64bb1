"""Renaming: all its cases, with lower and upper things at either end."""

import errno
import os

import pytest

from tests.conftest import MakeSandbox
from tests.support.claims import fails_with, is_whiteout, upper_names
from tests.support.drivers import Sandbox
from tests.support.syscalls import RENAME_EXCHANGE, RENAME_NOREPLACE


def test_a_lower_file_moves_and_leaves_a_whiteout(sandbox: Sandbox) -> None:
    sandbox.rename("file", "moved")
    assert sandbox.read("moved") == b"lower text\n"
    assert not sandbox.exists("file")
    assert is_whiteout(sandbox.upper / "file")


def test_a_new_file_moves_and_leaves_no_whiteout(sandbox: Sandbox) -> None:
    sandbox.create("new", b"x")
    sandbox.rename("new", "newer")
    assert upper_names(sandbox.upper) == ["newer"]


def test_a_file_moves_across_directories(sandbox: Sandbox) -> None:
    sandbox.rename("dir/deep/leaf", "hollow/leaf")
    assert sandbox.read("hollow/leaf") == b"leaf\n"
    assert sandbox.names("dir/deep") == [b"er"]
    sandbox.remount()
    assert sandbox.read("hollow/leaf") == b"leaf\n"
    assert sandbox.names("dir/deep") == [b"er"]


@pytest.mark.parametrize("source", ["file", "new"])
@pytest.mark.parametrize("target", ["other", "upper-target", "link", "fifo"])
def test_a_file_replaces_what_is_there(sandbox: Sandbox, source: str, target: str) -> None:
    sandbox.create("new", b"lower text\n")
    sandbox.create("upper-target", b"old")
    sandbox.rename(source, target)
    assert sandbox.read(target) == b"lower text\n"
    assert not sandbox.exists(source)
    sandbox.remount()
    assert sandbox.read(target) == b"lower text\n"
    assert not sandbox.exists(source)


def test_renaming_a_file_to_itself_does_nothing(sandbox: Sandbox) -> None:
    sandbox.rename("file", "file")
    assert sandbox.read("file") == b"lower text\n"


def test_renaming_onto_a_hard_link_of_the_same_file_does_nothing(sandbox: Sandbox) -> None:
    sandbox.rename("hard1", "hard2")
    assert sandbox.exists("hard1")
    assert sandbox.exists("hard2")


def test_noreplace_keeps_what_is_there(sandbox: Sandbox) -> None:
    for target in ("other", "dir", "dangling"):
        with fails_with(errno.EEXIST):
            sandbox.rename("file", target, RENAME_NOREPLACE)
    sandbox.rename("file", "free", RENAME_NOREPLACE)
    assert sandbox.read("free") == b"lower text\n"


def test_noreplace_takes_a_name_that_was_deleted(sandbox: Sandbox) -> None:
    sandbox.unlink("other")
    sandbox.rename("file", "other", RENAME_NOREPLACE)
    assert sandbox.read("other") == b"lower text\n"


@pytest.mark.parametrize(
    ("one", "two"),
    [
        ("file", "other"),
        ("file", "dir"),
        ("dir", "hollow"),
        ("file", "new"),
        ("dir", "newdir"),
        ("new", "newdir"),
    ],
)
def test_exchange_swaps_whatever_the_two_are(sandbox: Sandbox, one: str, two: str) -> None:
    sandbox.create("new", b"new")
    sandbox.mkdir("newdir")
    sandbox.create("newdir/inner", b"inner")

    def content(name: str) -> object:
        return sorted(sandbox.names(name)) if sandbox.is_dir(name) else sandbox.read(name)

    first, second = content(one), content(two)
    sandbox.rename(one, two, RENAME_EXCHANGE)
    assert (content(one), content(two)) == (second, first)
    sandbox.remount()
    assert (content(one), content(two)) == (second, first)


def test_exchange_with_what_is_not_there_fails(sandbox: Sandbox) -> None:
    with fails_with(errno.ENOENT):
        sandbox.rename("file", "missing", RENAME_EXCHANGE)
    assert sandbox.exists("file")


def test_renaming_a_lower_directory_brings_all_it_holds(sandbox: Sandbox) -> None:
    sandbox.rename("dir", "moved")
    assert not sandbox.exists("dir")
    assert sorted(sandbox.names("moved")) == [b"deep", b"hard3", b"one", b"two"]
    assert sandbox.read("moved/deep/er/bottom") == b"bottom\n"
    sandbox.remount()
    assert sandbox.read("moved/deep/er/bottom") == b"bottom\n"
    assert not sandbox.exists("dir")


def test_renaming_a_lower_directory_of_5000_files_copies_none_of_them(make_sandbox: MakeSandbox) -> None:
    sandbox = make_sandbox({f"big/sub{number % 10}/f{number}": "x" for number in range(5000)})
    sandbox.rename("big", "moved")
    assert upper_names(sandbox.upper) == ["big", "moved"]
    assert is_whiteout(sandbox.upper / "big")
    assert len(sandbox.names("moved/sub3")) == 500
    assert sandbox.read("moved/sub3/f3") == b"x"


def test_a_directory_changed_before_and_after_its_rename_keeps_every_change(sandbox: Sandbox) -> None:
    sandbox.unlink("dir/one")
    sandbox.append("dir/two", b"before\n")
    sandbox.create("dir/new", b"n")
    sandbox.rename("dir", "moved")
    sandbox.append("moved/two", b"after\n")
    sandbox.unlink("moved/deep/leaf")
    sandbox.create("moved/deep/fresh", b"f")
    for _ in range(2):
        assert sorted(sandbox.names("moved")) == [b"deep", b"hard3", b"new", b"two"]
        assert sandbox.read("moved/two") == b"2\nbefore\nafter\n"
        assert sorted(sandbox.names("moved/deep")) == [b"er", b"fresh"]
        sandbox.remount()


def test_a_directory_moved_twice_and_back_is_what_it_was(sandbox: Sandbox) -> None:
    sandbox.rename("dir", "a")
    sandbox.rename("a", "hollow/b")
    assert sandbox.read("hollow/b/deep/leaf") == b"leaf\n"
    sandbox.rename("hollow/b", "dir")
    sandbox.remount()
    assert sandbox.read("dir/deep/leaf") == b"leaf\n"
    assert sorted(sandbox.names("dir")) == [b"deep", b"hard3", b"one", b"two"]
    assert sandbox.names("hollow") == []


def test_a_directory_made_where_one_was_moved_away_is_empty(sandbox: Sandbox) -> None:
    """mv a b && mkdir a"""
    sandbox.rename("dir", "moved")
    sandbox.mkdir("dir")
    sandbox.create("dir/mine", b"m")
    for _ in range(2):
        assert sandbox.names("dir") == [b"mine"]
        assert sandbox.read("moved/one") == b"1\n"
        sandbox.remount()


def test_directories_swapped_through_a_third_name_are_swapped(sandbox: Sandbox) -> None:
    sandbox.create("hollow/pebble", b"p")
    sandbox.rename("dir", "tmp")
    sandbox.rename("hollow", "dir")
    sandbox.rename("tmp", "hollow")
    for _ in range(2):
        assert sandbox.names("dir") == [b"pebble"]
        assert sandbox.read("hollow/deep/leaf") == b"leaf\n"
        sandbox.remount()


def test_a_chain_of_renames_moves_each_file_one_on(sandbox: Sandbox) -> None:
    for number in range(4):
        sandbox.create(f"n{number}", b"%d" % number)
    sandbox.rename("file", "n4")
    for number in reversed(range(4)):
        sandbox.rename(f"n{number}", f"n{number + 1}")
    assert [sandbox.read(f"n{number}") for number in range(1, 5)] == [b"0", b"1", b"2", b"3"]
    assert not sandbox.exists("n0")


def test_nested_directories_moved_one_by_one_keep_their_content(sandbox: Sandbox) -> None:
    sandbox.rename("dir/deep", "dir/shallow")
    sandbox.rename("dir", "moved")
    sandbox.rename("moved/shallow/er", "hollow/er")
    for _ in range(2):
        assert sandbox.read("moved/shallow/leaf") == b"leaf\n"
        assert sandbox.read("hollow/er/bottom") == b"bottom\n"
        assert sandbox.names("moved/shallow") == [b"leaf"]
        sandbox.remount()


def test_a_directory_replaces_an_empty_one(sandbox: Sandbox) -> None:
    sandbox.rename("dir", "hollow")
    for _ in range(2):
        assert sandbox.read("hollow/deep/leaf") == b"leaf\n"
        assert not sandbox.exists("dir")
        sandbox.remount()


def test_an_empty_upper_directory_replaces_an_emptied_lower_one_without_reviving_it(sandbox: Sandbox) -> None:
    for name in (b"one", b"two", b"hard3"):
        sandbox.unlink(b"dir/" + name)
    sandbox.remove_tree("dir/deep")
    sandbox.mkdir("new")
    sandbox.rename("new", "dir")
    for _ in range(2):
        assert sandbox.names("dir") == []
        sandbox.remount()


@pytest.mark.parametrize("source", ["hollow", "new"])
def test_a_directory_does_not_replace_one_that_holds_something(sandbox: Sandbox, source: str) -> None:
    sandbox.mkdir("new")
    with fails_with(errno.ENOTEMPTY):
        sandbox.rename(source, "dir")


def test_files_and_directories_do_not_replace_each_other(sandbox: Sandbox) -> None:
    with fails_with(errno.EISDIR):
        sandbox.rename("file", "hollow")
    with fails_with(errno.ENOTDIR):
        sandbox.rename("hollow", "file")


def test_a_directory_does_not_move_into_itself(sandbox: Sandbox) -> None:
    with fails_with(errno.EINVAL):
        sandbox.rename("dir", "dir/deep/dir")
    with fails_with(errno.EINVAL):
        sandbox.rename("dir", "dir/deep", RENAME_EXCHANGE)
    with fails_with(errno.ENOTEMPTY):
        sandbox.rename("dir/deep", "dir")


def test_what_is_not_there_cannot_be_renamed(sandbox: Sandbox) -> None:
    with fails_with(errno.ENOENT):
        sandbox.rename("missing", "other")
    with fails_with(errno.ENOENT):
        sandbox.rename("file", "missing/name")


@pytest.mark.parametrize("name", ["link", "dangling", "fifo", "dirlink"])
def test_what_is_no_file_moves_as_it_is(sandbox: Sandbox, name: str) -> None:
    before = sandbox.lstat(name)
    sandbox.rename(name, "hollow/moved")
    after = sandbox.lstat("hollow/moved")
    assert (after.st_mode, after.st_ino, after.st_mtime_ns) == (
        before.st_mode,
        before.st_ino,
        before.st_mtime_ns,
    )
    assert not sandbox.exists(name)


def test_a_renamed_file_can_be_written_through_a_descriptor_opened_before(sandbox: Sandbox) -> None:
    with sandbox.open("dir/one", os.O_RDWR) as file:
        sandbox.rename("dir/one", "dir/uno")
        sandbox.rename("dir", "moved")
        file.pwrite(b"changed", 0)
    assert sandbox.read("moved/uno") == b"changed"


def test_saving_as_editors_do_replaces_the_file_at_once(sandbox: Sandbox) -> None:
    sandbox.create("file.tmp", b"new content\n", 0o644)
    sandbox.rename("file.tmp", "file")
    assert sandbox.read("file") == b"new content\n"
    sandbox.rename("other", "other~")
    sandbox.create("other", b"again\n")
    sandbox.unlink("other~")
    assert sandbox.read("other") == b"again\n"
    assert not sandbox.exists("other~")
