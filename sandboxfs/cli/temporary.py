"""Where does a program keep its temporary files that cannot have a /tmp of its own?

In a directory that is made for the run and removed with it. It is locked as long as the process lives that
made it: what is not belonged to a run that was killed with everything that would have cleared it away, and is
removed by the next one.
"""

import os
from contextlib import suppress
from fcntl import LOCK_EX, LOCK_NB, LOCK_SH, flock
from pathlib import Path

from sandboxfs.paths import make_directories
from sandboxfs.state.tree import remove_tree

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def make_temporary(path: Path) -> None:
    """Make the directory *path*, this process's own until it ends, and remove what others left beside it."""
    _sweep(path.parent)
    # Another may take it for left behind until it is locked.
    while not _hold(path):
        make_directories(path)


def _hold(path: Path) -> bool:
    """Lock the directory *path* for as long as this process lives; False when it is not there."""
    try:
        descriptor = os.open(path, _DIRECTORY)
    except FileNotFoundError:
        return False
    # Where there are no locks, nothing is taken for left behind.
    with suppress(OSError):
        flock(descriptor, LOCK_SH)
    try:
        if os.path.samestat(os.fstat(descriptor), path.lstat()):
            return True
    except FileNotFoundError:
        pass
    os.close(descriptor)
    return False


def _sweep(folder: Path) -> None:
    try:
        found = list(folder.iterdir())
    except FileNotFoundError:
        return
    for path in found:
        # One that is in use, or cannot be removed, stays.
        with suppress(OSError):
            descriptor = os.open(path, _DIRECTORY)
            try:
                flock(descriptor, LOCK_EX | LOCK_NB)
                remove_tree(path)
            finally:
                os.close(descriptor)
