"""What a filesystem can do is found out by doing it, and nothing is left behind."""

import os
import stat
from pathlib import Path

import pytest

from sandboxfs.hostfs import probe


@pytest.mark.parametrize("check", [probe.user_xattrs, probe.device_whiteouts, probe.reflinks])
def test_a_probe_leaves_nothing_behind(tmp_path: Path, check: object) -> None:
    assert callable(check)
    assert check(tmp_path) in (True, False)
    assert list(tmp_path.iterdir()) == []


def test_extended_attributes_are_found_where_they_can_be_set(tmp_path: Path) -> None:
    try:
        os.setxattr(tmp_path, "user.colour", b"red")
    except OSError:
        assert not probe.user_xattrs(tmp_path)
    else:
        assert probe.user_xattrs(tmp_path)


def test_device_whiteouts_are_found_where_they_can_be_made(tmp_path: Path) -> None:
    try:
        os.mknod(tmp_path / "whiteout", stat.S_IFCHR, 0)
    except OSError:
        assert not probe.device_whiteouts(tmp_path)
    else:
        assert probe.device_whiteouts(tmp_path)


def test_a_directory_that_can_be_written_is_writable_and_a_missing_one_is_not(tmp_path: Path) -> None:
    assert probe.writable(tmp_path)
    assert not probe.writable(tmp_path / "nowhere")


def test_the_pseudo_filesystem_of_the_kernel_is_not_writable() -> None:
    assert not probe.writable(Path("/proc"))
