"""The control directory `.sandboxfs/` in the view: policy, denials, changes, requests; for programs that ask.

The directory is never listed and cannot be changed: it shows, it does not control. The content of its files
is generated when they are opened, like that of /proc. `requests` has one file for each question to a person,
by its number. Every other request goes to the inner filesystem.

`request` is the one file that can be written, and all that can be done there is to ask a person: one line of
JSON for each opening, after which the file reads on with the answer to it. What is decided later is in
`answers`, by the number of the request: opening one waits until there is something in it.
"""

import errno
import os
import stat
import time
from collections.abc import Callable, Iterator, Mapping
from itertools import count
from typing import Protocol

from sandboxfs.overlay.filesystem import (
    ROOT_INODE,
    AttributeChange,
    Caller,
    Entry,
    Filesystem,
    Lasting,
    OpenedFile,
    host_error,
)
from sandboxfs.overlay.inode_table import FIRST_VIRTUAL

NAME = b".sandboxfs"
REQUESTS, REQUEST, ANSWERS = b"requests", b"request", b"answers"
_DIRECTORY = FIRST_VIRTUAL
_REQUESTS = FIRST_VIRTUAL + (1 << 16)
_REQUEST = FIRST_VIRTUAL + (1 << 17)
_ANSWERS = FIRST_VIRTUAL + (1 << 18)
_DIRECTORIES = (_DIRECTORY, _REQUESTS, _ANSWERS)
_FIRST_REQUEST = FIRST_VIRTUAL + (1 << 32)
_FIRST_ANSWER = FIRST_VIRTUAL + (1 << 40)
_LAST_HANDLE = 1 << 62


class RequestReports(Protocol):
    """What `requests` has."""

    def numbers(self) -> list[int]:
        """The numbers of all requests that can be looked at."""

    def report(self, number: int) -> bytes | None:
        """The content of one file; None where there is no such request."""


class NoRequests:
    """Nobody is asked anything."""

    def numbers(self) -> list[int]:
        return []

    def report(self, number: int) -> bytes | None:
        return None


class RequestChannel(Protocol):
    """What `request` and `answers` lead to."""

    def submit(self, line: bytes, caller: Caller) -> bytes:
        """Take a request; return what is answered at once. OSError for one that makes no sense."""

    def answer(self, number: int, caller: Caller) -> bytes:
        """Return what became of a request; raise `Postponed` as long as that is open."""

    def report(self, number: int) -> bytes | None:
        """Return how a request stands; None where there is no such request."""


class RequestHandle:
    """One opening of `request`: what was written, and the answer after it."""

    def __init__(self, caller: Caller) -> None:
        self.caller = caller
        self.text = b""


class ControlDir:
    """A filesystem with the virtual directory added; *files* generate the content of each virtual file."""

    def __init__(
        self,
        inner: Filesystem,
        files: Mapping[bytes, Callable[[], bytes]],
        requests: RequestReports | None = None,
        channel: RequestChannel | None = None,
    ) -> None:
        self._inner = inner
        self._channel = channel
        self._asking: dict[int, RequestHandle] = {}
        self._names = sorted(files)
        self._files = files
        self._requests = requests or NoRequests()
        # The handles of listings of `requests` and `answers`, and which of these.
        self._request_lists: dict[int, int] = {}
        self._open: dict[int, bytes] = {}
        self._roots: set[int] = set()
        # Handles count down from far above those of the inner filesystem.
        self._serial = count(_LAST_HANDLE, -1)
        self._made = int(time.time())
        # The pid of a process that may change nothing; no program has pid -1.
        self.onlooker = -1

    # The virtual part

    def _ino(self, parent: int, name: bytes) -> int | None:
        if parent in (_REQUESTS, _ANSWERS):
            # No number is longer; a name of any length would be an inode of any size.
            plain = name.isdigit() and not name.startswith(b"0") and len(name) < 10
            return self._numbered(parent, int(name)) if plain else None
        if name == REQUESTS:
            return _REQUESTS
        if name in (REQUEST, ANSWERS) and self._channel is not None:
            return _REQUEST if name == REQUEST else _ANSWERS
        return _DIRECTORY + 1 + self._names.index(name) if name in self._files else None

    def _numbered(self, parent: int, number: int) -> int | None:
        if parent == _REQUESTS:
            return _FIRST_REQUEST + number if self._requests.report(number) is not None else None
        known = self._channel is not None and self._channel.report(number) is not None
        return _FIRST_ANSWER + number if known else None

    def _content(self, ino: int, caller: Caller) -> bytes:
        if ino < _FIRST_REQUEST:
            return self._files[self._names[ino - _DIRECTORY - 1]]()
        if ino >= _FIRST_ANSWER and self._channel is not None:
            return self._channel.answer(ino - _FIRST_ANSWER, caller)
        found = self._requests.report(ino - _FIRST_REQUEST)
        if found is None:
            raise host_error(errno.ESTALE)
        return found

    def _entry(self, ino: int) -> Entry:
        is_dir = ino in _DIRECTORIES
        mode = stat.S_IFDIR | 0o555 if is_dir else stat.S_IFREG | (0o666 if ino == _REQUEST else 0o444)
        fields = (mode, ino, 0, 1, os.geteuid(), os.getegid(), 0, self._made, self._made, self._made)
        nanoseconds = self._made * 10**9
        others = dict.fromkeys(("st_atime_ns", "st_mtime_ns", "st_ctime_ns"), nanoseconds)
        status = os.stat_result(fields, {**others, "st_blksize": 4096, "st_blocks": 0, "st_rdev": 0})
        # Requests come and go.
        return Entry(ino, status, 1, Lasting.LONG, Lasting.LONG, guarded=ino >= _FIRST_REQUEST)

    # Refusals for verbs that change an inode or a name

    def _check(self, ino: int, caller: Caller) -> None:
        if ino >= _DIRECTORY:
            raise host_error(errno.EROFS)
        if caller.pid == self.onlooker:
            raise host_error(errno.EPERM)

    def _check_name(self, parent: int, name: bytes, caller: Caller) -> None:
        if parent >= _DIRECTORY or (parent == ROOT_INODE and name == NAME):
            raise host_error(errno.EROFS)
        if caller.pid == self.onlooker:
            raise host_error(errno.EPERM)

    def _seem_to_change(self, ino: int, change: AttributeChange, caller: Caller) -> Entry:
        """Answer the onlooker's request to change an inode."""
        raise host_error(errno.EPERM)

    def _seem_to_remove(self, parent: int, name: bytes) -> None:
        """Answer the onlooker's request to remove a name."""
        raise host_error(errno.EPERM)

    # Looking

    def lookup(self, parent: int, name: bytes, caller: Caller) -> Entry | None:
        if name == NAME and parent == ROOT_INODE:
            return self._entry(_DIRECTORY)
        if parent >= _DIRECTORY:
            ino = self._ino(parent, name)
            return None if ino is None else self._entry(ino)
        return self._inner.lookup(parent, name, caller)

    def absence_lasts(self, parent: int) -> bool:
        return parent == _DIRECTORY or (parent < _DIRECTORY and self._inner.absence_lasts(parent))

    def remember(self, ino: int) -> None:
        if ino < _DIRECTORY:
            self._inner.remember(ino)

    def forget(self, ino: int, count: int) -> bool:
        return ino < _DIRECTORY and self._inner.forget(ino, count)

    def getattr(self, ino: int, caller: Caller) -> Entry:
        return self._inner.getattr(ino, caller) if ino < _DIRECTORY else self._entry(ino)

    def readlink(self, ino: int, caller: Caller) -> bytes:
        return self._inner.readlink(ino, caller)

    def statfs(self) -> os.statvfs_result:
        return self._inner.statfs()

    def getxattr(self, ino: int, name: bytes, caller: Caller) -> bytes:
        if ino >= _DIRECTORY:
            raise host_error(errno.ENODATA)
        return self._inner.getxattr(ino, name, caller)

    def listxattr(self, ino: int, caller: Caller) -> list[bytes]:
        return [] if ino >= _DIRECTORY else self._inner.listxattr(ino, caller)

    # Changing

    def setattr(self, ino: int, change: AttributeChange, handle: int | None, caller: Caller) -> Entry:
        if caller.pid == self.onlooker:
            return self._seem_to_change(ino, change, caller)
        if ino == _REQUEST and change.mode is change.uid is change.gid is None:
            # A shell empties what it writes to; there is nothing in it.
            return self._entry(ino)
        self._check(ino, caller)
        return self._inner.setattr(ino, change, handle, caller)

    def setxattr(self, ino: int, name: bytes, value: bytes, flags: int, caller: Caller) -> None:
        self._check(ino, caller)
        self._inner.setxattr(ino, name, value, flags, caller)

    def removexattr(self, ino: int, name: bytes, caller: Caller) -> None:
        self._check(ino, caller)
        self._inner.removexattr(ino, name, caller)

    def mknod(
        self, parent: int, name: bytes, mode: int, device: int, caller: Caller, *, umask: int = 0
    ) -> Entry:
        self._check_name(parent, name, caller)
        return self._inner.mknod(parent, name, mode, device, caller, umask=umask)

    def mkdir(self, parent: int, name: bytes, mode: int, caller: Caller, *, umask: int = 0) -> Entry:
        self._check_name(parent, name, caller)
        return self._inner.mkdir(parent, name, mode, caller, umask=umask)

    def symlink(self, parent: int, name: bytes, target: bytes, caller: Caller) -> Entry:
        self._check_name(parent, name, caller)
        return self._inner.symlink(parent, name, target, caller)

    def link(self, ino: int, parent: int, name: bytes, caller: Caller) -> Entry:
        self._check(ino, caller)
        self._check_name(parent, name, caller)
        return self._inner.link(ino, parent, name, caller)

    def unlink(self, parent: int, name: bytes, caller: Caller) -> None:
        if caller.pid == self.onlooker:
            self._seem_to_remove(parent, name)
            return
        self._check_name(parent, name, caller)
        self._inner.unlink(parent, name, caller)

    def rmdir(self, parent: int, name: bytes, caller: Caller) -> None:
        self._check_name(parent, name, caller)
        self._inner.rmdir(parent, name, caller)

    def rename(
        self, parent: int, name: bytes, new_parent: int, new_name: bytes, flags: int, caller: Caller
    ) -> None:
        self._check_name(parent, name, caller)
        self._check_name(new_parent, new_name, caller)
        self._inner.rename(parent, name, new_parent, new_name, flags, caller)

    # Files

    def open(self, ino: int, flags: int, caller: Caller) -> OpenedFile:
        if ino < _DIRECTORY:
            if caller.pid == self.onlooker:
                raise host_error(errno.EPERM)
            return self._inner.open(ino, flags, caller)
        if ino == _REQUEST:
            handle = next(self._serial)
            self._asking[handle] = RequestHandle(caller)
            return OpenedFile(handle, keep_cache=False, direct=True)
        if flags & os.O_ACCMODE != os.O_RDONLY or flags & os.O_TRUNC:
            raise host_error(errno.EROFS)
        content = self._content(ino, caller)
        handle = next(self._serial)
        self._open[handle] = content
        return OpenedFile(handle, keep_cache=False, direct=True)

    def create(
        self, parent: int, name: bytes, mode: int, flags: int, caller: Caller, *, umask: int = 0
    ) -> tuple[OpenedFile, Entry]:
        self._check_name(parent, name, caller)
        return self._inner.create(parent, name, mode, flags, caller, umask=umask)

    def read(self, handle: int, offset: int, size: int) -> bytes | memoryview:
        if handle in self._open:
            return self._open[handle][offset : offset + size]
        if handle in self._asking:
            return self._asking[handle].text[offset : offset + size]
        return self._inner.read(handle, offset, size)

    def write(self, handle: int, offset: int, data: bytes | memoryview, *, strip: bool = False) -> int:
        asking = self._asking.get(handle)
        if asking is not None and self._channel is not None:
            line = bytes(data)
            if line.strip() and asking.text:
                raise host_error(errno.EINVAL)
            if line.strip():
                asking.text = line + self._channel.submit(line, asking.caller)
            return len(line)
        return self._inner.write(handle, offset, data, strip=strip)

    def release(self, handle: int) -> None:
        if self._asking.pop(handle, None) is None and self._open.pop(handle, None) is None:
            self._inner.release(handle)

    def fsync(self, handle: int, datasync: bool) -> None:
        if handle not in self._open and handle not in self._asking:
            self._inner.fsync(handle, datasync)

    # Directories

    def opendir(self, ino: int, caller: Caller) -> int:
        if ino < _DIRECTORY:
            handle = self._inner.opendir(ino, caller)
            if ino == ROOT_INODE:
                self._roots.add(handle)
            return handle
        handle = next(self._serial)
        self._open[handle] = b""
        if ino in (_REQUESTS, _ANSWERS):
            self._request_lists[handle] = ino
        return handle

    def listing_lasts(self, handle: int) -> bool:
        if handle in self._open:
            return handle not in self._request_lists
        return self._inner.listing_lasts(handle)

    def familiar(self, handle: int, start: int) -> bool:
        return handle not in self._open and self._inner.familiar(handle, start)

    def readdir(self, handle: int, start: int, *, brief: bool = False) -> Iterator[tuple[bytes, Entry, int]]:
        if handle in self._open:
            listed = self._request_lists.get(handle)
            return self._virtual_entries(start) if listed is None else self._requested(listed, start)
        entries = self._inner.readdir(handle, start, brief=brief)
        # A workspace may have an entry of this name; the view has only the virtual directory.
        return (entry for entry in entries if entry[0] != NAME) if handle in self._roots else entries

    def _virtual_entries(self, start: int) -> Iterator[tuple[bytes, Entry, int]]:
        files = range(_DIRECTORY + 1, _DIRECTORY + 1 + len(self._names))
        inodes = [_DIRECTORY, ROOT_INODE, *files, _REQUESTS, _REQUEST, _ANSWERS]
        names = [b".", b"..", *self._names, REQUESTS, REQUEST, ANSWERS]
        for position, name in enumerate(names if self._channel is not None else names[:-2]):
            if position >= start:
                entry = self._entry(max(inodes[position], _DIRECTORY))
                yield name, entry, position + 1

    def _requested(self, ino: int, start: int) -> Iterator[tuple[bytes, Entry, int]]:
        """The entries of `requests`: the position after each is its number and three.

        Those of `answers` are not listed: whoever reads all files that there are would wait for a person.
        """
        for position, name in enumerate([b".", b".."]):
            if position >= start:
                yield name, self._entry(ino if name == b"." else _DIRECTORY), position + 1
        for number in self._requests.numbers() if ino == _REQUESTS else ():
            if number + 2 >= start:
                yield b"%d" % number, self._entry(_FIRST_REQUEST + number), number + 3

    def releasedir(self, handle: int) -> None:
        self._roots.discard(handle)
        self._request_lists.pop(handle, None)
        if self._open.pop(handle, None) is None:
            self._inner.releasedir(handle)

    def fsyncdir(self, ino: int, datasync: bool) -> None:
        if ino < _DIRECTORY:
            self._inner.fsyncdir(ino, datasync)

    def close(self) -> None:
        self._inner.close()
