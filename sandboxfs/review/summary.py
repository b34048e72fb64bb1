"""Summaries: the list of changed files with their flags, and left-out changes folded by directory.

A patch has no words for a directory, and none for two files that change places. So a renamed directory
becomes the renames of all files in it, and the file at a path is compared with the old file of that path. A
change is only called a rename where the new path had no file before and the old path has none any more. Every
tool can apply such a patch, in whatever order the tool takes the files.

The changes that a commit leaves out (`review/scope`) are one line for each ignored directory, or for each
directory with ignored files, and one for each `.git`.
"""

import os
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial

from sandboxfs.hostfs.tree import Unreadable
from sandboxfs.paths import PathSet, add_above, parted
from sandboxfs.policy.compiled import same_below
from sandboxfs.policy.explain import states_on_the_way
from sandboxfs.policy.model import Policy
from sandboxfs.review.change import ChangeKind, PathChange, Version
from sandboxfs.review.compare import access_list, head, lower_side, upper_side
from sandboxfs.review.flags import MOST_OF_A_FILE, Budget, Flag, Head, Look, flags, may_hold_what_runs
from sandboxfs.review.git_files import NamedByGit, named_by_git
from sandboxfs.review.patch import FilePatch, is_same_content
from sandboxfs.review.scan import ScanResult
from sandboxfs.upper.walk import MergedView, ShownFile


@dataclass(frozen=True)
class _Found:
    """A file of the view, its path in the workspace before, and the kind of its change."""

    side: Version
    source: bytes | None
    kind: ChangeKind


def file_changes(
    survey: ScanResult, findings: list[PathChange], *, renames: bool = True
) -> Iterator[PathChange]:
    """Convert *findings* of *survey* to changes of files, sorted by path."""
    old, new = _gather(survey.view, findings)
    sources = _renamed(old, new) if renames else {}
    moved_away = set(sources.values())
    for path in sorted(old.keys() | new.keys()):
        before, found = old.get(path), new.get(path)
        if found is None:
            if path not in moved_away:
                yield PathChange(path, ChangeKind.DELETED, before, None, None, path)
        elif path in sources:
            kind = ChangeKind.MODE if found.kind is ChangeKind.MODE else ChangeKind.RENAMED
            source = sources[path]
            yield PathChange(path, kind, old[source], found.side, None, source, source)
        elif before is None:
            yield PathChange(path, ChangeKind.ADDED, None, found.side, None, path)
        elif before is not found.side:
            kind = found.kind if found.source == path else ChangeKind.MODIFIED
            yield PathChange(path, kind, before, found.side, None, path)


def files_below(view: MergedView, path: bytes) -> int:
    """Count the files that moved along with a renamed directory."""
    return sum(1 for _ in view.below(path))


def _gather(view: MergedView, findings: list[PathChange]) -> tuple[dict[bytes, Version], dict[bytes, _Found]]:
    """Collect the old files by their old paths, and the present files by their new ones."""
    old: dict[bytes, Version] = {}
    new: dict[bytes, _Found] = {}
    for finding in findings:
        if finding.old is not None and not finding.old.is_dir:
            old[finding.origin] = finding.old
        if finding.new is not None and not finding.new.is_dir:
            source = finding.origin if finding.old is not None and not finding.old.is_dir else None
            new[finding.path] = _Found(finding.new, source, finding.kind)
    renamed = PathSet(one.path for one in findings if one.kind is ChangeKind.RENAMED and one.is_dir)
    for path in renamed:
        # Each file is collected once, with the outermost renamed directory around it.
        if not path or not renamed.hold(parted(path)[0]):
            for shown in view.below(path):
                side = None if shown.path in new else _unchanged(view, shown)
                if side is not None and shown.lower_path is not None:
                    old[shown.lower_path] = side
                    new[shown.path] = _Found(side, shown.lower_path, ChangeKind.RENAMED)
    return old, new


def _unchanged(view: MergedView, shown: ShownFile) -> Version | None:
    """Return the view's version of an unchanged file that moved along."""
    if shown.upper is not None:
        return upper_side(view.layers, shown.path, shown.upper)
    return None if shown.lower_path is None else lower_side(view.layers, shown.lower_path)


def _renamed(old: dict[bytes, Version], new: dict[bytes, _Found]) -> dict[bytes, bytes]:
    """Return the new paths that can be called renamed, with their old paths."""
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


def shown_changes(survey: ScanResult, findings: list[PathChange], *, renames: bool) -> list[PathChange]:
    """Return *findings* as they are shown; without *renames*, sorted by path and none called a rename."""
    if renames:
        return findings
    # A tool looks for a deleted file at its path in the workspace.
    by_place = {finding.path if finding.new else finding.lower_path: finding for finding in findings}
    shown = [
        _with_remarks(change, by_place.get(change.path))
        for change in file_changes(survey, findings, renames=False)
    ]
    shown += [finding for finding in findings if finding.is_dir and finding.kind is not ChangeKind.RENAMED]
    return sorted(shown, key=lambda change: (change.path, change.new is not None))


def _with_remarks(change: PathChange, finding: PathChange | None) -> PathChange:
    if finding is None:
        return change
    return replace(change, conflict=finding.conflict, changing=finding.changing)


def without_implied(findings: list[PathChange]) -> list[PathChange]:
    """Leave out directories that come or go with their entries, and directories that moved back."""
    filled, emptied = around(findings, new=True), around(findings, new=False)
    return [finding for finding in findings if not _is_implied(finding, filled, emptied)]


def _is_implied(finding: PathChange, filled: set[bytes], emptied: set[bytes]) -> bool:
    if not finding.is_dir or finding.conflict is not None:
        return False
    if finding.kind is ChangeKind.ADDED:
        return finding.path in filled
    if finding.kind is ChangeKind.DELETED:
        return finding.path in emptied
    return finding.kind is ChangeKind.RENAMED and finding.path == finding.old_path


def around(findings: Iterable[PathChange], *, new: bool, known: set[bytes] | None = None) -> set[bytes]:
    """Return *known* and the directories around *findings* with, or without, a *new* version."""
    found: set[bytes] = set() if known is None else known
    for finding in findings:
        if (finding.new is not None) is new:
            add_above(finding.path, found)
    return found


@dataclass(frozen=True)
class FlagContext:
    """The context of flags: the workspace's *root*, the *policy* there, and the *budget* for reading."""

    root: bytes
    policy: Policy
    budget: Budget = field(default_factory=Budget)

    def releases(self, old_path: bytes, path: bytes, *, is_dir: bool) -> bool:
        """Whether the policy is stricter for *old_path*, or for a path below it, than for *path*."""
        root = os.fsdecode(self.root)
        before, after = (
            states_on_the_way(self.policy, os.fsdecode(place), is_dir, root=root)[-1]
            for place in (old_path, path)
        )
        was, now = before.decision.refusals, after.decision.refusals
        if any(strict > mild for strict, mild in zip(was, now, strict=True)):
            return True
        return is_dir and not same_below(before, after)

    def flags(self, change: PathChange, loaded: FilePatch | None = None) -> list[Flag]:
        """Return the flags of *change*; reads files, within the budget, unless *loaded* has their bytes."""
        old, new, root, named = change.old, change.new, self.root, named_by_git(self.root)
        if new is None or not new.is_file or is_same_content(change):
            raised = flags(change.path, _look(old), _look(new, new=old is None), root, named)
        else:
            text, unread = _text(new, loaded, self.budget.take(new.size))
            before = _look(old, partial(_old_head, old, loaded))
            now = _look(new, text, new=old is None, unread=unread)
            raised = flags(change.path, before, now, root, named)
        return raised + self._of_the_move(change, raised, named)

    def _of_the_move(self, change: PathChange, raised: list[Flag], named: NamedByGit) -> list[Flag]:
        """Return the flags of a rename for the path it leaves, and for the path a directory arrives at."""
        left = change.moved_from
        if left is None:
            return []
        is_dir = change.new is not None and change.new.is_dir
        holds = may_hold_what_runs(change.path) or named.has(change.path) or named.any_below(change.path)
        into = [Flag.RUNS] if is_dir and holds else []
        away = flags(left, _look(change.old), None)
        if self.releases(left, change.path, is_dir=is_dir):
            away.append(Flag.RELEASED)
        return [flag for flag in into + away if flag not in raised]


def _text(new: Version, loaded: FilePatch | None, granted: int) -> tuple[bytes, bool]:
    """Return as much of a file as may be read, and whether a part is missing."""
    try:
        if loaded is None or loaded.problem is not None:
            return head(new, granted), new.size > granted
    except Unreadable:
        return b"", True
    # A file that is being written may have grown since its size was taken.
    return loaded.new[:granted], len(loaded.new) > granted


def _old_head(side: Version | None, loaded: FilePatch | None) -> bytes:
    if loaded is not None and loaded.problem is None:
        return loaded.old[:MOST_OF_A_FILE]
    try:
        return b"" if side is None or not side.is_file else head(side, MOST_OF_A_FILE)
    except Unreadable:
        return b""


def _look(side: Version | None, start: Head = b"", *, new: bool = False, unread: bool = False) -> Look | None:
    if side is None:
        return None
    return Look(side.mode, side.size, start, side.target, unread, access_list(side, new=new))


def plain_flags(change: PathChange, root: bytes) -> list[Flag]:
    """Return the flags of *change* that need no content."""
    old, new = (
        None if side is None else Look(side.mode, side.size, target=side.target)
        for side in (change.old, change.new)
    )
    return flags(change.path, old, new, root, named_by_git(root))


@dataclass
class FoldedDirectory:
    """The left-out changes of one directory: their number, and the number of conflicts among them."""

    directory: bytes
    reason: str
    changes: int = 0
    conflicts: int = 0
    flags: Counter[Flag] = field(default_factory=Counter)

    def as_json(self) -> dict[str, object]:
        return {
            "path": os.fsdecode(self.directory) or ".",
            "reason": self.reason,
            "changes": self.changes,
            "conflicts": self.conflicts,
            "flags": {flag.value: count for flag, count in sorted(self.flags.items())},
        }


def folded(left_out: Iterable[tuple[PathChange, bytes, str]], root: bytes) -> list[FoldedDirectory]:
    """Sum up left-out changes, by reason and by the directory that each is folded into.

    No file is read: flags come from names, modes and targets alone.
    """
    found: dict[tuple[bytes, str], FoldedDirectory] = {}
    for finding, directory, reason in left_out:
        line = found.setdefault((directory, reason), FoldedDirectory(directory, reason))
        line.changes += 1
        line.conflicts += finding.conflict is not None
        line.flags.update(plain_flags(finding, root))
    return sorted(found.values(), key=lambda line: line.directory)
