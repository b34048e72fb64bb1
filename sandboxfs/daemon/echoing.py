"""How is a program in the view that watches it with inotify told of what the host does?

The kernel tells watchers of what is done through the mount, and nothing of what the daemon says has
changed. So when there are any, a process of ours repeats the host's doings there (see `overlay.echo`): a
removed name is removed, a written file is cut to the size that it has, anything else has its times set. It
is a process of its own, started when first needed: a daemon that waited for its own answer could not even
be killed. It ends with the daemon.
"""

import logging
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from itertools import count
from pathlib import Path

import trio
import trio.abc

from sandboxfs.control.mounts import MountTable
from sandboxfs.overlay.echo import Echo
from sandboxfs.overlay.noticing import Deed

log = logging.getLogger(__name__)

_Todo = dict[int, tuple[str, bytes]]
"""What is to be done to which inode, and where it is."""

# Looking for watchers takes some milliseconds: no more than this part of the time is spent on it.
_SHARE = 0.1
# So long, in seconds, others may wait for a removal to be repeated, and anything else for its turn.
_BRIEFLY = 0.1
_PATIENCE = 10.0
# And so long for the process to start.
_STARTING = 1.0
# So many parts and deeds may wait; what comes then is not repeated.
_MOST_WAITING = 100
_MOST_UNSURE = 1000
_WATCH = re.compile(r"^inotify wd:\S+ ino:([0-9a-f]+) sdev:([0-9a-f]+)", re.MULTILINE)

# Paths and what is to be done there come as lines of hexadecimal digits; the number of a batch comes back.
_ECHOER = """
import os, sys
def touch(path):
    os.utime(path, ns=(0, 0), follow_symlinks=False)
def write(path):
    try:
        os.truncate(path, os.lstat(path).st_size)
    except OSError:
        touch(path)
todo = {"touch": touch, "write": write, "unlink": os.unlink}
for line in sys.stdin:
    what, _, path = line.strip().partition(" ")
    try:
        if what == "end":
            print(path, flush=True)
        else:
            todo[what](bytes.fromhex(path))
    except OSError:
        pass
"""


class Echoes:
    """Repeats the host's doings for those who watch the view."""

    def __init__(self, view: Echo, mountpoint: Path) -> None:
        self._view = view
        self._mountpoint = mountpoint
        self._watched: set[int] = set()
        self._look_after = 0.0
        self._looked = False
        self._unsure: list[Deed] = []
        self._doubt = trio.Event()
        self._process: trio.Process | None = None
        self._using = trio.Lock()
        self._serial = count(1)
        self._waiting, self._next = trio.open_memory_channel[_Todo](_MOST_WAITING)

    async def run(self) -> None:
        """Repeat what was left to be repeated."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._look_again)
            async for todo in self._next:
                self._view.expect_touches(todo)
                await self._have_done(todo.values(), _PATIENCE)
                self._view.expect_touches(())

    async def look(self) -> None:
        """Find out which inodes of the view are watched, unless that was found out just now."""
        self._looked = trio.current_time() >= self._look_after
        if not self._looked:
            return
        self._watched, cost = await trio.to_thread.run_sync(self._look)
        self._look_after = trio.current_time() + cost / _SHARE
        if self._watched:
            # The process that is needed a moment from now is to be ready by then.
            await self._have_done((), _STARTING)

    async def _look_again(self) -> None:
        """Look once more for what was done when nobody looked, because somebody had just done so."""
        while True:
            await self._doubt.wait()
            self._doubt = trio.Event()
            await trio.sleep_until(self._look_after)
            await self.look()
            unsure, self._unsure = self._unsure, []
            self._repeat(unsure)

    async def removals(self, deeds: Iterable[Deed]) -> None:
        """Repeat what was removed; to be done while the kernel still knows the names."""
        wanted = [deed for deed in deeds if deed.removed and self._concerns(deed)]
        if wanted:
            self._view.expect_removals([(deed.parent, deed.name) for deed in wanted])
            try:
                await self._have_done([("unlink", deed.path) for deed in wanted], _BRIEFLY)
            finally:
                self._view.expect_removals(())

    def changes(self, deeds: list[Deed]) -> None:
        """Have everything repeated soon, now that the kernel knows what is outdated."""
        self._repeat(deeds)
        if not self._looked and len(self._unsure) < _MOST_UNSURE:
            self._unsure += [deed for deed in deeds if not self._concerns(deed)]
            self._doubt.set()

    def _repeat(self, deeds: Iterable[Deed]) -> None:
        todo: _Todo = {}
        for deed in deeds:
            if not self._concerns(deed):
                continue
            if deed.ino is None:
                # Nothing is left that could be touched; its directory shows that something happened.
                todo.setdefault(deed.parent, ("touch", os.path.dirname(deed.path)))
            else:
                todo[deed.ino] = "write" if deed.written else "touch", deed.path
        if todo:
            with suppress(trio.WouldBlock):
                self._waiting.send_nowait(todo)

    def close(self) -> None:
        if self._process is not None and self._process.returncode is None:
            self._process.kill()

    def _look(self) -> tuple[set[int], float]:
        """The inodes that are watched, and what it cost to find out."""
        began = time.thread_time()
        # Not asked of the mount: this process is who would have to answer.
        mount = MountTable.read().at(self._mountpoint)
        if mount is None:
            return set(), 0.0
        major, minor = map(int, mount.device.split(":"))
        return watched_inodes(major << 20 | minor), time.thread_time() - began

    def _concerns(self, deed: Deed) -> bool:
        return deed.parent in self._watched or deed.ino in self._watched

    async def _have_done(self, commands: Iterable[tuple[str, bytes]], patience: float) -> None:
        root = os.fsencode(self._mountpoint) + b"/"
        number = next(self._serial)
        lines = [f"{what} {(root + path).hex()}\n" for what, path in commands]
        with trio.move_on_after(patience):
            async with self._using:
                process = await self._echoer()
                try:
                    if process.stdio is not None:
                        await process.stdio.send_all("".join([*lines, f"end {number}\n"]).encode())
                        await _answered(process.stdio, number)
                except trio.BrokenResourceError:
                    log.info("what the host does cannot be told to those who watch the view")
                    process.kill()

    async def _echoer(self) -> trio.Process:
        if self._process is not None and self._process.returncode is None:
            return self._process
        # The one before is gone with all its requests, so that nothing it did can be taken for a program's.
        self._process = await trio.lowlevel.open_process(
            [sys.executable, "-I", "-S", "-c", _ECHOER],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            cwd="/",
        )
        self._view.onlooker = self._process.pid
        return self._process


async def _answered(stream: trio.abc.ReceiveStream, number: int) -> None:
    """Wait for the end of a batch; earlier ones may have been waited for in vain."""
    last = b""
    while str(number).encode() not in last.splitlines():
        some = await stream.receive_some()
        if not some:
            raise trio.BrokenResourceError
        last = last[-32:] + bytes(some)


def watched_inodes(device: int) -> set[int]:
    """The inodes of a filesystem that are watched by any process that we may look at.

    *device* is as the kernel has it: the major number, and 20 bits for the minor one.
    """
    found: set[int] = set()
    for process in os.listdir("/proc"):
        if process.isdigit():
            with suppress(OSError):
                for info in _inotify_infos(process):
                    found.update(int(ino, 16) for ino, at in _WATCH.findall(info) if int(at, 16) == device)
    return found


def _inotify_infos(process: str) -> Iterator[str]:
    for fd in os.listdir(f"/proc/{process}/fd"):
        with suppress(OSError):
            if os.readlink(f"/proc/{process}/fd/{fd}") == "anon_inode:inotify":
                yield Path(f"/proc/{process}/fdinfo/{fd}").read_text()
