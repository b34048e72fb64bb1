"""Is the mount fair, idle when nobody asks, and right about what is not in memory?"""

import os
import select
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from sandboxfs.control.control_socket import ask, control_address
from sandboxfs.state.locations import Locations
from tests.mount.conftest import Mount
from tests.support.mount_driver import MountDriver, run_sandboxfs
from tests.support.mounted import PATIENCE, companion, says
from tests.unit.daemon.test_control_peers import crowd
from tests.unit.daemon.test_control_server import line

pytestmark = pytest.mark.any_user

HAMMER = """
import os, sys
number = sys.argv[1]
print("begun", flush=True)
while True:
    with open(f"made-{number}", "w") as file:
        file.write("x")
    os.stat("file")
    os.unlink(f"made-{number}")
    os.listdir(".")
"""


def processor_time(pid: int) -> float:
    """Seconds that all threads of a process have run."""
    threads = Path(f"/proc/{pid}/task").iterdir()
    return sum(int((thread / "schedstat").read_text().split()[0]) for thread in threads) / 1e9


@contextmanager
def mount_table() -> Iterator[Callable[[], bool]]:
    """Gives what tells whether anything was mounted or unmounted since it was last asked."""
    with open("/proc/self/mountinfo") as table, select.epoll(1) as changes:
        changes.register(table, select.EPOLLPRI | select.EPOLLET)
        yield lambda: bool(changes.poll(0))


def test_an_idle_mount_takes_less_than_half_a_percent_of_a_processor(mount: Mount) -> None:
    view = mount({"file": "text"})
    assert (view.root / "file").read_text() == "text"
    time.sleep(1)
    # Every daemon looks at what is mounted anywhere, and the tests beside this one mount all the time. So
    # only such moments count in which nothing was mounted, nor in the one before: four seconds of them.
    used = passed = 0.0
    deadline = time.monotonic() + PATIENCE
    with mount_table() as changed:
        calm = False
        while passed < 4:
            assert time.monotonic() < deadline, "there is no end of mounting"
            before, begun = processor_time(view.pid), time.monotonic()
            time.sleep(0.1)
            now, ended = processor_time(view.pid), time.monotonic()
            was_calm, calm = calm, not changed()
            if was_calm and calm:
                used, passed = used + now - before, passed + ended - begun
    assert used < 0.005 * passed


def test_status_is_answered_while_four_processes_hammer_the_mount(mount: Mount) -> None:
    view = mount({"file": "text"})
    hammers = [companion(HAMMER, str(number), cwd=view.root) for number in range(4)]
    with hammers[0] as one, hammers[1] as two, hammers[2] as three, hammers[3] as four:
        for process in (one, two, three, four):
            assert says(process) == "begun"
        taken = sorted(status_takes(view) for _ in range(20))
    # Of a machine that runs other tests as well, the median is asked only.
    assert taken[10] < 0.5


def status_takes(view: MountDriver) -> float:
    locations = Locations.from_environment(os.environ | {"SANDBOXFS_STATE_DIR": str(view.state)})
    begun = time.monotonic()
    ask(control_address(locations, "test"), "status")
    return time.monotonic() - begun


@pytest.mark.parametrize("warm", [0, 1, 5000, 4096 * 300, 8 << 20])
def test_a_file_reads_the_same_however_much_of_it_is_in_memory(mount: Mount, warm: int) -> None:
    content = os.urandom(8 << 20)
    view = mount({"file": content})
    fd = os.open(view.lower / "file", os.O_RDONLY)
    try:
        os.fsync(fd)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_RANDOM)
        os.pread(fd, warm, 0)
    finally:
        os.close(fd)
    assert (view.root / "file").read_bytes() == content


def test_a_large_file_can_be_changed_while_it_is_copied(mount: Mount) -> None:
    content = os.urandom(32 << 20)
    view = mount({"file": content})
    with open(view.root / "file", "r+b") as one, open(view.root / "file", "ab") as two:
        one.write(b"begin")
        two.write(b"end")
    assert (view.root / "file").read_bytes() == b"begin" + content[5:] + b"end"
    assert (view.lower / "file").read_bytes() == content


@pytest.mark.parametrize("how", ["together", "apart"])
def test_150_connections_that_ask_for_status_keep_neither_allow_nor_discard_out(
    mount: Mount, how: str
) -> None:
    view = mount({"file": "text"})
    (view.root / "new").write_text("new")
    environment = os.environ | {"SANDBOXFS_STATE_DIR": str(view.state)}
    address = control_address(Locations.from_environment(environment), "test")
    with crowd(address, line("status"), how):
        # A command gives up after ten seconds.
        for words in (["allow", "-s", "test", "file", "ro"], ["discard", "-s", "test", "--all", "--yes"]):
            done = run_sandboxfs(*words, state=view.state, cwd=view.lower)
            assert done.returncode == 0, done.stderr
    assert not (view.root / "new").exists()
