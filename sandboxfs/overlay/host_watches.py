"""Host watches: the workspace directories whose changes are watched, so that cached answers may last.

A directory is watched from the first time the kernel looks into it, before its lower parts are read: every
later change by the host is noticed (see `host_changes`). The number of watches is limited; where no watch can
be had, answers may be cached for a moment only. *suspects* are directories that lost their watch, or got
other lower parts, while the kernel may have relied on the watch: the kernel must ask again for everything it
knows of them. *abandoned* are names that turned out to lead elsewhere, or nowhere, before any event told so.
"""

import logging
import math
import time
from collections.abc import Callable, Iterable, Iterator

from sandboxfs.hostfs import inotify
from sandboxfs.hostfs.inotify import Inotify
from sandboxfs.overlay.nodes import Directory, DirectoryFds, LowerPart

log = logging.getLogger(__name__)

# Seconds without new watches, after the system refused one.
_PAUSE = 10.0


def _nobody() -> None:
    """The callback where no caller wants to hear of suspects."""


class HostWatches:
    """The watches of one overlay: at most *limit*; with 0 nothing is watched.

    *frozen* says which layers cannot change.
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
        """The source of the events; None when nothing can be watched."""
        return self._inotify

    def need(self, directory: Directory) -> None:
        """Watch a directory where possible: the caller is about to look into it for the kernel."""
        if directory.watches is None and directory.lowers and self._inotify is not None:
            self._watch(directory, self._inotify)

    def at(self, watch: int) -> list[Directory]:
        """The directories that share a watch."""
        return list(self._directories.get(watch, ()))

    def directories(self) -> Iterator[Directory]:
        """All watched directories."""
        return (one for directories in self._directories.values() for one in directories)

    def release(self, directory: Directory) -> None:
        """Stop watching a directory that the kernel has forgotten."""
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
        """Record that the host moved a known inode away from a name; the event may have been lost."""
        directory.listed = None
        if directory.steady:
            self.abandoned.add((directory.ino, name))
            self.on_suspicion()

    def lost(self, watch: int) -> None:
        """Handle a watch that the kernel removed: its directory, or the whole filesystem, is gone."""
        directories = self.at(watch)
        for directory in directories:
            self.release(directory)
        self._suspect(directories)

    def suspect_all(self) -> None:
        """Suspect all watched directories: events were lost, or a change happened that sends none."""
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
                # Tried again only where the watches had run out.
                directory.watches = None if self._pause_until else ()
                return
            watches.append(watch)
            self._directories.setdefault(watch, set()).add(directory)
        directory.watches, directory.steady = tuple(watches), True

    def _added(self, part: LowerPart, events: Inotify) -> int | None:
        """A watch for a lower directory; None where it cannot be watched."""
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
