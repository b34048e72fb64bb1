"""Host changes: watches of the workspace's directories, and the cached answers that their events make stale.

A directory is watched from the first time the kernel looks into it, before its lower parts are read: every
later change by the host is noticed. The number of watches is limited; where no watch can be had, answers may
be cached for a moment only. *suspects* are directories that lost their watch, or got other lower parts, while
the kernel may have relied on the watch: the kernel must ask again for everything it knows of them.
*abandoned* are names that turned out to lead elsewhere, or nowhere, before any event told so.

Events are gathered first, each name once, and then evaluated, to tell which cached answers are stale: the
entry that the view has at the name now decides whether the kernel only has to look the name up again or to
drop it. Where events were lost, the kernel has to ask again for everything that it knows of the directories.
"""

import logging
import math
import stat
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING

from sandboxfs.hostfs import inotify
from sandboxfs.hostfs.inotify import Inotify
from sandboxfs.overlay.nodes import Directory, DirectoryFds, Found, LowerPart, Node, path_of

if TYPE_CHECKING:
    # The lookup has the watches, and so imports this module.
    from sandboxfs.overlay.files import Files
    from sandboxfs.overlay.lookup import Lookup

log = logging.getLogger(__name__)

_GONE = inotify.IGNORED | inotify.UNMOUNT
_NAMES = inotify.NAMES
_WRITTEN = inotify.MODIFY | inotify.CLOSE_WRITE
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


@dataclass
class Invalidation:
    """The kernel must ask again for attributes and content of *inodes*, and look names up again.

    *removed* names lead nowhere any more, or to another inode; *expired* ones may still be right.
    """

    inodes: set[int] = field(default_factory=set)
    expired: set[tuple[int, bytes]] = field(default_factory=set)
    removed: set[tuple[int, bytes]] = field(default_factory=set)


@dataclass(frozen=True)
class HostEvent:
    """The host's change of one name.

    *parent* is the inode number of the directory, *ino* that of the present entry. *written*: the content of
    a file may have changed; *removed*: a file was deleted and not replaced.
    """

    parent: int
    name: bytes
    path: bytes
    ino: int | None
    written: bool
    removed: bool


@dataclass
class HostChangeSummary:
    """The result of some events: stale answers, whether names may have changed, and the host's changes."""

    outdated: Invalidation = field(default_factory=Invalidation)
    names: bool = False
    deeds: list[HostEvent] = field(default_factory=list)


class HostChanges:
    """Gathers and evaluates events, a limited number at a time, between two requests of the kernel."""

    def __init__(self, merge: "Lookup", files: "Files") -> None:
        self._merge = merge
        self._files = files
        self._watching = merge.watching
        self._gathered: dict[tuple[int, bytes], int] = {}

    @property
    def fd(self) -> int | None:
        """The descriptor that is readable when there are events; None when nothing is watched."""
        events = self._watching.events
        return None if events is None else events.fd

    def tell(self, somebody: Callable[[], None] | None) -> None:
        """Call *somebody* when there is something to evaluate without an event."""
        self._watching.on_suspicion = somebody or (lambda: None)

    def gather(self) -> bool:
        """Read the pending events; whether there were any."""
        events = self._watching.events
        if events is None:
            return False
        taken = events.read()
        for event in taken:
            if event.mask & inotify.OVERFLOW:
                self._watching.suspect_all()
            key = event.watch, event.name
            self._gathered[key] = self._gathered.get(key, 0) | event.mask
        return bool(taken)

    def noticed(self, at_once: int) -> Iterator[HostChangeSummary]:
        """Evaluate the gathered events in parts of at most *at_once* names.

        Programs may do anything between two parts.
        """
        watching = self._watching
        while self._gathered or watching.suspects or watching.abandoned:
            if watching.abandoned:
                yield HostChangeSummary(Invalidation(expired=set(watching.abandoned)), names=True)
                watching.abandoned.clear()
            elif self._gathered:
                yield self._of_events(at_once)
            else:
                yield from (HostChangeSummary(part, names=True) for part in self._of_suspects(at_once))

    # Events

    def _of_events(self, at_once: int) -> HostChangeSummary:
        noticed = HostChangeSummary()
        outdated = noticed.outdated
        done = 0
        for key in list(islice(self._gathered, at_once)):
            mask = self._gathered.pop(key)
            done |= mask
            self._notice(key, mask, noticed)
        if outdated.removed:
            self._note_nameless(outdated, self._files.nodes())
            if done & inotify.ISDIR:
                self._note_nameless(outdated, self._watching.directories())
        noticed.names = bool(done & _NAMES)
        return noticed

    def _notice(self, key: tuple[int, bytes], mask: int, noticed: HostChangeSummary) -> None:
        watch, name = key
        for directory in self._watching.at(watch):
            if not name:
                noticed.outdated.inodes.add(directory.ino)
            elif directory.masks is None or name not in directory.masks:
                self._notice_name(directory, name, mask, noticed)
        if mask & _GONE and not name:
            self._watching.lost(watch)

    def _notice_name(self, directory: Directory, name: bytes, mask: int, noticed: HostChangeSummary) -> None:
        outdated = noticed.outdated
        if mask & _NAMES:
            directory.listed = None
        try:
            found = self._merge.find(directory, name)
            node, was_here = self._known(directory, name, found, mask)
        except OSError:
            # The name or its directory is changing; the next lookup gets the result.
            outdated.expired.add((directory.ino, name))
            return
        if node is not None:
            outdated.inodes.add(node.ino)
        noticed.deeds.append(_deed(directory, name, mask, found, node))
        if not mask & _NAMES:
            return
        if not directory.upper:
            # The directory's times and its number of subdirectories have changed.
            outdated.inodes.add(directory.ino)
        (outdated.expired if was_here else outdated.removed).add((directory.ino, name))

    def _known(
        self, directory: Directory, name: bytes, found: Found | None, mask: int
    ) -> tuple[Node | None, bool]:
        """The known node of the entry at a name, and whether that name of the node was known."""
        node = None if found is None else self._merge.inodes.known(found)
        if found is None or node is None:
            return None, False
        was_here = (directory, name) in node.places()
        if not was_here and (_is_new(found, mask) or self._merge.is_another(node, directory, name, found)):
            # The new entry only has the number of a removed one.
            return None, False
        # The host may have moved the entry, or a directory may have other lower parts now.
        self._merge.node_of(directory, name, found)
        return node, was_here

    @staticmethod
    def _note_nameless(outdated: Invalidation, known: Iterable[Node]) -> None:
        """Add inodes that lost a name and may still be in use: the link count is an attribute."""
        for node in known:
            if any((parent.ino, name) in outdated.removed for parent, name in node.places()):
                outdated.inodes.add(node.ino)

    # Suspects

    def _of_suspects(self, at_once: int) -> Iterator[Invalidation]:
        """Everything that the kernel may know of suspect directories."""
        suspects = set(self._watching.suspects)
        self._watching.suspects.clear()
        outdated = Invalidation(inodes={directory.ino for directory in suspects})
        for directory in suspects:
            outdated.expired.update((directory.ino, name) for name in directory.absences or ())
            directory.absences = None
        nodes = list(self._merge.inodes.nodes())
        for start in range(0, len(nodes), at_once):
            for node in nodes[start : start + at_once]:
                if any(parent in suspects for parent, _ in node.places()):
                    outdated.inodes.add(node.ino)
                    outdated.expired.update((p.ino, name) for p, name in node.places() if p in suspects)
            yield outdated
            outdated = Invalidation()


def _is_new(found: Found, mask: int) -> bool:
    """Whether the entry at a name was created there by the last events, not moved or linked there."""
    return found.stat.st_nlink == 1 and mask & (inotify.CREATE | inotify.MOVED_TO) == inotify.CREATE


def _deed(directory: Directory, name: bytes, mask: int, found: Found | None, node: Node | None) -> HostEvent:
    # An entry without a node will get the number that it was found with.
    ino = node.ino if node is not None else found.ino if found is not None else None
    return HostEvent(
        parent=directory.ino,
        name=name,
        path=path_of(directory, name),
        ino=ino,
        written=found is not None and stat.S_ISREG(found.stat.st_mode) and bool(mask & _WRITTEN),
        removed=found is None and bool(mask & inotify.DELETE) and not mask & inotify.ISDIR,
    )
