"""`sandboxfs discard`: drop changes of a sandbox; the view shows the workspace again."""

import argparse
from collections.abc import Iterable

from sandboxfs.cli import output, text
from sandboxfs.cli.parser import Parser, add_sandbox_option, verb_parser
from sandboxfs.cli.terminal import PreviewEvents, ask_hunks, caller_context
from sandboxfs.errors import DaemonLost, NoSuchSandbox, SandboxBusy, UsageError
from sandboxfs.paths import quoted
from sandboxfs.service.discard import DiscardPrompt, DiscardRequest, DiscardResult, discard
from sandboxfs.service.events import Prompt

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
    request = DiscardRequest(
        arguments.sandbox,
        tuple(arguments.paths),
        by_hunk=arguments.patch,
        message=arguments.message,
        dry_run=arguments.dry_run,
        confirmed=arguments.yes,
    )
    caller = caller_context(as_json=arguments.json)
    with PreviewEvents("discard", _preview, as_json=arguments.json) as events:
        result = discard(request, caller, events, ask_hunks)
    _show(result, as_json=arguments.json)
    return EXIT_DECLINED if result.declined else 0


def _preview(prompt: Prompt) -> Iterable[str] | None:
    if not isinstance(prompt, DiscardPrompt) or prompt.preview is None:
        return None
    dropped = prompt.preview.changes
    return *text.lines(dropped, {}, text.MOST), text.counted_changes(dropped)


def _show(result: DiscardResult, *, as_json: bool) -> None:
    preview = result.preview
    if result.declined:
        output.note(f"nothing was changed: sandbox {output.named(preview)}")
    elif as_json:
        output.document(result.as_json())
    elif result.dry_run:
        for line in (*text.lines(preview.changes, {}), text.counted_changes(preview.changes, preview)):
            output.data(line)
    elif result.record is None:
        output.note(f"nothing to discard: sandbox {output.named(preview)}")
    else:
        output.note(f"discarded {text.counted_changes(preview.changes, preview)}")
        if result.disk_full:
            give_back = f"'sandboxfs gc -s {preview.name} --older-than 0s'"
            output.note(
                f"hint: the disk is still full: {give_back} gives back what was discarded, without undo"
            )
        for path in result.stayed:
            output.note(f"note: {quoted(path)} changed meanwhile, and stays")
