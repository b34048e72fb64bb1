"""Commit plan: what a commit would do, whether it may, and how conflicts are resolved.

From the scanned changes and the request: the changes to apply, with everything they need; those that stay in
the sandbox, are dropped or in conflict; and those refused. Nothing is changed here.

A conflict is a change whose place in the workspace moved on meanwhile. `ours` applies the change all the same
(the record keeps what the workspace had), `theirs` drops it, `skip` leaves it in the sandbox, and `merge`
joins both sides' edits where both are text and their baseline is known. A change that cannot be resolved
stays a conflict. Where only a part of a change is taken, the rest of the change stays in the sandbox,
whatever becomes of the part.
"""

import stat
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import cached_property

from sandboxfs.commit.selection import Choose, SelectedPart
from sandboxfs.hostfs.identity import is_other_volume, mounted_volume
from sandboxfs.hostfs.tree import Unreadable
from sandboxfs.paths import PathSet, is_below, joined, parted, quoted
from sandboxfs.review import change
from sandboxfs.review.change import ChangeKind, PathChange, Version
from sandboxfs.review.flags import Flag
from sandboxfs.review.repositories import dot_git
from sandboxfs.review.scan import ScanResult
from sandboxfs.review.scope import HeldChange, ScopedChanges
from sandboxfs.review.summary import FoldedDirectory
from sandboxfs.review.text_merge import merge
from sandboxfs.upper.sandbox_layers import Layers

# Larger texts are not merged line by line.
_LARGEST = 64 << 20


class OnConflict(StrEnum):
    """The treatment of conflicts."""

    FAIL = "fail"
    MERGE = "merge"
    SKIP = "skip"
    OURS = "ours"
    THEIRS = "theirs"


class Resolving(StrEnum):
    """The outcome for one change."""

    TAKE = "take"
    LEAVE = "leave"
    DROP = "drop"
    # A part is dropped: the sandbox keeps the rest.
    TRIM = "trim"
    # Both sides with conflict markers go into the view.
    MARK = "mark"
    CONFLICT = "conflict"


@dataclass(frozen=True)
class Resolution:
    """The outcome for the change *finding*, of which only *part* was chosen, if that is given.

    *content* is the merged text in place of the sandbox's, if there was a merge, or the text of the part.
    *rest* is the text that the sandbox keeps in place of its own, where only a part is taken.
    """

    finding: PathChange
    fate: Resolving = Resolving.TAKE
    content: bytes | None = None
    rest: bytes | None = None
    part: SelectedPart | None = None

    @property
    def whole(self) -> bool:
        """Whether nothing of the change stays in the sandbox."""
        return self.part is None

    @property
    def mode(self) -> bool:
        """Whether the change of mode and other attributes goes with it."""
        return self.part is None or self.part.mode


def resolve(finding: PathChange, how: OnConflict) -> Resolution:
    """Decide about *finding*."""
    if finding.conflict is None:
        return Resolution(finding)
    if how is OnConflict.SKIP:
        return Resolution(finding, Resolving.LEAVE)
    if how is OnConflict.THEIRS:
        return Resolution(finding, Resolving.DROP)
    if how is OnConflict.OURS and _can_be_forced(finding):
        return Resolution(finding)
    return _merged(finding) if how is OnConflict.MERGE else _conflict(finding)


def _conflict(finding: PathChange) -> Resolution:
    return Resolution(finding, Resolving.CONFLICT)


def resolve_part(finding: PathChange, part: SelectedPart, how: OnConflict) -> Resolution:
    """Decide about *part* of *finding*."""
    if finding.conflict is None:
        return Resolution(finding, content=part.content, part=part)
    if how is OnConflict.SKIP:
        return Resolution(finding, Resolving.LEAVE)
    try:
        if how is OnConflict.THEIRS:
            return _trimmed(finding, part)
        if how is OnConflict.MERGE:
            return _merged_part(finding, part)
    except Unreadable:
        return _conflict(finding)
    # Forcing a part of the sandbox's change would discard all that the workspace changed.
    return _conflict(finding)


def _merged_part(finding: PathChange, part: SelectedPart) -> Resolution:
    """Merge *part* and the rest with the workspace's text; the rest would revert the workspace otherwise."""
    whole = _merged(finding)
    if whole.fate is not Resolving.TAKE or finding.old is None or finding.lower is None:
        return _conflict(finding)
    if finding.kind is ChangeKind.RENAMED:
        # The edits are at the old name, the rest would be at the new one.
        return _conflict(finding)
    merged = merge(finding.old.read(), part.content, finding.lower.read())
    if not merged.clean:
        return _conflict(finding)
    return Resolution(finding, content=merged.text, rest=whole.content, part=part)


def _trimmed(finding: PathChange, part: SelectedPart) -> Resolution:
    """Take *part* out of the sandbox's text."""
    if finding.new is None:
        return _conflict(finding)
    before = b"" if finding.old is None else finding.old.read()
    rest = merge(part.content, finding.new.read(), before)
    # A hunk that was edited by hand may be no part of the change at all.
    if not rest.clean:
        return _conflict(finding)
    return Resolution(finding, Resolving.TRIM, rest=rest.text, part=part)


def _can_be_forced(finding: PathChange) -> bool:
    """Whether the change still has an object to apply to: a directory that is gone cannot be moved."""
    if finding.conflict == change.TOO_DEEP:
        return False
    return not (finding.kind is ChangeKind.RENAMED and finding.is_dir and finding.lower is None)


def _merged(finding: PathChange) -> Resolution:
    old, new, lower = finding.old, finding.new, finding.lower
    mergeable = (
        finding.kind in (ChangeKind.MODIFIED, ChangeKind.MODE, ChangeKind.RENAMED) and not finding.is_dir
    )
    if not mergeable or finding.conflict != change.CHANGED:
        return _conflict(finding)
    if not (_is_text_sized(old) and _is_text_sized(new) and _is_text_sized(lower)):
        return _conflict(finding)
    if old is None or new is None or lower is None or _modes_clash(old, new, lower):
        return _conflict(finding)
    try:
        merged = merge(old.read(), new.read(), lower.read())
    except Unreadable:
        return _conflict(finding)
    if merged.binary:
        return _conflict(finding)
    return Resolution(finding, Resolving.TAKE if merged.clean else Resolving.MARK, merged.text)


def _is_text_sized(side: Version | None) -> bool:
    return side is not None and side.is_file and side.size <= _LARGEST


def _modes_clash(old: Version, new: Version, lower: Version) -> bool:
    return len({old.mode, new.mode, lower.mode}) == 3


MOUNTED = "something is mounted there"
LOST = "the file system that the sandbox saw is not mounted any more at"

FlagsOf = Callable[[PathChange], list[Flag]]


@dataclass(frozen=True)
class Options:
    """The manner in which selected changes are applied.

    *mounts* are the workspace's mountpoints. *choose*, if given, is asked about every change.
    """

    on_conflict: OnConflict = OnConflict.FAIL
    allow_special: bool = False
    choose: Choose | None = None
    mounts: frozenset[bytes] = frozenset()


@dataclass(frozen=True)
class Plan:
    """The outcome of every selected change.

    *items* are applied, *drops* leave the sandbox, of *trims* a part does, *marks* get conflict markers in
    the sandbox, *left* stay because they were skipped, *conflicts* because nothing could be done, *held*
    because a person has to approve them or what they need. *left_out* sums up ignored files and git's own.
    *refusals* are changes that must not be applied, and why: any refusal, or a conflict where the plan
    *fails* on conflicts, keeps all changes from being applied.
    """

    survey: ScanResult
    items: tuple[Resolution, ...] = ()
    drops: tuple[PathChange, ...] = ()
    trims: tuple[Resolution, ...] = ()
    marks: tuple[Resolution, ...] = ()
    left: tuple[PathChange, ...] = ()
    conflicts: tuple[PathChange, ...] = ()
    refusals: tuple[tuple[PathChange, str], ...] = ()
    left_out: tuple[FoldedDirectory, ...] = ()
    held: tuple[HeldChange, ...] = ()
    fails: bool = False
    mounts: frozenset[bytes] = frozenset()
    flags: dict[bytes, list[Flag]] = field(default_factory=dict)

    @property
    def is_empty(self) -> bool:
        """Whether the plan changes nothing."""
        return not (self.items or self.drops or self.trims or self.marks)

    @property
    def is_blocked(self) -> bool:
        """Whether the plan must not be carried out."""
        return bool(self.refusals) or (self.fails and bool(self.conflicts))

    @property
    def findings(self) -> list[PathChange]:
        return [item.finding for item in self.items]


def plan_commit(selection: ScopedChanges, options: Options) -> Plan:
    """Decide about every change of *selection*."""
    return _Planner(selection, options).plan()


class _Planner:
    def __init__(self, selection: ScopedChanges, options: Options) -> None:
        self._selection = selection
        self._survey = selection.survey
        self._findings = selection.survey.findings
        self._options = options
        self._needs = selection.needs
        self._mounts = PathSet(options.mounts)
        # The chosen parts of changes that are not taken as a whole.
        self._partly: dict[int, SelectedPart] = {}

    def plan(self) -> Plan:
        fates = {number: self._fate(number) for number in sorted(self._chosen())}
        self._keep_what_was_not_chosen(fates)
        dropped = self._needs.dependents(self._with(fates, Resolving.DROP))
        # A change that needs one that stays behind stays behind, too.
        staying = self._with(fates, Resolving.LEAVE, Resolving.TRIM, Resolving.MARK, Resolving.CONFLICT)
        held_up = self._needs.dependents(staying) - dropped
        taken = [n for n in self._with(fates, Resolving.TAKE) if n not in held_up | dropped]
        items = [fates[n] for n in taken]
        return Plan(
            self._survey,
            tuple(items),
            drops=self._those(sorted(dropped)),
            trims=tuple(fates[n] for n in self._with(fates, Resolving.TRIM)),
            marks=tuple(fates[n] for n in self._with(fates, Resolving.MARK)),
            left=self._those(self._left(fates, held_up)),
            conflicts=self._those(self._with(fates, Resolving.CONFLICT, Resolving.MARK)),
            refusals=tuple(self._refusals(items)),
            left_out=tuple(self._selection.folded),
            held=self._held_back(taken),
            fails=self._options.on_conflict is OnConflict.FAIL,
            mounts=self._options.mounts,
        )

    def _held_back(self, taken: Iterable[int]) -> tuple[HeldChange, ...]:
        """The held changes that stay, and those that wait for them."""
        chosen = {id(self._findings[number]) for number in taken}
        return tuple(one for one in self._selection.held_back if id(one.change) not in chosen)

    def _left(self, fates: Mapping[int, Resolution], held_up: set[int]) -> list[int]:
        """The skipped changes, and those that could be taken but for a change they need."""
        if self._options.on_conflict is OnConflict.FAIL:
            return []
        waiting = held_up.intersection(self._with(fates, Resolving.TAKE))
        return sorted(waiting.union(self._with(fates, Resolving.LEAVE)))

    @staticmethod
    def _with(fates: Mapping[int, Resolution], *wanted: Resolving) -> list[int]:
        return [number for number, resolution in fates.items() if resolution.fate in wanted]

    def _those(self, numbers: Iterable[int]) -> tuple[PathChange, ...]:
        return tuple(self._findings[number] for number in numbers)

    # Choosing

    def _chosen(self) -> set[int]:
        """The changes that were asked for and all that they need."""
        wanted = set(self._selection.wanted)
        if self._options.choose is not None:
            # Whoever chooses a held change has seen it, and so approves it.
            wanted |= self._selection.held.keys() | self._selection.waiting.keys()
            picked = {number for number in sorted(wanted) if self._picked(number, self._options.choose)}
            # A repository of which a part is not wanted is left out as a whole.
            in_repository = self._selection.in_repository
            refused = (wanted - picked) & in_repository
            wanted = picked - (self._needs.dependents(refused) & in_repository)
            # Nor does a change take one along that is held and was not approved.
            approved = self._selection.approved_with(picked & self._selection.held.keys())
            wanted -= self._needs.dependents(self._selection.barred - picked - approved)
        return self._needs.closure(wanted)

    def _picked(self, number: int, choose: Choose) -> bool:
        """Have a part of a change picked; whether any part is."""
        picked = choose(self._findings[number])
        if isinstance(picked, bool):
            return picked
        self._partly[number] = picked
        return True

    def _fate(self, number: int) -> Resolution:
        finding, part = self._findings[number], self._partly.get(number)
        if part is not None:
            return resolve_part(finding, part, self._options.on_conflict)
        merging = self._options.on_conflict is OnConflict.MERGE
        if merging and finding.conflict is not None and number in self._selection.in_repository:
            # Merged or marked lines of a branch or a log make no branch and no log.
            return _conflict(finding)
        return resolve(finding, self._options.on_conflict)

    def _keep_what_was_not_chosen(self, fates: dict[int, Resolution]) -> None:
        """Drop no change that is needed by another one which is to stay in the sandbox."""
        dropped = self._with(fates, Resolving.DROP)
        if not dropped:
            return
        others = [number for number in range(len(self._findings)) if number not in fates]
        needed = self._needs.closure([*others, *self._with(fates, Resolving.TRIM, Resolving.CONFLICT)])
        for number in dropped:
            if number in needed:
                fates[number] = _conflict(self._findings[number])

    # Refusing

    def _refusals(self, items: Sequence[Resolution]) -> Iterable[tuple[PathChange, str]]:
        taken = {item.finding.path: item.finding for item in items}
        for item in items:
            why = None if self._options.allow_special else special(item.finding, self._given(item, taken))
            why = why or self._lost(item.finding) or self._mounted(item.finding)
            if why is not None:
                yield item.finding, why

    def _given(self, item: Resolution, taken: Mapping[bytes, PathChange]) -> int:
        """The mode bits that the kernel gives a new directory because its parent has them."""
        finding = item.finding
        if finding.new is None or not finding.new.is_dir or not finding.path:
            return 0
        if finding.old is not None and finding.old.is_dir:
            return 0
        around = taken.get(parted(finding.path)[0])
        if around is not None and around.new is not None:
            return around.new.mode & stat.S_ISGID
        found = self._survey.view.layers.workspace.stat(parted(finding.lower_path)[0])
        return 0 if found is None else found.st_mode & stat.S_ISGID

    def _lost(self, finding: PathChange) -> str | None:
        """Why nothing is written below the mountpoint of a file system that is gone: it would be lost."""
        lost = self._lost_mounts
        for place in lost if lost else ():
            if is_below(finding.lower_path, place) or is_below(finding.old_path or b"", place):
                return f"{LOST} {quoted(place)}"
        return None

    @cached_property
    def _lost_mounts(self) -> list[bytes]:
        return sorted(lost_mounts(self._survey.view.layers))

    def _mounted(self, finding: PathChange) -> str | None:
        """Why a name cannot go: a mountpoint is in the way. A mounted file's content can still change."""
        goes = finding.kind in (ChangeKind.DELETED, ChangeKind.RENAMED, ChangeKind.TYPE)
        if goes and self._mounts.reach_into(finding.origin):
            return MOUNTED
        return None


def lost_mounts(layers: Layers) -> Iterator[bytes]:
    """The directories that were roots of mounts when the sandbox copied them, and are no more."""
    for seen in layers.baseline.mounts():
        if any(is_below(seen.path, masked) for masked in layers.masked):
            continue
        try:
            volume = mounted_volume(layers.workspace.directory(seen.path).fd)
        except OSError:
            volume = None
        if volume is None or is_other_volume(seen.volume or "", volume):
            yield seen.path


def special(finding: PathChange, given: int = 0) -> str | None:
    """Why a change is refused unless special files and modes are allowed; the kernel set the bits *given*."""
    new = finding.new
    if new is None:
        return None
    if stat.S_ISCHR(new.mode) or stat.S_ISBLK(new.mode):
        return "a device node"
    before = finding.old.mode if finding.old is not None else 0
    if stat.S_IFMT(before) != stat.S_IFMT(new.mode):
        before = 0
    gained = new.mode & ~(before | given) & (stat.S_ISUID | stat.S_ISGID)
    if (new.is_file or new.is_dir) and gained:
        return "setuid" if gained & stat.S_ISUID else "setgid"
    return None


def repositories(plan: Plan) -> set[bytes]:
    """The `.git` directories of the workspace in which *plan* changes something."""
    found: set[bytes] = set()
    for finding in plan.findings:
        found.update(unit for unit in map(dot_git, finding.places) if unit is not None)
    return found


def busy_repository(plan: Plan) -> bytes | None:
    """The lock of a repository that git is working in at this moment and *plan* would change."""
    workspace = plan.survey.view.layers.workspace
    locks = (joined(repository, b"index.lock") for repository in sorted(repositories(plan)))
    return next((lock for lock in locks if workspace.stat(lock) is not None), None)


def with_flags(plan: Plan, flags_of: FlagsOf) -> Plan:
    """Add the flags of the applied changes."""
    found: dict[bytes, list[Flag]] = {}
    for item in plan.items:
        # A deletion and the object in its place have one path.
        found[item.finding.path] = found.get(item.finding.path, []) + flags_of(item.finding)
    return replace(plan, flags={path: flags for path, flags in found.items() if flags})
