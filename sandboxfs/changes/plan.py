"""What would a commit do, and may it?

From what was found and what was asked for: the changes to apply, with everything they need; those that are
left behind, dropped or in conflict; and what is refused. Nothing is changed here.
"""

import stat
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from sandboxfs.changes.choosing import Choose, Part
from sandboxfs.changes.finding import Finding
from sandboxfs.changes.flags import Flag
from sandboxfs.changes.patch import Kind
from sandboxfs.changes.replacing import Rewrite, merged_mode, without_mode
from sandboxfs.changes.resolving import Fate, OnConflict, Resolution, resolve, resolve_part
from sandboxfs.changes.scan import Survey
from sandboxfs.changes.selection import Needs, within
from sandboxfs.changes.steps import is_below, joined, parted
from sandboxfs.changes.wishing import Item

GIT = b".git"
MOUNTED = "something is mounted there"

FlagsOf = Callable[[Finding], list[Flag]]


@dataclass(frozen=True)
class Options:
    """What was asked for; *paths* are places in the view, none for all.

    *mounts* are the workspace's mountpoints. *choose*, if given, is asked about every change.
    """

    paths: Sequence[bytes] = ()
    on_conflict: OnConflict = OnConflict.FAIL
    include_git: bool = False
    allow_special: bool = False
    choose: Choose | None = None
    mounts: frozenset[bytes] = frozenset()


@dataclass(frozen=True)
class Plan:
    """What is to be done.

    *items* are applied, *drops* leave the sandbox, of *trims* a part does, *marks* get conflict markers in
    it, *left* stay as they are because they were skipped, *conflicts* because nothing could be done. *git*
    counts what is left out because it is git's own. *refusals* are changes that must not be applied, and why:
    any of them, or a conflict that is to *fail* it, keeps all from being applied. *rests* are the texts that
    the sandbox has instead of its own when a part of a change was merged.
    """

    survey: Survey
    items: tuple[Item, ...] = ()
    drops: tuple[Finding, ...] = ()
    trims: tuple[Rewrite, ...] = ()
    marks: tuple[Rewrite, ...] = ()
    rests: tuple[Rewrite, ...] = ()
    left: tuple[Finding, ...] = ()
    conflicts: tuple[Finding, ...] = ()
    refusals: tuple[tuple[Finding, str], ...] = ()
    git: int = 0
    fails: bool = False
    mounts: frozenset[bytes] = frozenset()
    flags: dict[bytes, list[Flag]] = field(default_factory=dict)

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to do."""
        return not (self.items or self.drops or self.trims or self.marks)

    @property
    def is_blocked(self) -> bool:
        """Whether nothing may be done."""
        return bool(self.refusals) or (self.fails and bool(self.conflicts))

    @property
    def findings(self) -> list[Finding]:
        return [item.finding for item in self.items]


def plan_commit(survey: Survey, options: Options) -> Plan:
    """Decide about every change of *survey*."""
    return _Planner(survey, options).plan()


class _Planner:
    def __init__(self, survey: Survey, options: Options) -> None:
        self._survey = survey
        self._findings = survey.findings
        self._options = options
        self._needs = Needs(survey.findings, survey.view.upper)
        # What is taken of changes that are not taken as a whole.
        self._partly: dict[int, Part] = {}

    def plan(self) -> Plan:
        chosen, git = self._chosen()
        fates = {number: self._fate(number) for number in sorted(chosen)}
        self._keep_what_was_not_chosen(fates)
        dropped = self._needs.dependents(self._with(fates, Fate.DROP))
        # What needs something that stays behind stays behind, too.
        staying = self._with(fates, Fate.LEAVE, Fate.TRIM, Fate.MARK, Fate.CONFLICT)
        held_up = self._needs.dependents(staying) - dropped
        taken = [n for n in self._with(fates, Fate.TAKE) if n not in held_up | dropped]
        items = [self._item(n, fates[n]) for n in taken]
        return Plan(
            self._survey,
            tuple(items),
            drops=self._those(sorted(dropped)),
            trims=tuple(self._trim(n, fates[n]) for n in self._with(fates, Fate.TRIM)),
            marks=tuple(self._merged(n, fates[n].content) for n in self._with(fates, Fate.MARK)),
            rests=tuple(self._merged(n, fates[n].rest) for n in taken if fates[n].rest is not None),
            left=self._those(self._with(fates, Fate.LEAVE)),
            conflicts=self._those(self._with(fates, Fate.CONFLICT, Fate.MARK)),
            refusals=tuple(self._refusals(items)),
            git=git,
            fails=self._options.on_conflict is OnConflict.FAIL,
            mounts=self._options.mounts,
        )

    @staticmethod
    def _with(fates: Mapping[int, Resolution], *wanted: Fate) -> list[int]:
        return [number for number, resolution in fates.items() if resolution.fate in wanted]

    def _those(self, numbers: Iterable[int]) -> tuple[Finding, ...]:
        return tuple(self._findings[number] for number in numbers)

    # Choosing

    def _chosen(self) -> tuple[set[int], int]:
        """What was asked for and all that it needs, and how much of git's own is left out of it."""
        asked = {n for n, finding in enumerate(self._findings) if within(finding, self._options.paths)}
        git: set[int] = set()
        if not self._options.include_git:
            git = {n for n, finding in enumerate(self._findings) if is_git(finding)}
        wanted = asked - self._needs.dependents(git)
        if self._options.choose is not None:
            wanted = {number for number in sorted(wanted) if self._picked(number, self._options.choose)}
        return self._needs.closure(wanted), len(asked & git)

    def _picked(self, number: int, choose: Choose) -> bool:
        """Have a part of a change picked; whether any is."""
        picked = choose(self._findings[number])
        if isinstance(picked, bool):
            return picked
        self._partly[number] = picked
        return True

    def _fate(self, number: int) -> Resolution:
        finding, part = self._findings[number], self._partly.get(number)
        if part is not None:
            return resolve_part(finding, part, self._options.on_conflict)
        return resolve(finding, self._options.on_conflict)

    def _keep_what_was_not_chosen(self, fates: dict[int, Resolution]) -> None:
        """Have nothing dropped that something needs which is to stay in the sandbox."""
        dropped = self._with(fates, Fate.DROP)
        if not dropped:
            return
        others = [number for number in range(len(self._findings)) if number not in fates]
        needed = self._needs.closure([*others, *self._with(fates, Fate.TRIM, Fate.CONFLICT)])
        for number in dropped:
            if number in needed:
                fates[number] = Resolution(Fate.CONFLICT)

    def _merged(self, number: int, text: bytes | None) -> Rewrite:
        finding = self._findings[number]
        if text is None:
            raise ValueError("nothing was merged")
        return Rewrite(finding, text, merged_mode(finding))

    def _trim(self, number: int, resolution: Resolution) -> Rewrite:
        finding = self._findings[number]
        if resolution.rest is None:
            raise ValueError("nothing is left")
        return Rewrite(finding, resolution.rest, without_mode(finding, self._partly[number]))

    def _item(self, number: int, resolution: Resolution) -> Item:
        part = self._partly.get(number)
        mode = part is None or part.mode
        return Item(self._findings[number], resolution.content, whole=part is None, mode=mode)

    # Refusing

    def _refusals(self, items: Sequence[Item]) -> Iterable[tuple[Finding, str]]:
        taken = {item.finding.path: item.finding for item in items}
        for item in items:
            why = None if self._options.allow_special else special(item.finding, self._given(item, taken))
            why = why or self._mounted(item.finding)
            if why is not None:
                yield item.finding, why

    def _given(self, item: Item, taken: Mapping[bytes, Finding]) -> int:
        """The bits that the kernel gives a new directory because the one around it has them."""
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

    def _mounted(self, finding: Finding) -> str | None:
        """Whether a mountpoint is in the way of a name that goes; a file's content can still be changed."""
        if not self._options.mounts:
            return None
        goes = finding.kind in (Kind.DELETED, Kind.RENAMED, Kind.TYPE)
        at = finding.old_path or finding.lower_path
        if goes and any(is_below(mount, at) for mount in self._options.mounts):
            return MOUNTED
        return None


def special(finding: Finding, given: int = 0) -> str | None:
    """Why a change is refused unless special things are allowed; the bits in *given* are nobody's doing."""
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


def is_git(finding: Finding) -> bool:
    """Whether a change is in a repository's own directory, or is that directory, at either of its ends."""
    places = (finding.path, finding.old_path or finding.path, finding.lower_path)
    return any(GIT in place.split(b"/") for place in places)


def repositories(plan: Plan) -> set[bytes]:
    """The `.git` directories of the workspace in which *plan* changes something."""
    found: set[bytes] = set()
    for finding in plan.findings:
        for place in (finding.path, finding.lower_path, finding.old_path or b""):
            parts = place.split(b"/")
            if GIT in parts:
                found.add(b"/".join(parts[: parts.index(GIT) + 1]))
    return found


def busy_repository(plan: Plan) -> bytes | None:
    """The lock of a repository that git is working in at this moment and *plan* would change."""
    workspace = plan.survey.view.layers.workspace
    locks = (joined(repository, b"index.lock") for repository in sorted(repositories(plan)))
    return next((lock for lock in locks if workspace.stat(lock) is not None), None)


def with_flags(plan: Plan, flags_of: FlagsOf) -> Plan:
    """Add what to look at twice in what is applied."""
    found = {item.finding.path: flags_of(item.finding) for item in plan.items if item.finding.new is not None}
    return replace(plan, flags={path: flags for path, flags in found.items() if flags})
