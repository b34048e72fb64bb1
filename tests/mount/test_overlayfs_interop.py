"""Do kernel overlayfs and sandboxfs show the same tree for the same layers?

Types, modes, contents, times, extended attributes and link targets are compared. Not compared are owners
(those of a user namespace), change times and link counts. Redirects and hard links of the workspace are
sandboxfs' own.
"""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.mount.conftest import Mount
from tests.support.kernel_overlay import require_kernel_overlay, seen_by_the_kernel
from tests.support.mount_driver import MountDriver
from tests.support.mounted import run
from tests.support.tree import Directory, Fifo, File, Symlink, Tree, assert_same_tree, capture

NOT_COMPARED = frozenset({"uid", "gid", "ctime_ns", "nlink"})

LOWER: Tree = {
    "untouched": "untouched\n",
    "changed": "lower\n",
    "appended": "lower\n",
    "removed": "lower\n",
    "chmodded": File("lower\n", mode=0o644),
    "tagged": File("tagged\n", xattrs={"user.colour": b"red", "user.shape": b"round"}),
    "retagged": File("tagged\n", xattrs={"user.colour": b"red"}),
    "renamed": "renamed\n",
    "link": Symlink("untouched"),
    "removed link": Symlink("untouched"),
    "replaced link": Symlink("untouched"),
    "fifo": Fifo(),
    "becomes a directory": "lower\n",
    "becomes a file/inner": "lower\n",
    "dir/one": "1\n",
    "dir/two": "2\n",
    "dir/deep/leaf": "leaf\n",
    "emptied/one": "1\n",
    "emptied/deep/two": "2\n",
    "removed dir/one": "1\n",
    "made again/old": "old\n",
    "made again/deep/old": "old\n",
    "private/": Directory(mode=0o700),
    b"odd \xff\n name": "odd\n",
    b"removed \xff": "odd\n",
}

# The same work for both: everything but renaming lower directories.
WORK = r"""
echo changed > changed
echo more >> appended
rm removed 'removed link'
chmod 600 chmodded
chmod 711 private
mv renamed 'new name'
ln -sfn dir 'replaced link'
rm 'becomes a directory' && mkdir 'becomes a directory' && echo new > 'becomes a directory/inside'
rm -r 'becomes a file' && echo new > 'becomes a file'
rm dir/one && echo new > dir/three && echo changed > dir/deep/leaf
rm -r emptied/one emptied/deep
rm -r 'removed dir'
rm -r 'made again' && mkdir 'made again' && echo new > 'made again/new'
mkdir -p 'new dir/deep' && echo new > 'new dir/deep/file' && ln 'new dir/deep/file' 'new dir/hard'
mv 'new dir' 'moved new dir'
ln -s anywhere 'new link'
mkfifo 'new fifo'
rm "$(printf 'removed \377')"
touch -d '2001-02-03 04:05:06.123456789' chmodded dir 'new link'
"""


@pytest.fixture
def sandbox(mount: Mount, tmp_path: Path) -> MountDriver:
    require_kernel_overlay(tmp_path)
    return mount(LOWER)


def tag(view: Path) -> None:
    os.setxattr(view / "retagged", "user.colour", b"blue")
    os.setxattr(view / "retagged", "user.new", b"\0\xff" * 100)
    os.removexattr(view / "tagged", "user.shape")
    os.setxattr(view / "dir", "user.kind", b"directory")


def test_the_kernel_shows_what_sandboxfs_wrote(sandbox: MountDriver, tmp_path: Path) -> None:
    run("sh", "-e", "-c", WORK, cwd=sandbox.root)
    tag(sandbox.root)
    view = capture(sandbox.root)
    sandbox.stop()
    kernel = seen_by_the_kernel(sandbox.lower, sandbox.upper, tmp_path / "scratch")
    assert_same_tree(kernel, view, ignoring=NOT_COMPARED, what="the kernel's view")


def test_sandboxfs_shows_what_the_kernel_wrote(sandbox: MountDriver, tmp_path: Path) -> None:
    sandbox.stop()
    kernel = seen_by_the_kernel(sandbox.lower, sandbox.upper, tmp_path / "scratch", WORK)
    sandbox.start()
    assert_same_tree(capture(sandbox.root), kernel, ignoring=NOT_COMPARED, what="the view")


def test_both_may_write_in_turn(sandbox: MountDriver, tmp_path: Path) -> None:
    turns: list[Callable[[Path], object]] = [
        lambda root: run("sh", "-e", "-c", WORK, cwd=root),
        lambda root: run("sh", "-e", "-c", "rm -r dir && mkdir dir && echo 5 > dir/five", cwd=root),
    ]
    by_the_kernel = [
        "rm changed && echo kernel > removed && rm -r 'made again' && echo kernel > 'new dir'",
        "echo 6 > dir/six && rm dir/five && rm -rf emptied && mkdir emptied",
    ]
    for number, (turn, script) in enumerate(zip(turns, by_the_kernel, strict=True)):
        turn(sandbox.root)
        sandbox.stop()
        kernel = seen_by_the_kernel(sandbox.lower, sandbox.upper, tmp_path / f"scratch{number}", script)
        sandbox.start()
        assert_same_tree(capture(sandbox.root), kernel, ignoring=NOT_COMPARED, what="the view")


def numbers(sandbox: MountDriver) -> dict[bytes, int]:
    return {path: sandbox.lstat(path).st_ino for path in capture(sandbox.root)}


def test_what_the_kernel_wrote_can_be_changed_and_mounted_again(sandbox: MountDriver, tmp_path: Path) -> None:
    sandbox.stop()
    seen_by_the_kernel(sandbox.lower, sandbox.upper, tmp_path / "scratch", WORK)
    sandbox.start()
    before = numbers(sandbox)
    sandbox.remount()
    after = numbers(sandbox)
    assert after == before
    (sandbox.root / "dir").rename(sandbox.root / "moved")
    assert sorted(os.listdir(sandbox.root / "moved")) == ["deep", "three", "two"]
    (sandbox.root / "removed").write_text("back")
    (sandbox.root / "made again/old").write_text("back")
    assert sorted(os.listdir(sandbox.root / "made again")) == ["new", "old"]
