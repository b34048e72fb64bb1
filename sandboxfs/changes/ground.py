"""Which directories of a tree are open?

Directories are opened by their path from the root, beneath it and through no symlink, and kept open as long
as they are among the last few that were asked for. Whoever knows which directory it must be says so by its
inode number; another one that took its place is as good as none.
"""

import errno
import os
from collections import OrderedDict
from collections.abc import Callable
from typing import TypeVar

from sandboxfs.layers.hostdir import HostDir, unlocked

T = TypeVar("T")

_MOST = 48
# A file or a symlink is in the way.
_NO_WAY = {errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.EXDEV}


class Ground:
    """The directories of one tree, opened as they are needed. What is handed out is the ground's own."""

    def __init__(self, root: HostDir) -> None:
        self.root = root
        self._open: OrderedDict[bytes, tuple[HostDir, int]] = OrderedDict()

    def open(self, path: bytes, ino: int | None = None) -> HostDir:
        """The directory at *path*; FileNotFoundError when it is not there, or not the one with number *ino*.

        Good until a few dozen others have been asked for.
        """
        found = self._open.get(path)
        if found is None:
            directory = self._descend(path)
            found = directory, directory.own_stat().st_ino
            self._open[path] = found
            if len(self._open) > _MOST:
                self._open.popitem(last=False)[1][0].close()
        else:
            self._open.move_to_end(path)
        if ino is not None and found[1] != ino:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
        return found[0]

    def find(self, path: bytes, ino: int | None = None) -> HostDir | None:
        """The directory at *path*, or None where `open` would fail because it is not there."""
        try:
            return self.open(path, ino)
        except OSError as error:
            if error.errno in _NO_WAY:
                return None
            raise

    def in_it(self, path: bytes, action: Callable[[HostDir], T]) -> T:
        """Do *action* in the directory at *path*, also if its mode keeps its owner out."""
        directory = self.open(path)
        try:
            return action(directory)
        except PermissionError:
            return unlocked(directory.own_path(), directory.own_stat().st_mode, lambda: action(directory))

    def _descend(self, path: bytes) -> HostDir:
        try:
            return self.root.descend(path)
        except PermissionError:
            pass
        # Directories on the way may keep their owner out.
        here = self.root.child(b".")
        for name in path.split(b"/"):
            with here as above:
                here = _entered(above, name)
        return here

    def forget(self) -> None:
        """Close everything: paths may lead elsewhere from now on."""
        while self._open:
            self._open.popitem()[1][0].close()

    def __enter__(self) -> "Ground":
        return self

    def __exit__(self, *_: object) -> None:
        self.forget()


def _entered(above: HostDir, name: bytes) -> HostDir:
    try:
        return above.child(name)
    except PermissionError:
        return unlocked(above.own_path(), above.own_stat().st_mode, lambda: above.child(name))
