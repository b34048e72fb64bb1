"""How does what the sandbox did look to tools that know only files, each by its path?

A patch has no words for a directory, and none for two things that change places. So a renamed directory
becomes the renames of all files that came along, and what is found at a path is compared with what was at
that path: a rename is only said where nothing was at the new place and nothing is at the old one any more.
Every tool can carry that out, in whatever order it takes the files.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from sandboxfs.changes.finding import Finding, Side
from sandboxfs.changes.patch import Kind
from sandboxfs.changes.scan import Survey
from sandboxfs.changes.sides import lower_side, upper_side
from sandboxfs.changes.view import Shown, View


@dataclass(frozen=True)
class FileChange:
    """What happened at one path; sides that are the same object are the same content."""

    path: bytes
    kind: Kind
    old: Side | None
    new: Side | None
    old_path: bytes | None = None

    @classmethod
    def of(cls, finding: Finding) -> "FileChange":
        """Take *finding* as it is."""
        place = finding.old_path or finding.lower_path
        old_path = place if finding.old is not None and place != finding.path else None
        return cls(finding.path, finding.kind, finding.old, finding.new, old_path)


@dataclass(frozen=True)
class _Found:
    """A file of the view, the path of the workspace it was, and what became of it on the way."""

    side: Side
    source: bytes | None
    kind: Kind


def file_changes(survey: Survey, findings: list[Finding], *, renames: bool = True) -> Iterator[FileChange]:
    """Give *findings* of *survey* as changes of files, sorted by path."""
    old, new = _gather(survey.view, findings)
    sources = _renamed(old, new) if renames else {}
    moved_away = set(sources.values())
    for path in sorted(old.keys() | new.keys()):
        before, found = old.get(path), new.get(path)
        if found is None:
            if path not in moved_away:
                yield FileChange(path, Kind.DELETED, before, None)
        elif path in sources:
            kind = Kind.MODE if found.kind is Kind.MODE else Kind.RENAMED
            yield FileChange(path, kind, old[sources[path]], found.side, sources[path])
        elif before is None:
            yield FileChange(path, Kind.ADDED, None, found.side)
        elif before is not found.side:
            kind = found.kind if found.source == path else Kind.MODIFIED
            yield FileChange(path, kind, before, found.side)


def files_below(view: View, path: bytes) -> int:
    """Count what came along with a renamed directory."""
    return sum(1 for _ in view.below(path))


def _gather(view: View, findings: list[Finding]) -> tuple[dict[bytes, Side], dict[bytes, _Found]]:
    """Collect the files that were, by their old paths, and those that are, by their new ones."""
    old: dict[bytes, Side] = {}
    new: dict[bytes, _Found] = {}
    for finding in findings:
        place = finding.old_path or finding.lower_path
        if finding.old is not None and not finding.old.is_dir:
            old[place] = finding.old
        if finding.new is not None and not finding.new.is_dir:
            source = place if finding.old is not None and not finding.old.is_dir else None
            new[finding.path] = _Found(finding.new, source, finding.kind)
    for finding in findings:
        if finding.kind is Kind.RENAMED and finding.is_dir:
            for shown in view.below(finding.path):
                side = None if shown.path in new else _unchanged(view, shown)
                if side is not None and shown.lower_path is not None:
                    old[shown.lower_path] = side
                    new[shown.path] = _Found(side, shown.lower_path, Kind.RENAMED)
    return old, new


def _unchanged(view: View, shown: Shown) -> Side | None:
    """What the view shows of something that did not change, but came along."""
    if shown.upper is not None:
        return upper_side(view.layers, shown.path, shown.upper)
    return None if shown.lower_path is None else lower_side(view.layers, shown.lower_path)


def _renamed(old: dict[bytes, Side], new: dict[bytes, _Found]) -> dict[bytes, bytes]:
    """Find the new paths that can be called renamed, and from where."""
    sources: dict[bytes, bytes] = {}
    taken: set[bytes] = set()
    for path in sorted(new):
        source = new[path].source
        if source is None or source == path or path in old:
            continue
        if source in old and source not in new and source not in taken:
            sources[path] = source
            taken.add(source)
    return sources
