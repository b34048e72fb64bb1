"""Do rules hold, and does the daemon last, while they change under programs at work?

One process flips rules over the control socket a thousand times; four read and write meanwhile. Each flip is
noted with a number before it is asked for and after it was answered, so that a worker can tell which rule
was in force for all of an operation: whatever it did wholly between the two was decided by that rule alone.
"""

import ctypes
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from mmap import mmap
from pathlib import Path

import pytest

from sandboxfs.control.control_socket import ask
from tests.security.conftest import Guarded
from tests.support.guarded import GuardedMount
from tests.support.mounted import run

pytestmark = pytest.mark.any_user

FLIPS = 1000
WORKERS = 4
# So many operations of each worker have to be wholly between two flips.
ENOUGH = 100
# Flip number n asks for the mode at n modulo their number; n is odd while the request is on its way.
MODES = ("rw", "ro", "deny", "hide")
# A flip that takes longer than this is taken for a deadlock.
PATIENCE = 20.0

WORKER = """
import ctypes, errno, json, mmap, os, struct, sys
view, board, number, modes = sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4].split(",")
with open(board, "r+b") as file:
    shared = mmap.mmap(file.fileno(), 0)

said = ctypes.c_uint64.from_buffer(shared, 8 * (1 + number))

def now():
    return struct.unpack_from("Q", shared, 0)[0]

file = os.path.join(view, "ruled", f"file-{number}")
other = os.path.join(view, "free", f"file-{number}")
refused = {"rw": {}, "ro": {"write": errno.EROFS, "old write": errno.EROFS, "make": errno.EROFS},
           "deny": dict.fromkeys(["read", "write", "stat", "old read", "old write", "make"], errno.EACCES),
           "hide": dict.fromkeys(["read", "write", "stat", "old read", "old write"], errno.ENOENT)}
refused["hide"]["make"] = errno.ENOENT

def read():
    with open(file, "rb", buffering=0) as one:
        return one.read(4)

def write():
    fd = os.open(file, os.O_WRONLY)
    try:
        os.pwrite(fd, b"data", 0)
    finally:
        os.close(fd)

def make():
    path = file + "-made"
    os.close(os.open(path, os.O_CREAT | os.O_WRONLY))
    os.unlink(path)

old = os.open(file, os.O_RDWR)
verbs = {"read": read, "write": write, "stat": lambda: os.stat(file), "make": make,
         "old read": lambda: os.pread(old, 4, 0), "old write": lambda: os.pwrite(old, b"data", 0)}
counts = {"judged": 0, "refused": 0, "unjudged": 0}
wrong = []
print("ready", flush=True)
while now() < (1 << 62):
    for verb, attempt in verbs.items():
        before = now()
        error = 0
        try:
            attempt()
        except OSError as caught:
            error = caught.errno
        after = now()
        if before != after or before % 2 or before >= 1 << 62:
            counts["unjudged"] += 1
            continue
        counts["judged"] += 1
        counts["refused"] += bool(error)
        said.value = counts["judged"]
        mode = modes[before // 2 % len(modes)]
        expected = refused[mode].get(verb, 0)
        if error != expected:
            wrong.append([verb, mode, before, error, expected])
    # A place under no rule must never be refused anything.
    with open(other, "wb") as one:
        one.write(b"x" * 5000)
    with open(other, "rb") as one:
        assert len(one.read()) == 5000
    os.rename(other, other + ".2")
    os.rename(other + ".2", other)
    os.listdir(view)
os.close(old)
print(json.dumps([counts, wrong[:20]]), flush=True)
"""


class Board:
    """A number that the workers see at once, and how much each of them has judged."""

    def __init__(self, path: Path) -> None:
        path.write_bytes(bytes(8 * (1 + WORKERS)))
        with path.open("r+b") as file:
            # Written at once: struct.pack_into clears the bytes first, and a worker would see a 0.
            self._numbers = (ctypes.c_uint64 * (1 + WORKERS)).from_buffer(mmap(file.fileno(), 0))

    def show(self, number: int) -> None:
        self._numbers[0] = number

    @property
    def judged(self) -> int:
        """What the one has judged that has judged least."""
        return min(self._numbers[1:])


def memory_of(pid: int) -> int:
    """The resident memory of a process, in KiB."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1])
    raise AssertionError("no VmRSS")


def descriptors_of(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/fd"))


def flip(mount: GuardedMount, board: Board, number: int) -> float:
    board.show(2 * number - 1)
    begun = time.monotonic()
    ask(mount.address, "allow", {"path": "ruled", "mode": MODES[number % len(MODES)]}, timeout=PATIENCE)
    taken = time.monotonic() - begun
    board.show(2 * number)
    return taken


def flip_until(mount: GuardedMount, board: Board, numbers: range, alive: Callable[[], bool]) -> float:
    worst = 0.0
    for number in numbers:
        worst = max(worst, flip(mount, board, number))
        # So that operations fit wholly between two flips.
        time.sleep(0.004)
        assert alive(), "a worker has ended"
    return worst


def test_a_thousand_flips_under_load_decide_rightly_and_leave_nothing_behind(
    guarded: Guarded, tmp_path: Path
) -> None:
    mount = guarded({f"{place}/file-{n}": "text" for place in ("ruled", "free") for n in range(WORKERS)})
    board = Board(tmp_path / "board")
    command: list[str | Path] = [sys.executable, "-c", WORKER, mount.root, tmp_path / "board"]
    workers = [
        subprocess.Popen([*command, str(number), ",".join(MODES)], stdout=subprocess.PIPE, text=True, cwd="/")
        for number in range(WORKERS)
    ]
    try:
        for worker in workers:
            assert worker.stdout is not None
            assert worker.stdout.readline() == "ready\n"

        def alive() -> bool:
            return all(worker.poll() is None for worker in workers)

        flip_until(mount, board, range(1, FLIPS // 5), alive)
        memory, descriptors = memory_of(mount.pid), descriptors_of(mount.pid)
        flip_until(mount, board, range(FLIPS // 5, FLIPS + 1), alive)
        grown = memory_of(mount.pid) - memory
        # On a busy machine few operations fit between two flips: those that come now leave them more time.
        for number in range(FLIPS + 1, 2 * FLIPS):
            if board.judged > ENOUGH:
                break
            flip(mount, board, number)
            time.sleep(0.1)
            assert alive(), "a worker has ended"
        board.show(1 << 62)
        reports = [worker.communicate(timeout=60)[0] for worker in workers]
    finally:
        for worker in workers:
            worker.kill()
            worker.wait(60)
    for report in reports:
        counts, wrong = json.loads(report)
        assert wrong == [], "decided by a rule that was not in force: [verb, mode, flip, error, expected]"
        assert counts["judged"] > ENOUGH, counts
        assert counts["refused"] > 10, counts
    # Every flip keeps one rule and no history: a leak of a kilobyte for each would show.
    assert grown < 8 << 10, f"{grown} KiB more after {FLIPS} flips"
    assert descriptors_of(mount.pid) <= descriptors + 8
    run("find", ".", cwd=mount.root, status=None)
    rules = mount.ask("rules")
    assert isinstance(rules, dict)
    assert sum(rule["kind"] == "runtime" for rule in rules["rules"]) == 1
