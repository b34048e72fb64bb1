"""`sandboxfs import`: a sandbox with the changes that another one was exported with."""

# ruff: noqa: N999 - called like its verb, as all of them; nobody but the dispatcher imports it.

import argparse
import sys

from sandboxfs.cli import output
from sandboxfs.cli.parser import Parser, verb_parser
from sandboxfs.cli.terminal import TerminalEvents, caller_context
from sandboxfs.errors import MountFailed, SandboxBusy, UsageError
from sandboxfs.paths import counted, quoted
from sandboxfs.service.import_archive import ImportRequest, ImportResult, import_archive

DESCRIPTION = """\
Make a new sandbox of an archive that 'sandboxfs export' wrote, over a copy of the
workspace. Neither the workspace nor any other sandbox is touched; look at the changes
with 'sandboxfs diff', then commit or discard them. Where the copy differs from what the
changes were based on, that is a conflict.

WORKSPACE is by default where the archive says it was. The name of the new sandbox is
printed."""

EXAMPLES = [
    "sandboxfs import changes.tgz",
    "sandboxfs import changes.tgz ~/projects/app --name review",
    'sandboxfs diff -s "$(sandboxfs import changes.tgz)"',
]


class Arguments(argparse.Namespace):
    file: str
    workspace: str | None
    name: str | None
    max_size: str | None
    json: bool


def parser() -> Parser:
    made = verb_parser("import", DESCRIPTION, EXAMPLES, [SandboxBusy, MountFailed])
    made.add_argument("file", metavar="FILE", help="the archive; '-': stdin")
    made.add_argument("workspace", nargs="?", metavar="WORKSPACE", help="the directory to review it against")
    made.add_argument(
        "--name", metavar="NAME", help="the new sandbox's name; default: like the exported one's"
    )
    made.add_argument(
        "--max-size",
        metavar="SIZE",
        help="how much it may unpack to, such as 500M or 20G; default: 8G, and a hundred times its size",
    )
    return made


def run(words: list[str]) -> int:
    arguments = parser().parse_args(words, namespace=Arguments())
    from_stdin = arguments.file == "-"
    if from_stdin and sys.stdin.isatty():
        raise UsageError("the archive would be read from the terminal", hint="name a file, or use a pipe")
    request = ImportRequest(
        file=None if from_stdin else arguments.file,
        stream=sys.stdin.fileno() if from_stdin else None,
        workspace=arguments.workspace,
        name=arguments.name,
        max_size=arguments.max_size,
    )
    caller = caller_context(as_json=arguments.json)
    with TerminalEvents() as events:
        result = import_archive(request, caller, events)
    _show(result, as_json=arguments.json)
    return 0


def _show(result: ImportResult, *, as_json: bool) -> None:
    if as_json:
        output.document(result.as_json())
        return
    if result.special:
        first, more = quoted(result.special[0]), len(result.special) - 1
        others = f" and {more} more" if more else ""
        output.warnings([f"{first}{others} would run with other rights: commit refuses that by default"])
    files = counted(result.files, "file")
    output.note(f"made sandbox '{result.name}' of {quoted(result.workspace)}, with {files}")
    output.note(f"hint: 'sandboxfs diff -s {result.name}' shows what it changed")
    output.data(result.name)
