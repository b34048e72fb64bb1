"""Is a small file read without asking the daemon, and is what is read always what the file holds?"""

import os
import random
import signal
from concurrent.futures import ThreadPoolExecutor
from threading import Timer

import pytest

from sandboxfs.fuse.protocol import stores_well
from tests.mount.conftest import Mount
from tests.support.mounted import companion, eventually, run, says, tell

# Seconds after which who waits for a daemon that was stopped is let go on.
HUNG = 20.0

READ_WHEN_TOLD = """
import os, sys
fd = os.open(sys.argv[1], os.O_RDONLY)
print("open")
sys.stdin.readline()
print(os.read(fd, 100).decode(), os.fstat(fd).st_size)
"""


@pytest.mark.skipif(not stores_well(), reason="this kernel is not given files")
def test_a_small_file_is_read_and_looked_at_without_asking_once_it_is_open(mount: Mount) -> None:
    sandbox = mount({"file": "text"})
    with companion(READ_WHEN_TOLD, sandbox.root / "file", cwd=sandbox.lower) as program:
        assert says(program) == "open"
        awake = Timer(HUNG, os.kill, (sandbox.pid, signal.SIGCONT))
        awake.start()
        os.kill(sandbox.pid, signal.SIGSTOP)
        try:
            tell(program, "read")
            assert says(program) == "text 4"
            assert awake.is_alive(), "it was asked"
        finally:
            awake.cancel()
            os.kill(sandbox.pid, signal.SIGCONT)


@pytest.mark.parametrize(("before", "after"), [("short", "much longer"), ("much longer", "short")])
def test_a_file_whose_size_the_host_changed_since_it_was_looked_at_reads_as_it_is(
    mount: Mount, before: str, after: str
) -> None:
    sandbox = mount({"file": before})
    assert (sandbox.root / "file").stat().st_size == len(before)
    (sandbox.lower / "file").write_text(after)
    sandbox.host_changed()
    read = (sandbox.root / "file").read_text()
    assert after.startswith(read), "bytes that the file never had"
    eventually(lambda: (sandbox.root / "file").read_text() == after, "all of it")


def test_many_readers_and_a_writer_of_each_file_see_one_of_its_contents(mount: Mount) -> None:
    names = [f"file{number}" for number in range(200)]
    sandbox = mount(dict.fromkeys(names, "a" * 3000))

    def read(name: str) -> set[str]:
        with (sandbox.root / name).open() as file:
            return set(file.read())

    def write(name: str) -> set[str]:
        with (sandbox.root / name).open("r+") as file:
            file.write("b" * 3000)
        return read(name)

    jobs = [(read, name) for name in names * 4] + [(write, name) for name in names]
    random.Random(1).shuffle(jobs)
    with ThreadPoolExecutor(8) as threads:
        seen = list(threads.map(lambda job: job[0](job[1]), jobs))
    written = [found for (what, _), found in zip(jobs, seen, strict=True) if what is write]
    assert written == [{"b"}] * len(names)
    assert all(found in ({"a"}, {"b"}) for found in seen)
    assert all(read(name) == {"b"} for name in names)


def test_a_script_that_nobody_opened_before_runs(mount: Mount) -> None:
    sandbox = mount({"script": "#!/bin/sh\necho it runs\n"})
    (sandbox.root / "script").chmod(0o755)
    assert run(sandbox.root / "script", cwd=sandbox.lower) == "it runs\n"
