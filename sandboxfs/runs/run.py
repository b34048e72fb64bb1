"""Running a program: from the request to what it did, what it was refused, and what was asserted about it.

The caller hears of each stage while it is reached, and can refuse before the program starts by raising. The
program is supervised by the calling process, which has to be the command line's own; programs of all other
callers are started in an open run (`open_run`).

What a program did is read after it has ended: changes from the layers, in the form that `diff` has for them,
and decisions from the daemons that made them.
"""

import errno
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Protocol

from sandboxfs.confine.detect import Confinement, forget
from sandboxfs.confine.program_values import ProgramEnd
from sandboxfs.control.prestart import WaitingDaemon
from sandboxfs.errors import DaemonLost, MountFailed
from sandboxfs.paths import quoted
from sandboxfs.policy.assertions import Assertions, WriteAssertions
from sandboxfs.runs.open_run import OpenRun, ProgramRequest, RunOpener
from sandboxfs.runs.run_views import (
    NOTHING_SEEN,
    Denied,
    RunObservation,
    RunRequest,
    RunStart,
    RunView,
    begin,
    observed,
)
from sandboxfs.runs.widening import RunWidening
from sandboxfs.state.disk import is_empty

if TYPE_CHECKING:
    from sandboxfs.review.change import PathChange
    from sandboxfs.review.summary import FoldedDirectory
    from sandboxfs.service.review import Review

# What a shell says of a program that it cannot start.
CANNOT_EXECUTE, NOT_FOUND = 126, 127
# What gives back a directory that a program locked.
_LOCKED = (
    "'sandboxfs diff -s {name} --name-status' shows whether a program took the permission away; "
    "mount the view and change its mode, or 'sandboxfs discard -s {name} --all'"
)


@dataclass(frozen=True)
class ProgramResult:
    """How a program ended: its own status, 128 and its number for a signal.

    *problem* says why one with status 126 or 127 was not started, if it was not, and *hint* what helps.
    """

    returncode: int
    problem: str | None = None
    hint: str | None = None


@dataclass(frozen=True)
class RunResult:
    """What a program did, in the views of its run; the first is the workspace's.

    *broken* says, a line each, what was asserted and does not hold. A sandbox that was made for the run and
    holds nothing is not *kept*.
    """

    program: ProgramResult
    by_key: int | None
    views: tuple["ViewResult", ...]
    broken: tuple[str, ...]
    kept: bool


class RunEvents(Protocol):
    """What a caller is told of a run, in this order."""

    def opened(self, session: OpenRun) -> None:
        """Hear what the views are, before the program starts; whatever is raised keeps it from starting."""

    def warn(self, sentence: str) -> None:
        """Hear what may not be meant as it is."""

    def starting(self) -> None:
        """Use the time in which the program starts."""

    def ended(self, session: OpenRun, end: ProgramEnd, program: ProgramResult) -> None:
        """Hear how the program ended, before its changes are looked for."""

    def outside(self) -> AbstractContextManager[None]:
        """Surround what is asked of a daemon, which takes whoever stands in its view for a program of it."""


def run(
    request: RunRequest,
    program: ProgramRequest,
    environment: Mapping[str, str],
    assertions: Assertions,
    events: RunEvents,
    waiting: WaitingDaemon | None = None,
) -> RunResult:
    """Run *program* as *request* says, with the daemon that is *waiting* if it fits."""
    begun = time.time_ns()
    with RunOpener(request, environment, waiting) as session:
        events.opened(session)
        with events.outside():
            beginnings = begin(session.views, begun, assertions)
        with RunWidening(session, assertions, events.outside) as widening:
            end = session.run(program, events.warn, events.starting, widening)
            beginnings += widening.beginnings
            # Asked while the daemons are still held. One that was lost tells nothing any more.
            with events.outside():
                seen = [observed(one, end=True) for one in ([] if end.lost else beginnings)]
            beginnings += [start for start, _ in widening.gone]
            seen += [saw for _, saw in widening.gone]
            session = replace(session, views=tuple(one.view for one in beginnings))
    if end.held:
        events.warn("something else still holds the program's output open; what it writes now is lost")
    try:
        result = program_result(session, end, program.command)
    except MountFailed:
        from sandboxfs.service.remove import remove_made

        remove_made(session.views)
        raise
    events.ended(session, end, result)
    views = tuple(deeds(one, saw) for one, saw in zip(beginnings, seen, strict=True))
    failed = tuple(broken(assertions, views))
    kept = bool(failed) or not _removed(session, views)
    return RunResult(result, end.by_key, views, failed, kept)


def _removed(session: OpenRun, views: Sequence["ViewResult"]) -> bool:
    """Remove the sandbox that was made for this run, if nothing is left in it and nothing was refused.

    Where it stays, those of its companions go that were made for this run and saw nothing.
    """
    quiet = [not one.tells_something for one in views]
    if not (all(quiet) or any(quiet[1:])):
        return False
    # Imported here: most runs leave something.
    from sandboxfs.service.remove import remove_made, remove_made_companions

    if all(quiet) and remove_made(session.views):
        return True
    companions = zip(session.views[1:], quiet[1:], strict=True)
    remove_made_companions(view for view, saw_nothing in companions if saw_nothing)
    return False


# How it ended


def program_result(session: OpenRun, end: ProgramEnd, command: Sequence[str]) -> ProgramResult:
    """Say how *command* ended; raise what ended it from outside, or kept it from being confined."""
    if end.lost:
        raise DaemonLost(
            f"the daemon of sandbox '{session.name}' died; the program was ended",
            hint=f"its log is {quoted(session.view.store.places(session.name).log)}",
        )
    if end.status is not None:
        code = os.waitstatus_to_exitcode(end.status)
        return ProgramResult(code if code >= 0 else 128 - code)
    if end.stage == "start":
        problem = end.problem(command[0])
        if end.error == errno.ENOENT:
            return ProgramResult(NOT_FOUND, problem, _elsewhere(session, command[0]))
        return ProgramResult(CANNOT_EXECUTE, problem)
    if end.stage == "enter":
        raise MountFailed(
            f"cannot enter {quoted(session.directory())} in the view: {end.reason}",
            hint=_LOCKED.format(name=session.name) if end.error == errno.EACCES else None,
        )
    if end.stage:
        raise MountFailed(f"cannot confine the program: {end.reason}")
    forget(session.view.store.locations.runtime / "bubblewrap")
    raise MountFailed(
        "the program could not be confined", hint="run 'sandboxfs doctor', or try --confine landlock"
    )


def _elsewhere(session: OpenRun, name: str) -> str | None:
    """Say where the program is on the host, when it is only out of reach inside."""
    import shutil

    if PurePath(name).name == "sandboxfs":
        return (
            f"you are inside sandbox '{session.name}'; in the top directory of the workspace, .sandboxfs/ "
            "has what can be read of it: changes, denials, policy"
        )
    found = shutil.which(name, path=session.environment.get("PATH"))
    if found is None:
        return None
    return (
        f"it is {quoted(found)}, which is out of reach in the sandbox; "
        "show its directory with --allow DIR:ro, or use --home cow"
    )


# What is known before


def leftovers(view: RunView, *, all_of_them: bool) -> int:
    """Count the changes that are in a view already: those that a commit takes, or *all_of_them*."""
    if not view.resumed or is_empty(view.store.places(view.record.name).upper):
        return 0
    from sandboxfs.service.listing import count_changes

    counts = count_changes(view.store, view.record)
    return counts.changes + (counts.held + counts.ignored + counts.git if all_of_them else 0)


def weaknesses(session: OpenRun) -> tuple[str, ...]:
    """Say what about the confinement is weaker than it might be expected to be."""
    choice = session.choice
    if choice.confinement is Confinement.LANDLOCK:
        because = "" if choice.weaker is None else f" because bubblewrap cannot be used ({choice.weaker})"
        reached = "" if choice.finding.attended else "modes, owners and times of your files, and "
        return (
            f"confined with Landlock{because}: the view is at {quoted(session.view.record.mountpoint)}, "
            f"and {reached}other processes are not out of reach",
        )
    if choice.confinement is Confinement.NONE and choice.weaker is not None:
        return (choice.weaker,)
    return ()


def repository_out_of_reach(session: OpenRun) -> Path | None:
    """Return the git repository of a work tree that programs cannot reach, if there is one."""
    workspace = session.view.record.workspace
    if session.choice.confinement is Confinement.NONE or not (workspace / ".git").is_file():
        return None
    from sandboxfs.service.workspace import repository_outside

    repository = repository_outside(workspace)
    # It may be shown alone, without the work tree around it.
    places = () if repository is None else (repository, repository / ".git")
    if repository is None or (session.confined_by_name and any(map(session.place, places))):
        return None
    return repository


# What it did


def objections_to(
    assertions: Assertions, workspace: os.PathLike[str], fresh: Sequence[str]
) -> list[tuple[str, str]]:
    """Return the *fresh* changes of a workspace that break an assertion, each with what it breaks.

    What shows in the end was written, whatever the daemon saw: a file has other names than the one that was
    used.
    """
    judge = WriteAssertions(assertions, os.fspath(workspace))
    found = ((path, judge.objection(os.fsencode(path))) for path in fresh)
    return [(path, why) for path, why in found if why is not None]


@dataclass(frozen=True)
class Change:
    """One change as it is told, by the words that `diff` has for it.

    *kind* is `added`, `deleted`, `modified`, `renamed`, `mode` or `type`; *old_path* is where something
    renamed was, *conflict* half a sentence, *held* the rule that wants a person to approve, and *flags* say
    why to look twice.
    """

    kind: str
    path: str
    old_path: str | None = None
    directory: bool = False
    conflict: str | None = None
    held: dict[str, object] | None = None
    flags: tuple[str, ...] = ()
    # Made by the run that has just ended, and not by one before it.
    fresh: bool = True

    @property
    def letter(self) -> str:
        """The letter that `diff --name-status` has for the kind."""
        return "M" if self.kind == "mode" else self.kind[0].upper()

    @property
    def marks(self) -> str:
        conflict = ["conflict"] if self.conflict is not None else []
        held = ["held"] if self.held is not None else []
        return ", ".join([*conflict, *held, *self.flags])

    def __str__(self) -> str:
        end = "/" if self.directory else ""
        name = _shown(self.path) + end
        if self.old_path is not None:
            name = f"{_shown(self.old_path)}{end} => {name}"
        return f"{self.letter} {name}" + (f"  [{self.marks}]" if self.marks else "")

    def as_json(self) -> dict[str, object]:
        return {
            "path": self.path,
            "kind": self.kind,
            "old_path": self.old_path,
            "directory": self.directory,
            "conflict": self.conflict,
            "held": self.held,
            "flags": list(self.flags),
            "fresh": self.fresh,
        }


def _shown(path: str) -> str:
    """Show *path* plainly where that is unambiguous, quoted where it is not."""
    # The top of the view has no name.
    plain = path or "."
    safe = quoted(Path(plain))
    return plain if safe == f"'{plain}'" and " " not in plain else safe


@dataclass(frozen=True)
class ViewResult:
    """What happened in one view: its changes, and what its daemon saw.

    *folded* are changes that a commit leaves out, *fresh* the paths of changes made since the run began.
    """

    name: str
    workspace: Path
    changes: tuple[Change, ...] = ()
    folded: tuple["FoldedDirectory", ...] = ()
    seen: RunObservation = NOTHING_SEEN
    fresh: frozenset[str] = frozenset()

    @property
    def denials(self) -> tuple[Denied, ...]:
        return self.seen.denials

    @property
    def tells_something(self) -> bool:
        """Whether there is anything for which the sandbox is worth keeping."""
        seen = self.seen
        return bool(self.changes or self.folded or seen.denials or seen.more_denials or seen.lost)


def deeds(beginning: RunStart, seen: RunObservation) -> ViewResult:
    """Say what happened in a view since *beginning*; *seen* is what its daemon tells of it."""
    view = beginning.view
    found = _find(view, beginning.when)
    return ViewResult(view.record.name, view.record.workspace, found.changes, found.folded, seen, found.fresh)


@dataclass(frozen=True)
class _Found:
    """The changes of a view: those shown one by one, those in one line, and paths changed lately."""

    changes: tuple[Change, ...] = ()
    folded: tuple["FoldedDirectory", ...] = ()
    fresh: frozenset[str] = frozenset()


def _find(view: RunView, when: int) -> _Found:
    if is_empty(view.store.places(view.record.name).upper):
        return _Found()
    # Imported late: a run that changed nothing does without.
    from sandboxfs.review.scan import survey
    from sandboxfs.review.scope import Scope, select_changes
    from sandboxfs.review.summary import without_implied
    from sandboxfs.service.review import Review, flag_context, reviewed, scope_context

    with reviewed(view.store, view.record) as layers:
        found = survey(layers)
        fresh = frozenset(finding.path for finding in found.findings if finding.changed_ns >= when)
        selection = select_changes(found, Scope(), scope_context(view.store, view.record))
        # Held changes are told as well, though no commit takes them yet.
        held = (one.change for one in selection.held_back)
        shown = sorted([*selection.taken, *held], key=lambda one: one.path)
        review = Review(selection, without_implied(shown), flag_context(view.record), renames=True)
        changes = tuple(_change(review, change, change.path in fresh) for change in review.findings)
    return _Found(changes, tuple(selection.folded), frozenset(map(os.fsdecode, fresh)))


def _change(review: "Review", change: "PathChange", fresh: bool) -> Change:
    from sandboxfs.review.change import ChangeKind

    renamed = change.kind is ChangeKind.RENAMED and change.old_path is not None
    return Change(
        change.kind.value,
        os.fsdecode(change.path),
        os.fsdecode(change.old_path or b"") if renamed else None,
        change.is_dir,
        change.conflict,
        review.held_json(change),
        tuple(flag.value for flag in review.flags(change)),
        fresh,
    )


def broken(assertions: Assertions, happened: Sequence[ViewResult]) -> list[str]:
    """Say, a line each, what was asserted of a run and does not hold."""
    return [
        line
        for one in happened
        for line in _broken(assertions, one, inside=one is happened[0])
        if assertions.any
    ]


def _broken(assertions: Assertions, one: ViewResult, *, inside: bool) -> Iterator[str]:
    seen = one.seen
    if seen.lost is not None:
        yield f"what was asserted of sandbox '{one.name}' cannot be known: {seen.lost}"
    objections = dict.fromkeys(
        [*seen.objections, *objections_to(assertions, one.workspace, sorted(one.fresh))]
    )
    for path, why in sorted(objections):
        name = quoted(path or ".") if inside else quoted(one.workspace / path)
        yield f"{name} was written: {why}"
    if seen.more_objections:
        yield f"further writes to sandbox '{one.name}', {seen.more_objections:,} of them"
    if assertions.no_denials:
        yield from (f"{denied.sentence}: --assert-no-denials" for denied in seen.denials)
        if seen.more_denials:
            yield f"further denials, {seen.more_denials:,} of them: --assert-no-denials"
