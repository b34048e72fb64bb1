"""How is something written so that it is still there after the machine stopped?

A file reaches the disk by fsync, a name by fsync of the directory it is in. Each has the disk empty its
cache, and one after the other they take as many turns as there are files. Asked for by several threads at
once they share turns, and journal commits of the filesystem too. A `Syncer` does so, while its user goes on.
"""

import os
from contextlib import suppress
from threading import Thread
from types import TracebackType

from sandboxfs.layers import syscalls
from sandboxfs.layers.hostdir import HostDir

# Twice as many are open at most, a part of the descriptors that one may have.
_TOGETHER = 192
# More than these save hardly any time: by then nearly all share one turn of the disk.
_THREADS = 8


class Syncer:
    """Files that are to reach the disk; at the end of a with statement all of them have."""

    def __init__(self) -> None:
        self._waiting: list[int] = []
        self._running: list[_Share] = []

    def take(self, fd: int) -> None:
        """Take over the open file *fd*, all of which is written."""
        self._waiting.append(fd)
        syscalls.start_writing(fd)
        if len(self._waiting) >= _TOGETHER:
            self._start()

    def wait(self) -> None:
        """Wait for everything taken so far; OSError if any of it may not have reached the disk."""
        self._start()
        self._join()

    def _start(self) -> None:
        """Have what was taken synced, when what was taken before it is."""
        self._join()
        waiting, self._waiting = self._waiting, []
        self._running = [_Share(waiting[first::_THREADS]) for first in range(min(_THREADS, len(waiting)))]
        for share in self._running:
            share.start()

    def _join(self) -> None:
        running, self._running = self._running, []
        for share in running:
            share.join()
        for share in running:
            if share.error is not None:
                raise share.error

    def __enter__(self) -> "Syncer":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if kind is None:
                self.wait()
        finally:
            while self._waiting:
                os.close(self._waiting.pop())
            with suppress(OSError):
                self._join()


class _Share(Thread):
    """Syncs and closes its own part of the files; *error* is the first that went wrong."""

    def __init__(self, files: list[int]) -> None:
        super().__init__(daemon=True)
        self._files = files
        self.error: OSError | None = None

    def run(self) -> None:
        for fd in self._files:
            try:
                os.fsync(fd)
            except OSError as error:
                self.error = self.error or error
            finally:
                os.close(fd)


def sync_directory(directory: HostDir) -> None:
    """Have the names in *directory* reach the disk."""
    fd = directory.open_for_listing()
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def write_whole(directory: HostDir, name: bytes, content: bytes) -> None:
    """Write a file that is there whole or not at all, also after the machine stopped."""
    staged = b"." + name + b".new"
    fd = directory.open(staged, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        _write(fd, content)
        os.fsync(fd)
    finally:
        os.close(fd)
    directory.rename(staged, directory, name)
    sync_directory(directory)


def append(directory: HostDir, name: bytes, content: bytes, *, sync: bool = True) -> None:
    """Append to a file, which is made when it is missing."""
    fd = directory.open(name, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        _write(fd, content)
        if sync:
            os.fsync(fd)
    finally:
        os.close(fd)


def _write(fd: int, content: bytes) -> None:
    view = memoryview(content)
    while view:
        view = view[os.write(fd, view) :]
