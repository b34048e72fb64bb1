"""Extended attributes: all of the user's, none of the layers'."""

import errno
import os

import pytest

from tests.support.claims import fails_with
from tests.support.drivers import Sandbox


def test_the_attributes_of_a_lower_file_are_seen(sandbox: Sandbox) -> None:
    assert sorted(sandbox.listxattr("tagged")) == ["user.colour", "user.shape"]
    assert sandbox.getxattr("tagged", "user.colour") == b"red"


def test_copy_up_keeps_the_attributes(sandbox: Sandbox) -> None:
    sandbox.append("tagged", b"more")
    assert sorted(sandbox.listxattr("tagged")) == ["user.colour", "user.shape"]
    assert sandbox.getxattr("tagged", "user.shape") == b"round"


@pytest.mark.parametrize("name", ["file", "tagged", "dir", "hollow", "hard1", "."])
def test_setting_an_attribute_of_a_lower_thing_changes_the_view_only(sandbox: Sandbox, name: str) -> None:
    sandbox.setxattr(name, "user.new", b"value\0with nul")
    for _ in range(2):
        assert sandbox.getxattr(name, "user.new") == b"value\0with nul"
        assert "user.new" in sandbox.listxattr(name)
        sandbox.remount()


def test_an_attribute_is_replaced_and_removed(sandbox: Sandbox) -> None:
    sandbox.setxattr("tagged", "user.colour", b"blue")
    assert sandbox.getxattr("tagged", "user.colour") == b"blue"
    sandbox.removexattr("tagged", "user.colour")
    for _ in range(2):
        assert sandbox.listxattr("tagged") == ["user.shape"]
        with fails_with(errno.ENODATA):
            sandbox.getxattr("tagged", "user.colour")
        sandbox.remount()


def test_an_attribute_that_is_not_there_is_said_to_be_missing(sandbox: Sandbox) -> None:
    with fails_with(errno.ENODATA):
        sandbox.getxattr("file", "user.none")
    with fails_with(errno.ENODATA):
        sandbox.removexattr("file", "user.none")


def test_the_create_and_replace_flags_are_obeyed(sandbox: Sandbox) -> None:
    with fails_with(errno.EEXIST):
        sandbox.setxattr("tagged", "user.colour", b"x", os.XATTR_CREATE)
    with fails_with(errno.ENODATA):
        sandbox.setxattr("tagged", "user.none", b"x", os.XATTR_REPLACE)
    assert sandbox.getxattr("tagged", "user.colour") == b"red"


@pytest.mark.parametrize("size", [0, 1, 256, 2000])
def test_values_of_many_sizes_come_back_whole(sandbox: Sandbox, size: int) -> None:
    value = os.urandom(size)
    sandbox.setxattr("file", "user.blob", value)
    assert sandbox.getxattr("file", "user.blob") == value


def test_a_name_may_have_as_many_attributes_as_fit(sandbox: Sandbox) -> None:
    names = [f"user.number{number}" for number in range(40)]
    for name in names:
        sandbox.setxattr("file", name, b"v")
    assert sorted(sandbox.listxattr("file")) == sorted(names)


def test_the_marks_of_the_layers_are_not_seen(sandbox: Sandbox) -> None:
    sandbox.append("file", b"copied up")
    sandbox.append("hard1", b"copied up")
    sandbox.rename("dir", "moved")
    sandbox.rmdir("hollow")
    sandbox.mkdir("hollow")
    for name in ("file", "hard1", "moved", "hollow", "."):
        assert sandbox.listxattr(name) == []
        for mark in ("opaque", "redirect", "sandboxfs", "origin", "whiteout"):
            with pytest.raises(OSError):
                sandbox.getxattr(name, f"user.overlay.{mark}")


@pytest.mark.parametrize("mark", ["opaque", "redirect", "whiteout"])
def test_the_marks_of_the_layers_cannot_be_forged(sandbox: Sandbox, mark: str) -> None:
    """Whether refused or kept apart, a mark set in the view must not act on the view."""
    sandbox.create("new")
    for name in ("dir", "new"):
        try:
            sandbox.setxattr(name, f"user.overlay.{mark}", b"y")
        except OSError:
            pass
    sandbox.remount()
    assert sorted(sandbox.names("dir")) == [b"deep", b"hard3", b"one", b"two"]
    assert sandbox.exists("new")


@pytest.mark.parametrize("name", ["link", "dangling", "fifo"])
def test_what_is_neither_file_nor_directory_takes_no_user_attribute(sandbox: Sandbox, name: str) -> None:
    with fails_with(errno.EPERM):
        sandbox.setxattr(name, "user.x", b"1")
    assert sandbox.listxattr(name) == []
