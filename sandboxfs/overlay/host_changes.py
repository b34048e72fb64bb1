"""Host changes: from inotify events to the cached answers that the kernel must drop.

Events of the watched directories are gathered first, each name once, and then evaluated, to tell which cached
answers are stale: the entry that the view has at the name now decides whether the kernel only has to look the
name up again or to drop it. Where events were lost, the kernel has to ask again for everything that it knows
of the directories.
"""

import stat
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice

from sandboxfs.hostfs import inotify
from sandboxfs.overlay.files import Files
from sandboxfs.overlay.live_edits import Invalidation, path_of
from sandboxfs.overlay.lookup import Lookup
from sandboxfs.overlay.nodes import Directory, Found, Node

_GONE = inotify.IGNORED | inotify.UNMOUNT
_NAMES = inotify.NAMES
_WRITTEN = inotify.MODIFY | inotify.CLOSE_WRITE


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

    def __init__(self, merge: Lookup, files: Files) -> None:
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
        path=path_of((directory, name)),
        ino=ino,
        written=found is not None and stat.S_ISREG(found.stat.st_mode) and bool(mask & _WRITTEN),
        removed=found is None and bool(mask & inotify.DELETE) and not mask & inotify.ISDIR,
    )
