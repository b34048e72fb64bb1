"""`sandboxfs export`: one file that holds the changes of a sandbox, to be reviewed on another machine."""

import argparse
import sys

from sandboxfs.cli import output
from sandboxfs.cli.parser import Parser, add_sandbox_option, verb_parser
from sandboxfs.cli.terminal import TerminalEvents, caller_context
from sandboxfs.errors import NoSuchSandbox, SandboxBusy, UsageError
from sandboxfs.paths import counted, quoted
from sandboxfs.service.export import ExportRequest, ExportResult, export

DESCRIPTION = """\
Write everything that the sandbox changed, what it was based on, and the policy, into one
archive. 'sandboxfs import' makes a sandbox of it on any machine that has a copy of the
workspace; there it can be reviewed and committed. Mounted or not; nothing is changed.

FILE is a tar, gzipped if its name ends in .gz or .tgz; '-' is stdout. Only its owner can
read it."""

EXAMPLES = [
    "sandboxfs export changes.tgz",
    "sandboxfs export -s app - | ssh other sandboxfs import - ~/projects/app",
]


class Arguments(argparse.Namespace):
    file: str
    sandbox: str | None
    force: bool
    allow_changing: bool
    json: bool


def parser() -> Parser:
    made = verb_parser("export", DESCRIPTION, EXAMPLES, [NoSuchSandbox, SandboxBusy])
    made.add_argument("file", metavar="FILE", help="the archive to write; '-': stdout")
    add_sandbox_option(made)
    made.add_argument("--force", action="store_true", help="replace FILE if it exists")
    made.add_argument(
        "--allow-changing", action="store_true", help="take files that never stand still as they happen to be"
    )
    return made


def run(words: list[str]) -> int:
    arguments = parser().parse_args(words, namespace=Arguments())
    caller = caller_context(as_json=arguments.json)
    to_stdout = arguments.file == "-"
    if to_stdout:
        _check_stdout(as_json=arguments.json)
    request = ExportRequest(
        arguments.sandbox,
        file=None if to_stdout else arguments.file,
        stream=sys.stdout.fileno() if to_stdout else None,
        force=arguments.force,
        allow_changing=arguments.allow_changing,
    )
    with TerminalEvents() as events:
        result = export(request, caller, events)
    _show(result, as_json=arguments.json)
    return 0


def _check_stdout(*, as_json: bool) -> None:
    if as_json:
        raise UsageError("the archive and --json cannot both go to stdout")
    if sys.stdout.isatty():
        raise UsageError("the archive would go to the terminal", hint="name a file, or use a pipe")


def _show(result: ExportResult, *, as_json: bool) -> None:
    if as_json:
        output.document(result.as_json())
        return
    output.warnings(f"{quoted(path)} is a device and is left out" for path in result.devices)
    place = "stdout" if result.file is None else quoted(result.file)
    output.note(
        f"exported sandbox '{result.name}' to {place}: {counted(result.files, 'file')} and "
        f"{counted(result.entries - result.files, 'other entry')}, {output.human_size(result.written)}"
    )
