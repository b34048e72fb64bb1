"""Commit of a sandbox: the plan as a value, the question about it, and the result.

Everything that was asked for is applied or nothing. A file that a program keeps writing is planned anew a few
times, unless a person was shown the plan. Where the workspace is or holds the user's home, changes are
committed by name or one by one: every shell and program of the user reads what is there.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from sandboxfs.commit.apply import apply_plan
from sandboxfs.commit.plan import (
    LOST,
    MOUNTED,
    FlagsOf,
    OnConflict,
    Options,
    Plan,
    busy_repository,
    plan_commit,
    with_flags,
)
from sandboxfs.commit.selection import SelectedPart, by_id
from sandboxfs.commit.stage import CHANGING
from sandboxfs.errors import CommitConflict, SandboxBusy, SandboxError, UsageError
from sandboxfs.hostfs.identity import ConcurrentChange
from sandboxfs.paths import counted, quoted
from sandboxfs.review.change import UNRESOLVED, PathChange
from sandboxfs.review.flags import Flag
from sandboxfs.review.scan import survey
from sandboxfs.review.scope import HeldChange, Scope, ScopedChanges, select_changes
from sandboxfs.review.summary import FoldedDirectory, without_implied
from sandboxfs.service.events import YES, CallerContext, ChangeProgress, Events, Prompt
from sandboxfs.service.review import (
    check_touched,
    counts_json,
    described,
    held_json,
    left_out_json,
    paths_json,
    scope_context,
)
from sandboxfs.service.review_session import (
    ReviewSession,
    chosen_status,
    conflict_error,
    review_session,
    told,
    why,
)
from sandboxfs.service.workspace import holds_home, named_paths
from sandboxfs.upper.sandbox_layers import Layers

if TYPE_CHECKING:
    from sandboxfs.service.pick import AskByHunk

ON_CONFLICT = tuple(how.value for how in OnConflict)
"""What can be done where the workspace changed as well."""

# How often is planned anew what programs in the sandbox keep changing.
_ATTEMPTS = 3
_CONFLICTING = "nothing was changed; see --on-conflict merge, skip, ours and theirs"
_UNRESOLVED = "everything else is committed; resolve these in the view or in the workspace, and commit again"
_MARKED = "nothing was changed; resolve what is between the markers in the view, and commit again"
_UNRESOLVED_YET = "everything else would be committed"
_STUCK = "nothing was changed; resolve these in the view or in the workspace, or see --on-conflict"


@dataclass(frozen=True)
class CommitRequest:
    """What is to be committed, and how.

    *paths* are as a person typed them. *by_hunk* has a person pick, *hunks* names them by their ids, and
    *everything* means all changes of a home as well. With *if_match* all has to be as it was at that
    revision. Nothing is asked of one who *confirmed*, and nothing is done in a *dry_run*. *approve* takes
    held changes as well.
    """

    sandbox: str | None = None
    paths: tuple[str, ...] = ()
    on_conflict: str = OnConflict.FAIL.value
    by_hunk: bool = False
    hunks: tuple[str, ...] = ()
    everything: bool = False
    ignored: bool = False
    include_git: bool = False
    if_match: str | None = None
    allow_special: bool = False
    message: str | None = None
    dry_run: bool = False
    confirmed: bool = False
    approve: bool = False


@dataclass(frozen=True)
class CommitPreview:
    """What a commit does, or would do, to the *workspace* of the sandbox called *name*.

    *changes* are applied, wholly or in part; *dropped* leave the sandbox, of *trimmed* a part does, *marked*
    get conflict markers in it, *left* stay because they were skipped, *conflicts* because nothing could be
    done. *refused* must not be applied. *held* wait for an approval. *left_out* sums up what is ignored or
    git's own.
    """

    name: str
    workspace: Path
    changes: tuple[PathChange, ...] = ()
    whole: Mapping[bytes, bool] = field(default_factory=dict)
    flags: Mapping[bytes, Sequence[Flag]] = field(default_factory=dict)
    dropped: tuple[PathChange, ...] = ()
    trimmed: tuple[PathChange, ...] = ()
    marked: tuple[PathChange, ...] = ()
    left: tuple[PathChange, ...] = ()
    conflicts: tuple[PathChange, ...] = ()
    refused: tuple[tuple[PathChange, str], ...] = ()
    left_out: tuple[FoldedDirectory, ...] = ()
    held: tuple[HeldChange, ...] = ()

    @classmethod
    def of(cls, plan: Plan, name: str, workspace: Path) -> "CommitPreview":
        return cls(
            name,
            workspace,
            changes=tuple(plan.findings),
            whole={item.finding.path: item.whole for item in plan.items},
            flags=plan.flags,
            dropped=plan.drops,
            trimmed=tuple(trim.finding for trim in plan.trims),
            marked=tuple(mark.finding for mark in plan.marks),
            left=plan.left,
            conflicts=plan.conflicts,
            refused=plan.refusals,
            left_out=plan.left_out,
            held=plan.held,
        )

    def as_json(self) -> dict[str, object]:
        # As people are told: a directory that comes or goes with its entries is no change of its own.
        changes = without_implied(list(self.changes))
        return {
            "changes": [
                described(finding, self.flags) | {"whole": self.whole[finding.path]} for finding in changes
            ],
            "counts": counts_json(changes),
            "dropped": paths_json(without_implied(list(self.dropped))),
            "trimmed": paths_json(self.trimmed),
            "marked": paths_json(self.marked),
            "left": [_with_reason(one, one.conflict) for one in without_implied(list(self.left))],
            "conflicts": [_with_reason(finding, finding.conflict) for finding in self.conflicts],
            "refused": [_with_reason(finding, reason) for finding, reason in self.refused],
            "held": [{"path": os.fsdecode(one.change.path)} | held_json(one) for one in self.held],
            "left_out": left_out_json(self.left_out),
        }


def _with_reason(finding: PathChange, reason: str | None) -> dict[str, object]:
    return {"path": os.fsdecode(finding.path), "why": reason}


@dataclass(frozen=True)
class CommitPrompt(Prompt):
    """Whether what *preview* tells is to be done."""

    preview: CommitPreview | None = None


@dataclass(frozen=True)
class CommitResult:
    """What a commit came to; *record* is its number, None where nothing was done.

    At *stayed* paths the sandbox changed something meanwhile, which stays in it. *declined* says that the
    person did not confirm. *problem* is the error with which the commit ends once its result was shown.
    """

    preview: CommitPreview
    record: int | None = None
    stayed: tuple[bytes, ...] = ()
    dry_run: bool = False
    declined: bool = False
    problem: SandboxError | None = None

    def check(self) -> None:
        """Raise where conflicts are left: nobody is to believe that all was committed."""
        if self.problem is not None:
            raise self.problem

    def as_json(self) -> dict[str, object]:
        about = {"name": self.preview.name, "workspace": str(self.preview.workspace), "record": self.record}
        whole = about | self.preview.as_json()
        if self.dry_run:
            return whole | {"dry_run": True}
        if self.record is None:
            return whole
        return whole | {"dry_run": False, "stayed": [os.fsdecode(path) for path in self.stayed]}


def commit(
    request: CommitRequest, caller: CallerContext, events: Events, ask: "AskByHunk | None" = None
) -> CommitResult:
    """Apply changes of a sandbox to its workspace; *ask* takes a person through what is picked by hunk."""
    store, sandbox = chosen_status(request.sandbox, caller, events)
    if request.by_hunk and ask is None:
        raise UsageError("there is nobody to pick hunks")
    one_by_one = holds_home(sandbox.record.workspace) and _is_unnamed(request)
    if one_by_one and (request.confirmed or caller.is_program or ask is None):
        raise UsageError(
            f"{quoted(sandbox.record.workspace)} is or holds your home: its changes are committed one by one",
            hint="name paths, or use --all; on a terminal, leave --yes out and answer for each",
        )
    paths = named_paths(sandbox.record, request.paths, caller)
    picking = ask if one_by_one or request.by_hunk else None
    # A person is asked about each held change; who cannot be asked leaves them out.
    is_person = ask is not None and not (request.confirmed or request.dry_run or caller.is_program)
    about_held = ask if is_person else None
    # Only where nobody has seen the plan another one is as good.
    attempts = _ATTEMPTS if request.confirmed and picking is None else 1
    with review_session(store, sandbox, events) as session, told("commit", caller.environment):
        for attempt in range(1, attempts + 1):
            try:
                with session.layers() as layers:
                    run = _Commit(session, request, caller, events, picking, about_held)
                    return run.carry_out(run.plan(layers, paths))
            except ConcurrentChange as surprise:
                if surprise.why != CHANGING or attempt == attempts:
                    raise
    raise AssertionError("the last attempt returns or raises")


def _is_unnamed(request: CommitRequest) -> bool:
    """Whether nothing says which changes are meant."""
    return not (request.dry_run or request.by_hunk or request.everything or request.paths or request.hunks)


@dataclass(frozen=True)
class _Commit:
    """One attempt."""

    session: ReviewSession
    request: CommitRequest
    caller: CallerContext
    events: Events
    ask: "AskByHunk | None"
    about_held: "AskByHunk | None"

    def plan(self, layers: Layers, paths: Mapping[bytes, str]) -> Plan:
        request, flags_of = self.request, self.session.flag_context().flags
        found = survey(layers)
        check_touched(paths, found.findings)
        scope = Scope(tuple(paths), request.ignored, request.include_git, request.approve)
        record = self.session.sandbox.record
        context = scope_context(self.session.store, record, self.caller.environment)
        selection = select_changes(found, scope, context)
        if request.if_match is not None:
            _check_revision(selection, request.if_match)
        choose = by_id(request.hunks, selection.shown) if request.hunks else None
        if self.ask is not None:
            # Imported here: most commits do without.
            from sandboxfs.service.pick import picked_by_hunk

            choose = picked_by_hunk(
                "commit", selection.shown, flags_of, self.ask, self.events, _every_held(selection)
            )
        elif self.about_held is not None and selection.held and choose is None:
            choose = self._held_picked(selection, flags_of, self.about_held)
        options = Options(
            OnConflict(request.on_conflict),
            allow_special=request.allow_special,
            choose=choose,
            mounts=self.session.mounts,
        )
        return with_flags(plan_commit(selection, options), self.session.flag_context().flags)

    def _held_picked(
        self, selection: ScopedChanges, flags_of: FlagsOf, ask: "AskByHunk"
    ) -> Callable[[PathChange], SelectedPart | bool]:
        """Have a person decide about the held changes; all others are taken."""
        from sandboxfs.service.pick import picked_by_hunk

        held = [one.change for one in selection.held.values()]
        number = counted(len(without_implied(held)), "change")
        self.events.note(f"{number} held by rules: take what you approve")
        picked = picked_by_hunk("commit", held, flags_of, ask, self.events, _every_held(selection))
        known = set(map(id, held))
        return lambda finding: picked(finding) if picked is not None and id(finding) in known else True

    def carry_out(self, plan: Plan) -> CommitResult:
        record = self.session.sandbox.record
        preview = CommitPreview.of(plan, record.name, record.workspace)
        refusal = _refusal(plan)
        if self.request.dry_run:
            hint = _STUCK if plan.is_empty else _UNRESOLVED_YET
            return CommitResult(preview, dry_run=True, problem=refusal or _unresolved(plan, hint))
        if refusal is not None:
            raise refusal
        if plan.is_empty:
            return CommitResult(preview, problem=_unresolved(plan, _STUCK))
        # Who answered for every hunk has been asked enough.
        if not (self.request.confirmed or self.ask is not None):
            prompt = CommitPrompt(f"Commit to {quoted(record.workspace)}?", preview=preview)
            if self.events.ask(prompt) != YES:
                return CommitResult(preview, declined=True)
        with self.events.interruptible() as interruptible:
            progress = ChangeProgress(self.events, interruptible, "committing")
            done = apply_plan(
                self.session.site,
                plan,
                message=self.request.message,
                progress=progress,
                between=progress.hold,
            )
        return CommitResult(preview, done.number, done.stayed, problem=_unresolved(plan, _UNRESOLVED))


def _every_held(selection: ScopedChanges) -> list[HeldChange]:
    """Return the held and waiting changes, with directories that their content implies."""
    return [*selection.held.values(), *selection.waiting.values()]


def _check_revision(selection: ScopedChanges, seen: str) -> None:
    """Raise unless what is taken is what *seen* was given for."""
    # Imported here: most commits do without.
    from sandboxfs.review.revision import revision

    now = revision(selection)
    if now != seen:
        raise CommitConflict(
            "cannot commit: the changes, or the workspace, are not what they were at that revision",
            hint="nothing was changed; look again with 'sandboxfs diff'",
            details={"revision": now, "if_match": seen},
        )


def _refusal(plan: Plan) -> SandboxError | None:
    """Say why *plan* may not be carried out, if so."""
    if plan.refusals:
        refused = [{"path": os.fsdecode(finding.path), "why": reason} for finding, reason in plan.refusals]
        finding, reason = plan.refusals[0]
        more = f", and {len(refused) - 1:,} more" if len(refused) > 1 else ""
        hint: str | None = "--allow-special lets it through"
        if reason == MOUNTED:
            hint = None
        elif reason.startswith(LOST):
            hint = "nothing was changed; mount it again, or name other paths"
        return UsageError(
            f"cannot commit {quoted(finding.path)}: {reason}{more}", hint=hint, details={"refused": refused}
        )
    if plan.is_blocked:
        marked = any(finding.conflict == UNRESOLVED for finding in plan.conflicts)
        return conflict_error("commit", map(why, plan.conflicts), _MARKED if marked else _CONFLICTING)
    lock = busy_repository(plan)
    if lock is not None:
        return SandboxBusy(
            f"git is working in the workspace: {quoted(lock)} exists",
            hint="wait for it, or remove the file if no git is running",
        )
    return None


def _unresolved(plan: Plan, hint: str) -> CommitConflict | None:
    """Say which conflicts are left, if there are any."""
    return conflict_error("commit", map(why, plan.conflicts), hint) if plan.conflicts else None
