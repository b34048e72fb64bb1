"""`sandboxfs undo`: take a commit or a discard back."""

import argparse
import os

from sandboxfs.changes.records import Record
from sandboxfs.changes.site import Result
from sandboxfs.changes.undo import UndoPlan, plan_undo, undo
from sandboxfs.cli import output, plans
from sandboxfs.cli.bench import Bench, bench
from sandboxfs.cli.confirming import check_can_ask, confirmed
from sandboxfs.cli.interrupts import Interrupts
from sandboxfs.cli.live import selected
from sandboxfs.cli.parser import Parser, add_sandbox_option, verb_parser
from sandboxfs.cli.progress import Progress
from sandboxfs.cli.record_list import listed, opened_records
from sandboxfs.cli.trouble import conflict_error, told
from sandboxfs.errors import CommitConflict, DaemonLost, NoSuchSandbox, SandboxBusy, UsageError

DESCRIPTION = """\
Take the last commit or discard back, or the one with the given number: the workspace gets
what it had, and the changes are in the sandbox again. What was changed since, in the
workspace or in the sandbox, is left alone and named."""

EXAMPLES = ["sandboxfs undo", "sandboxfs undo --list", "sandboxfs undo 3 --yes"]

EXIT_DECLINED = 1


class Arguments(argparse.Namespace):
    number: int | None
    sandbox: str | None
    list: bool
    dry_run: bool
    yes: bool
    json: bool


def parser() -> Parser:
    made = verb_parser(
        "undo",
        DESCRIPTION,
        EXAMPLES,
        [NoSuchSandbox, SandboxBusy, CommitConflict, DaemonLost],
        {EXIT_DECLINED: "not confirmed"},
    )
    add_sandbox_option(made)
    made.add_argument("number", nargs="?", type=int, metavar="ID", help="the commit or discard to take back")
    made.add_argument("--list", action="store_true", help="show what can be taken back")
    made.add_argument("--dry-run", action="store_true", help="show what would be done, and do nothing")
    made.add_argument("-y", "--yes", action="store_true", help="do not ask")
    return made


def run(words: list[str]) -> int:
    arguments = parser().parse_args(words, namespace=Arguments())
    store, sandbox = selected(arguments.sandbox)
    if arguments.list:
        with opened_records(store.places(sandbox.name)) as records:
            listed(sandbox.name, records, as_json=arguments.json)
        return 0
    if not arguments.dry_run:
        check_can_ask("undo", yes=arguments.yes, as_json=arguments.json)
    with bench(store, sandbox) as held, told("undo"), _record(held, arguments.number) as record:
        return _undo(held, arguments, plan_undo(held.site, record))


def _record(held: Bench, number: int | None) -> Record:
    """Open the record that is meant."""
    if number is None:
        number = next((record.number for record in held.site.records.each() if record.stands), None)
        if number is None:
            raise UsageError("there is no commit or discard to take back")
    record = held.site.records.open(number)
    if record is None:
        raise UsageError(f"there is no record {number}", hint="see 'sandboxfs undo --list'")
    if not record.stands:
        word = "was taken back already" if record.has("undone") else "cannot be taken back"
        record.close()
        raise UsageError(f"{record.about.kind} {number} {word}", hint="see 'sandboxfs undo --list'")
    return record


def _undo(held: Bench, arguments: Arguments, plan: UndoPlan) -> int:
    what = f"{plan.record.about.kind} {plan.record.number}"
    if arguments.dry_run:
        _show(held, arguments, plan)
    elif not plan.is_empty:
        if not arguments.yes:
            for line in _lines(plan, plans.MOST):
                output.note(line)
            if not confirmed(f"Take back {what}?"):
                output.note("nothing was changed")
                return EXIT_DECLINED
        with Progress("taking back") as progress, Interrupts() as interrupts:
            result = undo(held.site, plan, progress=progress, between=interrupts.hold)
        _tell(held, arguments, plan, result)
    if plan.left:
        hint = "everything else is taken back" if not plan.is_empty else "nothing was changed"
        raise conflict_error(f"take back {what} at", plan.left, hint if not arguments.dry_run else "")
    return 0


def _lines(plan: UndoPlan, most: int | None = None) -> list[str]:
    shown = [f"  {plans.name_of(path)}  ({kind})" for path, kind in plan.changes[:most]]
    if most is not None and len(plan.changes) > most:
        shown.append(f"  … and {len(plan.changes) - most:,} more; --dry-run shows all")
    return [*shown, plans.changes(len(plan.changes)) + " to take back"]


def _described(held: Bench, plan: UndoPlan, record: int | None) -> dict[str, object]:
    return {
        "name": held.sandbox.name,
        "record": record,
        "undone": plan.record.number,
        "kind": plan.record.about.kind,
        "changes": [{"path": os.fsdecode(path), "kind": kind} for path, kind in plan.changes],
        "left": [{"path": os.fsdecode(path), "why": why} for path, why in plan.left],
    }


def _show(held: Bench, arguments: Arguments, plan: UndoPlan) -> None:
    if arguments.json:
        output.document(_described(held, plan, None) | {"dry_run": True})
        return
    for line in _lines(plan):
        output.data(line)


def _tell(held: Bench, arguments: Arguments, plan: UndoPlan, result: Result) -> None:
    if arguments.json:
        output.document(_described(held, plan, result.number) | {"dry_run": False})
        return
    about = plan.record.about
    output.note(f"took back {about.kind} {plan.record.number}: {plans.changes(len(plan.changes))}")
