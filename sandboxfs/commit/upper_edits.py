"""Upper edits of a commit or discard: the upper follows what was applied or dropped.

An applied entry leaves the upper: the workspace shows the same content below. A dropped entry leaves the
upper too, and the workspace's own content shows. Directories left without entries of their own go last. The
order is such that programs in the view see no other state on the way.

A move is free when no directory that has yet to move lies at its target or below. Free moves go first, those
nearest to the root before others; in a circle one has to go before it is free. A directory that has yet to
move, and lies in one that moves, moves along.

A new text of a file is written in the record's directory and then exchanged with the old one, which the
record keeps.
"""

import heapq
import os
import stat
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from sandboxfs.commit.actions import IDENTITY
from sandboxfs.commit.build import UnchangedLink
from sandboxfs.commit.records import CommitRecord
from sandboxfs.commit.selection import SelectedPart
from sandboxfs.hostfs.copy import attributes_at, of_the_host, write_file
from sandboxfs.hostfs.durable import Syncer
from sandboxfs.hostfs.identity import ObjectIdentity as Seen
from sandboxfs.paths import MovedPaths, PathSet, is_below, joined, parted
from sandboxfs.review.change import ChangeKind, PathChange
from sandboxfs.review.compare import LayerFile
from sandboxfs.review.scan import ScanResult
from sandboxfs.upper import edits
from sandboxfs.upper.baseline_log import write_alone
from sandboxfs.upper.edits import (
    WHITEOUT,
    Expected,
    Operation,
    Prune,
    Rebase,
    RemoveEntry,
    RestoreEntry,
    SetAttributes,
    Unhide,
    UpperIdentity,
    Whiteout,
)
from sandboxfs.upper.marks import Index
from sandboxfs.upper.walk import UpperDirectory


def ordered(moves: Iterable[tuple[bytes, bytes]]) -> Iterator[tuple[bytes, bytes]]:
    """Give *moves*, from one path to another, in order; each source path is the one valid at that point."""
    return iter(_Order(moves))


class _Order:
    def __init__(self, moves: Iterable[tuple[bytes, bytes]]) -> None:
        found = sorted(moves, key=lambda move: move[1].count(b"/"))
        self._targets = [target for _, target in found]
        # The present paths of directories that have yet to move, by their place in the order.
        self._sources = {number: source for number, (source, _) in enumerate(found)}
        # The number of those directories at each path or below.
        self._occupied: Counter[bytes] = Counter()
        self._to: dict[bytes, list[int]] = defaultdict(list)
        for number, (source, target) in enumerate(found):
            self._to[target].append(number)
            self._count(source, 1)
        # Moves that may be free, first to last; each is checked again when its turn comes.
        self._free = [number for number in self._sources if not self._occupied[self._targets[number]]]

    def __iter__(self) -> Iterator[tuple[bytes, bytes]]:
        while self._sources:
            number = self._next()
            old, new = self._sources.pop(number), self._targets[number]
            self._count(old, -1)
            yield old, new
            if self._occupied[old]:
                self._follow(old, new)

    def _next(self) -> int:
        while self._free:
            number = heapq.heappop(self._free)
            if number in self._sources and not self._occupied[self._targets[number]]:
                return number
        return next(iter(self._sources))

    def _follow(self, old: bytes, new: bytes) -> None:
        for number, source in self._sources.items():
            if is_below(source, old):
                self._sources[number] = new + source[len(old) :]
                self._count(source, -1)
                self._count(self._sources[number], 1)

    def _count(self, path: bytes, change: int) -> None:
        """Count one directory more, or one less, at *path*."""
        while True:
            self._occupied[path] += change
            if change < 0 and not self._occupied[path]:
                for number in self._to.get(path, ()):
                    heapq.heappush(self._free, number)
            if not path:
                return
            path = parted(path)[0]


Originals = Mapping[tuple[str, bytes], os.stat_result]
"""The status of objects when they were copied, by source and path there."""


class UpperFollower:
    """Finds the operations for *findings* out of all those of *survey*, and names for kept entries."""

    def __init__(
        self,
        survey: ScanResult,
        findings: Sequence[PathChange],
        originals: Originals | None = None,
        besides: Iterable[PathChange] = (),
    ) -> None:
        """Prepare for *findings*; those *besides* them are gone already."""
        self._survey = survey
        self._others = {id(finding) for finding in besides}
        self._upper = survey.view.upper
        self._layers = survey.view.layers
        self._findings = findings
        self._originals = originals or {}
        self._kept = 0
        # Names for kept entries, distinct from those of the other changes.
        self._prefix = b"d" if self._others else b""
        # From a path of the workspace to its path in the view.
        self._shown = MovedPaths(self._upper.moved)
        self._moved_away = PathSet(self._upper.moved)

    def applied(
        self, partly: Iterable[PathChange] = (), copies: Iterable[UnchangedLink] = ()
    ) -> list[Operation]:
        """The operations after the changes were applied; those of *partly* stay, with a new baseline.

        The *copies*, of unchanged files, are not needed any more.
        """
        partly = list(partly)
        rest = {finding.path for finding in partly}
        operations: list[Operation] = list(self._moves())
        leaving = [finding for finding in self._findings if finding.path not in rest or finding.new is None]
        operations += self._opens(leaving, applied=True)
        operations += [twin.drop(self._keep()) for twin in copies]
        operations += self._drops(leaving, applied=True)
        for finding in partly:
            if finding.kind is ChangeKind.RENAMED and finding.old_path is not None:
                operations += self._uncover(self._place_of(finding.old_path), None, applied=True)
        operations += self._prunes(leaving)
        operations += self._forgets()
        operations += self._renewed(operations)
        circle = PathSet(exchanged(operations))
        stays = [finding for finding in self._staying() if circle.hold(finding.path)]
        operations += [Rebase(finding.path, finding.path) for finding in (*partly, *stays)]
        return operations

    def _forgets(self) -> Iterator[Operation]:
        """Have the baseline forget paths gone from the workspace: an object made there later is new."""
        moves = {f.old_path: f.path for f in self._findings if f.kind is ChangeKind.RENAMED and f.is_dir}
        moved = MovedPaths({old: new for old, new in moves.items() if old is not None})
        gone = {f.lower_path for f in self._findings if f.kind is ChangeKind.DELETED}
        for finding in self._findings:
            went = finding.kind is ChangeKind.DELETED or (
                finding.kind is ChangeKind.RENAMED and not finding.is_dir
            )
            if went and parted(finding.lower_path)[0] not in gone:
                place = moved(finding.lower_path)
                yield Rebase(place, place)

    def _renewed(self, operations: Iterable[Operation]) -> list[Operation]:
        """Renew the baseline of applied directories that stay because some entry in them does."""
        going = {one.path for one in operations if isinstance(one, RemoveEntry)}
        for prune in [one for one in operations if isinstance(one, Prune)]:
            directory = self._upper.get(prune.path)
            if directory is not None and all(joined(prune.path, name) in going for name in directory.entries):
                going.add(prune.path)
        applied = [f.path for f in self._findings if f.new is not None and f.is_dir and f.path not in going]
        return [Rebase(path, path) for path in applied]

    def _staying(self) -> list[PathChange]:
        """The changes that are not applied, and are no conflicts."""
        mine = {id(finding) for finding in self._findings}
        return [one for one in self._survey.findings if id(one) not in mine and one.conflict is None]

    def dropped(self) -> list[Operation]:
        """The operations that make the view show the workspace again."""
        operations = self._opens(self._findings, applied=False)
        operations += self._drops(self._findings, applied=False)
        inside = self._inside_moved()
        operations += self._leftovers(inside)
        operations += self._covers()
        modes = [finding for finding in self._findings if finding.kind is ChangeKind.MODE and finding.is_dir]
        operations += [SetAttributes(finding.path) for finding in modes]
        operations += self._prunes(self._findings, (directory.path for directory in inside))
        operations += self._covers_places()
        return operations

    def _inside_moved(self) -> list[UpperDirectory]:
        """The directories that moved, and those in them."""
        moved = PathSet(f.path for f in self._findings if f.kind is ChangeKind.RENAMED and f.is_dir)
        return [one for one in self._upper if moved.hold(one.path)] if moved else []

    def _leftovers(self, directories: Iterable[UpperDirectory]) -> Iterator[Operation]:
        """Remove entries of directories that move back, where the entry is no change by itself."""
        dealt_with = {finding.path for finding in self._findings}
        for directory in directories:
            for name, status in directory.entries.items():
                path = joined(directory.path, name)
                if path in dealt_with or (status is not None and stat.S_ISDIR(status.st_mode)):
                    continue
                expected: Expected = WHITEOUT if status is None else edits.UpperIdentity.of(status)
                yield RemoveEntry(path, expected, self._keep())

    # Directories that moved

    def _moves(self) -> Iterator[Operation]:
        """The moves in such an order that no target is a path which another directory has yet to leave."""
        moves = (
            (finding.old_path, finding.path)
            for finding in self._findings
            if finding.kind is ChangeKind.RENAMED and finding.is_dir and finding.old_path is not None
        )
        for old, new in ordered(moves):
            yield edits.FollowMove(old, new)

    # Marks

    def _opens(self, findings: Iterable[PathChange], *, applied: bool) -> list[Operation]:
        """Unhide the directories that hide the workspace, from the top down.

        A directory in the place of one that was moved away hides content that is not to show in any case.
        """
        wanted: set[bytes] = set()
        for path in self._touched(findings):
            while path and path not in wanted:
                directory = self._upper.get(path)
                if directory is not None and directory.hidden and (applied or directory.lower is not None):
                    wanted.add(path)
                path = parted(path)[0]
        return [Unhide(path) for path in sorted(wanted, key=lambda path: path.count(b"/"))]

    def _touched(self, findings: Iterable[PathChange]) -> Iterator[bytes]:
        """The directories of the upper that lose an entry."""
        for finding in findings:
            yield parted(finding.path)[0]
            if finding.kind is ChangeKind.RENAMED and finding.old_path is not None:
                yield parted(self._place_of(finding.old_path))[0]

    # Entries

    def _drops(self, findings: Iterable[PathChange], *, applied: bool) -> list[Operation]:
        entries: list[Operation] = []
        whiteouts: list[Operation] = []
        indexed: set[bytes] = set()
        for finding in findings:
            if finding.kind is ChangeKind.DELETED:
                whiteouts += self._uncover(finding.path, finding, applied=applied)
            elif finding.kind is ChangeKind.RENAMED and finding.old_path is not None:
                whiteouts += self._uncover(self._place_of(finding.old_path), None, applied=applied)
            if finding.new is not None and not finding.new.is_dir:
                entries += self._take(finding, indexed)
        # A name that shows again is counted in the copy of its file, whose identity changes by that.
        return entries + whiteouts

    def _uncover(self, path: bytes, finding: PathChange | None, *, applied: bool) -> Iterator[Operation]:
        """Remove the whiteout at *path*, if there is one."""
        folder, name = parted(path)
        directory = self._upper.get(folder)
        if directory is None:
            return
        # Unhiding a directory adds whiteouts for names that the workspace still has.
        opened = directory.hidden and not applied and name not in directory.entries
        if opened or directory.entries.get(name, directory) is None:
            whole = finding is not None and self._is_all_there(finding)
            yield RemoveEntry(path, WHITEOUT, self._keep(), self._number(finding, applied=applied), whole)

    def _is_all_there(self, finding: PathChange) -> bool:
        """Whether the change is of a directory of which nothing has moved elsewhere."""
        return finding.is_dir and not self._moved_away.reach_into(finding.lower_path)

    def _number(self, finding: PathChange | None, *, applied: bool) -> int | None:
        """The number of a lower file with several names of which one was deleted."""
        if finding is None or finding.lower is None or finding.lower.is_dir or finding.lower.nlink < 2:
            return None
        seen = self._layers.baseline.get(finding.lower_path)
        if seen is None:
            return None
        # The index's copy counts its names by itself; a name gone from the workspace does not count.
        if applied and self._layers.index.stat(Index.link_name(seen.number)) is not None:
            return None
        return seen.number

    def _take(self, finding: PathChange, indexed: set[bytes]) -> Iterator[Operation]:
        """Remove the upper's entry for *finding*; a file that only the index has, once for all its names."""
        source, path, number = "upper", finding.path, None
        side = finding.new
        if side is not None and isinstance(side.read, LayerFile) and side.read.tree is self._layers.index:
            source, path, number = "index", side.read.path, int(side.read.path[1:], 16)
            if path in indexed:
                return
            indexed.add(path)
            if any(self._has(link) for link in finding.links):
                return
        if side is not None:
            status = self._originals.get((source, path))
            seen = edits.UpperIdentity(side.ino, side.size, side.mtime_ns, side.ctime_ns)
            expected = seen if status is None else edits.UpperIdentity.of(status)
            yield RemoveEntry(finding.path, expected, self._keep(), number)

    def _has(self, path: bytes) -> bool:
        folder, name = parted(path)
        directory = self._upper.get(folder)
        return directory is not None and directory.entries.get(name) is not None

    def _covers(self) -> list[Operation]:
        """Hide deleted names that would show again because a dropped change brings their directory back."""
        mine = {id(finding) for finding in self._findings} | self._others
        back = {finding.lower_path for finding in self._findings if _comes_back(finding)}
        operations: list[Operation] = []
        for finding in self._survey.findings:
            if id(finding) in mine:
                continue
            if finding.kind is ChangeKind.DELETED and parted(finding.lower_path)[0] in back:
                operations.append(Whiteout(finding.path, self._number(finding, applied=False)))
        return operations

    def _covers_places(self) -> list[Operation]:
        """Hide deleted or moved-away names that would show where directories left or came back.

        To be done after the directories left: until then they are in the way of whiteouts.
        """
        mine = {id(finding) for finding in self._findings} | self._others
        staying = [finding for finding in self._survey.findings if id(finding) not in mine]
        put = {f.path for f in self._findings if f.new is not None}
        places = {f.path for f in staying if f.kind is ChangeKind.DELETED and f.path in put}
        moving_back = {f.old_path for f in self._findings if f.kind is ChangeKind.RENAMED and f.is_dir}
        away = {old: new for old, new in self._upper.moved.items() if old not in moving_back}
        files = {f.old_path for f in staying if f.kind is ChangeKind.RENAMED and not f.is_dir and f.old_path}
        back = {finding.lower_path for finding in self._findings if _comes_back(finding)}
        # The old paths of applied renames are gone from the workspace.
        applied = {f.old_path for f in self._survey.findings if id(f) in self._others}
        afterwards = MovedPaths(away)
        for old in {*away, *files} - applied:
            folder, name = parted(old)
            place, later = self._place_of(old), joined(afterwards(folder), name)
            if place in put or place != later or folder in back:
                places.add(later)
        return [Whiteout(place) for place in sorted(places)]

    # Directories

    def _prunes(self, findings: Iterable[PathChange], more: Iterable[bytes] = ()) -> list[Operation]:
        """Remove directories that have no entries of their own left, and *more*, from the bottom up."""
        findings = list(findings)
        mine = {id(finding) for finding in findings}
        staying = {
            finding.path
            for finding in self._survey.findings
            if id(finding) not in mine and finding.new is not None and finding.is_dir
        }
        wanted: set[bytes] = set()
        tops = [finding.path for finding in findings if finding.new is not None and finding.is_dir]
        for path in (*self._touched(findings), *tops, *more):
            while path and path not in wanted:
                wanted.add(path)
                path = parted(path)[0]
        empty = [one for path in wanted - staying if (one := self._upper.get(path)) is not None]
        empty.sort(key=lambda one: one.path.count(b"/"), reverse=True)
        return [Prune(one.path, self._keep(), whole=one.cut) for one in empty]

    def _place_of(self, lower_path: bytes) -> bytes:
        """The path in the view of the workspace's object at a path, had that object not moved by itself."""
        folder, name = parted(lower_path)
        return joined(self._shown(folder), name)

    def _keep(self) -> bytes:
        self._kept += 1
        return b"%s%d" % (self._prefix, self._kept)


def _comes_back(finding: PathChange) -> bool:
    """Whether dropping *finding* lets a directory of the workspace show again."""
    if finding.kind is ChangeKind.DELETED:
        return finding.is_dir
    return finding.kind is ChangeKind.TYPE and finding.old is not None and finding.old.is_dir


def exchanged(operations: Iterable[Operation]) -> set[bytes]:
    """The directories that moved in a circle, or into one that took their place."""
    moves = [operation for operation in operations if isinstance(operation, edits.FollowMove)]
    found: set[bytes] = set()
    for number, move in enumerate(moves):
        for later in moves[number + 1 :]:
            into = is_below(move.old, later.new) and is_below(move.new, later.new)
            if later.old == move.new or into:
                found |= {move.new, later.new}
    return found


# Suffix of the baseline entry of a text's file.
SEEN = b".seen"


def replacement(
    survey: ScanResult,
    record: CommitRecord,
    finding: PathChange,
    content: bytes,
    mode: int | None,
    name: bytes,
) -> list[Operation]:
    """Write *content* to *name* in *record*; return the operation that puts it into the file of *finding*.

    All other attributes of the file stay, but for a *mode*.
    """
    upper = survey.view.layers.upper
    status, side = upper.stat(finding.path), finding.new
    if status is None or side is None:
        return []
    folder, at = parted(finding.path)
    attributes = attributes_at(upper.directory(folder), at, status, of_the_host)
    now = time.time_ns()
    bits = attributes.mode if mode is None else stat.S_IFREG | mode
    attributes = replace(attributes, mode=bits, atime_ns=now, mtime_ns=now)
    with record.folder(b"upper") as kept, Syncer() as syncer:
        write_file(content, attributes, kept, name, syncer)
    expected = UpperIdentity(side.ino, side.size, side.mtime_ns, side.ctime_ns)
    return [RestoreEntry(finding.path, name, expected)]


def replaced_parts(record: CommitRecord, operations: Iterable[Operation]) -> dict[str, object]:
    """Note the texts that come into the upper, by their names in the record: an undo looks for them."""
    found: dict[str, object] = {}
    with record.folder(b"upper") as kept:
        for operation in operations:
            status = kept.stat(operation.keep) if isinstance(operation, RestoreEntry) else None
            if isinstance(operation, RestoreEntry) and status is not None:
                found[os.fsdecode(operation.keep)] = IDENTITY.encode(Seen.of(status))
    return found


def keep_start(survey: ScanResult, record: CommitRecord, finding: PathChange, name: bytes) -> bool:
    """Keep the baseline entry of *finding* under *name* and `SEEN`, as `Resume` reads it.

    False when the baseline has none.
    """
    baseline = survey.view.layers.baseline
    seen = baseline.get(finding.lower_path)
    if seen is None:
        return False
    with record.folder(b"upper") as kept:
        write_alone(kept, name + SEEN, seen, baseline.content(seen))
    return True


def merged_mode(finding: PathChange) -> int | None:
    """The mode of a merged file, where that is the workspace's: the sandbox did not change it."""
    old, new, lower = finding.old, finding.new, finding.lower
    if old is None or new is None or lower is None or not lower.is_file or old.mode != new.mode:
        return None
    return stat.S_IMODE(lower.mode)


def without_mode(finding: PathChange, part: SelectedPart | None) -> int | None:
    """The mode that a file has without *part* of its change, where that differs."""
    if part is None or not part.mode or finding.old is None:
        return None
    return stat.S_IMODE(finding.old.mode)
