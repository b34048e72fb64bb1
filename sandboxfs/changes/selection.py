"""Which changes belong together?

A change can only be applied where its directory is: it needs the additions, renames and changes of type of
the directories around it. What takes a place needs the change that makes the place free, and what is deleted
as a whole needs the deletion, or the rename, of all that was in it. Names of one file go together. To apply a
change is to apply all that it needs; to drop one is to drop all that needs it.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence

from sandboxfs.changes.finding import Finding
from sandboxfs.changes.patch import Kind
from sandboxfs.changes.steps import is_below, joined, parted
from sandboxfs.changes.uppers import UpperMap

_MAKES_PLACES = (Kind.ADDED, Kind.TYPE, Kind.RENAMED)


class Needs:
    """The needs among *findings*, which are numbered as they stand."""

    def __init__(self, findings: Sequence[Finding], upper: UpperMap) -> None:
        self._findings = findings
        self._upper = upper
        self._needs: list[set[int]] = [set() for _ in findings]
        self._at: dict[bytes, list[int]] = defaultdict(list)
        # What moves, by where it is now; directories that go, by the same.
        self._moving: dict[bytes, int] = {}
        self._going: dict[bytes, int] = {}
        # Names of one file, by its inode.
        self._names: dict[tuple[int, int], set[int]] = defaultdict(set)
        for number, finding in enumerate(findings):
            self._at[finding.path].append(number)
            if finding.new is not None and finding.new.is_file:
                self._names[finding.new.dev, finding.new.ino].add(number)
            if finding.kind is Kind.RENAMED and finding.old_path is not None:
                self._moving[finding.old_path] = number
            if _goes(finding):
                self._going[finding.lower_path] = number
        for number, finding in enumerate(findings):
            self._find_needs(number, finding)

    def closure(self, chosen: Iterable[int]) -> set[int]:
        """Everything that must be applied to apply the *chosen*."""
        return _reached(chosen, self._needs)

    def dependents(self, chosen: Iterable[int]) -> set[int]:
        """Everything that must be dropped to drop the *chosen*."""
        needed_by: list[set[int]] = [set() for _ in self._findings]
        for number, needs in enumerate(self._needs):
            for need in needs:
                needed_by[need].add(number)
        return _reached(chosen, needed_by)

    def _find_needs(self, number: int, finding: Finding) -> None:
        needs = self._needs[number]
        around = self._place_maker(finding.path)
        if around is not None:
            needs.add(around)
        if finding.new is not None:
            needs |= self._freeing(number, finding)
        if finding.new is not None and finding.new.is_file:
            needs |= self._names[finding.new.dev, finding.new.ino]
        source = finding.old_path if finding.kind is Kind.RENAMED else None
        if source is None and finding.kind is Kind.DELETED:
            source = finding.lower_path
        if source:
            above = self._going.get(parted(source)[0])
            if above is not None and above != number:
                self._needs[above].add(number)
        needs.discard(number)

    def _place_maker(self, path: bytes) -> int | None:
        """The change that makes the nearest directory above *path* be where it is; None when none does."""
        while path:
            path = parted(path)[0]
            for number in self._at.get(path, ()):
                finding = self._findings[number]
                if finding.kind in _MAKES_PLACES and finding.new is not None and finding.new.is_dir:
                    return number
        return None

    def _freeing(self, number: int, finding: Finding) -> set[int]:
        """The changes that free the place of *finding*: a deletion there, or a move away."""
        found = {other for other in self._at[finding.path] if self._findings[other].kind is Kind.DELETED}
        if finding.path:
            folder, name = parted(finding.path)
            above = self._upper.get(folder)
            if above is not None and above.lower is not None:
                moving = self._moving.get(joined(above.lower, name))
                if moving is not None and moving != number:
                    found.add(moving)
        return found


def _goes(finding: Finding) -> bool:
    """Whether a directory of the workspace goes with all that is in it."""
    if finding.kind is Kind.DELETED:
        return finding.is_dir
    was_directory = finding.old is not None and finding.old.is_dir
    return finding.kind is Kind.TYPE and was_directory


def _reached(start: Iterable[int], edges: Sequence[set[int]]) -> set[int]:
    reached = set(start)
    pending = list(reached)
    while pending:
        for other in edges[pending.pop()] - reached:
            reached.add(other)
            pending.append(other)
    return reached


def within(finding: Finding, paths: Sequence[bytes]) -> bool:
    """Whether *finding* is at or below one of *paths*, all without any; either end of a rename counts."""
    places = (finding.path, finding.old_path or finding.path)
    return not paths or any(is_below(place, path) for place in places for path in paths)
