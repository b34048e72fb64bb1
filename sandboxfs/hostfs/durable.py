"""Durable writes: what is still there after the machine stopped, and temporary names in the workspace.

A file reaches the disk by fsync, a name by fsync of its directory. Each fsync has the disk empty its cache,
which costs one flush for each file when the calls follow one another. Calls of several threads at once share
flushes, and journal commits of the filesystem too. A `Syncer` makes them so, while its caller goes on.

A commit or undo makes new objects beside their targets under temporary names, and a replaced object has such
a name until it is in the record. Such objects are nobody's files: the view shows none of them, during a
commit and after a killed one.
"""

import os
import re
from contextlib import suppress
from threading import Thread
from types import TracebackType

from sandboxfs.hostfs import syscalls
from sandboxfs.hostfs.directory import HostDir

# At most twice as many are open, a part of the descriptors that a process may have.
_TOGETHER = 192
# More threads save hardly any time: with these, nearly all calls share one flush of the disk.
_THREADS = 8


class Syncer:
    """Files that are to reach the disk; at the end of a with statement all of them are there."""

    def __init__(self) -> None:
        self._waiting: list[int] = []
        self._running: list[_Share] = []

    def take(self, fd: int) -> None:
        """Take over the open file *fd*, which is completely written."""
        self._waiting.append(fd)
        syscalls.start_writing(fd)
        if len(self._waiting) >= _TOGETHER:
            self._start()

    def wait(self) -> None:
        """Wait for all files taken so far; OSError if any of them may not have reached the disk."""
        self._start()
        self._join()

    def _start(self) -> None:
        """Start to sync the files taken since the last start, once the earlier files are on disk."""
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
    """Syncs and closes its own part of the files; *error* is the first failure."""

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
    """Sync the names in *directory* to the disk."""
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


_PREFIX = b".sandboxfs-"
_NAME = re.compile(rb"\.sandboxfs-[0-9a-f]{8}-[0-9]+")


def temporary_name(tag: bytes, number: int) -> bytes:
    """The name of step *number* of the transaction with *tag*, eight hexadecimal digits."""
    return b"%s%s-%d" % (_PREFIX, tag, number)


def is_temporary(name: bytes) -> bool:
    return name.startswith(_PREFIX) and _NAME.fullmatch(name) is not None
