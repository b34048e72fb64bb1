"""What can be asked of a filesystem? The verbs, and the values they take and give.

`Overlay` implements the protocol and knows no policy. Inodes are numbers, 1 is the root; names are bytes of
one path component; errors are OSError. Calls do not wait for anything but the host filesystem and must all
come from one thread.

A verb that answers with an `Entry` for a name (lookup, mknod, mkdir, symlink, link, create) counts one kernel
reference on its inode; `forget` gives references back, and an inode without any is dropped.
"""

import os
from collections.abc import Callable, Iterator
from enum import IntEnum
from typing import NamedTuple, Protocol

ROOT_INODE = 1


class Caller(Protocol):
    """On whose behalf something is created or opened."""

    @property
    def uid(self) -> int: ...
    @property
    def gid(self) -> int: ...
    @property
    def pid(self) -> int: ...


class Somebody(NamedTuple):
    """A caller that no request came from."""

    uid: int
    gid: int
    pid: int


ANYBODY: Caller = Somebody(0, 0, 0)
"""For callers of the core that stand for nobody in particular."""


class Lasting(IntEnum):
    """How long an answer is good."""

    BRIEFLY = 0
    """The host may change it, and nobody would notice."""
    WATCHED = 1
    """What the host does to it is noticed, but for what it does in ways that cannot be watched."""
    LONG = 2
    """The host cannot change it, or whatever it does is noticed."""


class Entry(NamedTuple):
    """What a name or an inode is.

    *stat* is the host object's; *ino* and *nlink* replace its numbers. *name* and *attributes* say how long
    the name, and what the inode is like, may be cached; *guarded*, that nothing may be cached at all,
    because whoever asks for more than the name is to be refused. One that is only *mentioned* in a listing
    is known to the kernel: of *stat* only the type is right, and no reference is counted.
    """

    ino: int
    stat: os.stat_result
    nlink: int
    name: Lasting
    attributes: Lasting
    guarded: bool = False
    mentioned: bool = False


class Opened(NamedTuple):
    """An open file. *keep_cache*: the pages that the kernel holds are still right; *direct*: go around them.

    *content* is all that is in it, where that is little, at hand, and not known to the kernel: given along,
    it need not be asked for.
    """

    handle: int
    keep_cache: bool
    direct: bool = False
    content: bytes | None = None


class Seen(NamedTuple):
    """What is found at a name, as far as deciding about it goes."""

    ino: int
    is_dir: bool


Approve = Callable[[Seen | None, Seen | None], None]
"""Told what is at two names, raises unless they may be changed; told again, that is what counts."""


class AttributeChange(NamedTuple):
    """What setattr changes; None leaves an attribute as it is."""

    mode: int | None = None
    uid: int | None = None
    gid: int | None = None
    size: int | None = None
    atime_ns: int | None = None
    mtime_ns: int | None = None


class Filesystem(Protocol):
    """A tree of inodes that can be looked at and changed."""

    def lookup(self, parent: int, name: bytes, caller: Caller) -> Entry | None: ...
    def absence_lasts(self, parent: int) -> bool: ...
    def remember(self, ino: int) -> None: ...
    def forget(self, ino: int, count: int) -> bool: ...
    def getattr(self, ino: int, caller: Caller) -> Entry: ...
    def setattr(self, ino: int, change: AttributeChange, handle: int | None, caller: Caller) -> Entry: ...
    def readlink(self, ino: int, caller: Caller) -> bytes: ...
    def mknod(self, parent: int, name: bytes, mode: int, device: int, caller: Caller) -> Entry: ...
    def mkdir(self, parent: int, name: bytes, mode: int, caller: Caller) -> Entry: ...
    def symlink(self, parent: int, name: bytes, target: bytes, caller: Caller) -> Entry: ...
    def link(self, ino: int, parent: int, name: bytes, caller: Caller) -> Entry: ...
    def unlink(self, parent: int, name: bytes, caller: Caller) -> None: ...
    def rmdir(self, parent: int, name: bytes, caller: Caller) -> None: ...
    def rename(
        self, parent: int, name: bytes, new_parent: int, new_name: bytes, flags: int, caller: Caller
    ) -> None: ...
    def open(self, ino: int, flags: int, caller: Caller) -> Opened: ...
    def create(
        self, parent: int, name: bytes, mode: int, flags: int, caller: Caller
    ) -> tuple[Opened, Entry]: ...
    def read(self, handle: int, offset: int, size: int) -> bytes | memoryview: ...
    def write(self, handle: int, offset: int, data: bytes | memoryview) -> int: ...
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


class Tree(Filesystem, Protocol):
    """A filesystem that can also tell where its inodes are, which deciding about them takes.

    `move` is `rename` for whoever decides: what was found there is looked for only once.
    """

    def move(
        self, parent: int, name: bytes, new_parent: int, new_name: bytes, flags: int, approve: Approve
    ) -> None: ...

    def inodes(self) -> list[int]: ...
    def places(self, ino: int) -> list[tuple[int, bytes]]: ...
    def path(self, ino: int) -> bytes: ...
    def path_to(self, parent: int, name: bytes) -> bytes: ...
    def is_dir(self, ino: int) -> bool: ...
    def in_workspace(self, parent: int, name: bytes | None, at: bytes | None = None) -> bool: ...
    def has_workspace_directory(self, path: bytes) -> bool: ...
