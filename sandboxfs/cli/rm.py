"""`sandboxfs rm` and `sandboxfs prune`: remove sandboxes by name, or those that hold nothing."""

import argparse
from collections.abc import Sequence

from sandboxfs.cli import output
from sandboxfs.cli.parser import Parser, verb_parser
from sandboxfs.cli.terminal import TerminalEvents, caller_context
from sandboxfs.errors import NoSuchSandbox, SandboxBusy
from sandboxfs.paths import quoted
from sandboxfs.service.remove import RemovedSandbox, remove_empty_sandboxes, remove_sandboxes

DESCRIPTION = """\
Remove sandboxes with everything in them. A mounted sandbox is refused; one that holds
changes, or whose record cannot be read, is removed only with --force. The workspace is
not touched, except to finish or take back a commit that was interrupted; a sandbox for
which that fails stays."""

EXAMPLES = ["sandboxfs rm app", "sandboxfs rm --force app trial"]

PRUNE_DESCRIPTION = """\
Remove the sandboxes that are empty: no changes, nothing to undo, a home in which no
program has left anything, and nobody uses them. Their companions go with them where those
are empty, too. A sandbox with something in it stays; 'sandboxfs rm' removes that."""

PRUNE_EXAMPLES = ["sandboxfs prune --dry-run", "sandboxfs prune"]


class Arguments(argparse.Namespace):
    names: list[str]
    force: bool
    dry_run: bool
    json: bool


def parser(verb: str = "rm") -> Parser:
    if verb == "prune":
        made = verb_parser(verb, PRUNE_DESCRIPTION, PRUNE_EXAMPLES, [])
        made.add_argument("--dry-run", action="store_true", help="only say what would go")
        return made
    made = verb_parser(verb, DESCRIPTION, EXAMPLES, [NoSuchSandbox, SandboxBusy])
    made.add_argument("names", nargs="+", metavar="NAME", help="a sandbox to remove")
    made.add_argument("--force", action="store_true", help="remove it even if it holds changes")
    return made


def run(words: list[str], verb: str = "rm") -> int:
    arguments = parser(verb).parse_args(words, namespace=Arguments())
    return _prune(arguments) if verb == "prune" else _remove(arguments)


def _remove(arguments: Arguments) -> int:
    def tell(gone: RemovedSandbox) -> None:
        if not arguments.json:
            output.note(f"removed {_named(gone)}")

    here = caller_context(as_json=arguments.json)
    gone = remove_sandboxes(arguments.names, here, TerminalEvents(), tell, force=arguments.force)
    if arguments.json:
        output.document(_described(gone))
    return 0


def _named(gone: RemovedSandbox) -> str:
    if gone.workspace is None:
        return f"sandbox '{gone.name}', whose record could not be read"
    return f"sandbox '{gone.name}' of {quoted(gone.workspace)}"


def _described(gone: Sequence[RemovedSandbox]) -> dict[str, object]:
    return {"removed": [one.name for one in gone], "sandboxes": [one.as_json() for one in gone]}


def _prune(arguments: Arguments) -> int:
    found = remove_empty_sandboxes(caller_context(as_json=arguments.json), dry_run=arguments.dry_run)
    if arguments.json:
        output.document({"dry_run": arguments.dry_run} | _described(found.removed) | {"kept": found.kept})
        return 0
    would = "would remove" if arguments.dry_run else "removed"
    for gone in found.removed:
        output.data(f"{would} {_named(gone)}")
    if not found.removed:
        output.note("no sandbox is empty" if found.kept else "no sandboxes")
    return 0
