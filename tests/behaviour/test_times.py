"""Times: kept to the nanosecond by copy-up, and moved when and only when POSIX says so."""

import os
from collections.abc import Callable

import pytest

from tests.support.claims import is_recent
from tests.support.drivers import Sandbox
from tests.support.tree import LONG_AGO

THEN = 1_234_567_890_987_654_321


@pytest.mark.parametrize("name", ["file", "dir", "link", "dangling", "fifo", "hard1", "."])
def test_times_set_on_a_lower_thing_are_kept_to_the_nanosecond(sandbox: Sandbox, name: str) -> None:
    sandbox.utime(name, THEN + 1, THEN)
    for _ in range(2):
        assert sandbox.lstat(name).st_mtime_ns == THEN
        sandbox.remount()


def test_the_access_time_can_be_set(sandbox: Sandbox) -> None:
    sandbox.utime("file", THEN + 1, THEN)
    assert sandbox.lstat("file").st_atime_ns == THEN + 1


def test_times_before_1970_and_after_2038_are_kept(sandbox: Sandbox) -> None:
    for second in (-(10**8), 5 * 10**9):
        sandbox.utime("file", 0, second * 10**9 + 5)
        assert sandbox.lstat("file").st_mtime_ns == second * 10**9 + 5


@pytest.mark.parametrize("name", ["file", "dir", "hard1", "script"])
def test_copy_up_for_a_change_of_mode_keeps_the_modification_time(sandbox: Sandbox, name: str) -> None:
    sandbox.chmod(name, 0o700)
    status = sandbox.stat(name)
    assert status.st_mtime_ns == LONG_AGO
    assert is_recent(status.st_ctime_ns)


def test_opening_for_writing_without_writing_keeps_the_modification_time(sandbox: Sandbox) -> None:
    with sandbox.open("file", os.O_RDWR):
        pass
    assert sandbox.stat("file").st_mtime_ns == LONG_AGO


@pytest.mark.parametrize(
    "change",
    [
        lambda sandbox: sandbox.append("file", b"x"),
        lambda sandbox: sandbox.truncate("file", 3),
        lambda sandbox: sandbox.write("file", b"anew"),
    ],
    ids=["append", "truncate", "rewrite"],
)
def test_changing_content_moves_the_times(sandbox: Sandbox, change: Callable[[Sandbox], None]) -> None:
    change(sandbox)
    status = sandbox.stat("file")
    assert is_recent(status.st_mtime_ns)
    assert is_recent(status.st_ctime_ns)


# Each entry changes the names in "dir" and in no other directory.
NAME_CHANGES: dict[str, Callable[[Sandbox], None]] = {
    "create": lambda sandbox: sandbox.create("dir/new"),
    "mkdir": lambda sandbox: sandbox.mkdir("dir/new"),
    "symlink": lambda sandbox: sandbox.symlink("x", "dir/new"),
    "mkfifo": lambda sandbox: sandbox.mkfifo("dir/new"),
    "link": lambda sandbox: sandbox.link("file", "dir/new"),
    "unlink": lambda sandbox: sandbox.unlink("dir/one"),
    "rename within": lambda sandbox: sandbox.rename("dir/one", "dir/uno"),
    "rename a directory within": lambda sandbox: sandbox.rename("dir/deep", "dir/shallow"),
}


@pytest.mark.parametrize("change", NAME_CHANGES.values(), ids=NAME_CHANGES.keys())
def test_changing_names_moves_the_times_of_their_directory_only(
    sandbox: Sandbox, change: Callable[[Sandbox], None]
) -> None:
    change(sandbox)
    assert is_recent(sandbox.stat("dir").st_mtime_ns)
    assert is_recent(sandbox.stat("dir").st_ctime_ns)
    assert sandbox.stat(".").st_mtime_ns == LONG_AGO
    sandbox.remount()
    assert is_recent(sandbox.stat("dir").st_mtime_ns)
    assert sandbox.stat(".").st_mtime_ns == LONG_AGO


def test_changing_a_file_leaves_the_times_of_its_directory(sandbox: Sandbox) -> None:
    sandbox.append("dir/one", b"x")
    sandbox.chmod("dir/two", 0o600)
    sandbox.append("dir/deep/er/bottom", b"x")
    for name in ("dir", "dir/deep", "dir/deep/er", "."):
        assert sandbox.stat(name).st_mtime_ns == LONG_AGO


def test_renaming_across_directories_moves_the_times_of_both(sandbox: Sandbox) -> None:
    sandbox.rename("dir/one", "hollow/one")
    for name in ("dir", "hollow"):
        assert is_recent(sandbox.stat(name).st_mtime_ns)
    assert sandbox.stat("hollow/one").st_mtime_ns == LONG_AGO
    assert is_recent(sandbox.stat("hollow/one").st_ctime_ns)


def test_a_renamed_directory_keeps_its_own_modification_time(sandbox: Sandbox) -> None:
    sandbox.rename("dir", "moved")
    assert sandbox.stat("moved").st_mtime_ns == LONG_AGO


def test_removing_a_hard_link_moves_the_change_time_of_the_file(sandbox: Sandbox) -> None:
    sandbox.append("hard1", b"x")
    before = sandbox.stat("hard2").st_ctime_ns
    sandbox.unlink("hard1")
    assert sandbox.stat("hard2").st_ctime_ns >= before


def test_writing_through_an_open_file_after_its_times_were_set_moves_them_again(sandbox: Sandbox) -> None:
    with sandbox.open("file", os.O_RDWR) as file:
        sandbox.utime("file", THEN, THEN)
        assert file.stat().st_mtime_ns == THEN
        file.pwrite(b"x", 0)
        file.fsync()
        assert is_recent(file.stat().st_mtime_ns)


def test_times_set_after_writing_stay_when_the_file_is_closed(sandbox: Sandbox) -> None:
    """tar and rsync do this."""
    with sandbox.open("new", os.O_RDWR | os.O_CREAT) as file:
        file.pwrite(b"x" * 100_000, 0)
        sandbox.utime("new", THEN, THEN)
    assert sandbox.stat("new").st_mtime_ns == THEN
