"""Which directories of the workspace are watched, so that what the kernel was told of them may last?

A directory is watched from the first time the kernel looks into it, before its lower parts are asked:
whatever the host does afterwards is noticed (see `noticing`). There are only so many watches; where one
cannot be had, answers are good for a moment only. *suspects* are directories that lost their watch, or got
other lower parts, while the kernel may have relied on it: all that it knows of them must be asked for
again. *abandoned* are names that were found to lead elsewhere, or nowhere, before any event told.
"""

import logging
import math
import time
from collections.abc import Callable, Iterable, Iterator

from sandboxfs.layers import inotify
from sandboxfs.layers.inotify import Inotify
from sandboxfs.overlay.dirfds import DirectoryFds
from sandboxfs.overlay.node import Directory, LowerPart

log = logging.getLogger(__name__)

# After the system had no watch for us, so long none is asked for, in seconds.
_PAUSE = 10.0


def _nobody() -> None:
    """For whoever does not want to hear of suspects."""


class Watching:
    """The watches of one overlay: at most *limit*; with 0 nothing is watched.

    *frozen* says of which layers nothing can change.
    """

    def __init__(self, fds: DirectoryFds, frozen: list[bool], limit: int = 0) -> None:
        self._fds = fds
        self._frozen = frozen
        self._limit = limit
        self._inotify = _opened() if limit > 0 else None
        self._directories: dict[int, set[Directory]] = {}
        self._local: dict[int, bool] = {}
        self._pause_until = 0.0
        self.suspects: set[Directory] = set()
        self.abandoned: set[tuple[int, bytes]] = set()
        self.on_suspicion: Callable[[], None] = _nobody

    def __len__(self) -> int:
        return len(self._directories)

    @property
    def events(self) -> Inotify | None:
        """Where the events come from; None when nothing can be watched."""
        return self._inotify

    def need(self, directory: Directory) -> None:
        """Watch a directory if that can be done: the caller is about to look into it for the kernel."""
        if directory.watches is None and directory.lowers and self._inotify is not None:
            self._watch(directory, self._inotify)

    def at(self, watch: int) -> list[Directory]:
        """The directories that a watch is for."""
        return list(self._directories.get(watch, ()))

    def directories(self) -> Iterator[Directory]:
        """All that are watched."""
        return (one for directories in self._directories.values() for one in directories)

    def release(self, directory: Directory) -> None:
        """Stop watching a directory of which the kernel knows nothing any more."""
        self.suspects.discard(directory)
        self._let_go(directory, directory.watches or ())
        directory.watches, directory.steady, directory.listed = None, False, None

    def exchanged(self, directory: Directory) -> None:
        """Stop watching a directory that is about to get other lower parts."""
        relied = directory.steady or directory.absences is not None
        self.release(directory)
        if relied:
            self._suspect([directory])

    def left(self, directory: Directory, name: bytes) -> None:
        """Note that the host took a name from what the kernel knows by it; the event may have been lost."""
        directory.listed = None
        if directory.steady:
            self.abandoned.add((directory.ino, name))
            self.on_suspicion()

    def lost(self, watch: int) -> None:
        """Note that the kernel took a watch away: its directory is gone, or all of its filesystem."""
        directories = self.at(watch)
        for directory in directories:
            self.release(directory)
        self._suspect(directories)

    def suspect_all(self) -> None:
        """Note that events were lost, or that something changed of which there are none."""
        self._suspect(self.directories())

    def close(self) -> None:
        if self._inotify is not None:
            self._inotify.close()
            self._inotify = None

    def _suspect(self, directories: Iterable[Directory]) -> None:
        for directory in directories:
            directory.listed = None
            self.suspects.add(directory)
        if self.suspects:
            self.on_suspicion()

    def _watch(self, directory: Directory, events: Inotify) -> None:
        if self._pause_until and time.monotonic() < self._pause_until:
            return
        self._pause_until = 0.0
        watches: list[int] = []
        for part in directory.lowers:
            if self._frozen[part.layer]:
                continue
            watch = self._added(part, events)
            if watch is None:
                self._let_go(directory, watches)
                # Tried again only when the watches had run out.
                directory.watches = None if self._pause_until else ()
                return
            watches.append(watch)
            self._directories.setdefault(watch, set()).add(directory)
        directory.watches, directory.steady = tuple(watches), True

    def _added(self, part: LowerPart, events: Inotify) -> int | None:
        """A watch for a lower directory; None where none can be had."""
        host = self._fds.lower(part)
        if part.dev not in self._local:
            self._local[part.dev] = inotify.reports_changes(host)
        if not self._local[part.dev]:
            return None
        if len(self._directories) >= self._limit:
            self._pause_until = math.inf
            return None
        try:
            return events.add(host)
        except OSError as error:
            if error.errno in inotify.EXHAUSTED:
                log.info("the system has no more watches: %s", error.strerror)
                self._pause_until = time.monotonic() + _PAUSE
            return None

    def _let_go(self, directory: Directory, watches: Iterable[int]) -> None:
        for watch in watches:
            sharing = self._directories.get(watch)
            if sharing is None:
                continue
            sharing.discard(directory)
            if not sharing:
                del self._directories[watch]
                if self._inotify is not None:
                    self._inotify.remove(watch)
                if self._pause_until == math.inf:
                    self._pause_until = 0.0


def _opened() -> Inotify | None:
    try:
        return Inotify()
    except OSError as error:
        log.info("the workspace cannot be watched: %s", error.strerror)
        return None
