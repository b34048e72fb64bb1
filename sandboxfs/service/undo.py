"""Undo of a commit or a discard: the plan as a value, the question about it, and the result.

What was changed since, in the workspace or in the sandbox, is left alone and named. The error about what was
left alone ends the undo when everything else is taken back.
"""

import os
from dataclasses import dataclass
from pathlib import Path

from sandboxfs.commit.records import CommitRecord
from sandboxfs.commit.undo import UndoPlan, entered, plan_undo
from sandboxfs.commit.undo import undo as take_back
from sandboxfs.errors import CommitConflict, UsageError
from sandboxfs.paths import quoted
from sandboxfs.service.events import YES, CallerContext, ChangeProgress, Events, Prompt
from sandboxfs.service.review_session import (
    ReviewSession,
    chosen_status,
    conflict_error,
    review_session,
    told,
)


@dataclass(frozen=True)
class UndoRequest:
    """Which commit or discard is to be taken back: the one with this *number*, or the last.

    Nothing is asked of one who *confirmed*, and nothing is done in a *dry_run*.
    """

    sandbox: str | None = None
    number: int | None = None
    dry_run: bool = False
    confirmed: bool = False


@dataclass(frozen=True)
class UndoPreview:
    """What is taken back of the record *number*: *changes*, paths and kinds.

    What is *left* is left alone, with why.
    """

    name: str
    workspace: Path
    number: int
    kind: str
    changes: tuple[tuple[bytes, str], ...] = ()
    left: tuple[tuple[bytes, str], ...] = ()


@dataclass(frozen=True)
class UndoPrompt(Prompt):
    """Whether what *preview* tells is to be done."""

    preview: UndoPreview | None = None


@dataclass(frozen=True)
class UndoResult:
    """What an undo came to; *record* is its own number, None where nothing was done.

    *declined* says that the person did not confirm. *problem* names what was left alone.
    """

    preview: UndoPreview
    record: int | None = None
    dry_run: bool = False
    declined: bool = False
    problem: CommitConflict | None = None

    def check(self) -> None:
        """Raise where something was left alone."""
        if self.problem is not None:
            raise self.problem

    def as_json(self) -> dict[str, object]:
        preview = self.preview
        return {
            "name": preview.name,
            "workspace": str(preview.workspace),
            "record": self.record,
            "undone": preview.number,
            "kind": preview.kind,
            "changes": [{"path": os.fsdecode(path), "kind": kind} for path, kind in preview.changes],
            "left": [{"path": os.fsdecode(path), "why": why} for path, why in preview.left],
            "dry_run": self.dry_run,
        }


def undo(request: UndoRequest, caller: CallerContext, events: Events) -> UndoResult:
    """Take a commit or a discard back."""

    store, sandbox = chosen_status(request.sandbox, caller, events)
    with (
        review_session(store, sandbox, events) as session,
        told("undo", caller.environment),
        _record(session, request.number) as record,
        entered(session.site, record),
    ):
        return _taken_back(session, request, plan_undo(session.site, record), events)


def _record(session: ReviewSession, number: int | None) -> CommitRecord:
    """Open the record that is meant."""
    sandbox = session.sandbox.record
    whose = f"sandbox '{sandbox.name}' of {quoted(sandbox.workspace)}"
    if number is None:
        number = next((record.number for record in session.site.records.each() if record.stands), None)
        if number is None:
            raise UsageError(f"{whose} has no commit or discard to take back")
    record = session.site.records.open(number)
    if record is None:
        raise UsageError(f"{whose} has no record {number}", hint="see 'sandboxfs undo --list'")
    if not record.stands:
        word = "was taken back already" if record.has("undone") else "cannot be taken back"
        record.close()
        what = f"{record.about.kind} {number} of {whose}"
        raise UsageError(f"{what} {word}", hint="see 'sandboxfs undo --list'")
    return record


def _taken_back(session: ReviewSession, request: UndoRequest, plan: UndoPlan, events: Events) -> UndoResult:
    record, about = session.sandbox.record, plan.record.about
    preview = UndoPreview(
        record.name, record.workspace, plan.record.number, about.kind, plan.changes, plan.left
    )
    problem = _left_alone(plan, dry_run=request.dry_run)
    if request.dry_run or plan.is_empty:
        return UndoResult(preview, dry_run=request.dry_run, problem=problem)
    if not request.confirmed:
        whose = f"'{record.name}' of {quoted(record.workspace)}"
        prompt = UndoPrompt(
            f"Take back {about.kind} {plan.record.number} of sandbox {whose}?", preview=preview
        )
        if events.ask(prompt) != YES:
            return UndoResult(preview, declined=True)

    with events.interruptible() as interruptible:
        progress = ChangeProgress(events, interruptible, "taking back")
        done = take_back(session.site, plan, progress=progress, between=progress.hold)
    return UndoResult(preview, done.number, problem=problem)


def _left_alone(plan: UndoPlan, *, dry_run: bool) -> CommitConflict | None:
    """Name what is left alone, if anything is."""
    if not plan.left:
        return None
    hint = "everything else is taken back" if not plan.is_empty else "nothing was changed"
    what = f"{plan.record.about.kind} {plan.record.number}"
    return conflict_error(f"take back {what} at", plan.left, "" if dry_run else hint)
