"""What did the sandbox do? Every path where the view differs from the baseline, as findings.

The upper is compared with the baseline to say what the sandbox did, the workspace with the baseline to say
whether it moved on meanwhile: that is a conflict, unless it now has what the sandbox has. What a moved
directory brought along is told by the one finding of the directory. Cost follows the entries of the upper and
what lies in the workspace below what was deleted, never the size of the workspace.

Two findings share a path where something was deleted and something else moved to its place.
"""

import stat
from collections.abc import Sequence
from dataclasses import dataclass, replace

from sandboxfs.changes import conflicts, judging
from sandboxfs.changes.deletions import Deletions
from sandboxfs.changes.finding import Finding, Side
from sandboxfs.changes.hardlinks import with_links
from sandboxfs.changes.layers import Layers
from sandboxfs.changes.renames import with_renames
from sandboxfs.changes.sides import Place, lower_side, upper_side
from sandboxfs.changes.tree import join, split
from sandboxfs.changes.uppers import UpperDirectory, map_upper
from sandboxfs.changes.view import View
from sandboxfs.layers import marks
from sandboxfs.layers.baseline import Sighting


@dataclass(frozen=True)
class Survey:
    """What a scan found, and the view in which it found it."""

    findings: list[Finding]
    view: View


def scan(layers: Layers, paths: Sequence[bytes] = (), *, renames: bool = True) -> list[Finding]:
    """Return the changes at and below *paths*, all without any, sorted by path.

    With *renames* a file that was moved is one finding, not a deletion and an addition.
    """
    return survey(layers, paths, renames=renames).findings


def survey(layers: Layers, paths: Sequence[bytes] = (), *, renames: bool = True) -> Survey:
    """Scan, and keep the view for whoever goes on looking at what was found."""
    upper = map_upper(layers.upper)
    layers.read_baseline()
    view = View(layers, upper)
    findings = _Scan(view, paths).findings()
    findings = with_links(view, findings)
    if renames:
        findings = with_renames(view, findings)
    chosen = [finding for finding in findings if _is_chosen(finding, paths)]
    # Of two at one path the deletion comes first, as it happens first.
    chosen.sort(key=lambda finding: (finding.path, finding.new is not None))
    return Survey(chosen, view)


def _is_chosen(finding: Finding, paths: Sequence[bytes]) -> bool:
    places = {finding.path, finding.lower_path, finding.old_path or finding.path}
    return not paths or any(_within(place, path) for place in places for path in paths)


def _within(place: bytes, path: bytes) -> bool:
    return not path or place == path or place.startswith(path + b"/")


class _Scan:
    """One pass over the upper."""

    def __init__(self, view: View, paths: Sequence[bytes]) -> None:
        self._view = view
        self._layers = view.layers
        self._paths = paths
        self._deletions = Deletions(view)
        self._found: list[Finding] = []
        # Directories that the host deleted or replaced, made again only if something in them needs it.
        self._orphans: list[Finding] = []

    def findings(self) -> list[Finding]:
        for directory in self._view.upper:
            self._directory(directory, Side.of(directory.status))
            for name, status in directory.entries.items():
                lower_path = self._view.upper.below(directory, name)
                path = join(directory.path, name)
                if status is None:
                    if lower_path is not None:
                        self._found += self._deletions.tree(lower_path, path, directory.gone[name])
                elif not stat.S_ISDIR(status.st_mode):
                    new = upper_side(self._layers, path, status)
                    if new is not None:
                        self._entry(path, lower_path, new)
            self._found += self._deletions.hidden(directory)
        return self._found + self._needed_orphans()

    # Directories

    def _directory(self, directory: UpperDirectory, new: Side) -> None:
        path = directory.path
        if not path:
            seen = self._layers.baseline.get(b"")
            if seen is not None:
                self._changed(b"", b"", seen, new, self._lower(b""))
        elif directory.moved and directory.redirect is not None:
            self._moved(directory, directory.redirect, new)
        elif directory.natural is None:
            self._add(judging.added(path, new, None, path), opaque=directory.opaque)
        else:
            self._in_place(directory, directory.natural, new)

    def _in_place(self, directory: UpperDirectory, lower_path: bytes, new: Side) -> None:
        path, lower = directory.path, self._lower(lower_path)
        seen = self._layers.baseline.get(lower_path)
        if seen is None:
            # One that is merged with the workspace's was copied up, when nobody kept a baseline.
            if directory.hidden or lower is None or not lower.is_dir:
                self._add(judging.added(path, new, lower, lower_path), opaque=directory.opaque)
        elif stat.S_ISDIR(seen.mode) and (lower is None or not lower.is_dir):
            orphan = judging.orphaned(self._layers, path, seen, new, lower_path)
            if lower is not None:
                orphan = replace(orphan, lower=lower, conflict=conflicts.CHANGED)
            changed = lower is not None and new.mode != seen.mode
            (self._found if changed else self._orphans).append(replace(orphan, opaque=directory.opaque))
        else:
            self._changed(path, lower_path, seen, new, lower, opaque=directory.opaque)

    def _moved(self, directory: UpperDirectory, source: bytes, new: Side) -> None:
        seen, lower = self._layers.baseline.get(source), self._lower(source)
        finding = judging.moved_directory(self._layers, directory.path, source, seen, new, lower)
        if directory.natural is not None:
            # What the workspace has at the new place was deleted before, or came later.
            if self._layers.baseline.get(directory.natural) is not None:
                self._found += self._deletions.tree(directory.natural, directory.path, new.ctime_ns)
            elif self._lower(directory.natural) is not None:
                finding = replace(finding, conflict=conflicts.MADE_TOO)
        self._found.append(finding)

    def _needed_orphans(self) -> list[Finding]:
        """Those in which there is something that the sandbox made or changed."""
        needed: set[bytes] = set()
        for finding in self._found if self._orphans else ():
            parent = finding.path if finding.new is not None else b""
            while parent and parent not in needed:
                needed.add(parent)
                parent = split(parent)[0]
        return [orphan for orphan in self._orphans if orphan.path in needed]

    # Everything else

    def _entry(self, path: bytes, lower_path: bytes | None, new: Side) -> None:
        if lower_path is None:
            self._add(judging.added(path, new, None, path))
            return
        seen, lower = self._layers.baseline.get(lower_path), self._lower(lower_path)
        if seen is None and lower is not None and self._is_copy_of(path, new, lower):
            seen = judging.assumed(lower, lower_path)
        if seen is None:
            self._add(judging.added(path, new, lower, lower_path))
            return
        lost = self._deletions.inside(lower_path, path, new.ctime_ns) if stat.S_ISDIR(seen.mode) else []
        self._found += lost
        self._changed(path, lower_path, seen, new, lower)
        # Something is below it in the workspace, so it is a directory there, and the change was found.
        if any(finding.conflict == conflicts.MADE_BELOW for finding in lost):
            self._found[-1] = judging.filled(self._found[-1])

    def _is_copy_of(self, path: bytes, new: Side, lower: Side) -> bool:
        """Whether the upper has a copy of the lower file that was made when nobody kept a baseline."""
        if not new.is_file or not lower.is_file:
            return False
        parent, name = split(path)
        try:
            return marks.read_record(self._layers.upper.directory(parent), name).ino == lower.ino
        except OSError:
            return False

    def _changed(
        self,
        path: bytes,
        lower_path: bytes,
        seen: Sighting,
        new: Side,
        lower: Side | None,
        *,
        opaque: bool = False,
    ) -> None:
        # Comparing is what costs, so it is left out for what nobody asked for. Links may lead to what is.
        if self._paths and new.nlink == 1 and not self._may_be_chosen(path, lower_path):
            return
        place = Place(self._layers.upper, path)
        self._add(judging.changed(self._layers, path, place, seen, new, lower, lower_path), opaque=opaque)

    def _may_be_chosen(self, path: bytes, lower_path: bytes) -> bool:
        return any(_within(place, chosen) for place in (path, lower_path) for chosen in self._paths)

    def _add(self, finding: Finding | None, *, opaque: bool = False) -> None:
        if finding is not None:
            self._found.append(replace(finding, opaque=True) if opaque else finding)

    def _lower(self, path: bytes) -> Side | None:
        return lower_side(self._layers, path)
