"""What has to be noted anew in the baseline when something is taken back?

The baseline may have forgotten what the sandbox started from: it starts empty when a session begins with an
empty upper. Where the workspace has that again, or has it still, it is noted once more. Where it has not, or
where there was a conflict before, it is not, so that a conflict shows: what the sandbox started from is
brought back out of the record, if the baseline has forgotten it.
"""

import os
import stat
from collections.abc import Iterable, Iterator, Sequence
from functools import partial

from sandboxfs.changes.ground import Ground
from sandboxfs.changes.journal_json import identity_in
from sandboxfs.changes.records import Record
from sandboxfs.changes.site import Site
from sandboxfs.changes.steps import Moved, is_below, parted
from sandboxfs.layers.baseline import LIMIT, Baseline
from sandboxfs.layers.settlement import Operation, Put, Rebase, Resume, Unmoved, Whiteout, paths_of


class Rebasing:
    """Finds the paths to note; those at and below *exchanged* changed places with one another."""

    def __init__(self, site: Site, record: Record, exchanged: Iterable[bytes]) -> None:
        self._site = site
        self._baseline = None if site.baseline is None else Baseline.load(site.baseline)
        self._exchanged = tuple(exchanged)
        self._staged = record.last("staged")
        match self._staged:
            case {"conflicts": [*conflicts]}:
                self._conflicts = {os.fsencode(path) for path in conflicts if isinstance(path, str)}
            case _:
                self._conflicts = set()

    def after_commit(
        self,
        rebased: Iterable[Rebase],
        operations: Sequence[Operation],
        restored: Iterable[tuple[bytes, os.stat_result]],
        moved: Moved,
    ) -> list[Rebase]:
        """What to note after *operations*, when *restored* is back; *moved* tells where things come back.

        What the commit itself had *rebased* starts from what was there before.
        """
        # The path in the view by that in the workspace.
        wanted = {moved(one.lower): one.path for one in rebased}
        for operation in operations:
            if isinstance(operation, Put | Whiteout) and self._is_lost(operation.path):
                wanted[moved(operation.path)] = operation.path
        # A directory that came to a place made the baseline forget what was there.
        came = [operation.new for operation in operations if isinstance(operation, Unmoved)]
        for path, status in restored:
            # Too large for a digest: only its identity tells that it is what it was, and that is another.
            large = stat.S_ISREG(status.st_mode) and status.st_size > LIMIT
            if large or self._is_lost(path) or _within(path, came):
                wanted.setdefault(path, path)
        return [
            Rebase(path, lower, own=True)
            for lower, path in wanted.items()
            if path not in self._conflicts and lower not in self._conflicts
        ]

    def after_conflicts(self, back: Iterable[Operation], moved: Moved) -> list[Resume]:
        """What conflicts that come *back* had started from, where the baseline forgot that."""
        match self._staged:
            case {"starts": [*starts]}:
                places = {path for operation in back for path in paths_of(operation)}
                return [one for one in map(partial(_resumed, moved), starts) if one and one.path in places]
            case _:
                return []

    def after_discard(self, left: Iterable[bytes]) -> list[Rebase]:
        """What to note when changes come back that were dropped, but for those at and below *left*."""
        match self._staged:
            case {"seen": [*seen]}:
                left = tuple(left)
                return [rebase for rebase in self._still_there(seen) if not _within(rebase.path, left)]
            case _:
                return []

    def _still_there(self, seen: Iterable[object]) -> Iterator[Rebase]:
        with Ground(self._site.workspace) as ground:
            for one in seen:
                match one:
                    case [str(path), str(lower), described]:
                        place = os.fsencode(lower)
                        folder, name = parted(place)
                        directory = ground.find(folder) if self._is_lost(place) else None
                        status = None if directory is None else directory.stat(name or b".")
                        if identity_in(described).is_untouched(status):
                            yield Rebase(os.fsencode(path), place, own=True)
                    case _:
                        continue

    def _is_lost(self, path: bytes) -> bool:
        """Whether nothing is known of *path* any more, or what is known is of what it was exchanged with."""
        if self._baseline is None:
            return False
        known = self._baseline.get(path) is not None or self._baseline.is_aside(path)
        return _within(path, self._exchanged) or not known


def _resumed(moved: Moved, described: object) -> Resume | None:
    match described:
        case [str(path), str(lower), str(keep)]:
            return Resume(os.fsencode(path), moved(os.fsencode(lower)), os.fsencode(keep))
        case _:
            return None


def _within(path: bytes, tops: Iterable[bytes]) -> bool:
    return any(is_below(path, top) for top in tops)
