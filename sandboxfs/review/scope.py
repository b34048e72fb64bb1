"""Scope: which changes are meant; which are left out (ignored, git's own) or held; which go together.

What `diff` folds and what `commit` does not take is decided by one predicate for both.

A change is left out as *ignored* when the sandbox added the path, the workspace's own ignore rules match the
path, no repository of the host tracks it, the change has no flag, and the command line does not name it;
`--ignored` takes ignored changes. The rules are the host's: `.gitignore` files and `info/exclude` of the
workspace and the user's own file, never a file of the view. In an ignored directory only the flags of its
direct entries count: directories below hold whole packages, with their executables and CI files, and half of
a package is of no use in the workspace.

A change that a rule holds is left out until a person approves it (`review/held`), and so is every change that
needs a held one.

Git's own files are left out as *git* unless `--include-git` takes them, with the changes that need them.

The changes that a taken change needs are taken with it, ignored or not. A change can only be applied where
its directory is: the change needs the additions, renames and changes of type of the directories around it. A
change that takes a path needs the change that makes the path free. A deletion of a whole directory needs the
deletion, or the rename, of every entry of the directory. Names of one file go together, and so do changes in
one repository's `.git`. Applying a change applies all that the change needs; dropping a change drops all that
need it.
"""

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING

from sandboxfs.paths import is_below, joined, parted, quoted
from sandboxfs.policy.model import Rule
from sandboxfs.review.change import ChangeKind, PathChange
from sandboxfs.review.host_ignores import HostIgnores
from sandboxfs.review.repositories import dot_git, repositories_of
from sandboxfs.review.scan import ScanResult
from sandboxfs.review.summary import FoldedDirectory, around, folded, plain_flags, without_implied
from sandboxfs.upper.walk import UpperMap

if TYPE_CHECKING:
    from sandboxfs.review.held import HoldRules

_MAKES_PLACES = (ChangeKind.ADDED, ChangeKind.TYPE, ChangeKind.RENAMED)


class Dependencies:
    """The needs among *findings*, numbered by their order."""

    def __init__(
        self, findings: Sequence[PathChange], upper: UpperMap, units: Iterable[Sequence[int]] = ()
    ) -> None:
        """Find the needs; the numbers in each of *units* go together."""
        self._findings = findings
        self._upper = upper
        self._needs: list[set[int]] = [set() for _ in findings]
        self._at: dict[bytes, list[int]] = defaultdict(list)
        # Moving directories and files by the path they leave; directories that go, by their lower path.
        self._moving: dict[bytes, int] = {}
        self._going: dict[bytes, int] = {}
        # Names of one file, by its inode.
        self._names: dict[tuple[int, int], list[int]] = defaultdict(list)
        for number, finding in enumerate(findings):
            self._at[finding.path].append(number)
            if finding.new is not None and finding.new.is_file:
                self._names[finding.new.dev, finding.new.ino].append(number)
            if finding.kind is ChangeKind.RENAMED and finding.old_path is not None:
                self._moving[finding.old_path] = number
            if _goes(finding):
                self._going[finding.lower_path] = number
        # Each needs the next one, and the last needs the first: so each needs all.
        for together in (*self._names.values(), *units):
            for number, following in zip(together, [*together[1:], together[0]], strict=True):
                self._needs[number].add(following)
        for number, finding in enumerate(findings):
            self._find_needs(number, finding)

    def closure(self, chosen: Iterable[int]) -> set[int]:
        """Return the *chosen* changes with all that must be applied with them."""
        return _reached(chosen, self._needs)

    def dependents(self, chosen: Iterable[int]) -> set[int]:
        """Return the *chosen* changes with all that must be dropped with them."""
        return _reached(chosen, self._needed_by())

    def behind(self, held: Collection[int]) -> dict[int, int]:
        """Return the changes that need one of *held*, each with one that it needs."""
        found = {number: number for number in held}
        pending, needed_by = sorted(held, reverse=True), self._needed_by()
        while pending:
            number = pending.pop()
            for other in needed_by[number] - found.keys():
                found[other] = found[number]
                pending.append(other)
        return {number: origin for number, origin in found.items() if number not in held}

    def _needed_by(self) -> list[set[int]]:
        needed_by: list[set[int]] = [set() for _ in self._findings]
        for number, needs in enumerate(self._needs):
            for need in needs:
                needed_by[need].add(number)
        return needed_by

    def _find_needs(self, number: int, finding: PathChange) -> None:
        needs = self._needs[number]
        around = self._place_maker(finding.path)
        if around is not None:
            needs.add(around)
        if finding.new is not None:
            needs |= self._freeing(number, finding)
        source = finding.old_path if finding.kind is ChangeKind.RENAMED else None
        if source is None and finding.kind is ChangeKind.DELETED:
            source = finding.lower_path
        if source:
            above = self._going.get(parted(source)[0])
            if above is not None and above != number:
                self._needs[above].add(number)
        needs.discard(number)

    def _place_maker(self, path: bytes) -> int | None:
        """Return the change that puts the nearest directory above *path* there, or None."""
        while path:
            path = parted(path)[0]
            for number in self._at.get(path, ()):
                finding = self._findings[number]
                if finding.kind in _MAKES_PLACES and finding.new is not None and finding.new.is_dir:
                    return number
        return None

    def _freeing(self, number: int, finding: PathChange) -> set[int]:
        """Return the changes that free the path of *finding*: a deletion there, or a move away."""
        found = {
            other for other in self._at[finding.path] if self._findings[other].kind is ChangeKind.DELETED
        }
        if finding.path:
            folder, name = parted(finding.path)
            above = self._upper.get(folder)
            if above is not None and above.lower is not None:
                moving = self._moving.get(joined(above.lower, name))
                if moving is not None and moving != number:
                    found.add(moving)
        return found


def _goes(finding: PathChange) -> bool:
    """Whether a directory of the workspace goes with all its entries."""
    if finding.kind is ChangeKind.DELETED:
        return finding.is_dir
    was_directory = finding.old is not None and finding.old.is_dir
    return finding.kind is ChangeKind.TYPE and was_directory


def _reached(start: Iterable[int], edges: Sequence[set[int]]) -> set[int]:
    reached = set(start)
    pending = list(reached)
    while pending:
        for other in edges[pending.pop()] - reached:
            reached.add(other)
            pending.append(other)
    return reached


_IGNORE_FILE = b".gitignore"


@dataclass(frozen=True)
class HeldChange:
    """A change that *rule* holds, or that waits for the held change *behind*."""

    change: PathChange
    rule: Rule
    behind: PathChange | None = None

    @property
    def why(self) -> str:
        """Say in half a sentence why the change is left out."""
        if self.behind is None:
            return f"held by rule {quoted(str(self.rule))} ({self.rule.source})"
        return f"waits for {quoted(self.behind.path)}, which is held"


class Reason(StrEnum):
    """Why a change is left out."""

    IGNORED = "ignored"
    GIT = "git"


@dataclass(frozen=True)
class Scope:
    """The request: paths in the view, all without any, and whether what is left out or held is meant too."""

    paths: tuple[bytes, ...] = ()
    ignored: bool = False
    include_git: bool = False
    approve: bool = False


@dataclass(frozen=True)
class ScopeContext:
    """What decides beside the request: the workspace's path, ignore rules, and rules that hold changes.

    *excludes* gives the ignore rules of the user for all repositories, read where needed.
    """

    root: bytes
    excludes: Callable[[], bytes] = bytes
    holds: "HoldRules | None" = None


@dataclass(frozen=True)
class ScopedChanges:
    """The changes of *survey* that *scope* means, by number.

    *wanted* are the changes to be taken, without their needs. *left* are the left-out ones among the meant,
    each with the directory that the report folds it into. *held* are those among the meant that wait for an
    approval, and *waiting* those that need one that is held. *barred* are all that wait for an approval,
    meant or not: nothing that needs one of them may be taken. *in_repository* are those of repositories' own
    directories.
    """

    survey: ScanResult
    needs: Dependencies
    in_repository: frozenset[int]
    scope: Scope
    asked: frozenset[int]
    wanted: frozenset[int]
    left: dict[int, tuple[bytes, Reason]]
    root: bytes
    held: Mapping[int, HeldChange] = field(default_factory=dict)
    waiting: Mapping[int, HeldChange] = field(default_factory=dict)
    barred: frozenset[int] = frozenset()

    def approved_with(self, numbers: Collection[int]) -> set[int]:
        """Return *numbers* of held changes and those that a person approves with them.

        Those are other names of the same files, and directories that nobody is shown, because their content
        implies them: new ones with some of it, deleted ones with all of it.
        """
        findings = self.survey.findings
        shown = {id(change) for change in without_implied(self._those(self.held))}
        found = set(numbers)
        links = {path for number in numbers for path in findings[number].links}
        found.update(number for number in self.held if findings[number].path in links)
        needed = self.needs.closure(found)
        unshown = [number for number in self.held if id(findings[number]) not in shown]
        for number in unshown:
            if findings[number].kind is ChangeKind.DELETED:
                content = self.needs.closure([number]).intersection(self.held).difference(unshown)
                if content and content <= found:
                    found.add(number)
            elif number in needed:
                found.add(number)
        return found

    @property
    def held_back(self) -> list[HeldChange]:
        """The changes that are held, and those that wait for one that is, by path.

        Without directories that their content implies.
        """
        every = sorted([*self.held.values(), *self.waiting.values()], key=lambda one: one.change.path)
        counted = {id(change) for change in without_implied([one.change for one in every])}
        return [one for one in every if id(one.change) in counted]

    @property
    def folded(self) -> list[FoldedDirectory]:
        """The left-out changes, one line for each directory."""
        return folded(self.left_out, self.root)

    @property
    def taken(self) -> list[PathChange]:
        """The changes that a commit takes."""
        return self._those(self.needs.closure(self.wanted))

    @property
    def taken_or_held(self) -> list[PathChange]:
        """The changes that a commit takes once all that is held is approved."""
        return self._those(self.needs.closure(self.asked - self.left.keys()))

    @property
    def shown(self) -> list[PathChange]:
        """The changes that are meant and not left out."""
        return self._those(self.asked - self.left.keys())

    @property
    def left_out(self) -> list[tuple[PathChange, bytes, Reason]]:
        """The left-out changes, without directories that their content implies."""
        findings = self.survey.findings
        counted = {id(finding) for finding in without_implied(self._those(self.left))}
        return [
            (findings[number], *self.left[number])
            for number in sorted(self.left)
            if id(findings[number]) in counted
        ]

    def count(self, reason: Reason) -> int:
        """How many changes are left out for *reason*."""
        return sum(why is reason for _, _, why in self.left_out)

    def _those(self, numbers: Iterable[int]) -> list[PathChange]:
        return [self.survey.findings[number] for number in sorted(numbers)]


def select_changes(survey: ScanResult, scope: Scope, workspace: ScopeContext) -> ScopedChanges:
    """Decide which changes of *survey* are meant, and which of those are left out."""
    findings = survey.findings
    # The changes of a repository's own directory are taken together, or not at all.
    units = repositories_of(survey.view.layers, findings).groups(findings)
    needs = Dependencies(findings, survey.view.upper, units)
    asked = frozenset(n for n, finding in enumerate(findings) if finding.is_within(scope.paths))
    left: dict[int, tuple[bytes, Reason]] = {}
    if not scope.ignored:
        left |= _ignored(survey, asked, scope.paths, workspace)
    if not scope.include_git:
        own = [n for n, finding in enumerate(findings) if is_git(finding)]
        left |= {n: (_told_with(findings[n]), Reason.GIT) for n in needs.dependents(own) & asked}
    wanted = asked - left.keys()
    for number in needs.closure(wanted):
        left.pop(number, None)
    in_repository = frozenset(number for unit in units for number in unit)
    held: dict[int, HeldChange] = {}
    waiting: dict[int, HeldChange] = {}
    barred: frozenset[int] = frozenset()
    if workspace.holds is not None and not scope.approve:
        rules, meant = workspace.holds.held(survey), asked - left.keys()
        barred = frozenset(rules)
        held = {n: HeldChange(findings[n], rule) for n, rule in rules.items() if n in meant}
        waiting = {
            n: HeldChange(findings[n], rules[behind], findings[behind])
            for n, behind in sorted(needs.behind(rules.keys()).items())
            if n in meant
        }
    wanted = asked - left.keys() - held.keys() - waiting.keys()
    return ScopedChanges(
        survey, needs, in_repository, scope, asked, wanted, left, workspace.root, held, waiting, barred
    )


# Ignored additions


def _ignored(
    survey: ScanResult, asked: frozenset[int], paths: Sequence[bytes], workspace: ScopeContext
) -> dict[int, tuple[bytes, Reason]]:
    findings = survey.findings
    rules: IgnoredPaths | None = None
    left: dict[int, tuple[bytes, Reason]] = {}
    for number in sorted(asked):
        finding = findings[number]
        if finding.kind is not ChangeKind.ADDED or not finding.path:
            continue
        rules = rules or IgnoredPaths(survey, workspace)
        group = rules.group(finding)
        if group is not None and not any(group.is_named_by(path, finding.path) for path in paths):
            left[number] = (group.directory, Reason.IGNORED)
    return left | _filled_with(findings, asked, left)


def _filled_with(
    findings: list[PathChange], asked: frozenset[int], left: dict[int, tuple[bytes, Reason]]
) -> dict[int, tuple[bytes, Reason]]:
    """Return new directories with only left-out entries: these would be empty in the workspace."""
    filled = around((findings[n] for n in left), new=True)
    needed = around((findings[n] for n in asked - left.keys() if not findings[n].is_dir), new=True)
    found: dict[int, tuple[bytes, Reason]] = {}
    for number in sorted(asked - left.keys(), reverse=True):
        finding = findings[number]
        if not finding.is_dir:
            continue
        if finding.kind is ChangeKind.ADDED and finding.path in filled and finding.path not in needed:
            found[number] = (finding.path, Reason.IGNORED)
        else:
            needed = around([finding], new=True, known=needed)
    return found


@dataclass(frozen=True)
class _Group:
    """Why a path is ignored: a rule matches *origin*, which is the path or a directory around it."""

    origin: bytes
    directory: bytes

    def is_named_by(self, given: bytes, path: bytes) -> bool:
        """Whether the argument *given* names the ignored *path*, and not only a directory around *origin*."""
        return is_below(path, given) and is_below(given, self.origin)


class IgnoredPaths:
    """The additions that the ignore rules of the host match."""

    def __init__(self, survey: ScanResult, workspace: ScopeContext) -> None:
        self._root = workspace.root
        layers = survey.view.layers
        ignores = HostIgnores(layers.workspace, layers.masked, workspace.root, workspace.excludes)
        # Changes are left out more cautiously than rules cover paths: what is flagged stays, and what a
        # repository may track.
        self._repositories, self._rules = ignores.tracked, ignores.rules
        # For each directory asked about: the outermost ignored directory at or above it.
        self._outermost: dict[bytes, bytes | None] = {b"": None}

    def group(self, finding: PathChange) -> _Group | None:
        """Return the group that the addition *finding* is left out with; None when it is not left out."""
        path = finding.path
        parent, name = parted(path)
        outermost = self._of_directory(path if finding.is_dir else parent)
        if finding.is_dir:
            return None if outermost is None else _Group(outermost, outermost)
        if outermost is None and (name == _IGNORE_FILE or not self._rules.ignored(path, is_dir=False)):
            return None
        if outermost in (None, parent) and plain_flags(finding, self._root):
            return None
        if self._repositories.tracks(path):
            return None
        return _Group(path, parent) if outermost is None else _Group(outermost, outermost)

    def _of_directory(self, path: bytes) -> bytes | None:
        """Find the outermost ignored directory at or above *path*, from the nearest known one downwards."""
        unknown = []
        at = path
        while at not in self._outermost:
            unknown.append(at)
            at = parted(at)[0]
        for one in reversed(unknown):
            above = self._outermost[parted(one)[0]]
            ignored = above is None and self._rules.ignored(one, is_dir=True)
            self._outermost[one] = one if ignored else above
        return self._outermost[path]


# Git's own files


def is_git(finding: PathChange) -> bool:
    """Whether either end of a change is a repository's own directory, or is in one."""
    return any(dot_git(place) is not None for place in finding.places)


def _told_with(finding: PathChange) -> bytes:
    """Return the repository's own directory, or the directory of a change that needs it."""
    found = dot_git(finding.path)
    if found is not None:
        return found
    return finding.path if finding.is_dir or not finding.path else parted(finding.path)[0]
