"""`sandboxfs gc`: give back the space that finished commits and discards take."""

import argparse

from sandboxfs.cli import output
from sandboxfs.cli.parser import Parser, add_sandbox_option, verb_parser
from sandboxfs.cli.terminal import TerminalEvents, caller_context
from sandboxfs.errors import NoSuchSandbox, SandboxBusy
from sandboxfs.paths import quoted
from sandboxfs.service.records import Garbage, GarbageRequest, GarbageResult, collect_garbage

DESCRIPTION = """\
Remove the records of commits, discards and undos that are done and older than a given
time; they can no longer be undone then. A commit that was interrupted is finished or
taken back first; where that fails, its record stays. What was noted of the workspace
goes too, from sandboxes that hold no changes, have no records left and are not mounted.
Nothing else in a sandbox or a workspace is touched."""

EXAMPLES = ["sandboxfs gc", "sandboxfs gc --all --older-than 7d", "sandboxfs gc --dry-run --older-than 0s"]

DEFAULT_AGE = "24h"


class Arguments(argparse.Namespace):
    sandbox: str | None
    all: bool
    older_than: str
    dry_run: bool
    json: bool


def parser() -> Parser:
    made = verb_parser("gc", DESCRIPTION, EXAMPLES, [NoSuchSandbox, SandboxBusy])
    add_sandbox_option(made)
    made.add_argument("--all", action="store_true", help="all sandboxes")
    made.add_argument(
        "--older-than",
        metavar="TIME",
        default=DEFAULT_AGE,
        help=f"a length of time such as 30m, 24h or 7d, or a time; default: {DEFAULT_AGE}",
    )
    made.add_argument("--dry-run", action="store_true", help="only say what would go")
    return made


def run(words: list[str]) -> int:
    arguments = parser().parse_args(words, namespace=Arguments())
    request = GarbageRequest(arguments.sandbox, arguments.all, arguments.older_than, arguments.dry_run)
    caller = caller_context(as_json=arguments.json)
    with TerminalEvents() as events:
        result = collect_garbage(request, caller, events)
    _show(result, as_json=arguments.json)
    return 0


def _show(result: GarbageResult, *, as_json: bool) -> None:
    if as_json:
        output.document(result.as_json())
        return
    would = "would remove" if result.dry_run else "removed"
    for one in result.sandboxes:
        if one.old or one.baseline:
            output.data(f"sandbox {_named(one)}: {would} {_amount(one)}")
        for number in one.unfinished:
            output.note(f"note: record {number} of '{one.name}' is not finished and stays")
        output.warnings(f"{_named(one)}: {problem}" for problem in one.problems)
    output.warnings(result.skipped.values())
    if any(one.old for one in result.sandboxes):
        verb = "would be" if result.dry_run else "is"
        free = output.human_size(result.size)
        output.note(f"{free} {verb} free; undo of these records {verb} no longer possible")
    elif result.size == 0:
        # One sandbox that is meant is named, also when nothing is done in it.
        whose = f": sandbox {_named(result.sandboxes[0])}" if len(result.sandboxes) == 1 else ""
        output.note(f"nothing is old enough to go{whose}")


def _named(one: Garbage) -> str:
    return f"'{one.name}'" + ("" if one.workspace is None else f" of {quoted(one.workspace)}")


def _amount(one: Garbage) -> str:
    parts = []
    if one.old:
        numbers = ", ".join(f"{record.number} ({record.kind})" for record in one.old)
        parts.append(f"{'records' if len(one.old) > 1 else 'record'} {numbers}")
    if one.baseline:
        parts.append("notes of the workspace")
    return f"{' and '.join(parts)}, {output.human_size(one.size)}"
