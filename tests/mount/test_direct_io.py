"""What is written around the kernel's pages (O_DIRECT) is what everybody reads from then on."""

import mmap
import os
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.mount.conftest import Mount
from tests.support import aio
from tests.support.mounted import companion, says

pytestmark = pytest.mark.any_user

SIZE = 655360
ROUNDS = 150
# Reads a file into the kernel's pages until it is ended.
KEEP_READING = """
import os
print("reading", flush=True)
while True:
    fd = os.open("file", os.O_RDONLY)
    os.pread(fd, 655360, 0)
    os.close(fd)
"""


def pattern(byte: int) -> mmap.mmap:
    buffer = mmap.mmap(-1, SIZE)
    buffer.write(bytes([byte]) * SIZE)
    return buffer


def content(path: Path, flags: int = 0) -> bytes:
    fd = os.open(path, os.O_RDONLY | flags)
    try:
        buffer = mmap.mmap(-1, SIZE)
        assert os.preadv(fd, [buffer], 0) == SIZE
        return buffer[:]
    finally:
        os.close(fd)


@pytest.mark.parametrize("asynchronously", [True, False])
@pytest.mark.parametrize("access", [os.O_RDWR, os.O_WRONLY])
def test_nobody_reads_old_data_after_a_direct_write_beside_readers(
    mount: Mount, access: int, asynchronously: bool
) -> None:
    view = mount({"file": b"\x55" * SIZE})
    patterns = [pattern(0xAA), pattern(0x55)]
    fd = os.open(view.root / "file", access | os.O_DIRECT)
    with ExitStack() as stack:
        stack.callback(os.close, fd)
        for _ in range(2):
            assert says(stack.enter_context(companion(KEEP_READING, cwd=view.root))) == "reading"
        writer = stack.enter_context(aio.writer())
        for number in range(ROUNDS):
            data = patterns[number % 2]
            assert (writer.write(fd, data) if asynchronously else os.pwrite(fd, data, 0)) == SIZE
            for flags in (0, os.O_DIRECT):
                assert set(content(view.root / "file", flags)) == {data[0]}, f"round {number}, flags {flags}"
