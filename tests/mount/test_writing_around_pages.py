"""Is a file that somebody only writes, around the kernel's pages, the same for all who read and map it?"""

import mmap
import os
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from sandboxfs.fuse.protocol import drops_what_is_written_over
from tests.mount.conftest import Mount
from tests.support.mounted import Area, companion, says, tell
from tests.support.tree import Tree

pytestmark = pytest.mark.any_user

MakeArea = Callable[[Tree], Area]
PAGE = mmap.PAGESIZE
SIZE = 5 * PAGE


@pytest.mark.skipif(
    not drops_what_is_written_over(), reason="this kernel is not told to write around its pages"
)
def test_nobody_is_asked_for_capabilities_before_the_first_write(mount: Mount, order: Path) -> None:
    sandbox = mount({})
    order.write_text("getxattr")
    fd = os.open(sandbox.root / "new", os.O_WRONLY | os.O_CREAT)
    assert os.write(fd, b"written") == 7
    os.close(fd)
    order.write_text("")
    assert (sandbox.root / "new").read_text() == "written"


@pytest.mark.parametrize("origin", ["lower", "upper"])
@pytest.mark.parametrize("seed", range(4))
def test_readers_and_maps_see_what_is_written_around_them(area: MakeArea, origin: str, seed: int) -> None:
    chosen = random.Random(seed)
    held = bytearray(chosen.randbytes(SIZE))
    here = area({"file": bytes(held)} if origin == "lower" else {})
    path = here.view / "file"
    if origin == "upper":
        path.write_bytes(held)
    reader = os.open(path, os.O_RDONLY)
    writer = os.open(path, os.O_WRONLY)
    both = os.open(path, os.O_RDWR)
    with mmap.mmap(both, SIZE) as shared, mmap.mmap(reader, SIZE, prot=mmap.PROT_READ) as seen:
        for _ in range(150):
            start = chosen.randrange(SIZE)
            data = chosen.randbytes(chosen.choice([1, 100, PAGE, 2 * PAGE]))[: SIZE - start]
            way = chosen.choice(["around", "around", "through", "map"])
            if way == "map":
                # Not written back yet when somebody else writes to the same page.
                shared[start : start + len(data)] = data
            else:
                assert os.pwrite(writer if way == "around" else both, data, start) == len(data)
            held[start : start + len(data)] = data
            assert bytes(seen) == held
            assert os.pread(reader, SIZE + 1, 0) == held
            assert shared[:] == held
        shared.flush()
    for fd in (reader, writer, both):
        os.close(fd)
    assert path.read_bytes() == held
    assert (here.upper / "file").read_bytes() == held


STORE_ON_AND_ON = """
import mmap, os, select, sys
fd = os.open(sys.argv[1], os.O_RDWR)
size = os.fstat(fd).st_size
stored = mmap.mmap(fd, size)
print("storing")
number = 0
while number % 64 or not select.select([0], [], [], 0)[0]:
    number += 1
    for start in range(0, size, mmap.PAGESIZE):
        stored[start + 4000] = number % 256
stored.close()
os.close(fd)
print("stored")
"""


def test_what_is_written_beside_what_somebody_stores_in_a_map_is_kept(area: MakeArea) -> None:
    here = area({"file": bytes(SIZE)})
    path = here.view / "file"
    with companion(STORE_ON_AND_ON, path, cwd=here.lower) as other:
        assert says(other) == "storing"
        writer = os.open(path, os.O_WRONLY)
        # Each place once: what is lost is not written again.
        places = [page + at for at in range(0, 4000, 4) for page in range(0, SIZE, PAGE)]
        for number, place in enumerate(places):
            assert os.pwrite(writer, number.to_bytes(4, "little"), place) == 4
        os.close(writer)
        tell(other, "stop")
        assert says(other) == "stored"
    content = path.read_bytes()
    found = [int.from_bytes(content[place : place + 4], "little") for place in places]
    assert found == list(range(len(places)))


READ_ON_AND_ON = """
import mmap, os, select, sys
fd = os.open(sys.argv[1], os.O_RDONLY)
size = os.fstat(fd).st_size
seen = mmap.mmap(fd, size, prot=mmap.PROT_READ)
print("reading")
while not select.select([0], [], [], 0)[0]:
    os.pread(fd, size, 0)
    seen[:]
"""


def test_what_was_written_is_there_whoever_read_meanwhile(area: MakeArea) -> None:
    here = area({"file": bytes(SIZE)})
    path = here.view / "file"
    writer, reader = os.open(path, os.O_WRONLY), os.open(path, os.O_RDONLY)
    with (
        companion(READ_ON_AND_ON, path, cwd=here.lower) as one,
        companion(READ_ON_AND_ON, path, cwd=here.lower) as another,
        mmap.mmap(reader, SIZE, prot=mmap.PROT_READ) as seen,
    ):
        for program in (one, another):
            assert says(program) == "reading"
        for number in range(400):
            at, data = number * 997 % (SIZE - 8), number.to_bytes(8, "little")
            os.pwrite(writer, data, at)
            assert seen[at : at + 8] == data
            assert os.pread(reader, 8, at) == data
        for program in (one, another):
            tell(program, "stop")
    os.close(writer)
    os.close(reader)


def test_a_file_that_grows_and_shrinks_is_read_as_it_is(area: MakeArea) -> None:
    here = area({"file": b"begin"})
    path = here.view / "file"
    held = bytearray(b"begin")
    reader, writer = os.open(path, os.O_RDONLY), os.open(path, os.O_WRONLY)
    assert os.pread(reader, PAGE, 0) == held
    for at, data in ((5, b" and more"), (3 * PAGE + 7, b"far away"), (PAGE - 1, b"across")):
        os.pwrite(writer, data, at)
        held.extend(bytes(max(0, at + len(data) - len(held))))
        held[at : at + len(data)] = data
        assert os.pread(reader, 9 * PAGE, 0) == held
    os.ftruncate(writer, 8)
    assert os.pread(reader, PAGE, 0) == held[:8]
    os.pwrite(writer, b"!", 10)
    assert os.pread(reader, PAGE, 0) == held[:8] + b"\0\0!"
    os.close(writer)
    os.close(reader)
    assert path.read_bytes() == held[:8] + b"\0\0!"


@pytest.mark.parametrize("way", ["sendfile", "copy_file_range", "splice", "its own map"])
def test_bytes_that_never_were_in_the_program_arrive(area: MakeArea, way: str) -> None:
    content = random.Random(7).randbytes(100_000)
    here = area({"from": content})
    source = os.open(here.view / "from", os.O_RDONLY)
    target = os.open(here.view / "to", os.O_WRONLY | os.O_CREAT)
    done = 0
    if way == "its own map":
        os.truncate(here.view / "to", 2 * len(content))
        with (here.view / "to").open("r+b") as file, mmap.mmap(file.fileno(), 2 * len(content)) as own:
            own[len(content) :] = content
            assert os.pwrite(target, memoryview(own)[len(content) :], 0) == len(content)
        os.ftruncate(target, len(content))
    while way != "its own map" and done < len(content):
        if way == "sendfile":
            done += os.sendfile(target, source, done, len(content))
        elif way == "copy_file_range":
            done += os.copy_file_range(source, target, len(content), done, done)
        else:
            out, into = os.pipe()
            with os.fdopen(out, "rb"), os.fdopen(into, "wb"):
                got = os.splice(source, into, 30_000, offset_src=done)
                while got:
                    moved = os.splice(out, target, got, offset_dst=done)
                    done, got = done + moved, got - moved
    os.close(source)
    os.close(target)
    assert (here.view / "to").read_bytes() == content
    assert (here.upper / "to").read_bytes() == content
