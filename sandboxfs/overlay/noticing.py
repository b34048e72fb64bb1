"""What of what the kernel was told is outdated by what the host did since?

Events of the watched directories are gathered first, each name once, and then looked at: what the view
shows under the name now says whether the kernel only has to ask again or to give the name up. Where events
were lost, everything that the kernel knows of the directories is asked for again.
"""

import stat
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice

from sandboxfs.layers import inotify
from sandboxfs.overlay.files import Files
from sandboxfs.overlay.merge import Merge
from sandboxfs.overlay.node import Directory, Found, Node
from sandboxfs.overlay.renewal import Outdated, path_of

_GONE = inotify.IGNORED | inotify.UNMOUNT
_NAMES = inotify.NAMES
_WRITTEN = inotify.MODIFY | inotify.CLOSE_WRITE


@dataclass(frozen=True)
class Deed:
    """What the host did to a name.

    *parent* is the number of its directory, *ino* of what is there now. *written*: the content of a file
    may be another; *removed*: a file was deleted, and nothing has taken its place.
    """

    parent: int
    name: bytes
    path: bytes
    ino: int | None
    written: bool
    removed: bool


@dataclass
class Noticed:
    """What some events come to: what is outdated, whether there may be other names, and what was done."""

    outdated: Outdated = field(default_factory=Outdated)
    names: bool = False
    deeds: list[Deed] = field(default_factory=list)


class Noticing:
    """Gathers events and tells what they mean, some at a time, between two requests of the kernel."""

    def __init__(self, merge: Merge, files: Files) -> None:
        self._merge = merge
        self._files = files
        self._watching = merge.watching
        self._gathered: dict[tuple[int, bytes], int] = {}

    @property
    def fd(self) -> int | None:
        """Becomes readable when there are events; None when nothing is watched."""
        events = self._watching.events
        return None if events is None else events.fd

    def tell(self, somebody: Callable[[], None] | None) -> None:
        """Have *somebody* told when there is something without an event."""
        self._watching.on_suspicion = somebody or (lambda: None)

    def gather(self) -> bool:
        """Take the events that are there; whether there were any."""
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

    def noticed(self, at_once: int) -> Iterator[Noticed]:
        """What the gathered events come to, in parts for which *at_once* names at most are looked at.

        Programs may do anything between parts.
        """
        watching = self._watching
        while self._gathered or watching.suspects or watching.abandoned:
            if watching.abandoned:
                yield Noticed(Outdated(expired=set(watching.abandoned)), names=True)
                watching.abandoned.clear()
            elif self._gathered:
                yield self._of_events(at_once)
            else:
                yield from (Noticed(part, names=True) for part in self._of_suspects(at_once))

    # Events

    def _of_events(self, at_once: int) -> Noticed:
        noticed = Noticed()
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

    def _notice(self, key: tuple[int, bytes], mask: int, noticed: Noticed) -> None:
        watch, name = key
        for directory in self._watching.at(watch):
            if not name:
                noticed.outdated.inodes.add(directory.ino)
            elif directory.masks is None or name not in directory.masks:
                self._notice_name(directory, name, mask, noticed)
        if mask & _GONE and not name:
            self._watching.lost(watch)

    def _notice_name(self, directory: Directory, name: bytes, mask: int, noticed: Noticed) -> None:
        outdated = noticed.outdated
        if mask & _NAMES:
            directory.listed = None
        try:
            found = self._merge.find(directory, name)
            node, was_here = self._known(directory, name, found, mask)
        except OSError:
            # It is changing, or its directory is; whoever asks is told.
            outdated.expired.add((directory.ino, name))
            return
        if node is not None:
            outdated.inodes.add(node.ino)
        noticed.deeds.append(_deed(directory, name, mask, found, node))
        if not mask & _NAMES:
            return
        if not directory.upper:
            # Its times, and how many directories are in it.
            outdated.inodes.add(directory.ino)
        (outdated.expired if was_here else outdated.removed).add((directory.ino, name))

    def _known(
        self, directory: Directory, name: bytes, found: Found | None, mask: int
    ) -> tuple[Node | None, bool]:
        """The node of what a name leads to, if it is known, and whether it was known by that name."""
        node = None if found is None else self._merge.inodes.known(found)
        if found is None or node is None:
            return None, False
        was_here = (directory, name) in node.places()
        if not was_here and _is_new(found, mask):
            # It only has the number of something that is no more.
            return None, False
        # The host may have moved it, or other lower parts may show in it now.
        self._merge.node_of(directory, name, found)
        return node, was_here

    @staticmethod
    def _note_nameless(outdated: Outdated, known: Iterable[Node]) -> None:
        """Add what lost a name and may still be in use: how many it has is an attribute."""
        for node in known:
            if any((parent.ino, name) in outdated.removed for parent, name in node.places()):
                outdated.inodes.add(node.ino)

    # Suspects

    def _of_suspects(self, at_once: int) -> Iterator[Outdated]:
        """Everything that the kernel may know of suspect directories."""
        suspects = set(self._watching.suspects)
        self._watching.suspects.clear()
        outdated = Outdated(inodes={directory.ino for directory in suspects})
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
            outdated = Outdated()


def _is_new(found: Found, mask: int) -> bool:
    """Whether what is under a name now was made there since, and not moved or linked there."""
    return found.stat.st_nlink == 1 and mask & (inotify.CREATE | inotify.MOVED_TO) == inotify.CREATE


def _deed(directory: Directory, name: bytes, mask: int, found: Found | None, node: Node | None) -> Deed:
    # What nobody has looked up yet will have the number that it was found with.
    ino = node.ino if node is not None else found.ino if found is not None else None
    return Deed(
        parent=directory.ino,
        name=name,
        path=path_of((directory, name)),
        ino=ino,
        written=found is not None and stat.S_ISREG(found.stat.st_mode) and bool(mask & _WRITTEN),
        removed=found is None and bool(mask & inotify.DELETE) and not mask & inotify.ISDIR,
    )
