"""`sandboxfs discard`: drop changes of a sandbox; the view shows the workspace again."""

import argparse
import os
from collections.abc import Mapping

from sandboxfs.changes.contents import change_flags
from sandboxfs.changes.discard import DiscardPlan, discard, plan_discard
from sandboxfs.changes.files import FileChange
from sandboxfs.changes.layers import Layers
from sandboxfs.changes.scan import survey
from sandboxfs.changes.selection import within
from sandboxfs.changes.site import Result
from sandboxfs.cli import output, plans
from sandboxfs.cli.bench import Bench, bench
from sandboxfs.cli.by_hunk import ask_by_hunk
from sandboxfs.cli.confirming import check_can_ask, confirmed
from sandboxfs.cli.interrupts import Interrupts
from sandboxfs.cli.live import selected
from sandboxfs.cli.parser import Parser, add_sandbox_option, verb_parser
from sandboxfs.cli.places import place_in
from sandboxfs.cli.touching import check_touched
from sandboxfs.cli.trouble import told
from sandboxfs.errors import DaemonLost, NoSuchSandbox, SandboxBusy, UsageError
from sandboxfs.paths import quoted

DESCRIPTION = """\
Drop what the sandbox changed at and below the given paths, with what cannot be without
it. The view shows the workspace again at once, also to programs that have files open; the
workspace is not touched. 'sandboxfs undo' brings it back."""

EXAMPLES = [
    "sandboxfs discard src/a.py",
    "sandboxfs discard --all --yes",
    "sandboxfs discard --dry-run build",
    "sandboxfs discard -p --all",
]

EXIT_DECLINED = 1


class Arguments(argparse.Namespace):
    paths: list[str]
    sandbox: str | None
    all: bool
    patch: bool
    message: str | None
    dry_run: bool
    yes: bool
    json: bool


def parser() -> Parser:
    made = verb_parser(
        "discard",
        DESCRIPTION,
        EXAMPLES,
        [NoSuchSandbox, SandboxBusy, DaemonLost],
        {EXIT_DECLINED: "not confirmed"},
    )
    add_sandbox_option(made)
    made.add_argument("paths", nargs="*", metavar="PATH", help="what is at or below these paths")
    made.add_argument("--all", action="store_true", help="everything")
    made.add_argument(
        "-p", "--patch", action="store_true", help="ask about every hunk, with the keys of 'git add -p'"
    )
    made.add_argument("-m", "--message", metavar="TEXT", help="kept with the record, shown by 'undo --list'")
    made.add_argument("--dry-run", action="store_true", help="show what would be dropped, and do nothing")
    made.add_argument("-y", "--yes", action="store_true", help="do not ask")
    return made


def run(words: list[str]) -> int:
    arguments = parser().parse_args(words, namespace=Arguments())
    if arguments.patch and arguments.json:
        raise UsageError("-p does not go with --json: it asks a person")
    if (arguments.all and arguments.paths) or not (arguments.all or arguments.paths or arguments.patch):
        raise UsageError("name paths, or --all", hint="see 'sandboxfs discard --help'")
    if not arguments.dry_run and not arguments.patch:
        check_can_ask("discard", yes=arguments.yes, as_json=arguments.json)
    store, sandbox = selected(arguments.sandbox)
    paths = {os.fsencode(place_in(sandbox.record, path)): path for path in arguments.paths}
    with bench(store, sandbox) as held, told("discard"), held.layers() as layers:
        return _discard(held, arguments, _planned(held, layers, paths, by_hunk=arguments.patch))


def _planned(held: Bench, layers: Layers, paths: Mapping[bytes, str], *, by_hunk: bool) -> DiscardPlan:
    found = survey(layers)
    check_touched(paths, found.findings)
    choose = None
    if by_hunk:
        asked = [finding for finding in found.findings if within(finding, list(paths))]
        choose = ask_by_hunk("discard", asked, lambda one: change_flags(FileChange.of(one), None, held.root))
    return plan_discard(found, list(paths), choose)


def _discard(held: Bench, arguments: Arguments, plan: DiscardPlan) -> int:
    if arguments.dry_run:
        _show(held, arguments, plan)
        return 0
    if plan.is_empty:
        _tell(held, arguments, plan, None)
        return 0
    if not (arguments.yes or arguments.patch):
        for line in (*plans.lines(plan.all, {}, plans.MOST), plans.counted(plan.all)):
            output.note(line)
        if not confirmed("Discard?"):
            output.note("nothing was changed")
            return EXIT_DECLINED
    with Interrupts() as interrupts:
        interrupts.hold()
        result = discard(held.site, plan, message=arguments.message)
    _tell(held, arguments, plan, result)
    return 0


def _described(held: Bench, plan: DiscardPlan, record: int | None) -> dict[str, object]:
    return {
        "name": held.sandbox.name,
        "record": record,
        "changes": [plans.described(finding, {}) for finding in plan.all],
        "counts": plans.counts_json(plan.all),
    }


def _show(held: Bench, arguments: Arguments, plan: DiscardPlan) -> None:
    if arguments.json:
        output.document(_described(held, plan, None) | {"dry_run": True})
        return
    for line in (*plans.lines(plan.all, {}), plans.counted(plan.all)):
        output.data(line)


def _tell(held: Bench, arguments: Arguments, plan: DiscardPlan, result: Result | None) -> None:
    stayed = () if result is None else result.stayed
    if arguments.json:
        more = {"dry_run": False, "stayed": [os.fsdecode(path) for path in stayed]}
        output.document(_described(held, plan, None if result is None else result.number) | more)
        return
    output.note("nothing to discard" if result is None else f"discarded {plans.counted(plan.all)}")
    for path in stayed:
        output.note(f"note: {quoted(path)} changed meanwhile, and stays")
