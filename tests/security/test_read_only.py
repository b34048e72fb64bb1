"""Can what is read-only be changed, and what is denied be read or run?"""

import errno
import mmap
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.claims import fails_with, upper_names
from tests.support.guarded import MakeArea
from tests.support.syscalls import RENAME_EXCHANGE, renameat2
from tests.support.tree import File, Symlink

SCRIPT = "#!/bin/sh\necho it ran\n"


@pytest.mark.parametrize("name", ["fixed", "fixed-dir", "fixed-dir/x", "fixed-link"])
def test_attributes_of_what_is_read_only_cannot_be_changed(area: MakeArea, name: str) -> None:
    made = area(
        {
            "fixed": File("f\n", xattrs={"user.one": b"1"}),
            "fixed-dir/x": File("x\n", xattrs={"user.one": b"1"}),
            "fixed-link": Symlink("fixed"),
        }
    )
    path = made.view / name
    attempts: list[Callable[[], object]] = [
        lambda: os.chmod(path, 0o777),
        lambda: os.chown(path, os.getuid(), os.getgid(), follow_symlinks=False),
        lambda: os.utime(path, follow_symlinks=False),
        lambda: os.utime(path, ns=(1, 1), follow_symlinks=False),
        lambda: os.setxattr(path, "user.two", b"2"),
        lambda: os.removexattr(path, "user.one"),
    ]
    for attempt in attempts:
        # A symlink's own rule and its target's are the same here: both are read-only.
        with pytest.raises(OSError) as caught:
            attempt()
        assert caught.value.errno in (errno.EROFS, errno.ENODATA)
    assert upper_names(made.upper) == []


def test_content_of_what_is_read_only_cannot_be_changed(area: MakeArea) -> None:
    made = area({"fixed": "text\n", "free": "f\n"})
    path = made.view / "fixed"
    for flags in (
        os.O_WRONLY,
        os.O_RDWR,
        os.O_RDONLY | os.O_TRUNC,
        os.O_WRONLY | os.O_APPEND,
        os.O_RDWR | os.O_CREAT,
    ):
        with fails_with(errno.EROFS):
            os.open(path, flags)
    with fails_with(errno.EROFS):
        os.truncate(path, 0)
    with fails_with(errno.EROFS):
        os.rename(made.view / "free", path)
    with fails_with(errno.EROFS):
        os.rename(path, made.view / "elsewhere")
    with fails_with(errno.EROFS):
        os.unlink(path)
    with fails_with(errno.EROFS):
        renameat2(os.fsencode(path), os.fsencode(made.view / "free"), RENAME_EXCHANGE)
    assert path.read_text() == "text\n"
    assert upper_names(made.upper) == []


def test_a_descriptor_opened_for_reading_does_not_change_what_is_read_only(area: MakeArea) -> None:
    made = area({"fixed": "text\n"})
    fd = os.open(made.view / "fixed", os.O_RDONLY)
    try:
        for attempt in (
            lambda: os.fchmod(fd, 0o777),
            lambda: os.fchown(fd, os.getuid(), os.getgid()),
            lambda: os.utime(fd),
            lambda: os.setxattr(fd, "user.x", b"x"),
            lambda: os.open(f"/proc/self/fd/{fd}", os.O_RDWR),
            lambda: os.truncate(f"/proc/self/fd/{fd}", 0),
        ):
            with fails_with(errno.EROFS):
                attempt()
        with fails_with(errno.EACCES):
            mmap.mmap(fd, 0, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE)
    finally:
        os.close(fd)
    assert upper_names(made.upper) == []


def test_a_directory_that_is_read_only_takes_and_loses_no_names(area: MakeArea) -> None:
    made = area({"fixed-dir/x": "x\n", "fixed-dir/sub/y": "y\n", "free": "f\n"})
    inside = made.view / "fixed-dir"
    for attempt in (
        lambda: (inside / "new").write_text("n"),
        lambda: os.mkdir(inside / "new"),
        lambda: os.unlink(inside / "x"),
        lambda: os.rmdir(inside / "sub"),
        lambda: os.rename(inside / "x", inside / "z"),
        lambda: os.rename(made.view / "free", inside / "free"),
        lambda: os.rename(inside / "sub", made.view / "sub"),
        lambda: os.link(made.view / "free", inside / "free"),
        lambda: os.link(inside / "x", made.view / "x"),
        lambda: os.symlink("x", inside / "link"),
    ):
        with fails_with(errno.EROFS):
            attempt()
    assert upper_names(made.upper) == []


def test_what_is_denied_is_listed_and_gives_nothing_away(area: MakeArea) -> None:
    made = area({"denied": File("d\n", xattrs={"user.one": b"1"}), "denied-dir/x": "x\n", "free": "f\n"})
    assert sorted(os.listdir(made.view)) == ["denied", "denied-dir", "free"]
    path = made.view / "denied"
    for attempt in (
        lambda: os.stat(path),
        lambda: os.open(path, os.O_RDONLY),
        lambda: os.open(path, os.O_WRONLY | os.O_TRUNC),
        lambda: os.open(path, os.O_PATH),
        lambda: os.getxattr(path, "user.one"),
        lambda: os.listxattr(path),
        lambda: os.chmod(path, 0o777),
        lambda: os.unlink(path),
        lambda: os.rename(path, made.view / "x"),
        lambda: os.rename(made.view / "free", path),
        lambda: os.link(path, made.view / "x"),
        lambda: os.listdir(made.view / "denied-dir"),
        lambda: os.open(made.view / "denied-dir" / "x", os.O_RDONLY),
        lambda: (made.view / "denied-dir" / "new").write_text("n"),
        lambda: os.rmdir(made.view / "denied-dir"),
    ):
        with fails_with(errno.EACCES):
            attempt()
    assert upper_names(made.upper) == []


def test_a_listing_with_attributes_does_not_tell_those_of_what_is_denied(area: MakeArea) -> None:
    made = area({"denied": File("d" * 4321, mode=0o640), "free": "f\n"})
    for _ in range(2):
        # The kernel may have got attributes along with the names.
        os.listdir(made.view)
        with fails_with(errno.EACCES):
            os.stat(made.view / "denied")
    for entry in os.scandir(made.view):
        if entry.name == "denied":
            with fails_with(errno.EACCES):
                entry.stat()


def test_a_denied_program_cannot_be_run(area: MakeArea) -> None:
    made = area({"denied-program": File(SCRIPT, mode=0o755)})
    with fails_with(errno.EACCES):
        subprocess.run([made.view / "denied-program"], check=False)


def test_a_hidden_program_cannot_be_run(area: MakeArea) -> None:
    made = area({"hidden-program": File(SCRIPT, mode=0o755)})
    with fails_with(errno.ENOENT):
        subprocess.run([made.view / "hidden-program"], check=False)


def test_a_program_that_is_read_only_can_be_run(area: MakeArea) -> None:
    made = area({"fixed-program": File(SCRIPT, mode=0o755)})
    assert subprocess.check_output([made.view / "fixed-program"], text=True) == "it ran\n"


def test_a_binary_that_is_read_only_can_be_run_and_a_denied_one_cannot(area: MakeArea) -> None:
    binary = Path("/bin/true").read_bytes()
    made = area({"fixed-true": File(binary, mode=0o755), "denied-true": File(binary, mode=0o755)})
    subprocess.run([made.view / "fixed-true"], check=True)
    with fails_with(errno.EACCES):
        subprocess.run([made.view / "denied-true"], check=False)
    loader = next(iter(sorted(Path("/lib64").glob("ld-linux*.so*"))), None)
    if loader is not None:
        # The dynamic loader only reads the program; that must be refused as well.
        assert subprocess.run(
            [loader, made.view / "denied-true"], capture_output=True, check=False
        ).returncode
