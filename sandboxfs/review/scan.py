"""Scan: every path where the view differs from the baseline, with renames and hard links.

A whiteout over a directory deletes all its entries; a directory made anew over another one hides the other's
entries. An entry that was moved out is not deleted: the change of the moved directory covers it. An entry
that the host made there later was never seen by the sandbox: the entry is a conflict, and so is every deleted
directory around it, so that nothing gets lost.

Upper against baseline gives the changes of the sandbox, workspace against baseline the changes of the host. A
path that both changed is a conflict, unless both now have the same. The one change of a moved directory
stands for all the entries that moved along. The cost grows with the entries of the upper and with the
workspace's entries below deleted paths, never with the size of the workspace.

Two changes share a path where one object was deleted and another moved to its path.

The copy of a lower file keeps the inode number that the view showed for the file, wherever the copy goes. The
baseline has the path that the number belonged to. So a rename is known, not guessed from similar content.

Names in the upper are grouped by the host's inode number. A lower file with several names is copied up once,
under the name that a program changed, and the index leads the other names to the copy. The scan looks for
those names in the whole workspace, but only when such a file really changed and names of it are missing.
"""

import os
import stat
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from sandboxfs.paths import add_above, is_below, is_too_deep, joined, parted
from sandboxfs.review import change, compare
from sandboxfs.review.change import ChangeKind, PathChange, Version
from sandboxfs.review.compare import (
    LayerFile,
    changed,
    deleted,
    filled,
    indexed_side,
    is_unresolved,
    lower_side,
    upper_side,
)
from sandboxfs.review.repositories import with_lost_objects
from sandboxfs.upper import marks
from sandboxfs.upper.baseline import BaselineEntry
from sandboxfs.upper.sandbox_layers import Layers
from sandboxfs.upper.walk import MergedView, UpperDirectory, map_upper


class Deletions:
    """Deleted paths, found by reading the workspace."""

    def __init__(self, view: MergedView) -> None:
        self._layers = view.layers
        self._moved = view.upper.moved

    def tree(self, lower_path: bytes, path: bytes, when: int) -> list[PathChange]:
        """Return the deletion of *lower_path*, which was at *path* of the view, and of all entries below."""
        return _marked(list(self._walk(lower_path, path, when)))

    def inside(self, lower_path: bytes, path: bytes, when: int) -> list[PathChange]:
        """Return the deletion of all entries below *lower_path*, but not of the directory itself."""
        return _marked(list(self._walk(lower_path, path, when))[1:])

    def hidden(self, directory: UpperDirectory) -> list[PathChange]:
        """Return the deletion of entries that a directory, made anew over another one, hides."""
        if not directory.hidden or directory.lower is None:
            return []
        seen = self._layers.baseline.get(directory.lower)
        knew = seen is not None and stat.S_ISDIR(seen.mode)
        found: list[PathChange] = []
        for name in self._names(directory.lower):
            lower_path = joined(directory.lower, name)
            if name in directory.entries or lower_path in self._moved:
                continue
            # A directory made without knowing of the host's one says nothing about the entries there.
            if knew or self._layers.baseline.get(lower_path) is not None:
                found += self.tree(lower_path, joined(directory.path, name), directory.status.st_ctime_ns)
        return found

    def _walk(self, lower_path: bytes, path: bytes, when: int) -> Iterator[PathChange]:
        pending = [(lower_path, path)]
        while pending:
            lower_path, path = pending.pop()
            lower = lower_side(self._layers, lower_path)
            if lower is None:
                continue
            finding = deleted(
                self._layers, path, self._layers.baseline.get(lower_path), lower, lower_path, when
            )
            names: list[bytes] = []
            if lower.is_dir:
                names = [
                    name for name in self._names(lower_path) if joined(lower_path, name) not in self._moved
                ]
            if any(is_too_deep(joined(place, name)) for name in names for place in (lower_path, path)):
                yield replace(finding, conflict=change.TOO_DEEP)
            else:
                yield finding
                pending += [(joined(lower_path, name), joined(path, name)) for name in names]

    def _names(self, lower_path: bytes) -> list[bytes]:
        return sorted(os.fsencode(entry.name) for entry in self._layers.workspace.entries(lower_path))


def _marked(found: list[PathChange]) -> list[PathChange]:
    """Mark the deleted directories around entries that the host made."""
    around: set[bytes] = set()
    for finding in found:
        if finding.conflict == change.MADE_BELOW:
            add_above(finding.path, around)
    return [filled(finding) if finding.path in around else finding for finding in found] if around else found


@dataclass(frozen=True)
class ScanResult:
    """The changes that a scan found, and the view of that scan."""

    findings: list[PathChange]
    view: MergedView


def scan(layers: Layers, paths: Sequence[bytes] = (), *, renames: bool = True) -> list[PathChange]:
    """Return the changes at and below *paths*, all without any, sorted by path.

    With *renames* a moved file is one change, not a deletion and an addition.
    """
    return survey(layers, paths, renames=renames).findings


def survey(layers: Layers, paths: Sequence[bytes] = (), *, renames: bool = True) -> ScanResult:
    """Scan, and keep the view for callers that go on reading the changes."""
    upper = map_upper(layers)
    layers.read_baseline()
    view = MergedView(layers, upper)
    findings = _Scan(view, paths).findings()
    findings = with_links(view, findings)
    if renames:
        findings = with_renames(view, findings)
    findings = with_lost_objects(layers, findings)
    chosen = [finding for finding in findings if finding.is_within(paths)]
    # Of two changes at one path the deletion comes first, as it happens first.
    chosen.sort(key=lambda finding: (finding.path, finding.new is not None))
    return ScanResult(chosen, view)


class _Scan:
    """One pass over the upper."""

    def __init__(self, view: MergedView, paths: Sequence[bytes]) -> None:
        self._view = view
        self._layers = view.layers
        self._paths = paths
        self._deletions = Deletions(view)
        self._found: list[PathChange] = []
        # Directories that the host deleted or replaced, made again only if an entry in them needs it.
        self._orphans: list[PathChange] = []

    def findings(self) -> list[PathChange]:
        for directory in self._view.upper:
            place = LayerFile(self._layers.upper, directory.path)
            self._directory(directory, Version.of(directory.status, read=place))
            if directory.cut:
                self._cut(directory)
            for name, status in directory.entries.items():
                lower_path = self._view.upper.below(directory, name)
                path = joined(directory.path, name)
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

    def _directory(self, directory: UpperDirectory, new: Version) -> None:
        path = directory.path
        if directory.damaged:
            self._damaged(directory, new)
        elif not path:
            seen = self._layers.baseline.get(b"")
            if seen is not None:
                self._changed(b"", b"", seen, new, self._lower(b""))
        elif directory.moved and directory.redirect is not None:
            self._moved(directory, directory.redirect, new)
        elif directory.natural is None:
            self._add(compare.added(path, new, None, path), opaque=directory.opaque)
        else:
            self._in_place(directory, directory.natural, new)

    def _damaged(self, directory: UpperDirectory, new: Version) -> None:
        """Report a directory with a damaged mark in any case, as a conflict that a person decides."""
        lower_path = directory.path if directory.natural is None else directory.natural
        lower = None if directory.natural is None else self._lower(lower_path)
        finding = PathChange(
            directory.path, ChangeKind.ADDED, None, new, lower, lower_path, changed_ns=new.ctime_ns
        )
        self._found.append(replace(finding, conflict=change.DAMAGED, opaque=True))

    def _cut(self, directory: UpperDirectory) -> None:
        """Report a directory too deep to be read, changed or not: the sandbox can only discard it."""
        path, new = directory.path, Version.of(directory.status)
        if self._found and self._found[-1].path == path and self._found[-1].new is not None:
            self._found[-1] = replace(self._found[-1], conflict=change.TOO_DEEP)
        else:
            lower_path = directory.lower or path
            lower = self._lower(lower_path)
            kind = ChangeKind.ADDED if lower is None else ChangeKind.MODE
            self._found.append(
                PathChange(path, kind, lower, new, lower, lower_path, conflict=change.TOO_DEEP)
            )

    def _in_place(self, directory: UpperDirectory, lower_path: bytes, new: Version) -> None:
        path, lower = directory.path, self._lower(lower_path)
        seen = self._layers.baseline.get(lower_path)
        if seen is None:
            # A directory merged with the workspace's was copied up while no baseline was kept.
            if directory.hidden or lower is None or not lower.is_dir:
                self._add(compare.added(path, new, lower, lower_path), opaque=directory.opaque)
        elif stat.S_ISDIR(seen.mode) and (lower is None or not lower.is_dir):
            orphan = compare.orphaned(self._layers, path, seen, new, lower_path)
            if lower is not None:
                orphan = replace(orphan, lower=lower, conflict=change.CHANGED)
            changed = lower is not None and new.mode != seen.mode
            (self._found if changed else self._orphans).append(replace(orphan, opaque=directory.opaque))
        else:
            self._changed(path, lower_path, seen, new, lower, opaque=directory.opaque)

    def _moved(self, directory: UpperDirectory, source: bytes, new: Version) -> None:
        seen, lower = self._layers.baseline.get(source), self._lower(source)
        finding = compare.moved_directory(self._layers, directory.path, source, seen, new, lower)
        if directory.natural is not None:
            # The workspace's object at the new path was deleted before, or came later.
            if self._layers.baseline.get(directory.natural) is not None:
                self._found += self._deletions.tree(directory.natural, directory.path, new.ctime_ns)
            elif self._lower(directory.natural) is not None:
                finding = replace(finding, conflict=change.MADE_TOO)
        self._found.append(finding)

    def _needed_orphans(self) -> list[PathChange]:
        """Return the orphaned directories with an entry that the sandbox made or changed."""
        needed: set[bytes] = set()
        for finding in self._found if self._orphans else ():
            if finding.new is not None and finding.path:
                needed.add(finding.path)
                add_above(finding.path, needed)
        return [orphan for orphan in self._orphans if orphan.path in needed]

    # Other entries

    def _entry(self, path: bytes, lower_path: bytes | None, new: Version) -> None:
        if lower_path is None:
            self._add(compare.added(path, new, None, path))
            return
        seen, lower = self._layers.baseline.get(lower_path), self._lower(lower_path)
        if seen is None and lower is not None and self._is_copy_of(path, new, lower):
            seen = compare.assumed(lower, lower_path)
        if seen is None:
            self._add(compare.added(path, new, lower, lower_path))
            return
        lost = self._deletions.inside(lower_path, path, new.ctime_ns) if stat.S_ISDIR(seen.mode) else []
        self._found += lost
        self._changed(path, lower_path, seen, new, lower)
        # With entries below, the path is a directory in the workspace, so `_changed` has found a change.
        if any(finding.conflict == change.MADE_BELOW for finding in lost):
            self._found[-1] = compare.filled(self._found[-1])

    def _is_copy_of(self, path: bytes, new: Version, lower: Version) -> bool:
        """Whether the upper has a copy of the lower file that was made while no baseline was kept."""
        if not new.is_file or not lower.is_file:
            return False
        parent, name = parted(path)
        try:
            return marks.read_record(self._layers.upper.directory(parent), name).ino == lower.ino
        except OSError:
            return False

    def _changed(
        self,
        path: bytes,
        lower_path: bytes,
        seen: BaselineEntry,
        new: Version,
        lower: Version | None,
        *,
        opaque: bool = False,
    ) -> None:
        # Comparing is costly, so unasked paths are left out. A file with several names may have an asked one.
        if self._paths and new.nlink == 1 and not self._may_be_chosen(path, lower_path):
            return
        place = LayerFile(self._layers.upper, path)
        self._add(compare.changed(self._layers, path, place, seen, new, lower, lower_path), opaque=opaque)

    def _may_be_chosen(self, path: bytes, lower_path: bytes) -> bool:
        return any(is_below(place, chosen) for place in (path, lower_path) for chosen in self._paths)

    def _add(self, finding: PathChange | None, *, opaque: bool = False) -> None:
        if finding is not None:
            self._found.append(replace(finding, opaque=True) if opaque else finding)

    def _lower(self, path: bytes) -> Version | None:
        return lower_side(self._layers, path)


def with_renames(view: MergedView, findings: list[PathChange]) -> list[PathChange]:
    """Join each deletion with the addition that has the same file at another path."""
    sources = _deleted(view, findings)
    if not sources:
        return findings
    kept: list[PathChange] = []
    used: set[bytes] = set()
    for finding in sorted(findings, key=lambda finding: finding.path):
        source = _source(view, finding, sources)
        if source is None:
            kept.append(finding)
        else:
            used.add(source.lower_path)
            kept.append(_renamed(view, source, finding))
    return [
        finding
        for finding in kept
        if finding.kind is not ChangeKind.DELETED or finding.lower_path not in used
    ]


def _deleted(view: MergedView, findings: list[PathChange]) -> dict[int, list[PathChange]]:
    """Return deletions of anything but directories, by the inode number that the view showed."""
    sources: dict[int, list[PathChange]] = defaultdict(list)
    for finding in findings:
        if finding.kind is ChangeKind.DELETED and finding.old is not None and not finding.old.is_dir:
            seen = view.layers.baseline.get(finding.lower_path)
            if seen is not None:
                sources[seen.number].append(finding)
    for same_file in sources.values():
        same_file.sort(key=lambda finding: finding.lower_path, reverse=True)
    return sources


def _source(view: MergedView, finding: PathChange, sources: dict[int, list[PathChange]]) -> PathChange | None:
    """Take the deletion whose other end is the addition *finding*, if there is one."""
    if finding.kind is not ChangeKind.ADDED or finding.new is None or finding.new.is_dir:
        return None
    candidates = sources.get(number_kept(view, finding))
    if not candidates or candidates[-1].old is None:
        return None
    if stat.S_IFMT(candidates[-1].old.mode) != stat.S_IFMT(finding.new.mode):
        return None
    return candidates.pop()


def number_kept(view: MergedView, finding: PathChange) -> int:
    """Return the inode number that the upper's object keeps, 0 for an object made in the sandbox."""
    if finding.new is None:
        return 0
    if not finding.new.is_file:
        return view.layers.numbers.number(finding.new.ino)
    parent, name = parted(finding.path)
    try:
        return marks.read_record(view.layers.upper.directory(parent), name).ino
    except OSError:
        return 0


def _renamed(view: MergedView, source: PathChange, target: PathChange) -> PathChange:
    moved = source.conflict is not None and source.conflict != change.FILLED
    conflict = target.conflict or (change.CHANGED if moved else None)
    seen = view.layers.baseline.get(source.lower_path)
    if seen is not None and target.new is not None and is_unresolved(seen, source.old, target.new):
        conflict = change.UNRESOLVED
    return replace(
        target,
        kind=ChangeKind.RENAMED,
        old=source.old,
        lower=source.lower,
        lower_path=source.lower_path,
        old_path=source.lower_path,
        conflict=conflict,
        changed_ns=max(source.changed_ns, target.changed_ns),
    )


@dataclass(frozen=True)
class _Indexed:
    """A lower file of several names that was copied up."""

    name: bytes
    status: os.stat_result
    seen: BaselineEntry


def with_links(view: MergedView, findings: list[PathChange]) -> list[PathChange]:
    """Add changes for names that only the workspace has, and give each change all names of its file."""
    findings = findings + _elsewhere(view)
    groups: dict[tuple[int, int], list[bytes]] = defaultdict(list)
    for finding in findings:
        if finding.new is not None and finding.new.is_file and finding.new.nlink > 1:
            groups[finding.new.dev, finding.new.ino].append(finding.path)
    if not groups:
        return findings
    # All names of a file share one tuple: a tuple for each would take space quadratic in the number of names.
    shared = {file: tuple(sorted(names)) for file, names in groups.items() if len(names) > 1}
    return [_linked(finding, shared) for finding in findings]


def _linked(finding: PathChange, groups: dict[tuple[int, int], tuple[bytes, ...]]) -> PathChange:
    if finding.new is None or not finding.new.is_file:
        return finding
    names = groups.get((finding.new.dev, finding.new.ino))
    return finding if names is None else replace(finding, links=names)


def _elsewhere(view: MergedView) -> list[PathChange]:
    """Return the changes of names that the view has and the upper has not."""
    wanted = {indexed.seen.ino: indexed for indexed in _incomplete(view)}
    if not wanted:
        return []
    found = []
    for shown in view.below(b""):
        indexed = wanted.get(shown.ino)
        if indexed is None or shown.upper is not None or shown.lower_path is None:
            continue
        lower = lower_side(view.layers, shown.lower_path)
        if lower is None or (lower.dev, lower.ino) != (indexed.seen.dev, indexed.seen.ino):
            continue
        new = indexed_side(view.layers, indexed.name, indexed.status)
        place = LayerFile(view.layers.index, indexed.name)
        finding = changed(view.layers, shown.path, place, indexed.seen, new, lower, shown.lower_path)
        if finding is not None:
            found.append(finding)
    return found


def _incomplete(view: MergedView) -> list[_Indexed]:
    """Return the changed files with more names in the view than in the upper."""
    layers = view.layers
    names = [name for entry in layers.index.entries(b"") if (name := os.fsencode(entry.name))[:1] == b"h"]
    if not names:
        return []
    by_number = {seen.number: seen for seen in layers.baseline.below(b"")}
    found = []
    for name in sorted(names):
        status = layers.index.stat(name)
        record = _record(view, name)
        seen = by_number.get(record.ino)
        if status is None or seen is None or record.nlink <= status.st_nlink - 1:
            continue
        new, lower = indexed_side(layers, name, status), lower_side(layers, seen.path)
        place = LayerFile(layers.index, name)
        if changed(layers, seen.path, place, seen, new, lower, seen.path) is not None:
            found.append(_Indexed(name, status, seen))
    return found


def _record(view: MergedView, name: bytes) -> marks.InodeRecord:
    try:
        return marks.read_record(view.layers.index.directory(b""), name)
    except FileNotFoundError:
        return marks.NO_RECORD
