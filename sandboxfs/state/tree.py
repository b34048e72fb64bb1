"""How large is a tree in the state directory, and how is one taken away?

The trees hold what sandboxed programs wrote: directories that their owner may not enter, links that lead
anywhere, paths of any depth. Nothing here follows a symbolic link, recurses, or holds more than a few
descriptors.
"""

import os
import stat
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


@dataclass(frozen=True)
class TreeSize:
    """What a tree takes on disk; not *complete* when the walk was cut short or kept out."""

    size: int
    entries: int
    complete: bool


def measure_tree(top: Path, limit: int = 50_000) -> TreeSize:
    """Add up what the tree below *top* takes on disk, looking at no more than *limit* entries."""
    size = entries = 0
    complete = True
    linked: set[int] = set()
    pending = [str(top)]
    while pending:
        try:
            listing = os.scandir(pending.pop())
        except OSError:
            complete = False
            continue
        with listing:
            for entry in listing:
                if entries == limit:
                    return TreeSize(size, entries, complete=False)
                entries += 1
                try:
                    found = entry.stat(follow_symlinks=False)
                except OSError:
                    complete = False
                    continue
                if found.st_nlink > 1 and not stat.S_ISDIR(found.st_mode):
                    if found.st_ino in linked:
                        continue
                    linked.add(found.st_ino)
                size += found.st_blocks * 512
                if stat.S_ISDIR(found.st_mode):
                    pending.append(entry.path)
    return TreeSize(size, entries, complete)


def is_empty(directory: Path) -> bool:
    """Say whether *directory* has no entry; one that is missing has none."""
    try:
        with os.scandir(directory) as listing:
            return next(listing, None) is None
    except FileNotFoundError:
        return True


def remove_tree(top: Path) -> None:
    """Remove *top* and everything below it; a missing *top* is fine.

    Every directory met is first moved to just below *top*, so that depth costs neither descriptors nor paths.
    """
    with suppress(FileNotFoundError):
        if not stat.S_ISDIR(top.lstat().st_mode):
            top.unlink()
            return
        top.chmod(0o700)
        empty_directory(top)
        top.rmdir()


def empty_directory(top: Path) -> None:
    """Remove everything in *top*, which stays; no name in it may be in use by anybody else."""
    # A name that no entry of *top* has, so that moving one up never replaces another.
    prefix = f".moved-{os.urandom(8).hex()}-"
    number = 0
    root = os.open(top, _DIRECTORY)
    try:
        pending = _names(root)
        while pending:
            name = pending.pop()
            if not _is_directory(name, root):
                os.unlink(name, dir_fd=root)
                continue
            os.chmod(name, 0o700, dir_fd=root)
            directory = os.open(name, _DIRECTORY, dir_fd=root)
            try:
                for child in _names(directory):
                    if not _is_directory(child, directory):
                        os.unlink(child, dir_fd=directory)
                        continue
                    # Moving a directory rewrites its "..", which needs permission to write in it.
                    os.chmod(child, 0o700, dir_fd=directory)
                    number += 1
                    os.rename(child, f"{prefix}{number}", src_dir_fd=directory, dst_dir_fd=root)
                    pending.append(f"{prefix}{number}")
            finally:
                os.close(directory)
            os.rmdir(name, dir_fd=root)
    finally:
        os.close(root)


def _is_directory(name: str, parent: int) -> bool:
    return stat.S_ISDIR(os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode)


def _names(directory: int) -> list[str]:
    with os.scandir(directory) as entries:
        return [entry.name for entry in entries]
