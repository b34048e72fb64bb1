"""What does one small process ask of a view? Run as a program, with the view as its current directory.

    inside.py latencies N     microseconds of each operation, as JSON
    inside.py read N          N blocks of 4 KiB from random places of `large`
    inside.py write N         N blocks of 4 KiB to random places of a new file
    inside.py sqlite N WORD   N transactions; WORD: `wal`, or `default` for what sqlite does by itself
    inside.py parallel N      four processes at once, N times through the life of a file each

Every one prints something that has to be the same wherever it runs. It imports the standard library only.
"""

# The system calls themselves are what is timed.
# ruff: noqa: PTH101, PTH102, PTH104, PTH108, PTH116, PTH123, PTH208

import hashlib
import json
import os
import random
import sqlite3
import statistics
import sys
import time
from collections.abc import Callable

BLOCK = 4096
BATCHES = 5
PROCESSES = 4
LISTED = "assets/thousand"


def asset(number: int) -> str:
    """The path of one of the assets: the first thousand in one directory, then a hundred in each."""
    return f"{LISTED if number < 1_000 else f'assets/d{number // 100}'}/a{number}.txt"


def main() -> None:
    what, count, *more = sys.argv[1:]
    acts: dict[str, Callable[[], object]] = {
        "latencies": lambda: latencies(int(count)),
        "read": lambda: random_read(int(count)),
        "write": lambda: random_write(int(count)),
        "sqlite": lambda: transactions(int(count), more[0]),
        "parallel": lambda: parallel(int(count)),
    }
    json.dump(acts[what](), sys.stdout)


def latencies(count: int) -> dict[str, object]:
    """Each operation *count* times; the median of the batches' means, in microseconds."""
    os.mkdir("latencies")
    made = [f"latencies/f{number}" for number in range(count)]
    moved = [f"latencies/g{number}" for number in range(count)]
    # Not listed before: a listing tells the kernel about what is listed.
    unknown = [asset(number) for number in range(1_000, 1_000 + count)]
    known = [f"{LISTED}/{name}" for name in sorted(os.listdir(LISTED))[:200]]
    for name in known:
        _read(name)
    repeated = [known[number % len(known)] for number in range(count)]
    pairs = dict(zip(made, moved, strict=True))
    found = {
        "stat unknown": _each(os.stat, unknown),
        "stat known": _each(os.stat, repeated),
        "open, read, close": _each(_read, repeated),
        "create": _each(_create, made),
        "chmod": _each(lambda name: os.chmod(name, 0o600), made),
        "rename": _each(lambda name: os.rename(name, pairs[name]), made),
        "unlink": _each(os.unlink, moved),
        "readdir of 1,000": _each(os.listdir, [LISTED] * max(BATCHES, count // 25)),
    }
    left = sorted(os.listdir("latencies"))
    return {"microseconds": found, "proof": [left, sorted(os.listdir(LISTED))]}


def _each(act: Callable[[str], object], names: list[str]) -> float:
    size = len(names) // BATCHES
    means = []
    for batch in range(BATCHES):
        part = names[batch * size : (batch + 1) * size]
        begun = time.perf_counter()
        for name in part:
            act(name)
        means.append((time.perf_counter() - begun) / size)
    return statistics.median(means) * 1e6


def _create(name: str) -> None:
    os.close(os.open(name, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644))


def _read(name: str) -> int:
    descriptor = os.open(name, os.O_RDONLY)
    try:
        return len(os.read(descriptor, 1 << 16))
    finally:
        os.close(descriptor)


def random_read(count: int) -> str:
    chosen = random.Random(3)  # noqa: S311 - the same places every time, no secret
    digest = hashlib.blake2b()
    descriptor = os.open("large", os.O_RDONLY)
    blocks = os.fstat(descriptor).st_size // BLOCK
    for _ in range(count):
        digest.update(os.pread(descriptor, BLOCK, chosen.randrange(blocks) * BLOCK))
    os.close(descriptor)
    return digest.hexdigest()


def random_write(count: int) -> int:
    chosen = random.Random(4)  # noqa: S311 - the same places every time, no secret
    descriptor = os.open("written", os.O_RDWR | os.O_CREAT, 0o644)
    os.ftruncate(descriptor, 64 << 20)
    for number in range(count):
        os.pwrite(descriptor, number.to_bytes(4, "little") * (BLOCK // 4), chosen.randrange(1 << 14) * BLOCK)
    os.close(descriptor)
    return os.stat("written").st_size


def transactions(count: int, word: str) -> list[object]:
    database = sqlite3.connect(f"{word}.db", isolation_level=None)
    if word == "wal":
        database.execute("PRAGMA journal_mode=WAL")
        database.execute("PRAGMA synchronous=NORMAL")
    database.execute("CREATE TABLE t (a INTEGER PRIMARY KEY, b TEXT)")
    for number in range(count):
        database.execute("BEGIN")
        database.execute("INSERT INTO t VALUES (?, ?)", (number, f"text of {number} " * 4))
        database.execute("COMMIT")
    held = database.execute("SELECT count(*), sum(length(b)) FROM t").fetchone()
    database.close()
    return list(held)


def parallel(count: int) -> list[int]:
    children = []
    for number in range(PROCESSES):
        child = os.fork()
        if child == 0:
            _lives(f"parallel{number}", count)
            os._exit(0)
        children.append(child)
    return [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]


def _lives(folder: str, count: int) -> None:
    """Make, write, move, look at and remove files, reading others in between; every tenth stays."""
    os.mkdir(folder)
    others = [f"{LISTED}/{name}" for name in sorted(os.listdir(LISTED))]
    for number in range(count):
        name = f"{folder}/f{number}"
        with open(name, "wb") as file:
            file.write(b"x" * 1000)
        os.stat(name)
        os.rename(name, f"{name}.done")
        _read(others[number % len(others)])
        if number % 10:
            os.unlink(f"{name}.done")


if __name__ == "__main__":
    main()
