"""The unmounted upper: entries reached and made by their path in the view where no daemon serves it.

Entries are reached by directory descriptor, name by name, never through a symlink. `upper/walk` gives the
lower path of a directory, which a redirect changes. Directories that only the workspace has are made in the
upper where an entry is to be put into them, as copy-up makes them.
"""

import errno
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sandboxfs.hostfs import copy
from sandboxfs.hostfs.directory import HostDir
from sandboxfs.paths import is_too_deep, joined
from sandboxfs.upper import marks
from sandboxfs.upper.baseline_log import BaselineWriter
from sandboxfs.upper.marks import Index, Staging, Whiteouts

if TYPE_CHECKING:
    # The walk is imported when it is first needed: a daemon starts without it.
    from sandboxfs.hostfs.tree import DirTree

# The errors of opening a path when a directory on the way is missing.
NOWHERE = {errno.ENOENT, errno.ENOTDIR, errno.ELOOP}


Numbering = Callable[[os.stat_result], int]
"""Returns the number that the view shows for an object; 0 when that is unknown."""

# The daemon folds larger ones (`overlay.inode_table`).
_LARGEST_NUMBER = 1 << 56


def numbering(workspace: HostDir) -> Numbering:
    """The numbers of objects on the workspace's own filesystem, which are the host's."""
    own = workspace.own_stat().st_dev
    return lambda status: status.st_ino if status.st_dev == own and status.st_ino < _LARGEST_NUMBER else 0


@dataclass(frozen=True)
class UpperPlace:
    """A name in the upper. *directory* is None where the upper lacks even that."""

    directory: HostDir | None
    name: bytes
    status: os.stat_result | None

    @property
    def is_dir(self) -> bool:
        return self.status is not None and stat.S_ISDIR(self.status.st_mode)

    @property
    def is_file(self) -> bool:
        return self.status is not None and stat.S_ISREG(self.status.st_mode)


@dataclass(frozen=True)
class UnmountedUpper:
    """One upper and the directories that belong to it, all open."""

    upper: HostDir
    workspace: HostDir
    staging: Staging
    index: Index
    whiteouts: Whiteouts
    baseline: BaselineWriter | None
    lower_number: Numbering
    upper_number: Numbering = lambda status: 0

    # Reaching

    @contextmanager
    def place(self, path: bytes) -> Iterator[UpperPlace]:
        """The upper's entry at *path*, which is not the root."""
        folder, name = os.path.split(path)
        try:
            directory = self.upper.descend(folder)
        except OSError as error:
            if error.errno not in NOWHERE:
                raise
            yield UpperPlace(None, name, None)
            return
        with directory:
            yield UpperPlace(directory, name, directory.stat(name))

    @contextmanager
    def accessible(self, *paths: bytes) -> Iterator[None]:
        """Let the upper's owner enter every directory on the way to *paths* and there, for the time."""
        with ExitStack() as locking:
            for path in paths:
                self._unlock(path, locking)
            yield

    def _unlock(self, path: bytes, locking: ExitStack) -> None:
        directory = self.upper
        top = directory.own_stat().st_mode
        if top & 0o700 != 0o700:
            locking.callback(directory.chmod_own, top)
            directory.chmod_own(top | 0o700)
        end = 0
        while end < len(path):
            start, end = end, path.find(b"/", end + 1)
            end = len(path) if end < 0 else end
            try:
                directory = directory.child(path[start:end].lstrip(b"/"))
            except OSError as error:
                if error.errno not in NOWHERE:
                    raise
                return
            mode = directory.own_stat().st_mode
            if mode & 0o700 == 0o700:
                continue
            if end == len(path):
                # Held open, because it may be moved; the other directories stay in place, and may be many.
                locking.callback(directory.close)
                locking.callback(directory.chmod_own, mode)
            else:
                locking.callback(self._lock, path[:end], mode)
            directory.chmod_own(mode | 0o700)

    def _lock(self, path: bytes, mode: int) -> None:
        try:
            with self.upper.descend(path) as directory:
                directory.chmod_own(mode)
        except OSError as error:
            if error.errno not in NOWHERE:
                raise

    def covers(self, place: UpperPlace) -> bool:
        """Whether the entry is a whiteout."""
        if place.directory is None or place.status is None:
            return False
        return self.whiteouts.covers(place.directory, place.name, place.status)

    # Lower paths

    def lower_of(self, path: bytes) -> bytes | None:
        """The lower path of the view's directory at *path*; None when the upper hides what is below."""
        found: dict[bytes, bytes | None] = {}
        self.find_lowers(path, found)
        return found[path]

    def find_lowers(self, path: bytes, found: dict[bytes, bytes | None]) -> None:
        """Add the lower paths of the directory at *path* and of all around it to *found*.

        Paths that are in *found* already are taken for true: a walk from the top each time is quadratic.
        """
        known, unknown = path, []
        while known and known not in found:
            known, _, name = known.rpartition(b"/")
            unknown.append(name)
        found.setdefault(b"", b"")
        if not unknown:
            return
        from sandboxfs.upper.walk import look

        with self._walking() as upper:
            while unknown:
                walked = look(upper, known, unknown.pop(), found[known])
                found[walked.path] = walked.lower
                known = walked.path

    def natural(self, path: bytes) -> bytes | None:
        """The lower path that the entry at *path* has by its name, without marks of its own."""
        folder, name = os.path.split(path)
        lower = self.lower_of(folder)
        return None if lower is None else joined(lower, name)

    @contextmanager
    def _walking(self) -> "Iterator[DirTree]":
        """The upper as a tree; its open directories are closed at the end, because directories may move."""
        from sandboxfs.hostfs.tree import DirTree

        tree = DirTree(self.upper, ours=True)
        try:
            yield tree
        finally:
            tree.let_go()

    def redirects(self) -> Iterator[tuple[bytes, bytes]]:
        """All redirected directories of the upper: their path, and the lower path of their redirect."""
        from sandboxfs.upper.walk import look

        pending: list[tuple[bytes, bytes | None]] = [(b"", b"")]
        with self._walking() as upper:
            while pending:
                path, lower = pending.pop()
                inside = [e.name for e in upper.entries(path) if e.is_dir(follow_symlinks=False)]
                for name in map(os.fsencode, inside):
                    walked = look(upper, path, name, lower)
                    if walked.shown.redirect is not None:
                        yield walked.path, walked.shown.redirect
                    if not is_too_deep(walked.path):
                        pending.append((walked.path, walked.lower))

    # Changing

    def cover(self, directory: HostDir, name: bytes) -> None:
        """Put a whiteout at a free name, at once and without a trace in the directory's times."""
        if self.whiteouts.devices:
            directory.quietly(lambda: self.whiteouts.create(directory, name))
            return
        self.whiteouts.announce(directory)
        with self.staging.name() as staged:
            work = self.staging.directory
            self.whiteouts.create(work, staged)
            directory.quietly(lambda: work.rename(staged, directory, name))

    def make(self, path: bytes) -> None:
        """Make the upper's directory at *path*, which the view must have, unless it exists."""
        from sandboxfs.upper.walk import look

        try:
            self.upper.descend(path).close()
            return
        except OSError as error:
            if error.errno not in NOWHERE:
                raise
        lower = self.lower_of(path)
        if lower is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
        # Looked for first: a path missing from the view must not leave half of its directories behind.
        self.workspace.descend(lower).close()
        here, lower = b"", b""
        with self._walking() as upper:
            for name in path.split(b"/"):
                walked = look(upper, here, name, lower)
                if not walked.in_upper:
                    if walked.lower is None:
                        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
                    self._copy_directory(upper.directory(here), name, walked.lower)
                here, lower = walked.path, walked.lower

    def _copy_directory(self, parent: HostDir, name: bytes, lower: bytes) -> None:
        """Give the upper its own copy of a lower directory, without its content."""
        work = self.staging.directory
        with self.workspace.descend(lower) as source, self.staging.name() as staged:
            status = source.own_stat()
            number = self.lower_number(status)
            if self.baseline is not None:
                self.baseline.note(lower, source, b"", status, number, keep=False)
            work.mkdir(staged, 0o700)
            copy.copy_xattrs(source, b"", work, staged)
            if number:
                marks.write_record(work, staged, marks.InodeRecord(number, 0))
            copy.copy_owner(work, staged, status)
            # After the owner, whose change clears the set-id bits.
            work.chmod(staged, stat.S_IMODE(status.st_mode))
            work.set_times(staged, status.st_atime_ns, status.st_mtime_ns)
            parent.quietly(lambda: work.rename(staged, parent, name))
