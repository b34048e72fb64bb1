"""What can the filesystem that holds a directory do?

Each function finds out by doing it, in a temporary directory that it makes inside the given one and takes
away again; OSError when even that cannot be made.
"""

import errno
import os
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sandboxfs.layers import syscalls

# The name and the length of what a mark in the upper may need at most: a redirect is a path.
_ATTRIBUTE = "user.overlay.probe"
_VALUE = b"y" * 1024
# Says nothing about what the filesystem can do.
_FULL = {errno.ENOSPC, errno.EDQUOT}


def writable(directory: Path) -> bool:
    """Say whether files can be made in *directory*."""
    try:
        with _scratch(directory):
            return True
    except OSError:
        return False


def user_xattrs(directory: Path) -> bool:
    """Say whether files and directories there can carry the extended attributes that marks are made of."""
    with _scratch(directory) as scratch:
        file = scratch / "file"
        file.touch()
        try:
            for path in (file, scratch):
                os.setxattr(path, _ATTRIBUTE, _VALUE)
                if os.getxattr(path, _ATTRIBUTE) != _VALUE:
                    return False
        except OSError:
            return False
    return True


def device_whiteouts(directory: Path) -> bool:
    """Say whether the character device 0:0, overlayfs' whiteout, can be made there by this user."""
    with _scratch(directory) as scratch:
        whiteout = scratch / "whiteout"
        try:
            os.mknod(whiteout, stat.S_IFCHR, 0)
        except OSError as error:
            if error.errno in _FULL:
                raise
            return False
        status = whiteout.lstat()
    return stat.S_ISCHR(status.st_mode) and status.st_rdev == 0


def reflinks(directory: Path) -> bool:
    """Say whether copies there can share their blocks with the original."""
    with _scratch(directory) as scratch:
        original = scratch / "original"
        original.write_bytes(b"shared" * 1024)
        with original.open("rb") as source, (scratch / "copy").open("wb") as copy:
            try:
                syscalls.reflink(source.fileno(), copy.fileno())
            except OSError:
                return False
    return True


@contextmanager
def _scratch(directory: Path) -> Iterator[Path]:
    # Whoever finds it when this process was killed knows by its number whose it was.
    with tempfile.TemporaryDirectory(prefix=".probe-", suffix=f"-{os.getpid()}", dir=directory) as made:
        yield Path(made)
