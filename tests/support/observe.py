"""What does a tree look like through its verbs? For comparing a view with a plain directory.

Sizes and link counts of directories are every filesystem's own; access times are left out; inode numbers
are compared by which names share one. A time is either one that was set on purpose, long ago, and must be the
same on both sides, or it is recent.
"""

import os
import stat
from typing import NamedTuple

from tests.support.drivers import Verbs

# No clock of a machine that runs these tests says less.
RECENT = 1_700_000_000 * 10**9


class Seen(NamedTuple):
    """What a name shows, but for its inode number."""

    mode: str
    uid: int
    gid: int
    size: int | None
    content: bytes | None
    target: bytes | None
    nlink: int | None
    shares_with: bytes
    xattrs: tuple[tuple[str, bytes], ...]
    mtime: int | str
    rdev: int


class Observed(NamedTuple):
    names: dict[bytes, Seen]
    inodes: dict[bytes, int]


def observe(tree: Verbs) -> Observed:
    names: dict[bytes, Seen] = {}
    inodes: dict[bytes, int] = {}
    first_names: dict[int, bytes] = {}
    pending = [b"."]
    while pending:
        path = pending.pop(0)
        status = tree.lstat(path)
        inodes[path] = status.st_ino
        first = first_names.setdefault(status.st_ino, path)
        names[path] = _seen(tree, path, status, first)
        if stat.S_ISDIR(status.st_mode):
            listed = sorted(tree.names(path))
            assert len(listed) == len(set(listed)), f"{path!r} lists a name twice: {listed}"
            pending += [os.path.normpath(os.path.join(path, name)) for name in listed]
    return Observed(names, inodes)


def _seen(tree: Verbs, path: bytes, status: os.stat_result, first: bytes) -> Seen:
    is_dir, is_file = stat.S_ISDIR(status.st_mode), stat.S_ISREG(status.st_mode)
    is_link = stat.S_ISLNK(status.st_mode)
    return Seen(
        mode=stat.filemode(status.st_mode),
        uid=status.st_uid,
        gid=status.st_gid,
        size=None if is_dir else status.st_size,
        content=tree.read(path) if is_file else None,
        target=tree.readlink(path) if is_link else None,
        nlink=None if is_dir else status.st_nlink,
        shares_with=first,
        xattrs=tuple((name, tree.getxattr(path, name)) for name in sorted(tree.listxattr(path))),
        mtime="recent" if status.st_mtime_ns > RECENT else status.st_mtime_ns,
        rdev=status.st_rdev,
    )


def differences(view: Observed, plain: Observed) -> list[str]:
    """One line for each difference of the view from the plain directory."""
    found = []
    for path in sorted(view.names.keys() | plain.names.keys()):
        shown = path.decode(errors="backslashreplace")
        if path not in plain.names:
            found.append(f"{shown}: should not be there")
        elif path not in view.names:
            found.append(f"{shown}: is missing")
        else:
            for field, is_, should in zip(Seen._fields, view.names[path], plain.names[path], strict=True):
                if is_ != should:
                    found.append(f"{shown}: {field} is {is_!r}, should be {should!r}")
    return found
