"""The filesystem protocol: some thirty verbs, the values they take and give, and work deferred to a thread.

`Overlay` implements the protocol and knows no policy. Inodes are numbers, 1 is the root; names are bytes of
one path component; errors are OSError. Calls wait for nothing but the host filesystem and must all come from
one thread.

A verb that answers a name with an `Entry` (lookup, mknod, mkdir, symlink, link, create) counts one kernel
reference to the entry's inode; `forget` gives references back, and an inode without any is dropped.

A cold read, an fsync or the copy of a large file takes its time on the disk, and the overlay answers one
request at a time. The server of an overlay may allow such deferred work in a thread (`Offload.allowed`): then
the verb gives the request up by raising `Deferred` with the work. When the work is done, its result is the
answer, or the request is made again and finds the work done. The work touches nothing of the overlay but its
own arguments.

Handing work over to a thread takes longer than an fsync takes on most disks. But an fsync can take seconds
too, during which all other requests would wait. So an fsync is done at once if the last one was quick and
little has been written since; otherwise, and so for the first time, in a thread.
"""

import errno
import os
import time
from collections.abc import Callable, Collection, Iterator
from enum import IntEnum
from typing import NamedTuple, Protocol, TypeVar

T = TypeVar("T")

ROOT_INODE = 1


class Caller(Protocol):
    """The process for which an entry is created or opened."""

    @property
    def uid(self) -> int: ...
    @property
    def gid(self) -> int: ...
    @property
    def pid(self) -> int: ...


class AnonymousCaller(NamedTuple):
    """A caller that stands for no process."""

    uid: int
    gid: int
    pid: int


ANYBODY: Caller = AnonymousCaller(0, 0, 0)
"""The caller where no request of the kernel is behind a call."""


class Lasting(IntEnum):
    """How long an answer may be cached."""

    BRIEFLY = 0
    """The host may change it unnoticed."""
    WATCHED = 1
    """The host's changes of it are noticed, but for kinds of changes that cannot be watched."""
    LONG = 2
    """The host cannot change it, or every change of it is noticed."""


class Entry(NamedTuple):
    """A name's inode and its attributes.

    *stat* is the host object's; *ino* and *nlink* replace its numbers. *name* and *attributes* say how long
    the name and the attributes may be cached. *guarded* forbids any caching, because the policy refuses more
    than the name, or because the answer depends on the inode's path. An entry that is only *mentioned* in a
    listing is known to the kernel: of *stat* only the type is right, and no reference is counted.
    """

    ino: int
    stat: os.stat_result
    nlink: int
    name: Lasting
    attributes: Lasting
    guarded: bool = False
    mentioned: bool = False


class OpenedFile(NamedTuple):
    """An open file. *keep_cache*: the kernel's pages are still right; *direct*: reads and writes avoid them.

    *content* is the whole content, where it is small, in memory, and not known to the kernel: the kernel
    stores it and need not read.
    """

    handle: int
    keep_cache: bool
    direct: bool = False
    content: bytes | None = None


class Seen(NamedTuple):
    """The inode and type found at a name, for a decision of the policy."""

    ino: int
    is_dir: bool


Approve = Callable[[Seen | None, Seen | None], None]
"""Gets the entries at two names and raises unless both may be changed; only the last call counts."""


class AttributeChange(NamedTuple):
    """The attributes that setattr sets; None leaves an attribute as it is."""

    mode: int | None = None
    uid: int | None = None
    gid: int | None = None
    size: int | None = None
    atime_ns: int | None = None
    mtime_ns: int | None = None


class Filesystem(Protocol):
    """A tree of inodes that can be read and changed."""

    def lookup(self, parent: int, name: bytes, caller: Caller) -> Entry | None: ...
    def absence_lasts(self, parent: int) -> bool: ...
    def remember(self, ino: int) -> None: ...
    def forget(self, ino: int, count: int) -> bool: ...
    def getattr(self, ino: int, caller: Caller) -> Entry: ...
    def setattr(self, ino: int, change: AttributeChange, handle: int | None, caller: Caller) -> Entry: ...
    def readlink(self, ino: int, caller: Caller) -> bytes: ...
    def mknod(
        self, parent: int, name: bytes, mode: int, device: int, caller: Caller, *, umask: int = 0
    ) -> Entry: ...
    def mkdir(self, parent: int, name: bytes, mode: int, caller: Caller, *, umask: int = 0) -> Entry: ...
    def symlink(self, parent: int, name: bytes, target: bytes, caller: Caller) -> Entry: ...
    def link(self, ino: int, parent: int, name: bytes, caller: Caller) -> Entry: ...
    def unlink(self, parent: int, name: bytes, caller: Caller) -> None: ...
    def rmdir(self, parent: int, name: bytes, caller: Caller) -> None: ...
    def rename(
        self, parent: int, name: bytes, new_parent: int, new_name: bytes, flags: int, caller: Caller
    ) -> None: ...
    def open(self, ino: int, flags: int, caller: Caller) -> OpenedFile: ...
    def create(
        self, parent: int, name: bytes, mode: int, flags: int, caller: Caller, *, umask: int = 0
    ) -> tuple[OpenedFile, Entry]: ...
    def read(self, handle: int, offset: int, size: int) -> bytes | memoryview: ...
    def write(self, handle: int, offset: int, data: bytes | memoryview, *, strip: bool = False) -> int: ...
    def release(self, handle: int) -> None: ...
    def fsync(self, handle: int, datasync: bool) -> None: ...
    def opendir(self, ino: int, caller: Caller) -> int: ...
    def listing_lasts(self, handle: int) -> bool: ...
    def familiar(self, handle: int, start: int) -> bool: ...
    def readdir(
        self, handle: int, start: int, *, brief: bool = False
    ) -> Iterator[tuple[bytes, Entry, int]]: ...
    def releasedir(self, handle: int) -> None: ...
    def fsyncdir(self, ino: int, datasync: bool) -> None: ...
    def statfs(self) -> os.statvfs_result: ...
    def getxattr(self, ino: int, name: bytes, caller: Caller) -> bytes: ...
    def setxattr(self, ino: int, name: bytes, value: bytes, flags: int, caller: Caller) -> None: ...
    def listxattr(self, ino: int, caller: Caller) -> list[bytes]: ...
    def removexattr(self, ino: int, name: bytes, caller: Caller) -> None: ...
    def close(self) -> None: ...


class LocatedFilesystem(Filesystem, Protocol):
    """A filesystem that also tells the paths of its inodes, on which the guard decides.

    `move` is `rename` for the guard: both names are looked up only once.
    """

    def move(
        self, parent: int, name: bytes, new_parent: int, new_name: bytes, flags: int, approve: Approve
    ) -> None: ...

    def inodes(self) -> list[int]: ...
    def places(self, ino: int) -> list[tuple[int, bytes]]: ...
    def path(self, ino: int) -> bytes: ...
    def path_to(self, parent: int, name: bytes) -> bytes: ...
    def is_dir(self, ino: int) -> bool: ...
    def made_here(self, ino: int) -> bool:
        """Whether a file is wholly the sandbox's own: made there, and no copy of the workspace's content."""

    def changed_here(self, ino: int) -> bool:
        """Whether the sandbox made or changed a file."""

    def readable(self, ino: int) -> int:
        """A descriptor of its own for reading a file, which the caller closes."""

    def in_workspace(self, parent: int, name: bytes | None, at: bytes | None = None) -> bool: ...
    def has_workspace_directory(self, path: bytes) -> bool: ...

    @property
    def redirected(self) -> bool:
        """Whether any directory in the view may have a redirect's source in the workspace."""

    def origins(self, ino: int) -> Collection[bytes]:
        """The workspace paths of a directory that its name and parent do not lead to."""


def host_error(number: int) -> OSError:
    """An OSError of the class that fits its number."""
    return OSError(number, os.strerror(number))


def stale() -> OSError:
    """The error for a replaced host object: the kernel looks the name up again and retries."""
    return host_error(errno.ESTALE)


# The errors of reaching an object by its last known name after the host moved, removed or replaced it.
_MOVED = {errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.EXDEV}


def by_its_name(error: OSError) -> OSError:
    """The error to report where an inode could not be reached by its last known name."""
    return stale() if error.errno in _MOVED else error


class Deferred(BaseException):
    """Asks the server to do *work* first, in another thread. With *answers* the work's result is the answer;
    else the request is made again, and then *over* is called. Not an error: only the server catches it."""

    def __init__(
        self, work: Callable[[], object], *, answers: bool, over: Callable[[], None] = lambda: None
    ) -> None:
        super().__init__()
        self.work = work
        self.answers = answers
        self.over = over


class Wait(Protocol):
    """A request that waits for a person.

    *caller* makes the request again when the wait is over: it tells the filesystem the answer.
    """

    @property
    def caller(self) -> Caller: ...

    def when_over(self, tell: Callable[[], None]) -> None:
        """Call *tell*, once, in the thread that serves, when the request is to be made again."""

    def give_up(self) -> None:
        """Nobody waits any more; *tell* is not called."""


class Postponed(BaseException):
    """Asks the server to make the request again when *wait* is over, and to serve others meanwhile.

    Only `open` raises it: whatever holds a directory, or a file that is open, must be answered at once.
    """

    def __init__(self, wait: Wait) -> None:
        super().__init__()
        self.wait = wait


class Offload:
    """Whether work may be done in another thread; one for all parts of an overlay."""

    __slots__ = ("allowed",)

    def __init__(self) -> None:
        self.allowed = False

    def answer(self, work: Callable[[], T]) -> T:
        """Answer with the result of *work*, done in another thread where that is allowed."""
        if self.allowed:
            raise Deferred(work, answers=True)
        return work()


# The longest quick sync in seconds, and the most bytes that count as little.
_QUICK = 1e-3
_LITTLE = 1 << 20


class Syncs:
    """Syncs to disk, and how long the last one took. *written*: the bytes written since the last sync."""

    __slots__ = ("_beside", "_quick", "written")

    def __init__(self, beside: Offload) -> None:
        self._beside = beside
        self._quick = False
        self.written = 0

    def sync(self, fd: int, sync: Callable[[int], None] = os.fsync) -> None:
        """Sync an open file or directory to the disk."""
        at_once = self._quick and self.written <= _LITTLE
        self.written = 0
        if at_once or not self._beside.allowed:
            self._timed(fd, sync)
            return
        # A duplicate, because the descriptor may be closed meanwhile.
        own = os.dup(fd)

        def reach_the_disk() -> None:
            try:
                self._timed(own, sync)
            finally:
                os.close(own)

        self._beside.answer(reach_the_disk)

    def _timed(self, fd: int, sync: Callable[[int], None]) -> None:
        begun = time.perf_counter()
        sync(fd)
        self._quick = time.perf_counter() - begun < _QUICK
