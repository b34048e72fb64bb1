"""Does a file keep its inode number, whatever happens to it and to the mount?

Git takes a file whose number or times changed for modified and reads it again; backup tools do likewise.
"""

import os
import stat
from collections.abc import Callable
from pathlib import Path

from tests.mount.conftest import Mount
from tests.support.mount_driver import MountDriver
from tests.support.mounted import Area, run
from tests.support.tree import LONG_AGO, Fifo, HardLink, Sock, Symlink, Tree

MakeArea = Callable[[Tree], Area]

EVERY_KIND: Tree = {
    "file": "text\n",
    "dir/inner": "inner\n",
    "dir/deep/leaf": "leaf\n",
    "link": Symlink("file"),
    "fifo": Fifo(),
    "socket": Sock(),
    "hard1": "shared\n",
    "hard2": HardLink("hard1"),
    "dir/hard3": HardLink("hard1"),
}
LATER = LONG_AGO + 10**9


def numbers(root: Path) -> dict[str, int]:
    """The inode number of every name in the tree."""
    found = {}
    for folder, folders, files in os.walk(root):
        for name in (*folders, *files):
            path = os.path.join(folder, name)
            found[os.path.relpath(path, root)] = os.lstat(path).st_ino
    return found


def touch_all(root: Path) -> None:
    """Copy everything up, by giving it another time."""
    for path in sorted(numbers(root)):
        os.utime(root / path, ns=(LATER, LATER), follow_symlinks=False)


def make_new_ones(root: Path) -> None:
    (root / "new file").write_text("new\n")
    os.link(root / "new file", root / "new hard link")
    (root / "new dir").mkdir()
    (root / "new link").symlink_to("new file")
    os.mkfifo(root / "new fifo")


def test_every_kind_of_file_keeps_its_number_when_it_is_copied_up(area: MakeArea) -> None:
    here = area(EVERY_KIND)
    before = numbers(here.view)
    touch_all(here.view)
    for path in before:
        assert os.lstat(here.view / path).st_mtime_ns == LATER
        assert "hard" in path or os.path.lexists(here.upper / path), f"{path} was not copied up"
    assert numbers(here.view) == before


def test_the_numbers_are_those_of_the_workspace(area: MakeArea) -> None:
    here = area(EVERY_KIND)
    assert numbers(here.view) == numbers(here.lower)


def test_an_open_file_keeps_its_number_when_it_is_copied_up(area: MakeArea) -> None:
    here = area({"file": "text"})
    with open(here.view / "file", "rb") as early, open(here.view / "file", "r+b") as late:
        assert os.fstat(early.fileno()).st_ino == os.fstat(late.fileno()).st_ino
        assert os.fstat(early.fileno()).st_ino == (here.view / "file").stat().st_ino


def test_all_files_of_the_view_are_on_one_device(area: MakeArea) -> None:
    here = area(EVERY_KIND)
    make_new_ones(here.view)
    (here.view / "file").write_text("changed")
    devices = {os.lstat(here.view / path).st_dev for path in numbers(here.view)}
    assert devices == {here.view.stat().st_dev}


def test_renaming_keeps_the_numbers_of_everything_below(area: MakeArea) -> None:
    here = area(EVERY_KIND)
    before = numbers(here.view / "dir") | {"": (here.view / "dir").stat().st_ino}
    (here.view / "dir").rename(here.view / "moved")
    assert numbers(here.view / "moved") | {"": (here.view / "moved").stat().st_ino} == before


def test_different_files_have_different_numbers(area: MakeArea) -> None:
    here = area({f"{number}": "" for number in range(50)})
    for number in range(0, 50, 2):
        (here.view / f"{number}").write_text("changed")
        (here.view / f"new{number}").write_text("new")
    # What is gone must not be mistaken for what took its number on the host.
    for number in range(0, 50, 4):
        (here.view / f"new{number}").unlink()
        (here.view / f"newer{number}").write_text("newer")
    found = numbers(here.view)
    assert len(set(found.values())) == len(found)


def test_the_names_of_one_file_share_its_number_after_copy_up(area: MakeArea) -> None:
    here = area(EVERY_KIND)
    names = [here.view / name for name in ("hard1", "hard2", "dir/hard3")]
    names[1].write_text("changed\n")
    assert len({name.stat().st_ino for name in names}) == 1
    assert [name.read_text() for name in names] == ["changed\n"] * 3
    assert [name.stat().st_nlink for name in names] == [3] * 3


def test_an_open_file_without_a_name_shares_its_number_with_no_new_file(area: MakeArea) -> None:
    here = area({})
    (here.view / "old").write_text("old")
    with open(here.view / "old", "rb") as old:
        taken = os.fstat(old.fileno()).st_ino
        (here.view / "old").unlink()
        for number in range(50):
            (here.view / f"{number}").write_text("new")
        assert taken not in numbers(here.view).values()
        assert old.read() == b"old"


def test_numbers_stay_when_the_kernel_forgets(mount: Mount) -> None:
    sandbox = mount(EVERY_KIND)
    make_new_ones(sandbox.root)
    (sandbox.root / "dir").rename(sandbox.root / "moved")
    before, device = numbers(sandbox.root), sandbox.root.stat().st_dev
    sandbox.forget()
    assert numbers(sandbox.root) == before
    touch_all(sandbox.root)
    sandbox.forget()
    assert numbers(sandbox.root) == before
    assert {os.lstat(sandbox.root / path).st_dev for path in before} == {device}


def test_numbers_stay_across_mounts(mount: Mount) -> None:
    sandbox = mount(EVERY_KIND)
    make_new_ones(sandbox.root)
    before = numbers(sandbox.root)
    sandbox.remount()
    assert numbers(sandbox.root) == before
    touch_all(sandbox.root)
    assert numbers(sandbox.root) == before
    sandbox.remount()
    assert numbers(sandbox.root) == before
    (sandbox.root / "hard2").write_text("changed through one name\n")
    assert (sandbox.root / "dir/hard3").read_text() == "changed through one name\n"


def test_times_and_owners_stay_across_mounts(mount: Mount) -> None:
    sandbox = mount(EVERY_KIND)
    touch_all(sandbox.root)
    make_new_ones(sandbox.root)
    before = {path: seen(sandbox.root / path) for path in numbers(sandbox.root)}
    sandbox.remount()
    assert {path: seen(sandbox.root / path) for path in before} == before


def seen(path: Path) -> tuple[int, ...]:
    status = os.lstat(path)
    nlink = 0 if stat.S_ISDIR(status.st_mode) else status.st_nlink
    return (status.st_mode, nlink, status.st_uid, status.st_gid, status.st_mtime_ns, status.st_ctime_ns)


# Git and the numbers


def git(where: Path, *arguments: str) -> str:
    # What the tests want git to be picky about: the inode number, the ctime and the whole of the times.
    picky = ("-c", "core.checkStat=default", "-c", "core.trustctime=true", "-c", "core.fsmonitor=false")
    identity = ("-c", "user.name=Test", "-c", "user.email=test@example.org", "-c", "gc.auto=0")
    return run("git", *picky, *identity, *arguments, cwd=where)


def make_repository(sandbox: MountDriver) -> None:
    git(sandbox.lower, "init", "-q", "-b", "main")
    git(sandbox.lower, "add", "-A")
    git(sandbox.lower, "commit", "-q", "-m", "first")
    sandbox.host_changed()


def old_enough_for_git(path: Path) -> None:
    """Make a file older than the index, or git reads it again in any case: it may have changed since."""
    os.utime(path, ns=(LONG_AGO, LONG_AGO), follow_symlinks=False)


def check_git_sees_no_difference(root: Path) -> None:
    # Plumbing that does not refresh the index: it names every file whose status is not what the index says,
    # before a byte of it is read.
    assert git(root, "diff-files") == ""
    index = (root / ".git/index").read_bytes()
    assert git(root, "status", "--porcelain") == ""
    assert git(root, "update-index", "--refresh") == ""
    assert (root / ".git/index").read_bytes() == index, "git had to write what it found into its index"


def test_git_reads_nothing_again_on_the_second_mount(mount: Mount) -> None:
    sandbox = mount({f"src/{number}.py": f"{number}\n" for number in range(40)})
    make_repository(sandbox)
    check_git_sees_no_difference(sandbox.root)
    for number in range(0, 40, 3):
        path = sandbox.root / f"src/{number}.py"
        path.write_text(f"changed {number}\n")
        old_enough_for_git(path)
    (sandbox.root / "src/new.py").write_text("new\n")
    old_enough_for_git(sandbox.root / "src/new.py")
    (sandbox.root / "src").rename(sandbox.root / "lib")
    git(sandbox.root, "add", "-A")
    git(sandbox.root, "commit", "-q", "-m", "second")
    check_git_sees_no_difference(sandbox.root)
    sandbox.remount()
    check_git_sees_no_difference(sandbox.root)
    sandbox.remount()
    check_git_sees_no_difference(sandbox.root)
