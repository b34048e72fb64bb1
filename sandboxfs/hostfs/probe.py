"""Filesystem probes: what the filesystem that holds a directory can do.

All but `obstacle` try the operation in a temporary directory, which it makes inside the given one and removes
again; OSError when even that directory cannot be made.
"""

import errno
import os
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sandboxfs.hostfs.copy import PREFIX, reflink
from sandboxfs.hostfs.directory import HostDir

# The name and the greatest length of a mark in the upper: a redirect is a path.
_ATTRIBUTE = PREFIX + b"probe"
_VALUE = b"y" * 1024
# Errors that do not depend on the abilities of the filesystem.
_FULL = {errno.ENOSPC, errno.EDQUOT}


def writable(directory: Path) -> bool:
    """Say whether files can be made in *directory*."""
    try:
        with _scratch(directory):
            return True
    except OSError:
        return False


def user_xattrs(directory: Path) -> bool:
    """Say whether files and directories there can carry the extended attributes of marks."""
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
        with original.open("rb") as source, (scratch / "copy").open("wb") as target:
            try:
                reflink(source.fileno(), target.fileno())
            except OSError:
                return False
    return True


@contextmanager
def _scratch(directory: Path) -> Iterator[Path]:
    # The number in the name tells whose directory it was, if this process is killed.
    with tempfile.TemporaryDirectory(prefix=".probe-", suffix=f"-{os.getpid()}", dir=directory) as made:
        yield Path(made)


def obstacle(directory: HostDir) -> str | None:
    """Say why this user may not change the names in *directory*; None when the user may.

    A directory of the user's own that its mode closes is opened for the moment, and is no obstacle.
    """
    if os.access(directory.own_path(), os.W_OK | os.X_OK, effective_ids=True):
        return None
    if os.fstatvfs(directory.fd).f_flag & os.ST_RDONLY:
        return "its file system is read-only"
    owner = directory.own_stat().st_uid
    return None if owner == os.geteuid() else f"it belongs to {_user(owner)} and you may not write there"


def _user(number: int) -> str:
    # Imported here: those who may write need no name.
    import pwd

    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:
        return f"user {number}"
