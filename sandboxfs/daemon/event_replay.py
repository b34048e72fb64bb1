"""Event replay: host events are repeated through the mount, for programs in the view that use inotify.

inotify reports only operations that go through the mount; a FUSE invalidation produces no event. So while
programs watch the view, the replay process repeats each host event there: the process unlinks a removed name,
truncates a written file to its present size, and sets the times of anything else. `ReplayDir` recognises such
a request by its process and by the announcement made before, and answers without any effect. Every other
change that the replay process tries is refused.

The replay process is separate from the daemon, because a daemon that waits for its own answer cannot even be
killed. The replay process starts when first needed and ends with the daemon.
"""

import errno
import logging
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from itertools import count
from pathlib import Path

import trio
import trio.abc

from sandboxfs.control.mount_table import MountTable
from sandboxfs.overlay.control_dir import ControlDir, RequestChannel, RequestReports
from sandboxfs.overlay.filesystem import AttributeChange, Caller, Entry, Filesystem, host_error
from sandboxfs.overlay.host_changes import HostEvent


class ReplayDir(ControlDir):
    """The control directory whose onlooker is the replay process: announced operations seem to succeed."""

    def __init__(
        self,
        inner: Filesystem,
        files: Mapping[bytes, Callable[[], bytes]],
        requests: RequestReports | None = None,
        channel: RequestChannel | None = None,
    ) -> None:
        super().__init__(inner, files, requests, channel)
        self._touched: frozenset[int] = frozenset()
        self._removed: frozenset[tuple[int, bytes]] = frozenset()

    def expect_touches(self, inodes: Iterable[int]) -> None:
        """Announce the only inodes whose times or size the replay process may set from now on."""
        self._touched = frozenset(inodes)

    def expect_removals(self, places: Iterable[tuple[int, bytes]]) -> None:
        """Announce the only names that the replay process may remove from now on."""
        self._removed = frozenset(places)

    # No removal of a directory is replayed: the kernel would take the inode for dead, while the host may use
    # its number again.

    def _seem_to_change(self, ino: int, change: AttributeChange, caller: Caller) -> Entry:
        if ino not in self._touched or not _is_echo(change):
            raise host_error(errno.EPERM)
        return self.getattr(ino, caller)

    def _seem_to_remove(self, parent: int, name: bytes) -> None:
        if (parent, name) not in self._removed:
            raise host_error(errno.EPERM)


def _is_echo(change: AttributeChange) -> bool:
    """Whether only the times, or only the size, are set; the answer has their present values."""
    times = AttributeChange(atime_ns=change.atime_ns, mtime_ns=change.mtime_ns)
    return change in (times, AttributeChange(size=change.size))


log = logging.getLogger(__name__)

_Todo = dict[int, tuple[str, bytes]]
"""By inode: the operation to repeat, and the path of the inode."""

# Looking for watchers takes some milliseconds: the part of the time that may be spent on looking.
_SHARE = 0.1
# In seconds: the wait for removals, which holds up the other host events, and for all other operations.
_BRIEFLY = 0.1
_PATIENCE = 10.0
# The wait for the replay process to start.
_STARTING = 1.0
# How many batches, and how many events without a known watcher, may wait; further ones are not repeated.
_MOST_WAITING = 100
_MOST_UNSURE = 1000
_WATCH = re.compile(r"^inotify wd:\S+ ino:([0-9a-f]+) sdev:([0-9a-f]+)", re.MULTILINE)

# An input line has an operation and a path in hexadecimal digits; the number that ends a batch is printed.
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


class EventReplay:
    """Repeats host events for programs that watch the view."""

    def __init__(self, view: ReplayDir, mountpoint: Path) -> None:
        self._view = view
        self._mountpoint = mountpoint
        self._watched: set[int] = set()
        self._look_after = 0.0
        self._looked = False
        self._unsure: list[HostEvent] = []
        self._doubt = trio.Event()
        self._process: trio.Process | None = None
        self._using = trio.Lock()
        self._serial = count(1)
        self._waiting, self._next = trio.open_memory_channel[_Todo](_MOST_WAITING)

    async def run(self) -> None:
        """Repeat the waiting batches, one after the other."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._look_again)
            async for todo in self._next:
                self._view.expect_touches(todo)
                await self._have_done(todo.values(), _PATIENCE)
                self._view.expect_touches(())

    async def look(self) -> None:
        """Find the watched inodes of the view, unless the last look was just now."""
        self._looked = trio.current_time() >= self._look_after
        if not self._looked:
            return
        try:
            self._watched, cost = await trio.to_thread.run_sync(self._look)
        except (OSError, RuntimeError) as error:
            log.info("who watches the view cannot be found out: %s", error)
            return
        self._look_after = trio.current_time() + cost / _SHARE
        if self._watched:
            # Started now, because a moment later the process is needed.
            await self._have_done((), _STARTING)

    async def _look_again(self) -> None:
        """Look once more for events that came when a look was left out, because the last was too recent."""
        while True:
            await self._doubt.wait()
            self._doubt = trio.Event()
            await trio.sleep_until(self._look_after)
            await self.look()
            unsure, self._unsure = self._unsure, []
            self._repeat(unsure)

    async def removals(self, deeds: Iterable[HostEvent]) -> None:
        """Repeat removals; to be called while the kernel still knows the names."""
        wanted = [deed for deed in deeds if deed.removed and self._concerns(deed)]
        if wanted:
            self._view.expect_removals([(deed.parent, deed.name) for deed in wanted])
            try:
                await self._have_done([("unlink", deed.path) for deed in wanted], _BRIEFLY)
            finally:
                self._view.expect_removals(())

    def changes(self, deeds: list[HostEvent]) -> None:
        """Queue all other events for repetition, after the kernel has dropped its stale answers."""
        self._repeat(deeds)
        if not self._looked and len(self._unsure) < _MOST_UNSURE:
            self._unsure += [deed for deed in deeds if not self._concerns(deed)]
            self._doubt.set()

    def _repeat(self, deeds: Iterable[HostEvent]) -> None:
        todo: _Todo = {}
        for deed in deeds:
            if not self._concerns(deed):
                continue
            if deed.ino is None:
                # The object is gone, so an event of its directory stands for it.
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
        """The watched inodes, and the processor time that the look took."""
        began = time.thread_time()
        # Read from the mount table, not from the mount: this process would have to answer.
        mount = MountTable.read().at(self._mountpoint)
        if mount is None:
            return set(), 0.0
        major, minor = map(int, mount.device.split(":"))
        return watched_inodes(major << 20 | minor), time.thread_time() - began

    def _concerns(self, deed: HostEvent) -> bool:
        return deed.parent in self._watched or deed.ino in self._watched

    async def _have_done(self, commands: Iterable[tuple[str, bytes]], patience: float) -> None:
        root = os.fsencode(self._mountpoint) + b"/"
        number = next(self._serial)
        lines = [f"{what} {(root + path).hex()}\n" for what, path in commands]
        with trio.move_on_after(patience):
            async with self._using:
                try:
                    process = await self._echoer()
                except OSError as error:
                    log.info("what the host does cannot be told to those who watch the view: %s", error)
                    return
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
        # The process before is gone with all its requests: none can be taken for a program's.
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
    """Wait for the number of a batch; numbers of earlier ones, whose wait timed out, may come first."""
    last = b""
    while str(number).encode() not in last.splitlines():
        some = await stream.receive_some()
        if not some:
            raise trio.BrokenResourceError
        last = last[-32:] + bytes(some)


def watched_inodes(device: int) -> set[int]:
    """The watched inodes of a filesystem, over all processes that the daemon may look at.

    *device* is in the kernel's form: the major number, then 20 bits of the minor number.
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
