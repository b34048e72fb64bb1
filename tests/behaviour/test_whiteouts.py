"""Whiteouts: there where the lower has a name that the view has not, and nowhere else."""

import errno
import os
import stat

import pytest

from tests.conftest import MakeSandbox
from tests.support.claims import fails_with, is_opaque, is_whiteout, upper_names
from tests.support.conditions import require_root
from tests.support.drivers import Sandbox


@pytest.mark.parametrize("name", ["file", "link", "dangling", "fifo", "hard1", "dir/one"])
def test_unlinking_a_lower_name_leaves_a_whiteout(sandbox: Sandbox, name: str) -> None:
    sandbox.unlink(name)
    for _ in range(2):
        assert not sandbox.exists(name)
        assert is_whiteout(sandbox.upper / name)
        sandbox.remount()


@pytest.mark.parametrize("name", ["file", "hard1", "dir/one"])
def test_unlinking_a_copied_up_name_leaves_a_whiteout(sandbox: Sandbox, name: str) -> None:
    sandbox.append(name, b"x")
    sandbox.unlink(name)
    assert is_whiteout(sandbox.upper / name)
    sandbox.remount()
    assert not sandbox.exists(name)


def test_unlinking_a_new_name_leaves_nothing(sandbox: Sandbox) -> None:
    sandbox.create("new")
    sandbox.mkdir("newdir")
    sandbox.create("newdir/inner")
    sandbox.unlink("newdir/inner")
    sandbox.rmdir("newdir")
    sandbox.unlink("new")
    assert upper_names(sandbox.upper) == []


def test_making_a_name_again_takes_its_whiteout_away(sandbox: Sandbox) -> None:
    for name in ("file", "other", "link"):
        sandbox.unlink(name)
    sandbox.create("file", b"again")
    sandbox.symlink("x", "other")
    sandbox.mkdir("link")
    sandbox.remount()
    assert sandbox.read("file") == b"again"
    assert sandbox.readlink("other") == b"x"
    assert sandbox.names("link") == []
    assert not any(is_whiteout(sandbox.upper / name) for name in ("file", "other", "link"))


def test_nothing_is_whited_out_inside_a_directory_made_again(sandbox: Sandbox) -> None:
    sandbox.remove_tree("dir")
    sandbox.mkdir("dir")
    sandbox.create("dir/one")
    sandbox.unlink("dir/one")
    assert is_opaque(sandbox.upper / "dir")
    assert upper_names(sandbox.upper) == ["dir"]


def test_a_whiteout_that_hides_nothing_is_in_nobodys_way(sandbox: Sandbox) -> None:
    require_root()
    sandbox.mkdir("made")
    sandbox.remount()
    for name in ("file", "link", "dir"):
        os.mknod(sandbox.upper / "made" / name, stat.S_IFCHR, 0)
    sandbox.create("made/file", b"new")
    sandbox.symlink("x", "made/link")
    sandbox.mkdir("made/dir")
    assert sandbox.read("made/file") == b"new"
    assert sandbox.readlink("made/link") == b"x"
    assert sandbox.names("made/dir") == []
    for name in ("file", "link", "dir"):
        with fails_with(errno.EEXIST):
            sandbox.mkdir(f"made/{name}")


def test_removing_a_directory_takes_the_whiteouts_in_it_away(sandbox: Sandbox) -> None:
    sandbox.remove_tree("dir")
    assert upper_names(sandbox.upper) == ["dir"]
    assert is_whiteout(sandbox.upper / "dir")


def test_renaming_over_a_whiteout_takes_it_away(sandbox: Sandbox) -> None:
    sandbox.unlink("other")
    sandbox.create("new", b"n")
    sandbox.rename("new", "other")
    assert upper_names(sandbox.upper) == ["other"]
    assert sandbox.read("other") == b"n"


def test_a_device_that_would_be_a_whiteout_cannot_be_made_to_hide_a_name(sandbox: Sandbox) -> None:
    require_root()
    sandbox.rename("dir/one", "dir/uno")
    try:
        sandbox.mknod("dir/fake", stat.S_IFCHR | 0o600, os.makedev(0, 0))
    except OSError:
        assert not sandbox.exists("dir/fake")
    else:
        assert sandbox.exists("dir/fake")


def test_lower_names_like_those_of_other_unions_are_ordinary(make_sandbox: MakeSandbox) -> None:
    sandbox = make_sandbox({".wh.file": "w", "file": "f", ".wh..wh..opq": "o"})
    assert sorted(sandbox.names()) == [b".wh..wh..opq", b".wh.file", b"file"]
    sandbox.create(".wh.new", b"n")
    assert sandbox.read(".wh.new") == b"n"
    assert sandbox.read(".wh.file") == b"w"


def test_removing_many_lower_files_copies_none_of_them(make_sandbox: MakeSandbox) -> None:
    sandbox = make_sandbox({f"d/f{number}": "x" * 1000 for number in range(300)})
    sandbox.remove_tree("d")
    assert upper_names(sandbox.upper) == ["d"]
    assert len(list((sandbox.lower / "d").iterdir())) == 300
