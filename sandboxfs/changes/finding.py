"""What is one change made of?

A finding is a path where the sandbox differs from what it started from, with three sides: how the baseline
saw it, how the view has it, and how the workspace has it now. Paths are relative to the root: `path` is the
place in the view, `lower_path` the place in the workspace, which is another one below a renamed directory.
"""

import os
import stat
from collections.abc import Callable
from dataclasses import dataclass

from sandboxfs.changes.patch import Kind


def no_content() -> bytes:
    """What there is to read of an entry that is no regular file."""
    return b""


@dataclass(frozen=True)
class Side:
    """One side of a change; `read` gives the content of a regular file, `target` is a symlink's."""

    mode: int
    size: int
    uid: int
    gid: int
    mtime_ns: int
    ctime_ns: int
    dev: int
    ino: int
    nlink: int
    rdev: int = 0
    target: bytes = b""
    read: Callable[[], bytes] = no_content

    @classmethod
    def of(
        cls, status: os.stat_result, target: bytes = b"", read: Callable[[], bytes] = no_content
    ) -> "Side":
        """Describe an object of the host by its *status*."""
        return cls(
            mode=status.st_mode,
            size=status.st_size,
            uid=status.st_uid,
            gid=status.st_gid,
            mtime_ns=status.st_mtime_ns,
            ctime_ns=status.st_ctime_ns,
            dev=status.st_dev,
            ino=status.st_ino,
            nlink=status.st_nlink,
            rdev=status.st_rdev,
            target=target,
            read=read,
        )

    @property
    def is_dir(self) -> bool:
        return stat.S_ISDIR(self.mode)

    @property
    def is_file(self) -> bool:
        return stat.S_ISREG(self.mode)

    @property
    def identity(self) -> tuple[int, int, int, int, int]:
        """What tells this very state of this very object from any other."""
        return self.dev, self.ino, self.size, self.mtime_ns, self.ctime_ns


@dataclass(frozen=True)
class Finding:
    """One change. None stands for nothing there.

    `lower` is what the workspace has now at `lower_path`; of a path that the sandbox added, what the host put
    there meanwhile. `old_path`, of something renamed, is the lower path it came from. `conflict` says in half
    a sentence how the workspace moved away from the baseline. `links` are other paths of the same file.
    """

    path: bytes
    kind: Kind
    old: Side | None
    new: Side | None
    lower: Side | None
    lower_path: bytes
    old_path: bytes | None = None
    conflict: str | None = None
    changing: bool = False
    links: tuple[bytes, ...] = ()
    # Of a directory: the upper hides all that the lower layers have in it.
    opaque: bool = False
    # When the sandbox last did something to it, by the clock of the upper's filesystem.
    changed_ns: int = 0

    @property
    def is_dir(self) -> bool:
        side = self.new or self.old or self.lower
        return side is not None and side.is_dir
