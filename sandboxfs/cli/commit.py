"""`sandboxfs commit`: apply changes of a sandbox to its workspace, all that were asked for or none."""

import argparse
import os
from collections.abc import Mapping
from dataclasses import replace

from sandboxfs.changes.choosing import by_id
from sandboxfs.changes.commit import commit
from sandboxfs.changes.conflicts import UNRESOLVED
from sandboxfs.changes.contents import change_flags
from sandboxfs.changes.files import FileChange
from sandboxfs.changes.finding import Finding
from sandboxfs.changes.flags import Flag
from sandboxfs.changes.layers import Layers
from sandboxfs.changes.plan import (
    MOUNTED,
    Options,
    Plan,
    busy_repository,
    is_git,
    plan_commit,
    with_flags,
)
from sandboxfs.changes.resolving import OnConflict
from sandboxfs.changes.scan import survey
from sandboxfs.changes.selection import within
from sandboxfs.changes.site import Result
from sandboxfs.changes.stager import CHANGING
from sandboxfs.changes.steps import Surprise
from sandboxfs.cli import output, plans
from sandboxfs.cli.bench import Bench, bench
from sandboxfs.cli.by_hunk import ask_by_hunk
from sandboxfs.cli.confirming import check_can_ask, confirmed
from sandboxfs.cli.interrupts import Interrupts
from sandboxfs.cli.live import selected
from sandboxfs.cli.parser import Parser, add_sandbox_option, verb_parser
from sandboxfs.cli.places import place_in
from sandboxfs.cli.progress import Progress
from sandboxfs.cli.touching import check_touched
from sandboxfs.cli.trouble import conflict_error, told, why
from sandboxfs.errors import CommitConflict, DaemonLost, NoSuchSandbox, SandboxBusy, UsageError
from sandboxfs.paths import quoted

DESCRIPTION = """\
Apply what the sandbox changed to the workspace: all changes, or those at and below the
given paths with what they need. Either everything is applied or nothing; killed at any
moment, the next command finishes it or takes it back. What is applied leaves the sandbox,
and programs in the view notice nothing. 'sandboxfs undo' takes a commit back."""

EXAMPLES = [
    "sandboxfs commit",
    "sandboxfs commit src docs/readme.md",
    "sandboxfs commit --dry-run --json",
    "sandboxfs commit --yes --on-conflict merge -m 'fix the parser'",
    "sandboxfs commit -p src",
    "sandboxfs commit --hunk 3f2a9c01 src/a.py",
]

EXIT_DECLINED = 1
# How often is planned anew what programs in the sandbox keep changing.
_ATTEMPTS = 3
_CONFLICTING = "nothing was changed; see --on-conflict merge, skip, ours and theirs"
_UNRESOLVED = "everything else is committed; resolve these in the view or in the workspace, and commit again"
_MARKED = "nothing was changed; resolve what is between the markers in the view, and commit again"
_UNRESOLVED_YET = "everything else would be committed"
_STUCK = "nothing was changed; resolve these in the view or in the workspace, or see --on-conflict"


class Arguments(argparse.Namespace):
    paths: list[str]
    sandbox: str | None
    on_conflict: str
    patch: bool
    hunk: list[str]
    include_git: bool
    allow_special: bool
    message: str | None
    dry_run: bool
    yes: bool
    json: bool


def parser() -> Parser:
    made = verb_parser(
        "commit",
        DESCRIPTION,
        EXAMPLES,
        [NoSuchSandbox, SandboxBusy, CommitConflict, DaemonLost],
        {EXIT_DECLINED: "not confirmed"},
    )
    add_sandbox_option(made)
    made.add_argument("paths", nargs="*", metavar="PATH", help="only what is at or below these paths")
    made.add_argument(
        "--on-conflict",
        choices=[how.value for how in OnConflict],
        default=OnConflict.FAIL.value,
        help="what to do where the workspace changed as well: apply nothing at all (fail, the default), "
        "merge texts, skip these changes, or let the sandbox's (ours) or the workspace's side (theirs) win",
    )
    made.add_argument(
        "-p", "--patch", action="store_true", help="ask about every hunk, with the keys of 'git add -p'"
    )
    made.add_argument(
        "--hunk", metavar="ID", action="append", default=[], help="only this hunk; may be repeated"
    )
    made.add_argument("--include-git", action="store_true", help="apply changes in .git as well")
    made.add_argument(
        "--allow-special", action="store_true", help="apply device nodes, setuid and setgid bits, too"
    )
    made.add_argument("-m", "--message", metavar="TEXT", help="kept with the record, shown by 'undo --list'")
    made.add_argument("--dry-run", action="store_true", help="show the plan, and do nothing")
    made.add_argument("-y", "--yes", action="store_true", help="do not ask")
    return made


def run(words: list[str]) -> int:
    arguments = parser().parse_args(words, namespace=Arguments())
    if arguments.patch and (arguments.hunk or arguments.json):
        raise UsageError("-p goes with neither --hunk nor --json: it asks a person")
    if not arguments.dry_run and not arguments.patch:
        check_can_ask("commit", yes=arguments.yes, as_json=arguments.json)
    store, sandbox = selected(arguments.sandbox)
    paths = {os.fsencode(place_in(sandbox.record, path)): path for path in arguments.paths}
    with bench(store, sandbox) as held, told("commit"):
        for attempt in range(_ATTEMPTS):
            try:
                with held.layers() as layers:
                    return _commit(held, arguments, _planned(held, layers, arguments, paths))
            except Surprise as surprise:
                # Nobody has seen the plan, so another one is as good.
                if (
                    surprise.why != CHANGING
                    or not arguments.yes
                    or arguments.patch
                    or attempt == _ATTEMPTS - 1
                ):
                    raise
    raise AssertionError("the last attempt returns or raises")


def _planned(held: Bench, layers: Layers, arguments: Arguments, paths: Mapping[bytes, str]) -> Plan:
    found = survey(layers)
    check_touched(paths, found.findings)
    asked = [
        finding
        for finding in found.findings
        if within(finding, list(paths)) and (arguments.include_git or not is_git(finding))
    ]
    choose = by_id(arguments.hunk, asked) if arguments.hunk else None
    if arguments.patch:
        choose = ask_by_hunk("commit", asked, lambda finding: _flags(finding, held.root))
    options = Options(
        list(paths),
        OnConflict(arguments.on_conflict),
        include_git=arguments.include_git,
        allow_special=arguments.allow_special,
        choose=choose,
        mounts=held.mounts,
    )
    return with_flags(plan_commit(found, options), lambda finding: _flags(finding, held.root))


def _flags(finding: Finding, root: bytes) -> list[Flag]:
    return change_flags(FileChange.of(finding), None, root)


def _commit(held: Bench, arguments: Arguments, plan: Plan) -> int:
    if arguments.dry_run:
        _show(held, arguments, plan)
        _check(plan)
        _check_resolved(plan, _STUCK if plan.is_empty else _UNRESOLVED_YET)
        return 0
    _check(plan)
    if plan.is_empty:
        _nothing(held, arguments, plan)
        _check_resolved(plan, _STUCK)
        return 0
    # Who answered for every hunk has been asked enough.
    if not (arguments.yes or arguments.patch):
        for line in (*plans.plan_lines(plan, plans.MOST), plans.summary(plan)):
            output.note(line)
        if not confirmed(f"Commit to {quoted(held.sandbox.record.workspace)}?"):
            output.note("nothing was changed")
            return EXIT_DECLINED
    with Progress("committing") as progress, Interrupts() as interrupts:
        result = commit(
            held.site, plan, message=arguments.message, progress=progress, between=interrupts.hold
        )
    _tell(held, arguments, plan, result)
    _check_resolved(plan, _UNRESOLVED)
    return 0


def _check(plan: Plan) -> None:
    """Raise unless *plan* may be carried out."""
    if plan.refusals:
        refused = [{"path": os.fsdecode(finding.path), "why": reason} for finding, reason in plan.refusals]
        finding, reason = plan.refusals[0]
        more = f", and {len(refused) - 1:,} more" if len(refused) > 1 else ""
        hint = None if reason == MOUNTED else "--allow-special lets it through"
        raise UsageError(
            f"cannot commit {quoted(finding.path)}: {reason}{more}", hint=hint, details={"refused": refused}
        )
    if plan.is_blocked:
        marked = any(finding.conflict == UNRESOLVED for finding in plan.conflicts)
        raise conflict_error("commit", map(why, plan.conflicts), _MARKED if marked else _CONFLICTING)
    lock = busy_repository(plan)
    if lock is not None:
        raise SandboxBusy(
            f"git is working in the workspace: {quoted(lock)} exists",
            hint="wait for it, or remove the file if no git is running",
        )


def _check_resolved(plan: Plan, hint: str) -> None:
    """Raise where conflicts are left: nobody is to believe that all was committed."""
    if plan.conflicts:
        raise conflict_error("commit", map(why, plan.conflicts), hint)


def _nothing(held: Bench, arguments: Arguments, plan: Plan) -> None:
    if arguments.json:
        output.document({"name": held.sandbox.name, "record": None} | plans.plan_json(plan))
        return
    if plan.conflicts:
        return
    output.note("nothing to commit")
    for line in plans.plan_lines(plan):
        output.note(line)


def _show(held: Bench, arguments: Arguments, plan: Plan) -> None:
    if arguments.json:
        output.document({"name": held.sandbox.name, "record": None, "dry_run": True} | plans.plan_json(plan))
        return
    for line in (*plans.plan_lines(plan), plans.summary(plan)):
        output.data(line)


def _tell(held: Bench, arguments: Arguments, plan: Plan, result: Result) -> None:
    stayed = [os.fsdecode(path) for path in result.stayed]
    if arguments.json:
        record = {"name": held.sandbox.name, "record": result.number, "dry_run": False, "stayed": stayed}
        output.document(record | plans.plan_json(plan))
        return
    output.note(f"committed {plans.summary(plan)}" if plan.items else "nothing was committed")
    if plan.drops or plan.trims or plan.marks or plan.left or plan.git:
        for line in plans.plan_lines(replace(plan, items=(), conflicts=())):
            output.note(line)
    for path in result.stayed:
        output.note(f"note: {quoted(path)} changed in the sandbox meanwhile; that stays there")
