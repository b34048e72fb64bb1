"""How is a place in an upper reached by its path in the view, where nobody serves the view?

By directory descriptor, name by name, never through a symlink. The lower path of a directory, which a
redirect changes, is told from the marks on the way. Directories that only the workspace has are made in the
upper where something is to be put into them, as copy-up makes them.
"""

import errno
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from sandboxfs.layers import copying, marks
from sandboxfs.layers.baseline_writer import BaselineWriter
from sandboxfs.layers.hostdir import HostDir, unlocked
from sandboxfs.layers.index import Index
from sandboxfs.layers.marks import Whiteouts
from sandboxfs.layers.staging import Staging

# What opening a path says when a directory on the way is not there.
NOWHERE = {errno.ENOENT, errno.ENOTDIR, errno.ELOOP}


Numbering = Callable[[os.stat_result], int]
"""The number that the view shows for an object; 0 when that cannot be told."""

# Larger ones are folded by those who serve the view (`overlay.numbers`).
_LARGEST_NUMBER = 1 << 56


def numbering(workspace: HostDir) -> Numbering:
    """The numbers of what lies on the workspace's own filesystem, which are the host's."""
    own = workspace.own_stat().st_dev
    return lambda status: status.st_ino if status.st_dev == own and status.st_ino < _LARGEST_NUMBER else 0


@dataclass(frozen=True)
class Place:
    """A name in the upper. *directory* is None where the upper has not even that."""

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
class UpperTree:
    """One upper and what belongs to it; all directories are open."""

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
    def place(self, path: bytes) -> Iterator[Place]:
        """What the upper has at *path*, which is not the root."""
        folder, name = os.path.split(path)
        try:
            directory = self.upper.descend(folder)
        except OSError as error:
            if error.errno not in NOWHERE:
                raise
            yield Place(None, name, None)
            return
        with directory:
            yield Place(directory, name, directory.stat(name))

    @contextmanager
    def accessible(self, *paths: bytes) -> Iterator[None]:
        """Let the upper's owner enter every directory on the way to *paths* and there, for the time."""
        opened: list[tuple[HostDir, int]] = []
        try:
            for path in paths:
                self._unlock(path, opened)
            yield
        finally:
            for directory, mode in reversed(opened):
                if mode & 0o700 != 0o700:
                    os.chmod(directory.own_path(), stat.S_IMODE(mode))
                directory.close()

    def _unlock(self, path: bytes, opened: list[tuple[HostDir, int]]) -> None:
        directory = self.upper
        for name in path.split(b"/"):
            try:
                directory = directory.child(name)
            except OSError as error:
                if error.errno not in NOWHERE:
                    raise
                return
            mode = directory.own_stat().st_mode
            opened.append((directory, mode))
            if mode & 0o700 != 0o700:
                os.chmod(directory.own_path(), stat.S_IMODE(mode) | 0o700)

    def covers(self, place: Place) -> bool:
        """Whether a whiteout is there."""
        if place.directory is None or place.status is None:
            return False
        return self.whiteouts.covers(place.directory, place.name, place.status)

    # Lower paths

    def lower_of(self, path: bytes) -> bytes | None:
        """The lower path of the directory of the view at *path*; None when the upper hides what is there."""
        return self._descend_marks(path)[1]

    def natural(self, path: bytes) -> bytes | None:
        """The lower path that the entry at *path* has by its name, without marks of its own."""
        folder, name = os.path.split(path)
        lower = self.lower_of(folder)
        return None if lower is None else join(lower, name)

    def _descend_marks(self, path: bytes) -> tuple[bool, bytes | None]:
        """Whether the upper has a directory at *path*, and its lower path."""
        lower: bytes | None = b""
        with _Descent(self.upper) as descent:
            for name in path.split(b"/") if path else ():
                lower = lower_below(descent.directory, name, lower)
                descent.enter(name)
            return descent.directory is not None, lower

    def redirects(self) -> Iterator[tuple[bytes, bytes]]:
        """All redirected directories of the upper: their path, and the lower path they lead to."""
        with self.upper.child(b".") as top:
            yield from self._redirects(top, b"", b"")

    def _redirects(
        self, directory: HostDir, path: bytes, lower: bytes | None
    ) -> Iterator[tuple[bytes, bytes]]:
        for name in _subdirectories(directory):
            inner = join(path, name)
            mark = marks.read_directory(directory, name)
            below = _marked(mark, name, lower)
            if mark.redirect is not None and below is not None:
                yield inner, below
            with directory.child(name) as child:
                yield from self._redirects(child, inner, below)

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
        """See to it that the upper has the directory at *path*, which the view must have."""
        there, lower = self._descend_marks(path)
        if there:
            return
        if lower is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
        # Looked for first: what the view does not have must not leave half of the way to it behind.
        self.workspace.descend(lower).close()
        lower = b""
        with _Descent(self.upper) as descent:
            for name in path.split(b"/"):
                directory = descent.directory
                if directory is None:
                    raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
                lower = lower_below(directory, name, lower)
                if directory.stat(name) is None and lower is not None:
                    self._copy_directory(directory, name, lower)
                descent.enter(name)

    def _copy_directory(self, parent: HostDir, name: bytes, lower: bytes) -> None:
        """Give the upper its own copy of a lower directory, without its content."""
        work = self.staging.directory
        with self.workspace.descend(lower) as source, self.staging.name() as staged:
            status = source.own_stat()
            number = self.lower_number(status)
            if self.baseline is not None:
                self.baseline.note(lower, source, b"", status, number, keep=False)
            work.mkdir(staged, 0o700)
            copying.copy_xattrs(source, b"", work, staged)
            if number:
                marks.write_record(work, staged, marks.Record(number, 0))
            copying.copy_owner(work, staged, status)
            # After the owner, whose change clears the set-id bits.
            work.chmod(staged, stat.S_IMODE(status.st_mode))
            work.set_times(staged, status.st_atime_ns, status.st_mtime_ns)
            parent.quietly(lambda: work.rename(staged, parent, name))


class _Descent:
    """A walk down the upper; where it ends, there is no directory any more."""

    def __init__(self, top: HostDir) -> None:
        self.directory: HostDir | None = top
        self._opened: HostDir | None = None

    def __enter__(self) -> "_Descent":
        return self

    def __exit__(self, *_: object) -> None:
        if self._opened is not None:
            self._opened.close()

    def enter(self, name: bytes) -> None:
        if self.directory is None:
            return
        try:
            child = self.directory.child(name)
        except OSError as error:
            if error.errno not in NOWHERE:
                raise
            child = None
        if self._opened is not None:
            self._opened.close()
        self.directory = self._opened = child


def join(folder: bytes, name: bytes) -> bytes:
    return folder + b"/" + name if folder else name


def lower_below(directory: HostDir | None, name: bytes, lower: bytes | None) -> bytes | None:
    """The lower path of *name* in an upper directory (None: the upper has none) with the path *lower*."""
    status = None if directory is None else directory.stat(name)
    if directory is None or status is None:
        return None if lower is None else join(lower, name)
    if not stat.S_ISDIR(status.st_mode):
        return None
    return _marked(marks.read_directory(directory, name), name, lower)


def _marked(mark: marks.DirMarks, name: bytes, lower: bytes | None) -> bytes | None:
    if mark.opaque:
        return None
    if mark.redirect is not None:
        return marks.redirected_path(mark.redirect, lower or b"")
    return None if lower is None else join(lower, name)


def _subdirectories(directory: HostDir) -> list[bytes]:
    def names() -> list[bytes]:
        return [os.fsencode(e.name) for e in directory.entries() if e.is_dir(follow_symlinks=False)]

    try:
        return names()
    except PermissionError:
        return unlocked(directory.own_path(), directory.own_stat().st_mode, names)
