"""Which new names belong to files that the workspace has already?

A program that gave an unchanged file a second name made the upper copy it: the new name is a change, the old
one is not. In the workspace the new name becomes a second name of the file it has, and the copy is not needed
any more; unless the host made something else of the file meanwhile, which the sandbox never saw.

Where one of several names of an unchanged file was renamed, it stays a name of that file in the same way.
"""

import os
import stat
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from sandboxfs.changes.finding import Finding, Side
from sandboxfs.changes.layers import Layers
from sandboxfs.changes.patch import Kind
from sandboxfs.changes.renames import number_kept
from sandboxfs.changes.scan import Survey
from sandboxfs.changes.sides import Place, change, lower_side, same, upper_side
from sandboxfs.changes.steps import Identity, joined
from sandboxfs.changes.tree import Unreadable
from sandboxfs.layers.settlement import Drop
from sandboxfs.layers.settlement import Identity as UpperIdentity

Inode = tuple[int, int]


@dataclass(frozen=True)
class Twin:
    """An unchanged copy in the upper at *path*, and the file at *lower_path* that it is a copy of."""

    path: bytes
    lower_path: bytes
    original: Identity
    copy: UpperIdentity

    def drop(self, keep: bytes) -> Drop:
        return Drop(self.path, self.copy, keep)


def twins(survey: Survey, findings: Iterable[Finding]) -> Mapping[Inode, list[Twin]]:
    """The unchanged names of files of which *findings* are new names, by the copy's inode."""
    wanted = {
        (finding.new.dev, finding.new.ino)
        for finding in findings
        if finding.new is not None and finding.new.is_file and finding.new.nlink > 1
    }
    found: dict[Inode, list[Twin]] = defaultdict(list)
    if not wanted:
        return found
    changed = {finding.path for finding in survey.findings if finding.new is not None}
    for directory in survey.view.upper:
        for name, status in directory.entries.items():
            if status is None or status.st_nlink < 2 or not stat.S_ISREG(status.st_mode):
                continue
            inode, path = (status.st_dev, status.st_ino), joined(directory.path, name)
            lower_path = survey.view.upper.below(directory, name)
            if inode not in wanted or path in changed or lower_path is None or directory.hidden:
                continue
            twin = _twin(survey.view.layers, path, status, lower_path)
            if twin is not None:
                found[inode].append(twin)
    return found


def renamed_names(survey: Survey, findings: Iterable[Finding]) -> Mapping[Inode, tuple[bytes, Identity]]:
    """Where the workspace has files of which *findings* only rename one of several names, by the copy."""
    layers = survey.view.layers
    sources: dict[int, tuple[bytes, Side]] = {}
    for finding in survey.findings:
        seen = layers.baseline.get(finding.lower_path) if _leaves(finding) else None
        if seen is not None and finding.lower is not None:
            sources[seen.number] = finding.lower_path, finding.lower
    found: dict[Inode, tuple[bytes, Identity]] = {}
    for finding in findings if sources else ():
        copy = finding.new
        if copy is None or not copy.is_file or copy.nlink < 2:
            continue
        source = sources.get(number_kept(survey.view, finding))
        if source is not None and _is_unchanged(layers, copy, source[1], source[0]):
            found[copy.dev, copy.ino] = source[0], Identity.seen(source[1])
    return found


def _leaves(finding: Finding) -> bool:
    """Whether one of several names of a file goes."""
    if finding.kind not in (Kind.DELETED, Kind.RENAMED):
        return False
    return finding.lower is not None and finding.lower.is_file and finding.lower.nlink > 1


def _is_unchanged(layers: Layers, copy: Side, lower: Side, lower_path: bytes) -> bool:
    """Whether *copy* is still what the workspace has, but for its name."""
    seen = layers.baseline.get(lower_path)
    if seen is None or not isinstance(copy.read, Place):
        return False
    try:
        return same(copy, lower) and change(layers, seen, copy, lower, copy.read) is None
    except Unreadable:
        return False


def _twin(layers: Layers, path: bytes, status: os.stat_result, lower_path: bytes) -> Twin | None:
    """What the upper has at *path*, if the workspace still has the same at *lower_path*."""
    copy, lower = upper_side(layers, path, status), lower_side(layers, lower_path)
    try:
        if copy is None or lower is None or not same(copy, lower):
            return None
    except Unreadable:
        return None
    return Twin(path, lower_path, Identity.seen(lower), UpperIdentity.of(status))
