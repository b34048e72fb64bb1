"""`sandboxfs approve` and `reject`: decide about changes that a rule holds."""

import argparse
from collections.abc import Iterable

from sandboxfs.cli import output, text
from sandboxfs.cli.parser import Parser, add_sandbox_option, verb_parser
from sandboxfs.cli.terminal import PreviewEvents, TerminalEvents, caller_context
from sandboxfs.errors import DaemonLost, NoSuchSandbox, SandboxBusy, UsageError
from sandboxfs.paths import counted, quoted
from sandboxfs.service.approve import HeldRequest, HeldResult, approve, held_changes, reject
from sandboxfs.service.discard import DiscardPrompt, DiscardResult
from sandboxfs.service.events import Prompt

DESCRIPTIONS = {
    "approve": """\
Let 'sandboxfs commit' take changes that a rule holds: those at and below the given paths,
those of one rule, or all. Without any of these, list what is held. An approval is good for
a change as it is now: when programs go on with it, it is held again.""",
    "reject": """\
Drop changes that a rule holds, with what cannot be without them: those at and below the
given paths, those of one rule, or all. The view shows the workspace again at once.
'sandboxfs undo' brings them back.""",
}

EXAMPLES = {
    "approve": [
        "sandboxfs approve",
        "sandboxfs approve migrations/0007.sql",
        "sandboxfs approve --rule 1",
        "sandboxfs approve --all",
    ],
    "reject": ["sandboxfs reject migrations", "sandboxfs reject --rule 1", "sandboxfs reject --all --yes"],
}

EXIT_DECLINED = 1


class Arguments(argparse.Namespace):
    paths: list[str]
    sandbox: str | None
    rule: int | None
    all: bool
    dry_run: bool
    yes: bool
    json: bool


def parser(verb: str) -> Parser:
    codes = {EXIT_DECLINED: "not confirmed"} if verb == "reject" else {}
    made = verb_parser(
        verb, DESCRIPTIONS[verb], EXAMPLES[verb], [NoSuchSandbox, SandboxBusy, DaemonLost], codes
    )
    add_sandbox_option(made)
    made.add_argument("paths", nargs="*", metavar="PATH", help="what is at or below these paths")
    made.add_argument(
        "--rule", type=int, metavar="N", help="what this rule holds, by its number in 'sandboxfs approve'"
    )
    made.add_argument("--all", action="store_true", help="everything that is held")
    if verb == "reject":
        made.add_argument("--dry-run", action="store_true", help="show what would be dropped, and do nothing")
        made.add_argument("-y", "--yes", action="store_true", help="do not ask")
    return made


def run(words: list[str], verb: str) -> int:
    arguments = parser(verb).parse_args(words, namespace=Arguments())
    if (bool(arguments.paths), arguments.rule is not None, arguments.all).count(True) > 1:
        raise UsageError("name paths, --rule or --all, not several of them")
    request = HeldRequest(arguments.sandbox, tuple(arguments.paths), arguments.rule, arguments.all)
    caller = caller_context(as_json=arguments.json)
    if verb == "reject":
        if request.is_open:
            raise UsageError("name paths, --rule or --all", hint="'sandboxfs approve' lists what is held")
        with PreviewEvents("reject", _preview, as_json=arguments.json) as events:
            dropped = reject(request, caller, events, confirmed=arguments.yes, dry_run=arguments.dry_run)
        return _show_dropped(dropped, as_json=arguments.json)
    with TerminalEvents() as events:
        found = (held_changes if request.is_open else approve)(request, caller, events)
    _show(found, listed=request.is_open, as_json=arguments.json)
    return 0


def _show(found: HeldResult, *, listed: bool, as_json: bool) -> None:
    if as_json:
        output.document(found.as_json())
        return
    if not listed:
        output.note(f"approved {counted(len(found.approved), 'change')} of sandbox {output.named(found)}")
        return
    if not found.held:
        output.note(f"nothing is held: sandbox {output.named(found)}")
    for one in found.held:
        output.data(f"held by rule {one.number}: {quoted(str(one.rule))} ({one.rule.source})")
        for line in text.lines(one.changes, {}):
            output.data(line)


def _show_dropped(result: DiscardResult, *, as_json: bool) -> int:
    preview = result.preview
    if result.declined:
        output.note(f"nothing was changed: sandbox {output.named(preview)}")
        return EXIT_DECLINED
    if as_json:
        output.document(result.as_json())
    elif result.dry_run:
        for line in (*text.lines(preview.changes, {}), text.counted_changes(preview.changes, preview)):
            output.data(line)
    elif result.record is None:
        output.note(f"nothing to reject: sandbox {output.named(preview)}")
    else:
        output.note(f"rejected {text.counted_changes(preview.changes, preview)}")
    return 0


def _preview(prompt: Prompt) -> Iterable[str] | None:
    if not isinstance(prompt, DiscardPrompt) or prompt.preview is None:
        return None
    return text.lines(prompt.preview.changes, {}, text.MOST)
