"""How is one act timed, and how is it known that two acts came to the same?"""

import hashlib
import mmap
import os
import resource
import signal
import stat
import subprocess
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from scripts.benches.competitors import Failed, View

# Longer than anything takes on a machine on which measuring makes sense.
_LIMIT = 900


@dataclass(frozen=True)
class Sample:
    """What one act took: time that passed, and processor time of the programs and of who serves the view.

    A row whose number is not the time of a command has it in *passed*, in its own unit.
    """

    passed: float
    processor: float | None = None


@dataclass
class Stage:
    """A view in which the steps of a scene take their turns."""

    view: View
    environment: Mapping[str, str]
    supplies: Path
    notes: Path  # where the output of commands goes, outside of the view
    said: list[bytes] = field(default_factory=list)  # lines of the last command
    found: dict[str, float] = field(default_factory=dict)  # numbers that a step leaves for the next ones

    def run(self, *words: str | Path, within: str = ".") -> Sample:
        """Run a command in the view; it must succeed."""
        with (self.notes / "output").open("w+b") as output, (self.notes / "errors").open("w+b") as errors:
            served = daemon_time(self.view.daemon)
            begun = time.perf_counter()
            child = subprocess.Popen(
                [str(word) for word in words],
                cwd=self.view.path / within,
                env=dict(self.environment),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=errors,
                start_new_session=True,
            )
            used = waited(child)
            passed = time.perf_counter() - begun
            served = daemon_time(self.view.daemon) - served
            output.seek(0)
            errors.seek(0)
            self.said = output.read().splitlines()
            if child.returncode:
                last = errors.read().decode(errors="replace").strip().splitlines()[-1:]
                raise Failed(f"{words[0]} ended with {child.returncode}: {' '.join(last)}")
        return Sample(passed, used.ru_utime + used.ru_stime + served)

    def lines(self) -> str:
        """A digest of what the last command said; the order of lines is each filesystem's own."""
        return hashlib.blake2b(b"\n".join(sorted(self.said))).hexdigest()


def waited(child: "subprocess.Popen[bytes]") -> resource.struct_rusage:
    """Wait for the leader of a session; end all of it when it takes too long or the bench is interrupted."""
    late = threading.Timer(_LIMIT, os.killpg, (child.pid, signal.SIGKILL))
    late.start()
    try:
        _, status, used = os.wait4(child.pid, 0)
    except BaseException:
        os.killpg(child.pid, signal.SIGKILL)
        child.wait()
        raise
    finally:
        late.cancel()
    child.returncode = os.waitstatus_to_exitcode(status)
    return used


def daemon_time(pid: int | None) -> float:
    """Seconds that all threads of a process have run, to the nanosecond."""
    if pid is None:
        return 0.0
    threads = Path(f"/proc/{pid}/task").iterdir()
    return sum(int((thread / "schedstat").read_text().split()[0]) for thread in threads) / 1e9


def resident_megabytes(pid: int) -> float:
    """Memory that a process holds, in millions of bytes."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS:")) * 1024 / 1e6


def have_memory(megabytes: int) -> None:
    """Have so much memory at hand for what comes next.

    A virtual machine gives memory back that is free for some seconds, and whoever is the first to use it
    again waits for it: most of a second for half a gigabyte.
    """
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | mmap.MAP_POPULATE
    mmap.mmap(-1, megabytes << 20, flags=flags).close()


def everything(path: Path, data: bool, leave: Callable[[str], bool] = lambda name: False) -> str:
    """A digest of a tree: names, types, permissions, sizes, targets, and bytes if *data*."""
    digest = hashlib.blake2b()
    _add(digest.update, path, "", data, leave)
    return digest.hexdigest()


def _add(
    update: Callable[[bytes], None], path: Path, below: str, data: bool, leave: Callable[[str], bool]
) -> None:
    for name in sorted(entry.name for entry in os.scandir(path)):
        inner = f"{below}{name}"
        if leave(name):
            continue
        found = (path / name).lstat()
        update(f"{inner} {found.st_mode:o}\n".encode(errors="surrogateescape"))
        if stat.S_ISDIR(found.st_mode):
            _add(update, path / name, f"{inner}/", data, leave)
        elif stat.S_ISLNK(found.st_mode):
            update((path / name).readlink().as_posix().encode(errors="surrogateescape"))
        else:
            if name.endswith(".pyc"):
                # It holds the time and the place of its source, which differ.
                continue
            update(str(found.st_size).encode())
            if data:
                with (path / name).open("rb") as file:
                    update(hashlib.file_digest(file, "blake2b").digest())
