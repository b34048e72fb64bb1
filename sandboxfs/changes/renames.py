"""Which deletion and which addition are one rename of a file?

The copy of a lower file keeps the inode number that the view showed for it, wherever it goes; the baseline
knows which path had that number. So a rename is known, not guessed from what the files look like.
"""

import stat
from collections import defaultdict
from dataclasses import replace

from sandboxfs.changes import conflicts
from sandboxfs.changes.finding import Finding
from sandboxfs.changes.judging import is_unresolved
from sandboxfs.changes.patch import Kind
from sandboxfs.changes.tree import split
from sandboxfs.changes.view import View
from sandboxfs.layers import marks


def with_renames(view: View, findings: list[Finding]) -> list[Finding]:
    """Put each deletion and the addition that took it elsewhere together."""
    sources = _deleted(view, findings)
    if not sources:
        return findings
    kept: list[Finding] = []
    used: set[bytes] = set()
    for finding in sorted(findings, key=lambda finding: finding.path):
        source = _source(view, finding, sources)
        if source is None:
            kept.append(finding)
        else:
            used.add(source.lower_path)
            kept.append(_renamed(view, source, finding))
    return [finding for finding in kept if finding.kind is not Kind.DELETED or finding.lower_path not in used]


def _deleted(view: View, findings: list[Finding]) -> dict[int, list[Finding]]:
    """Deleted things that are no directories, by the number that the view showed for them."""
    sources: dict[int, list[Finding]] = defaultdict(list)
    for finding in findings:
        if finding.kind is Kind.DELETED and finding.old is not None and not finding.old.is_dir:
            seen = view.layers.baseline.get(finding.lower_path)
            if seen is not None:
                sources[seen.number].append(finding)
    for same_file in sources.values():
        same_file.sort(key=lambda finding: finding.lower_path, reverse=True)
    return sources


def _source(view: View, finding: Finding, sources: dict[int, list[Finding]]) -> Finding | None:
    """Take the deletion that *finding*, if it is an addition, is the other end of."""
    if finding.kind is not Kind.ADDED or finding.new is None or finding.new.is_dir:
        return None
    candidates = sources.get(number_kept(view, finding))
    if not candidates or candidates[-1].old is None:
        return None
    if stat.S_IFMT(candidates[-1].old.mode) != stat.S_IFMT(finding.new.mode):
        return None
    return candidates.pop()


def number_kept(view: View, finding: Finding) -> int:
    """The number that the upper's object keeps, 0 for one that was made in the sandbox."""
    if finding.new is None:
        return 0
    if not finding.new.is_file:
        return view.layers.numbers.number(finding.new.ino)
    parent, name = split(finding.path)
    try:
        return marks.read_record(view.layers.upper.directory(parent), name).ino
    except OSError:
        return 0


def _renamed(view: View, source: Finding, target: Finding) -> Finding:
    moved = source.conflict is not None and source.conflict != conflicts.FILLED
    conflict = target.conflict or (conflicts.CHANGED if moved else None)
    seen = view.layers.baseline.get(source.lower_path)
    if seen is not None and target.new is not None and is_unresolved(seen, source.old, target.new):
        conflict = conflicts.UNRESOLVED
    return replace(
        target,
        kind=Kind.RENAMED,
        old=source.old,
        lower=source.lower,
        lower_path=source.lower_path,
        old_path=source.lower_path,
        conflict=conflict,
        changed_ns=max(source.changed_ns, target.changed_ns),
    )
