"""Which changes does a person want to see, and which can be told in one line?

A directory is left out where its content implies it. What the project asks git to ignore, and git's own
files, are put aside: one line for each ignored directory, or for each directory with ignored files in it. The
ignore files themselves are always shown, as the sandbox may have written them.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from sandboxfs.changes.files import FileChange, file_changes
from sandboxfs.changes.finding import Finding, Side
from sandboxfs.changes.flags import Flag, Look, flags
from sandboxfs.changes.ignore import IgnoreRules
from sandboxfs.changes.patch import Kind
from sandboxfs.changes.scan import Survey
from sandboxfs.changes.tree import split
from sandboxfs.changes.view import View

IGNORED, GIT = "ignored", "git"
_GIT, _IGNORE_FILE = b".git", b".gitignore"


@dataclass(frozen=True)
class Item:
    """One change as it is shown, and what is to be said about it."""

    change: FileChange
    conflict: str | None = None
    changing: bool = False
    is_dir: bool = False


def items(survey: Survey, findings: list[Finding], *, renames: bool) -> list[Item]:
    """Return what to show of *findings*, sorted by path; without *renames* nothing is called renamed."""
    if renames:
        return [_item(finding, FileChange.of(finding)) for finding in findings]
    # The workspace's place of a deletion is where a tool would look for it.
    by_place = {finding.path if finding.new else finding.lower_path: finding for finding in findings}
    shown = [
        _item(by_place[change.path], change) if change.path in by_place else Item(change)
        for change in file_changes(survey, findings, renames=False)
    ]
    shown += [
        _item(finding, FileChange.of(finding))
        for finding in findings
        if finding.is_dir and finding.kind is not Kind.RENAMED
    ]
    return sorted(shown, key=lambda item: (item.change.path, item.change.new is not None))


def _item(finding: Finding, change: FileChange) -> Item:
    return Item(change, finding.conflict, finding.changing, finding.is_dir)


def without_implied(findings: list[Finding]) -> list[Finding]:
    """Leave out directories that come or go with what is in them, and those that came back to their place."""
    filled, emptied = _around(findings, new=True), _around(findings, new=False)
    return [finding for finding in findings if not _is_implied(finding, filled, emptied)]


def _is_implied(finding: Finding, filled: set[bytes], emptied: set[bytes]) -> bool:
    if not finding.is_dir or finding.conflict is not None:
        return False
    if finding.kind is Kind.ADDED:
        return finding.path in filled
    if finding.kind is Kind.DELETED:
        return finding.path in emptied
    return finding.kind is Kind.RENAMED and finding.path == finding.old_path


def _around(findings: Iterable[Finding], *, new: bool) -> set[bytes]:
    """The directories around the findings that have, or have not, something in the view."""
    around: set[bytes] = set()
    for finding in findings:
        if (finding.new is not None) is new:
            parent = split(finding.path)[0] if finding.path else b""
            while parent and parent not in around:
                around.add(parent)
                parent = split(parent)[0]
    return around


@dataclass
class Folded:
    """What was put aside in one directory: how much, and how much of it is in conflict."""

    directory: bytes
    reason: str
    changes: int = 0
    conflicts: int = 0
    flags: Counter[Flag] = field(default_factory=Counter)


class Aside:
    """Tells what is put aside, by the ignore files of the view."""

    def __init__(self, view: View) -> None:
        self._rules = IgnoreRules.load(view.read)
        self._verdicts: dict[bytes, tuple[bytes, str] | None] = {}

    def group(self, path: bytes, *, is_dir: bool) -> tuple[bytes, str] | None:
        """Return the directory that *path* is put aside with, and why; None when it is not."""
        if not path:
            return None
        parent, name = split(path)
        around = self._of_directory(path if is_dir else parent)
        if around is not None or is_dir:
            return around
        if name == _GIT:
            # Submodules and worktrees have a file of that name.
            return path, GIT
        ignored = name != _IGNORE_FILE and self._rules.ignored(path, is_dir=False)
        return (parent, IGNORED) if ignored else None

    def _of_directory(self, path: bytes) -> tuple[bytes, str] | None:
        """Find the outermost directory at or above *path* that is put aside; asks from the top down."""
        if not path:
            return None
        at = path.find(b"/")
        while True:
            part = path if at < 0 else path[:at]
            if part not in self._verdicts:
                self._verdicts[part] = self._verdict(part)
            if self._verdicts[part] is not None or at < 0:
                return self._verdicts[part]
            at = path.find(b"/", at + 1)

    def _verdict(self, directory: bytes) -> tuple[bytes, str] | None:
        if split(directory)[1] == _GIT:
            return directory, GIT
        return (directory, IGNORED) if self._rules.ignored(directory, is_dir=True) else None


def fold(aside: Aside, findings: list[Finding], root: bytes) -> tuple[list[Finding], list[Folded]]:
    """Divide *findings* into those to show one by one and those put aside.

    Of the latter no file is read: their flags tell only what names, modes and targets do.
    """
    shown: list[Finding] = []
    folded: dict[tuple[bytes, str], Folded] = {}
    for finding in findings:
        group = aside.group(finding.path, is_dir=finding.is_dir)
        if group is None:
            shown.append(finding)
            continue
        line = folded.setdefault(group, Folded(*group))
        line.changes += 1
        line.conflicts += finding.conflict is not None
        line.flags.update(plain_flags(FileChange.of(finding), root))
    return shown, sorted(folded.values(), key=lambda line: line.directory)


def plain_flags(change: FileChange, root: bytes) -> list[Flag]:
    """Return the flags of *change* that can be told without reading it."""
    return flags(change.path, _look(change.old), _look(change.new), root)


def _look(side: Side | None) -> Look | None:
    return None if side is None else Look(side.mode, side.size, target=side.target)
