"""How does the upper follow when changes are applied to the workspace, or dropped?

What was applied leaves the upper: the workspace shows the same from below. What is dropped leaves it too, and
the workspace shows what it had. Directories without anything of their own left go last. All in an order in
which programs in the view see nothing else on the way.
"""

import os
import stat
from collections.abc import Iterable, Iterator, Mapping, Sequence

from sandboxfs.changes.finding import Finding
from sandboxfs.changes.patch import Kind
from sandboxfs.changes.reversing import exchanged
from sandboxfs.changes.scan import Survey
from sandboxfs.changes.sides import Place
from sandboxfs.changes.steps import Moved, is_below, joined, parted
from sandboxfs.changes.twins import Twin
from sandboxfs.changes.uppers import UpperDirectory
from sandboxfs.layers import settlement
from sandboxfs.layers.index import Index
from sandboxfs.layers.settlement import (
    WHITEOUT,
    Drop,
    Expected,
    Open,
    Operation,
    Prune,
    Rebase,
    Redress,
    Whiteout,
)

Originals = Mapping[tuple[str, bytes], os.stat_result]
"""What objects were when they were copied, by source and path there."""


class Leaving:
    """Finds the operations for *findings* out of all those of *survey*, and names for what is kept."""

    def __init__(
        self,
        survey: Survey,
        findings: Sequence[Finding],
        originals: Originals | None = None,
        besides: Iterable[Finding] = (),
    ) -> None:
        """Prepare for *findings*; those *besides* them are gone already."""
        self._survey = survey
        self._others = {id(finding) for finding in besides}
        self._upper = survey.view.upper
        self._layers = survey.view.layers
        self._findings = findings
        self._originals = originals or {}
        self._kept = 0
        # Names for what is kept, apart from those that the others have.
        self._prefix = b"d" if self._others else b""
        # Where the view has what the workspace has at a path.
        self._shown = Moved(self._upper.moved)

    def applied(self, partly: Iterable[Finding] = (), copies: Iterable[Twin] = ()) -> list[Operation]:
        """The operations after the findings were applied; those of *partly* stay, from a new start.

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
            if finding.kind is Kind.RENAMED and finding.old_path is not None:
                operations += self._uncover(self._place_of(finding.old_path), None, applied=True)
        operations += self._prunes(leaving)
        operations += self._forgets()
        operations += self._renewed(operations)
        circle = exchanged(operations)
        stays = [finding for finding in self._staying() if any(is_below(finding.path, one) for one in circle)]
        operations += [Rebase(finding.path, finding.path) for finding in (*partly, *stays)]
        return operations

    def _forgets(self) -> Iterator[Operation]:
        """Have the baseline forget what is gone from the workspace: what is made there later is new."""
        moves = {f.old_path: f.path for f in self._findings if f.kind is Kind.RENAMED and f.is_dir}
        moved = Moved({old: new for old, new in moves.items() if old is not None})
        gone = {f.lower_path for f in self._findings if f.kind is Kind.DELETED}
        for finding in self._findings:
            went = finding.kind is Kind.DELETED or (finding.kind is Kind.RENAMED and not finding.is_dir)
            if went and parted(finding.lower_path)[0] not in gone:
                place = moved(finding.lower_path)
                yield Rebase(place, place)

    def _renewed(self, operations: Iterable[Operation]) -> list[Operation]:
        """Have applied directories that stay, because something in them does, start from what is now."""
        going = {one.path for one in operations if isinstance(one, Drop)}
        for prune in [one for one in operations if isinstance(one, Prune)]:
            directory = self._upper.get(prune.path)
            if directory is not None and all(joined(prune.path, name) in going for name in directory.entries):
                going.add(prune.path)
        applied = [f.path for f in self._findings if f.new is not None and f.is_dir and f.path not in going]
        return [Rebase(path, path) for path in applied]

    def _staying(self) -> list[Finding]:
        """What is not applied, and is no conflict."""
        mine = {id(finding) for finding in self._findings}
        return [one for one in self._survey.findings if id(one) not in mine and one.conflict is None]

    def dropped(self) -> list[Operation]:
        """The operations that make the view show the workspace again."""
        operations = self._opens(self._findings, applied=False)
        operations += self._drops(self._findings, applied=False)
        inside = self._inside_moved()
        operations += self._leftovers(inside)
        operations += self._covers()
        modes = [finding for finding in self._findings if finding.kind is Kind.MODE and finding.is_dir]
        operations += [Redress(finding.path) for finding in modes]
        operations += self._prunes(self._findings, (directory.path for directory in inside))
        return operations

    def _inside_moved(self) -> list[UpperDirectory]:
        """The directories that moved, and those in them."""
        moved = [f.path for f in self._findings if f.kind is Kind.RENAMED and f.is_dir]
        return [one for one in self._upper if any(is_below(one.path, top) for top in moved)] if moved else []

    def _leftovers(self, directories: Iterable[UpperDirectory]) -> Iterator[Operation]:
        """Take out what is in directories that move back, and is no change by itself."""
        dealt_with = {finding.path for finding in self._findings}
        for directory in directories:
            for name, status in directory.entries.items():
                path = joined(directory.path, name)
                if path in dealt_with or (status is not None and stat.S_ISDIR(status.st_mode)):
                    continue
                expected: Expected = WHITEOUT if status is None else settlement.Identity.of(status)
                yield Drop(path, expected, self._keep())

    # Directories that moved

    def _moves(self) -> Iterator[Operation]:
        """Tell of moves in such an order that none goes to a place which another one has yet to leave."""
        pending = [
            (finding.old_path, finding.path)
            for finding in self._findings
            if finding.kind is Kind.RENAMED and finding.is_dir and finding.old_path is not None
        ]
        pending.sort(key=lambda move: move[1].count(b"/"))
        while pending:
            free = (move for move in pending if not any(is_below(other[0], move[1]) for other in pending))
            old, new = next(free, pending[0])
            pending.remove((old, new))
            yield settlement.Moved(old, new)
            pending = [(_followed(source, old, new), target) for source, target in pending]

    # Marks

    def _opens(self, findings: Iterable[Finding], *, applied: bool) -> list[Operation]:
        """Open the directories that hide the workspace, from the top down.

        One that stands where another was moved away from hides what is not to show in any case.
        """
        wanted: set[bytes] = set()
        for path in self._touched(findings):
            while path and path not in wanted:
                directory = self._upper.get(path)
                if directory is not None and directory.hidden and (applied or directory.lower is not None):
                    wanted.add(path)
                path = parted(path)[0]
        return [Open(path) for path in sorted(wanted, key=lambda path: path.count(b"/"))]

    def _touched(self, findings: Iterable[Finding]) -> Iterator[bytes]:
        """The directories of the upper from which something goes."""
        for finding in findings:
            yield parted(finding.path)[0]
            if finding.kind is Kind.RENAMED and finding.old_path is not None:
                yield parted(self._place_of(finding.old_path))[0]

    # Entries

    def _drops(self, findings: Iterable[Finding], *, applied: bool) -> list[Operation]:
        entries: list[Operation] = []
        whiteouts: list[Operation] = []
        indexed: set[bytes] = set()
        for finding in findings:
            if finding.kind is Kind.DELETED:
                whiteouts += self._uncover(finding.path, finding, applied=applied)
            elif finding.kind is Kind.RENAMED and finding.old_path is not None:
                whiteouts += self._uncover(self._place_of(finding.old_path), None, applied=applied)
            if finding.new is not None and not finding.new.is_dir:
                entries += self._take(finding, indexed)
        # A name that shows again is counted in the copy of its file, which must not be expected unchanged.
        return entries + whiteouts

    def _uncover(self, path: bytes, finding: Finding | None, *, applied: bool) -> Iterator[Operation]:
        """Remove the whiteout at *path*, if there is one."""
        folder, name = parted(path)
        directory = self._upper.get(folder)
        if directory is None:
            return
        # Opening a directory that hides the workspace covers what is still there.
        opened = directory.hidden and not applied and name not in directory.entries
        if opened or directory.entries.get(name, directory) is None:
            whole = finding is not None and self._is_all_there(finding)
            yield Drop(path, WHITEOUT, self._keep(), self._number(finding, applied=applied), whole)

    def _is_all_there(self, finding: Finding) -> bool:
        """Whether what goes or comes back is a directory of which nothing has moved elsewhere."""
        return finding.is_dir and not any(is_below(old, finding.lower_path) for old in self._upper.moved)

    def _number(self, finding: Finding | None, *, applied: bool) -> int | None:
        """The number of a lower file with several names of which one was deleted."""
        if finding is None or finding.lower is None or finding.lower.is_dir or finding.lower.nlink < 2:
            return None
        seen = self._layers.baseline.get(finding.lower_path)
        if seen is None:
            return None
        # The copy of it counts its names by itself; a name that is gone from the workspace is no more.
        if applied and self._layers.index.stat(Index.link_name(seen.number)) is not None:
            return None
        return seen.number

    def _take(self, finding: Finding, indexed: set[bytes]) -> Iterator[Operation]:
        """Take what the upper has for *finding*; a file that only the index has, once for all its names."""
        source, path, number = "upper", finding.path, None
        side = finding.new
        if side is not None and isinstance(side.read, Place) and side.read.tree is self._layers.index:
            source, path, number = "index", side.read.path, int(side.read.path[1:], 16)
            if path in indexed or any(self._has(link) for link in finding.links):
                return
            indexed.add(path)
        if side is not None:
            status = self._originals.get((source, path))
            seen = settlement.Identity(side.ino, side.size, side.mtime_ns, side.ctime_ns)
            expected = seen if status is None else settlement.Identity.of(status)
            yield Drop(finding.path, expected, self._keep(), number)

    def _has(self, path: bytes) -> bool:
        folder, name = parted(path)
        directory = self._upper.get(folder)
        return directory is not None and directory.entries.get(name) is not None

    def _covers(self) -> list[Operation]:
        """Hide what a dropped change would let show although it is still deleted, or moved elsewhere."""
        mine = {id(finding) for finding in self._findings} | self._others
        back = {finding.lower_path for finding in self._findings if _comes_back(finding)}
        operations: list[Operation] = []
        for finding in self._survey.findings:
            if id(finding) in mine:
                continue
            if finding.kind is Kind.DELETED and parted(finding.lower_path)[0] in back:
                operations.append(Whiteout(finding.path, self._number(finding, applied=False)))
        for old in self._upper.moved:
            if self._is_uncovered(old):
                operations.append(Whiteout(self._place_of(old)))
        return operations

    def _is_uncovered(self, old: bytes) -> bool:
        """Whether the place of a directory that stays moved away is left by what was put there."""
        moved = [f for f in self._findings if f.kind is Kind.RENAMED and f.old_path == old and f.is_dir]
        place = self._place_of(old)
        return not moved and any(f.path == place and f.new is not None for f in self._findings)

    # Directories

    def _prunes(self, findings: Iterable[Finding], more: Iterable[bytes] = ()) -> list[Operation]:
        """Take out directories that have nothing of their own left, and *more*, from the bottom up."""
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
        empty = [path for path in wanted - staying if self._upper.get(path) is not None]
        empty.sort(key=lambda path: path.count(b"/"), reverse=True)
        return [Prune(path, self._keep()) for path in empty]

    def _place_of(self, lower_path: bytes) -> bytes:
        """Where the view would have what the workspace has at a path, had that not moved by itself."""
        folder, name = parted(lower_path)
        return joined(self._shown(folder), name)

    def _keep(self) -> bytes:
        self._kept += 1
        return b"%s%d" % (self._prefix, self._kept)


def _comes_back(finding: Finding) -> bool:
    """Whether dropping *finding* lets a directory of the workspace show again."""
    if finding.kind is Kind.DELETED:
        return finding.is_dir
    return finding.kind is Kind.TYPE and finding.old is not None and finding.old.is_dir


def _followed(path: bytes, old: bytes, new: bytes) -> bytes:
    return new + path[len(old) :] if is_below(path, old) else path
