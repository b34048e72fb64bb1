"""`sandboxfs export` and `import`: changes of a sandbox in one file, and a sandbox made of that elsewhere."""

import argparse
import sys

from sandboxfs.cli import output
from sandboxfs.cli.parser import Parser, add_sandbox_option, verb_parser
from sandboxfs.cli.terminal import TerminalEvents, caller_context
from sandboxfs.errors import MountFailed, NoSuchSandbox, SandboxBusy, UsageError
from sandboxfs.paths import counted, quoted
from sandboxfs.service.export import ExportRequest, ExportResult, export
from sandboxfs.service.import_archive import ImportRequest, ImportResult, import_archive

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

IMPORT_DESCRIPTION = """\
Make a new sandbox of an archive that 'sandboxfs export' wrote, over a copy of the
workspace. Neither the workspace nor any other sandbox is touched; look at the changes
with 'sandboxfs diff', then commit or discard them. Where the copy differs from what the
changes were based on, that is a conflict.

WORKSPACE is by default where the archive says it was. The name of the new sandbox is
printed."""

IMPORT_EXAMPLES = [
    "sandboxfs import changes.tgz",
    "sandboxfs import changes.tgz ~/projects/app --name review",
    'sandboxfs diff -s "$(sandboxfs import changes.tgz)"',
]


class _ExportArguments(argparse.Namespace):
    file: str
    sandbox: str | None
    force: bool
    allow_changing: bool
    json: bool


class _ImportArguments(argparse.Namespace):
    file: str
    workspace: str | None
    name: str | None
    max_size: str | None
    json: bool


def parser(verb: str = "export") -> Parser:
    return _import_parser() if verb == "import" else _export_parser()


def _export_parser() -> Parser:
    made = verb_parser("export", DESCRIPTION, EXAMPLES, [NoSuchSandbox, SandboxBusy])
    made.add_argument("file", metavar="FILE", help="the archive to write; '-': stdout")
    add_sandbox_option(made)
    made.add_argument("--force", action="store_true", help="replace FILE if it exists")
    made.add_argument(
        "--allow-changing", action="store_true", help="take files that never stand still as they happen to be"
    )
    return made


def _import_parser() -> Parser:
    made = verb_parser("import", IMPORT_DESCRIPTION, IMPORT_EXAMPLES, [SandboxBusy, MountFailed])
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


def run(words: list[str], verb: str = "export") -> int:
    return _import(words) if verb == "import" else _export(words)


def _export(words: list[str]) -> int:
    arguments = parser().parse_args(words, namespace=_ExportArguments())
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
    _show_export(result, as_json=arguments.json)
    return 0


def _check_stdout(*, as_json: bool) -> None:
    if as_json:
        raise UsageError("the archive and --json cannot both go to stdout")
    if sys.stdout.isatty():
        raise UsageError("the archive would go to the terminal", hint="name a file, or use a pipe")


def _show_export(result: ExportResult, *, as_json: bool) -> None:
    if as_json:
        output.document(result.as_json())
        return
    output.warnings(f"{quoted(path)} is a device and is left out" for path in result.devices)
    place = "stdout" if result.file is None else quoted(result.file)
    output.note(
        f"exported sandbox '{result.name}' to {place}: {counted(result.files, 'file')} and "
        f"{counted(result.entries - result.files, 'other entry')}, {output.human_size(result.written)}"
    )


# Importing


def _import(words: list[str]) -> int:
    arguments = parser("import").parse_args(words, namespace=_ImportArguments())
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
    _show_import(result, as_json=arguments.json)
    return 0


def _show_import(result: ImportResult, *, as_json: bool) -> None:
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
