"""A file that lost its name, reached as only the kernel can: by O_PATH, through maps, by another process.

That the workspace's own file is untouched, the fixture proves when the test ends.
"""

import errno
import mmap
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.claims import fails_with
from tests.support.mounted import Area, companion, says, tell
from tests.support.tree import Tree

TREE: Tree = {"file": "lower text\n"}
MakeArea = Callable[[Tree], Area]


@contextmanager
def opened(path: Path | str, flags: int) -> Iterator[int]:
    fd = os.open(path, flags)
    try:
        yield fd
    finally:
        os.close(fd)


def again(fd: int) -> str:
    return f"/proc/self/fd/{fd}"


CHANGES: dict[str, Callable[[str], None]] = {
    "chmod": lambda path: os.chmod(path, 0o600),
    "utime": lambda path: os.utime(path, (1, 1)),
    "chown": lambda path: os.chown(path, os.geteuid(), os.getegid()),
    "setxattr": lambda path: os.setxattr(path, "user.colour", b"red"),
    "truncate": lambda path: os.truncate(path, 3),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_descriptor_that_only_names_the_file_changes_what_another_has_open(
    area: MakeArea, change: str
) -> None:
    place = area(TREE)
    with (
        opened(place.view / "file", os.O_PATH) as named,
        opened(place.view / "file", os.O_RDONLY) as reader,
    ):
        os.unlink(place.view / "file")
        CHANGES[change](again(named))
        assert os.fstat(reader).st_nlink == 0


@pytest.mark.parametrize("change", CHANGES)
def test_a_descriptor_that_only_names_the_file_changes_nothing_that_nobody_has_open(
    area: MakeArea, change: str
) -> None:
    place = area(TREE)
    with opened(place.view / "file", os.O_PATH) as named:
        os.unlink(place.view / "file")
        with fails_with(errno.ESTALE):
            CHANGES[change](again(named))


def test_a_mode_set_by_a_descriptor_that_only_names_the_file_shows_through_the_others(
    area: MakeArea,
) -> None:
    place = area(TREE)
    with (
        opened(place.view / "file", os.O_PATH) as named,
        opened(place.view / "file", os.O_RDONLY) as reader,
    ):
        os.unlink(place.view / "file")
        os.chmod(again(named), 0o600)
        assert os.fstat(reader).st_mode & 0o7777 == 0o600
        assert os.fstat(named).st_mode & 0o7777 == 0o600


def test_what_is_written_to_a_file_without_a_name_shows_in_its_maps(area: MakeArea) -> None:
    place = area(TREE)
    with (
        opened(place.view / "file", os.O_RDONLY) as reader,
        mmap.mmap(reader, 0, prot=mmap.PROT_READ) as seen,
    ):
        assert seen[:5] == b"lower"
        os.unlink(place.view / "file")
        with opened(again(reader), os.O_RDWR) as writer:
            os.pwrite(writer, b"UPPER", 0)
        assert seen[:] == b"UPPER text\n"


def test_a_map_of_a_file_without_a_name_can_be_written(area: MakeArea) -> None:
    place = area(TREE)
    with opened(place.view / "file", os.O_RDONLY) as reader:
        os.unlink(place.view / "file")
        with opened(again(reader), os.O_RDWR) as writer, mmap.mmap(writer, 0) as written:
            written[:5] = b"UPPER"
            written.flush()
        assert os.pread(reader, 100, 0) == b"UPPER text\n"


READ_ON_DEMAND = """
import os, sys
fd = os.open("file", os.O_RDONLY)
print("open", flush=True)
for line in sys.stdin:
    print(os.pread(fd, 100, 0).decode().strip(), oct(os.fstat(fd).st_mode & 0o7777), flush=True)
"""


def test_another_process_that_has_it_open_sees_the_change(area: MakeArea) -> None:
    place = area(TREE)
    with companion(READ_ON_DEMAND, cwd=place.view) as other:
        assert says(other) == "open"
        with opened(place.view / "file", os.O_RDONLY) as reader:
            os.unlink(place.view / "file")
            with opened(again(reader), os.O_RDWR) as writer:
                os.pwrite(writer, b"UPPER", 0)
            os.fchmod(reader, 0o640)
        tell(other, "look")
        assert says(other) == "UPPER text 0o640"
