"""Review of a sandbox: its changes, as every door looks at them, as values, JSON and a patch.

The layers are read from disk, mounted or not, and nothing is asked of the view or the daemon. Mountpoints in
the workspace are kept away from: their daemons may be hung.

Of a patch each file is read, handed over and forgotten before the next. `git apply` and `patch` take the
pieces, one after the other; what no patch can carry is known when they were gone through.
"""

import json
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING

from sandboxfs.control.mount_table import MountTable
from sandboxfs.errors import SandboxBusy, UsageError
from sandboxfs.paths import quoted
from sandboxfs.review.change import ChangeKind, PathChange, Version
from sandboxfs.review.flags import Flag
from sandboxfs.review.scan import ScanResult, survey
from sandboxfs.review.scope import (
    HeldChange,
    Reason,
    Scope,
    ScopeContext,
    ScopedChanges,
    select_changes,
)
from sandboxfs.review.summary import FlagContext, FoldedDirectory, shown_changes, without_implied
from sandboxfs.service.events import CallerContext, Events
from sandboxfs.service.workspace import named_paths, user_excludes
from sandboxfs.state.session_rules import read_session_rules
from sandboxfs.state.store import SandboxRecord, Store
from sandboxfs.upper.sandbox_layers import LayerPaths, Layers, masked_paths, open_layers

if TYPE_CHECKING:
    from sandboxfs.review.held import HoldRules
    from sandboxfs.review.hunks import Hunk
    from sandboxfs.review.patch import FilePatch

# The changes


@dataclass(frozen=True)
class ReviewRequest:
    """Which changes of which sandbox are to be shown.

    *paths* are as a person typed them; *revision* asks for the one value that stands for all that is shown.
    """

    sandbox: str | None = None
    paths: tuple[str, ...] = ()
    ignored: bool = False
    include_git: bool = False
    renames: bool = True
    since_commit: bool = False
    revision: bool = False


@dataclass(frozen=True)
class Review:
    """What is to be shown: *findings* of *selection*, without directories that their content implies.

    *context* is what flags are raised by, and *renames* says whether renames are told as such. Contents are
    read when they are asked for, while the layers are open. *revision* is None where none was asked for, or
    programs keep changing what is reviewed.
    """

    selection: ScopedChanges
    findings: list[PathChange]
    context: FlagContext
    renames: bool
    name: str = ""
    revision: str | None = None

    @property
    def survey(self) -> ScanResult:
        return self.selection.survey

    @property
    def unshown(self) -> list[PathChange]:
        """What a commit of the same paths takes and is not among the findings."""
        shown = {id(finding) for finding in self.findings}
        return [finding for finding in without_implied(self.selection.taken) if id(finding) not in shown]

    @property
    def folded(self) -> list[FoldedDirectory]:
        """What a commit leaves out, a line for each directory."""
        return self.selection.folded

    def changes(self) -> list[PathChange]:
        """Return the changes as they are shown, sorted by path."""
        return shown_changes(self.survey, self.findings, renames=self.renames)

    def load(self, change: PathChange) -> "FilePatch":
        """Read both versions of *change*."""
        from sandboxfs.review.patch import load

        return load(change)

    def flags(self, change: PathChange, loaded: "FilePatch | None" = None) -> list[Flag]:
        """Return why to look twice at *change*; reads files unless *loaded* has them."""
        return self.context.flags(change, loaded)

    def held(self, change: PathChange) -> HeldChange | None:
        """Return why *change* waits for a person; None when it does not."""
        return self._held.get(change.path)

    def held_json(self, change: PathChange) -> dict[str, object] | None:
        """Describe why *change* waits for a person, if it does."""
        found = self.held(change)
        return None if found is None else held_json(found)

    @cached_property
    def _held(self) -> dict[bytes, HeldChange]:
        return {one.change.path: one for one in self.selection.held_back}

    def files_below(self, path: bytes) -> int:
        """Count the files that came along with the renamed directory *path*."""
        from sandboxfs.review.summary import files_below

        return files_below(self.survey.view, path)

    def each_as_json(self, context: int) -> Iterator[dict[str, object]]:
        """Describe one change after the other, with its hunks; one file at a time is in memory."""
        for shown in self.changes():
            yield _with_hunks(self, shown, context)

    def rest_as_json(self) -> dict[str, object]:
        """Describe what is not among the changes."""
        folded = self.folded
        return {
            "also_applied": paths_json(self.unshown),
            "left_out": left_out_json(folded),
            "folded": [line.as_json() for line in folded],
        }


@contextmanager
def review(request: ReviewRequest, caller: CallerContext, events: Events) -> Iterator[Review]:
    """Review a sandbox; the review's contents can be read inside the with statement."""
    with _requested(request, caller, events) as found:
        seen = found.settled() if request.revision else None
        selection = None if seen is None else seen[0]
        if selection is None or not request.renames:
            selection = found.select(renames=request.renames)
        for complaint in untouched(found.paths, selection.survey.findings):
            events.note(f"note: {complaint}")
        yield Review(
            selection,
            without_implied([one for one in selection.shown if one.changed_ns > found.since]),
            context=flag_context(found.record),
            renames=request.renames,
            name=found.record.name,
            revision=None if seen is None else seen[1],
        )


def revision_of(request: ReviewRequest, caller: CallerContext, events: Events) -> str:
    """Return the value that stands for all that a commit of the same paths takes."""
    with _requested(request, caller, events) as found:
        seen = found.settled()
        if seen is None:
            raise SandboxBusy(
                f"sandbox '{found.record.name}' is still changing, and has no revision yet",
                hint="wait until it has been written",
            )
        return seen[1]


@dataclass(frozen=True)
class _Requested:
    """A sandbox opened for a review; *since* is the time of the last commit, where that counts."""

    record: SandboxRecord
    layers: Layers
    paths: Mapping[bytes, str]
    scope: Scope
    context: ScopeContext
    since: int

    def select(self, *, renames: bool = True) -> ScopedChanges:
        """Scan anew, and decide what is meant."""
        self.layers.look_again()
        return select_changes(survey(self.layers, renames=renames), self.scope, self.context)

    def settled(self) -> tuple[ScopedChanges, str] | None:
        """Return what a commit takes, and its revision; None where programs keep changing it."""
        # Imported here: most reviews do without.
        from sandboxfs.review.revision import revision, settled

        selection = settled(self.select)
        return None if selection is None else (selection, revision(selection))


@contextmanager
def _requested(request: ReviewRequest, caller: CallerContext, events: Events) -> Iterator[_Requested]:
    # Imported here: those who count changes have chosen already.
    from sandboxfs.service.select import chosen_sandbox

    store, record = chosen_sandbox(request.sandbox, caller, events, changing=False)
    places = store.places(record.name)
    paths = named_paths(record, request.paths, caller)
    since = last_commit(places.commits) if request.since_commit else 0
    if places.commits.is_dir():
        # Imported here: there may have been no commit yet.
        from sandboxfs.service.records import unfinished

        begun = unfinished(places)
        if begun is not None:
            events.note(f"note: {begun.sentence}")
    scope = Scope(tuple(paths), request.ignored, request.include_git)
    with reviewed(store, record) as layers:
        context = scope_context(store, record, caller.environment)
        yield _Requested(record, layers, paths, scope, context, since)


def scope_context(
    store: Store, record: SandboxRecord, environment: Mapping[str, str] | None = None
) -> ScopeContext:
    """What decides which changes of *record* are left out or held: its user's ignore rules, and its rules."""
    root = os.fsencode(record.workspace)
    return ScopeContext(root, partial(user_excludes, environment), hold_rules(store, record, environment))


def hold_rules(
    store: Store, record: SandboxRecord, environment: Mapping[str, str] | None = None
) -> "HoldRules | None":
    """Return the rules that hold changes, with the approvals so far; None where no rule holds any.

    The rules that `allow` gave in the session come first, as they do while it runs.
    """
    home, policy = store.places(record.name).home, record.settings.policy
    given = read_session_rules(home)
    if not policy.enabled or not (policy.may_hold or any(rule.may_hold for rule in given)):
        return None
    # Imported here: few policies hold anything.
    from sandboxfs.review.held import HoldRules
    from sandboxfs.state.approvals import read_approvals

    policy = replace(policy, rules=(*given, *policy.rules))
    root = os.fsencode(record.workspace)
    return HoldRules(policy, root, read_approvals(home), partial(user_excludes, environment))


def flag_context(record: SandboxRecord) -> FlagContext:
    """What flags are raised by in the sandbox of *record*; its rules are those that it was made with."""
    return FlagContext(os.fsencode(record.workspace), record.settings.policy)


# What was asked about and did not change


def untouched(paths: Mapping[bytes, str], findings: Iterable[PathChange]) -> list[str]:
    """Say of each of *paths*, given as a person typed it, that nothing changed there, if so."""
    return [_complaint(given) for given in _without_changes(paths, findings)]


def check_touched(paths: Mapping[bytes, str], findings: Iterable[PathChange]) -> None:
    """Refuse paths at which there is nothing to be done."""
    without = _without_changes(paths, findings)
    if without:
        raise UsageError(
            _complaint(without[0]),
            hint="'sandboxfs diff --name-status' shows what it changed",
            details={"untouched": without},
        )


def _without_changes(paths: Mapping[bytes, str], findings: Iterable[PathChange]) -> list[str]:
    found = list(findings)
    return [given for path, given in paths.items() if not any(finding.is_within([path]) for finding in found)]


def _complaint(given: str) -> str:
    return f"the sandbox changed nothing at {quoted(given)}"


# The layers


def layer_paths(store: Store, record: SandboxRecord) -> LayerPaths:
    """Return where the layers of the sandbox of *record* are."""
    places = store.places(record.name)
    kept_away = [record.mountpoint, store.locations.state]
    kept_away += [mount.mountpoint for mount in MountTable.read().below(record.workspace) if mount.ours]
    masked = masked_paths(record.workspace, kept_away)
    covered = masked_paths(record.workspace, record.covered)
    return LayerPaths([record.workspace], places.upper, places.index, places.baseline, masked, covered)


@contextmanager
def reviewed(store: Store, record: SandboxRecord) -> Iterator[Layers]:
    """Open the layers of the sandbox of *record*; what the host keeps from us is told as an error."""
    try:
        with open_layers(layer_paths(store, record)) as layers:
            yield layers
    except BrokenPipeError:
        raise
    except OSError as error:
        where = Path(os.fsdecode(error.filename)) if error.filename else record.workspace
        raise UsageError(
            f"cannot review sandbox '{record.name}': {error.strerror}: {quoted(where)}"
        ) from error


def last_commit(commits: Path) -> int:
    """Return when the last commit was recorded in *commits*, in nanoseconds; 0 when there was none."""
    try:
        numbers = sorted(
            (int(entry.name) for entry in commits.iterdir() if entry.name.isdecimal()), reverse=True
        )
    except FileNotFoundError:
        return 0
    for number in numbers:
        record = commits / str(number) / "record.json"
        try:
            about = json.loads(record.read_bytes())
            if isinstance(about, dict) and about.get("kind") == "commit":
                return record.stat().st_mtime_ns
        except (OSError, ValueError):
            # One that is being written, or never came to be.
            continue
    return 0


# Changes for programs

KINDS = (
    ChangeKind.ADDED,
    ChangeKind.MODIFIED,
    ChangeKind.MODE,
    ChangeKind.TYPE,
    ChangeKind.RENAMED,
    ChangeKind.DELETED,
)
"""The kinds of change, in the order in which they are counted."""


def described(finding: PathChange, flags: Mapping[bytes, Sequence[Flag]]) -> dict[str, object]:
    """Describe one change."""
    return {
        "path": os.fsdecode(finding.path),
        "kind": finding.kind.value,
        "old_path": None if finding.old_path is None else os.fsdecode(finding.old_path),
        "old_mode": _mode(finding.old),
        "new_mode": _mode(finding.new),
        "directory": finding.is_dir,
        "conflict": finding.conflict,
        "flags": [flag.value for flag in flags.get(finding.path, ())],
    }


def held_json(one: HeldChange) -> dict[str, object]:
    """Describe why a change is held, or waits for a held one."""
    return {
        "rule": str(one.rule),
        "source": str(one.rule.source),
        "waits_for": None if one.behind is None else os.fsdecode(one.behind.path),
    }


def counts_json(findings: Iterable[PathChange]) -> dict[str, int]:
    """Count *findings* by kind."""
    counts = Counter(finding.kind for finding in findings)
    return {kind.value: counts[kind] for kind in KINDS if counts[kind]}


def paths_json(findings: Iterable[PathChange]) -> list[str]:
    """Name *findings*."""
    return [os.fsdecode(finding.path) for finding in findings]


def left_out_json(folded: Iterable[FoldedDirectory]) -> dict[str, int]:
    """Count the changes that are left out, by reason."""
    lines = list(folded)
    return {reason.value: sum(line.changes for line in lines if line.reason == reason) for reason in Reason}


def _with_hunks(review: Review, change: PathChange, context: int) -> dict[str, object]:
    # Imported here: only a program asks for all of it.
    from sandboxfs.review.hunks import is_binary
    from sandboxfs.review.patch import contents
    from sandboxfs.review.summary import plain_flags

    loaded = None if change.is_dir else review.load(change)
    raised = plain_flags(change, review.context.root) if loaded is None else review.flags(change, loaded)
    return {
        "path": os.fsdecode(change.path),
        "kind": change.kind.value,
        "old_path": None if change.moved_from is None else os.fsdecode(change.moved_from),
        "old_mode": _mode(change.old),
        "new_mode": _mode(change.new),
        "old_size": _size(change.old),
        "new_size": _size(change.new),
        "conflict": change.conflict,
        "held": review.held_json(change),
        "flags": [flag.value for flag in raised],
        "directory": change.is_dir,
        "changing": change.changing or (loaded is not None and loaded.changing),
        "problem": None if loaded is None else loaded.problem,
        "binary": loaded is not None and any(map(is_binary, contents(loaded))),
        "hunks": [_hunk(hunk) for hunk in _hunks(loaded, context)],
    }


def _hunks(loaded: "FilePatch | None", context: int) -> list["Hunk"]:
    from sandboxfs.review.patch import change_hunks

    if loaded is None or loaded.problem is not None:
        return []
    return change_hunks(loaded, context)


def _hunk(hunk: "Hunk") -> dict[str, object]:
    return {
        "id": hunk.id,
        "header": os.fsdecode(hunk.header),
        "lines": [os.fsdecode(line) for line in hunk.lines],
    }


def _mode(side: Version | None) -> str | None:
    return None if side is None else f"{side.mode:o}"


def _size(side: Version | None) -> int | None:
    return None if side is None or side.is_dir else side.size


# Changes as a patch

# Git keeps one of these bits, and gives all three with it.
IN_PATCHES = 0o111


@dataclass(frozen=True)
class PatchPiece:
    """The patch of one file, empty where a patch has no words for what changed.

    *problem* says why the content is not known; the piece says no more then than that the file differs.
    """

    path: bytes
    data: bytes
    flags: tuple[Flag, ...] = ()
    changing: bool = False
    problem: str | None = None


@dataclass(frozen=True)
class Uncarried:
    """What a commit of the same paths applies and the patch does not carry.

    *unsaid* are special files and empty directories, *only_named* files that are only said to differ,
    *attributes* files of which more than the content and the x bit changed, *repositories* the `.git` that
    came along with a renamed directory. *unshown* was left out of the review.
    """

    unsaid: tuple[PathChange, ...] = ()
    only_named: tuple[PathChange, ...] = ()
    attributes: tuple[PathChange, ...] = ()
    repositories: tuple[bytes, ...] = ()
    unshown: tuple[PathChange, ...] = ()


@dataclass
class ReviewPatch:
    """The patch of *review*, to be gone through once; then it knows what it did not carry.

    With *with_binary* the patch carries binary files.
    """

    review: Review
    context: int
    with_binary: bool = False
    # Paths of which the patch says something, and those of which it says only that they differ.
    _said: set[bytes] = field(default_factory=set)
    _only_named: set[bytes] = field(default_factory=set)
    _could_carry: set[bytes] = field(default_factory=set)
    # Repositories' own directories that came along with a renamed one: no tool takes a patch of them.
    _came_along: set[bytes] = field(default_factory=set)

    def __iter__(self) -> Iterator[PatchPiece]:
        # Imported here: most who review write no patch.
        from sandboxfs.review.patch import differing, patch
        from sandboxfs.review.repositories import dot_git
        from sandboxfs.review.summary import file_changes

        review = self.review
        left_out = {finding.path for finding, _, _ in review.selection.left_out}
        for change in file_changes(review.survey, review.findings, renames=review.renames):
            if change.path in left_out:
                continue
            repository = None if review.selection.scope.include_git else dot_git(change.path)
            if repository is not None:
                self._came_along.add(repository)
                continue
            loaded = review.load(change)
            data = (
                differing(loaded) if loaded.problem else patch(loaded, self.context, binary=self.with_binary)
            )
            if data:
                self._remember(change.path, data, could_carry=loaded.problem is None)
            flags = tuple(review.flags(change, loaded))
            yield PatchPiece(change.path, data, flags, loaded.changing, loaded.problem)

    def _remember(self, path: bytes, data: bytes, *, could_carry: bool) -> None:
        self._said.add(path)
        if _names_only(data):
            self._only_named.add(path)
            if could_carry:
                self._could_carry.add(path)

    @property
    def binary(self) -> list[bytes]:
        """The files so far that are only said to differ, and that a patch could carry."""
        return sorted(self._could_carry)

    @property
    def in_git(self) -> bool:
        """Whether files in `.git` are in the patch so far, which `git apply` refuses."""
        from sandboxfs.review.repositories import dot_git

        return any(dot_git(path) is not None for path in self._said - self._only_named)

    def uncarried(self) -> Uncarried:
        """Return what the patch did not carry, when it was gone through."""
        findings = self.review.findings
        whole = self._said - self._only_named
        return Uncarried(
            unsaid=tuple(finding for finding in findings if not self._says(finding)),
            only_named=tuple(finding for finding in findings if finding.path in self._only_named),
            attributes=tuple(
                finding for finding in findings if finding.path in whole and _loses_attributes(finding)
            ),
            repositories=tuple(sorted(self._came_along)),
            unshown=tuple(self.review.unshown),
        )

    def _says(self, finding: PathChange) -> bool:
        if finding.is_dir and finding.old_path is not None:
            return any(True for _ in self.review.survey.view.below(finding.path))
        # What the host made in a deleted directory is no change of the sandbox's.
        unseen = finding.old is None and finding.new is None
        return unseen or finding.path in self._said or finding.lower_path in self._said


def _names_only(data: bytes) -> bool:
    """Whether a patch of one file says no more than that it differs."""
    return b"\n@@ " not in data and data.splitlines()[-1].startswith(b"# Binary files ")


def _loses_attributes(finding: PathChange) -> bool:
    """Whether more changed around a file's content than that it can be run."""
    old, new = finding.old, finding.new
    if old is None or new is None or not (old.is_file and new.is_file):
        return False
    from sandboxfs.review.compare import differ_in_attributes

    mode, owner = old.mode ^ new.mode, (old.uid, old.gid) != (new.uid, new.gid)
    if mode & ~IN_PATCHES or owner or differ_in_attributes(old, new):
        return True
    # What changed nothing else did so when it was looked at, whatever the host has by now.
    return finding.kind is ChangeKind.MODE and not mode
