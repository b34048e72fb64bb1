"""Do maps, descriptors and locks behave as on any filesystem, across copy-up and between processes?"""

import errno
import fcntl
import mmap
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.mounted import Area, companion, run, says, tell
from tests.support.tree import File, Tree

pytestmark = pytest.mark.any_user

PAGE = mmap.PAGESIZE
OLD = b"o" * (3 * PAGE)
NEW = b"n" * (3 * PAGE)

MakeArea = Callable[[Tree], Area]

HOLD_FLOCK = """
import fcntl, os, sys
fd = os.open(sys.argv[1], os.O_RDONLY)
fcntl.flock(fd, fcntl.LOCK_EX)
print("held")
sys.stdin.readline()
"""

HOLD_FIRST_TEN_BYTES = """
import fcntl, os, sys
fd = os.open(sys.argv[1], os.O_RDWR)
fcntl.lockf(fd, fcntl.LOCK_EX, 10, 0)
print("held")
sys.stdin.readline()
"""

APPEND_LINES = """
import os, sys
fd = os.open(sys.argv[1], os.O_WRONLY | os.O_APPEND)
print("open")
sys.stdin.readline()
for number in range(300):
    os.write(fd, (sys.argv[2] * 50 + "\\n").encode())
print("done")
"""

# Two processes count in one word of shared memory, each under the lock, as sqlite's WAL index is used.
COUNT_IN_SHARED_MEMORY = """
import fcntl, mmap, os, sys
fd = os.open(sys.argv[1], os.O_RDWR)
with mmap.mmap(fd, mmap.PAGESIZE) as memory:
    print("open")
    sys.stdin.readline()
    for _ in range(500):
        fcntl.lockf(fd, fcntl.LOCK_EX, 1, 100)
        memory[:8] = (int.from_bytes(memory[:8], "little") + 1).to_bytes(8, "little")
        fcntl.lockf(fd, fcntl.LOCK_UN, 1, 100)
print("done")
"""


def opened(path: Path, flags: int) -> int:
    return os.open(path, flags | os.O_CLOEXEC)


def shared_map(path: Path, *, write: bool) -> mmap.mmap:
    """A map that outlives its descriptor."""
    fd = opened(path, os.O_RDWR if write else os.O_RDONLY)
    try:
        return mmap.mmap(fd, 0, mmap.MAP_SHARED, mmap.PROT_READ | (mmap.PROT_WRITE if write else 0))
    finally:
        os.close(fd)


def overwrite(path: Path, data: bytes) -> None:
    """Write in place, without truncating."""
    fd = opened(path, os.O_WRONLY)
    try:
        assert os.pwrite(fd, data, 0) == len(data)
    finally:
        os.close(fd)


def test_what_is_written_through_a_shared_map_is_read_from_the_file(area: MakeArea) -> None:
    here = area({"file": OLD})
    with shared_map(here.view / "file", write=True) as memory:
        memory[PAGE : PAGE + 5] = b"HELLO"
        assert (here.view / "file").read_bytes()[PAGE : PAGE + 5] == b"HELLO"
        memory.flush()
        assert (here.upper / "file").read_bytes() == OLD[:PAGE] + b"HELLO" + OLD[PAGE + 5 :]


def test_what_is_written_through_a_map_reaches_the_upper_when_it_is_unmapped(area: MakeArea) -> None:
    here = area({"file": OLD})
    with shared_map(here.view / "file", write=True) as memory:
        memory[:3] = b"NEW"
    run("sync", "-f", here.view / "file", cwd=here.view)
    assert (here.upper / "file").read_bytes() == b"NEW" + OLD[3:]


def test_a_new_file_grown_by_truncate_can_be_mapped_and_written(area: MakeArea) -> None:
    here = area({})
    fd = opened(here.view / "new", os.O_RDWR | os.O_CREAT)
    os.ftruncate(fd, len(NEW))
    with mmap.mmap(fd, len(NEW)) as memory:
        memory[:] = NEW
    os.close(fd)
    assert (here.view / "new").read_bytes() == NEW


def test_what_is_written_to_a_file_shows_in_its_map(area: MakeArea) -> None:
    here = area({"file": OLD})
    with shared_map(here.view / "file", write=True) as memory:
        assert memory[:] == OLD
        overwrite(here.view / "file", NEW)
        assert memory[:] == NEW


def test_a_private_map_changes_nothing(area: MakeArea) -> None:
    here = area({"file": OLD})
    fd = opened(here.view / "file", os.O_RDONLY)
    with mmap.mmap(fd, 0, mmap.MAP_PRIVATE, mmap.PROT_READ | mmap.PROT_WRITE) as memory:
        memory[:3] = b"NEW"
        assert (here.view / "file").read_bytes() == OLD
    os.close(fd)
    assert not (here.upper / "file").exists()


@pytest.mark.parametrize("looked", [True, False], ids=["looked at before", "not looked at before"])
def test_a_map_made_before_copy_up_sees_what_is_written_after(area: MakeArea, looked: bool) -> None:
    here = area({"file": OLD})
    with shared_map(here.view / "file", write=False) as memory:
        if looked:
            assert memory[:] == OLD
        assert not (here.upper / "file").exists()
        overwrite(here.view / "file", NEW)
        assert (here.upper / "file").exists()
        assert memory[:] == NEW


def test_a_map_made_before_copy_up_sees_what_a_later_map_writes(area: MakeArea) -> None:
    here = area({"file": OLD})
    with shared_map(here.view / "file", write=False) as early:
        assert early[:] == OLD
        with shared_map(here.view / "file", write=True) as late:
            late[:] = NEW
            assert early[:] == NEW


def test_a_descriptor_opened_before_copy_up_sees_what_is_written_after(area: MakeArea) -> None:
    here = area({"file": OLD})
    fd = opened(here.view / "file", os.O_RDONLY)
    assert os.pread(fd, len(OLD), 0) == OLD
    overwrite(here.view / "file", NEW + b"more")
    assert os.fstat(fd).st_size == len(NEW) + 4
    assert os.pread(fd, len(NEW) + 10, 0) == NEW + b"more"
    os.close(fd)


def test_a_descriptor_opened_before_copy_up_sees_a_truncation_after(area: MakeArea) -> None:
    here = area({"file": OLD})
    fd = opened(here.view / "file", os.O_RDONLY)
    assert os.pread(fd, len(OLD), 0) == OLD
    (here.view / "file").write_bytes(b"short")
    assert os.pread(fd, len(OLD), 0) == b"short"
    os.close(fd)


def test_a_descriptor_opened_before_copy_up_sees_attributes_changed_after(area: MakeArea) -> None:
    here = area({"file": OLD})
    fd = opened(here.view / "file", os.O_RDONLY)
    before = os.fstat(fd)
    (here.view / "file").chmod(0o600)
    os.rename(here.view / "file", here.view / "moved")
    after = os.fstat(fd)
    assert (after.st_mode & 0o777, after.st_ino, after.st_mtime_ns) == (
        0o600,
        before.st_ino,
        before.st_mtime_ns,
    )
    os.fchmod(fd, 0o640)
    assert (here.view / "moved").stat().st_mode & 0o777 == 0o640
    assert os.pread(fd, len(OLD), 0) == OLD
    os.close(fd)


def make_old(here: Area, origin: str) -> Path:
    path = here.view / "file"
    if origin == "upper":
        path.write_bytes(OLD)
    return path


@pytest.mark.parametrize("origin", ["lower", "upper"])
@pytest.mark.parametrize("how", ["unlinked", "overwritten"])
def test_a_file_without_its_name_lives_on_while_open(area: MakeArea, origin: str, how: str) -> None:
    here = area({"file": OLD} if origin == "lower" else {})
    path = make_old(here, origin)
    fd = opened(path, os.O_RDWR)
    take_name(path, how)
    assert os.pread(fd, len(OLD), 0) == OLD
    assert os.fstat(fd).st_nlink == 0
    os.pwrite(fd, b"still writable", 0)
    assert os.pread(fd, 14, 0) == b"still writable"
    os.ftruncate(fd, 5)
    assert os.pread(fd, 100, 0) == b"still"
    os.close(fd)
    check_name_taken(path, how)


@pytest.mark.parametrize("origin", ["lower", "upper"])
@pytest.mark.parametrize("how", ["unlinked", "overwritten"])
def test_a_file_without_its_name_lives_on_while_mapped(area: MakeArea, origin: str, how: str) -> None:
    here = area({"file": OLD} if origin == "lower" else {})
    path = make_old(here, origin)
    with shared_map(path, write=True) as memory:
        take_name(path, how)
        # Dropped from the cache, the pages have to be asked for again.
        memory.madvise(mmap.MADV_DONTNEED)
        assert memory[:] == OLD
        memory[:3] = b"NEW"
        memory.flush()
        assert memory[:] == b"NEW" + OLD[3:]
    check_name_taken(path, how)


@pytest.mark.parametrize("how", ["unlinked", "overwritten"])
def test_a_lower_file_open_for_reading_lives_on_without_its_name(area: MakeArea, how: str) -> None:
    here = area({"file": OLD})
    fd = opened(here.view / "file", os.O_RDONLY)
    take_name(here.view / "file", how)
    assert os.pread(fd, len(OLD), 0) == OLD
    with mmap.mmap(fd, 0, mmap.MAP_SHARED, mmap.PROT_READ) as memory:
        assert memory[:] == OLD
    os.close(fd)
    check_name_taken(here.view / "file", how)


def take_name(path: Path, how: str) -> None:
    if how == "unlinked":
        path.unlink()
    else:
        path.with_name("other").write_bytes(b"other")
        os.rename(path.with_name("other"), path)


def check_name_taken(path: Path, how: str) -> None:
    assert not path.exists() if how == "unlinked" else path.read_bytes() == b"other"


def run_together(one: "subprocess.Popen[str]", other: "subprocess.Popen[str]") -> None:
    """Let both processes begin when both are ready, and wait for both."""
    assert [says(one), says(other)] == ["open", "open"]
    tell(one, "go")
    tell(other, "go")
    assert [says(one), says(other)] == ["done", "done"]


def test_two_processes_that_append_lose_nothing(area: MakeArea) -> None:
    here = area({"log": "first\n"})
    log = here.view / "log"
    with (
        companion(APPEND_LINES, log, "a", cwd=here.view) as one,
        companion(APPEND_LINES, log, "b", cwd=here.view) as other,
    ):
        run_together(one, other)
    lines = log.read_text().splitlines()
    assert lines[0] == "first"
    assert sorted(lines[1:]) == ["a" * 50] * 300 + ["b" * 50] * 300


@pytest.mark.parametrize("origin", ["lower", "upper"])
def test_flock_excludes_another_process(area: MakeArea, origin: str) -> None:
    here = area({"file": OLD} if origin == "lower" else {})
    path = make_old(here, origin)
    fd = opened(path, os.O_RDONLY)
    with companion(HOLD_FLOCK, path, cwd=here.view) as other:
        assert says(other) == "held"
        with pytest.raises(BlockingIOError):
            fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        tell(other, "let go")
        fcntl.flock(fd, fcntl.LOCK_EX)
    os.close(fd)


def test_a_lock_holds_across_copy_up(area: MakeArea) -> None:
    here = area({"file": OLD})
    with companion(HOLD_FLOCK, here.view / "file", cwd=here.view) as other:
        assert says(other) == "held"
        overwrite(here.view / "file", NEW)
        fd = opened(here.view / "file", os.O_RDWR)
        with pytest.raises(BlockingIOError):
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.close(fd)


def test_a_record_lock_excludes_another_process_from_its_range_alone(area: MakeArea) -> None:
    here = area({"file": OLD})
    fd = opened(here.view / "file", os.O_RDWR)
    with companion(HOLD_FIRST_TEN_BYTES, here.view / "file", cwd=here.view) as other:
        assert says(other) == "held"
        with pytest.raises(OSError) as refused:
            fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 9)
        assert refused.value.errno in (errno.EACCES, errno.EAGAIN)
        fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB, 10, 10)
        tell(other, "let go")
        fcntl.lockf(fd, fcntl.LOCK_EX, 10, 0)
    os.close(fd)


def test_two_processes_share_memory_through_a_map(area: MakeArea) -> None:
    here = area({"shm": b"\0" * PAGE})
    path = here.view / "shm"
    with (
        companion(COUNT_IN_SHARED_MEMORY, path, cwd=here.view) as one,
        companion(COUNT_IN_SHARED_MEMORY, path, cwd=here.view) as other,
    ):
        run_together(one, other)
    assert int.from_bytes(path.read_bytes()[:8], "little") == 1000


def test_space_can_be_allocated_ahead(area: MakeArea) -> None:
    here = area({})
    fd = opened(here.view / "database", os.O_RDWR | os.O_CREAT)
    os.posix_fallocate(fd, 0, 100_000)
    assert os.fstat(fd).st_size == 100_000
    os.close(fd)


def test_programs_run_from_the_view_before_and_after_copy_up(area: MakeArea) -> None:
    here = area({"script": File("#!/bin/sh\necho ran\n", mode=0o755)})
    program = here.lower / "program"
    program.write_bytes(Path(os.path.realpath("/bin/echo")).read_bytes())
    program.chmod(0o755)
    here.host_changed()
    for _ in range(2):
        assert run(here.view / "script", cwd=here.view) == "ran\n"
        assert run(here.view / "program", "ran", cwd=here.view) == "ran\n"
        for name in ("script", "program"):
            (here.view / name).chmod(0o700)
