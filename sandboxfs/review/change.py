"""Changes: the value that describes one path where the sandbox differs, and kinds of conflict.

A change has three versions of a path: the baseline's, the view's, and the workspace's present one. Paths are
relative to the root: `path` is the path in the view, `lower_path` the path in the workspace. The two differ
below a renamed directory.

Conflicts are half sentences that follow the name of a path. `UNRESOLVED` stands for conflict markers that an
earlier commit left.
"""

import os
import stat
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from sandboxfs.paths import DEEPEST_PATH, LONGEST_PATH, is_below

CHANGED = "changed in the workspace since the sandbox changed it"
DELETED = "deleted in the workspace since the sandbox changed it"
CHANGED_AND_DELETED = "changed in the workspace since the sandbox deleted it"
MADE_TOO = "made in the workspace too"
MADE_BELOW = "made in the workspace since the sandbox deleted what was there"
UNRESOLVED = "unresolved conflict markers"
DAMAGED = "damaged in the sandbox: what the workspace has there is not shown (discard it to have that back)"
TOO_DEEP = (
    f"holds entries more than {DEEPEST_PATH} levels deep, or of paths longer than {LONGEST_PATH:,} bytes"
)
REPOSITORY = "is in a repository that changed in the workspace since, and may need it"
FILLED = "has new entries in the workspace since the sandbox deleted it"


class ChangeKind(StrEnum):
    """The kind of a change."""

    ADDED = "added"
    DELETED = "deleted"
    MODIFIED = "modified"
    RENAMED = "renamed"
    MODE = "mode"
    TYPE = "type"


def no_content() -> bytes:
    """Return the content of an entry that is no regular file: none."""
    return b""


@dataclass(frozen=True)
class Version:
    """One version of a path; `read` gives the content of a regular file, and tells where the object is.

    `target` is the target of a symlink.
    """

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
    ) -> "Version":
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
        """The values that tell this state of this object from any other."""
        return self.dev, self.ino, self.size, self.mtime_ns, self.ctime_ns


@dataclass(frozen=True)
class PathChange:
    """One change. A version that is None stands for an absent object.

    `lower` is the workspace's present version at `lower_path`; where the sandbox added the path, the object
    that the host made there meanwhile. `old_path` is the lower path that a renamed object came from.
    `conflict` says in half a sentence how the workspace moved away from the baseline. `links` are all paths
    of the file, if the file has several.
    """

    path: bytes
    kind: ChangeKind
    old: Version | None
    new: Version | None
    lower: Version | None
    lower_path: bytes
    old_path: bytes | None = None
    conflict: str | None = None
    changing: bool = False
    links: tuple[bytes, ...] = ()
    # Of a directory: the upper hides all its lower entries.
    opaque: bool = False
    # The time of the sandbox's last change here, by the clock of the upper's filesystem.
    changed_ns: int = 0

    @property
    def origin(self) -> bytes:
        """The path in the workspace that the old version has."""
        return self.old_path or self.lower_path

    @property
    def places(self) -> tuple[bytes, bytes, bytes]:
        """The paths that the change is about: in the view, before a rename, and in the workspace."""
        return self.path, self.old_path or self.path, self.lower_path

    def is_within(self, paths: Sequence[bytes]) -> bool:
        """Whether any of its places is at or below one of *paths*; without any, every change is."""
        return not paths or any(is_below(place, path) for place in {*self.places} for path in paths)

    @property
    def moved_from(self) -> bytes | None:
        """The path of the old version, where that is another one than the path in the view."""
        return self.origin if self.old is not None and self.origin != self.path else None

    @property
    def is_dir(self) -> bool:
        side = self.new or self.old or self.lower
        return side is not None and side.is_dir
