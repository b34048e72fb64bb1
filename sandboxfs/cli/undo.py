"""`sandboxfs undo`: take a commit or a discard back."""

import argparse
from collections.abc import Iterable

from sandboxfs.cli import output, text
from sandboxfs.cli.parser import Parser, add_sandbox_option, verb_parser
from sandboxfs.cli.terminal import PreviewEvents, TerminalEvents, caller_context
from sandboxfs.errors import CommitConflict, DaemonLost, NoSuchSandbox, SandboxBusy
from sandboxfs.paths import invisible_in, quoted
from sandboxfs.service.events import Prompt
from sandboxfs.service.records import RecordList, records
from sandboxfs.service.undo import UndoPreview, UndoPrompt, UndoRequest, UndoResult, undo

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
    caller = caller_context(as_json=arguments.json)
    if arguments.list:
        _show_records(records(arguments.sandbox, caller, TerminalEvents()), as_json=arguments.json)
        return 0
    request = UndoRequest(
        arguments.sandbox, arguments.number, dry_run=arguments.dry_run, confirmed=arguments.yes
    )
    with text.conflicts_told():
        with PreviewEvents("undo", _preview, as_json=arguments.json) as events:
            result = undo(request, caller, events)
        _show(result, as_json=arguments.json)
        result.check()
    return EXIT_DECLINED if result.declined else 0


def _preview(prompt: Prompt) -> Iterable[str] | None:
    return _lines(prompt.preview) if isinstance(prompt, UndoPrompt) and prompt.preview is not None else None


def _lines(preview: UndoPreview, *, whole: bool = False) -> list[str]:
    """What is taken back: the *whole* of it with its sandbox, else what fits before a question."""
    most = None if whole else text.MOST
    shown = [f"  {text.name_of(path)}  ({kind})" for path, kind in preview.changes[:most]]
    if most is not None and len(preview.changes) > most:
        shown.append(f"  … and {len(preview.changes) - most:,} more; --dry-run shows all")
    total = text.changes(len(preview.changes)) + " to take back"
    return [*shown, f"{total}, {_whose(preview)}" if whole else total]


def _whose(preview: UndoPreview) -> str:
    return f"{preview.kind} {preview.number} of sandbox {output.named(preview)}"


def _show(result: UndoResult, *, as_json: bool) -> None:
    preview = result.preview
    if result.declined:
        output.note(f"nothing was changed: sandbox {output.named(preview)}")
    elif result.record is None and not result.dry_run:
        # Nothing is left to be taken back; what was left alone is the error.
        return
    elif as_json:
        output.document(result.as_json())
    elif result.dry_run:
        for line in _lines(preview, whole=True):
            output.data(line)
    else:
        output.note(f"took back {_whose(preview)}: {text.changes(len(preview.changes))}")


def _show_records(found: RecordList, *, as_json: bool) -> None:
    """Show all records, newest first."""
    if as_json:
        output.document(found.as_json())
        return
    if not found.records:
        output.note("nothing was committed or discarded yet")
        return
    rows = [
        [
            str(record.number),
            record.kind,
            output.local_time(record.created),
            record.state,
            text.changes(record.count),
            _on_one_line(record.message or ""),
        ]
        for record in found.records
    ]
    output.table(["ID", "WHAT", "WHEN", "STATE", "CHANGES", "MESSAGE"], rows)


def _on_one_line(message: str) -> str:
    """Show *message* plainly where that is safe on a terminal, quoted where it is not."""
    return message if message.isprintable() and not invisible_in(message) else quoted(message)
