"""`sandboxfs commit`: apply changes of a sandbox to its workspace, all that were asked for or none."""

import argparse
from collections.abc import Iterable
from dataclasses import replace

from sandboxfs.cli import output, text
from sandboxfs.cli.parser import Parser, add_sandbox_option, add_scope_options, verb_parser
from sandboxfs.cli.terminal import PreviewEvents, ask_hunks, caller_context
from sandboxfs.errors import CommitConflict, DaemonLost, NoSuchSandbox, SandboxBusy, UsageError
from sandboxfs.paths import quoted
from sandboxfs.service.commit import ON_CONFLICT, CommitPrompt, CommitRequest, CommitResult, commit
from sandboxfs.service.events import Prompt

DESCRIPTION = """\
Apply what the sandbox changed to the workspace: all changes, or those at and below the
given paths with what they need. Either everything is applied or nothing; killed at any
moment, the next command finishes it or takes it back. What is applied leaves the sandbox,
and programs in the view notice nothing. Added files that are ignored, and .git, stay in
the sandbox unless an option or a path names them. Of what a rule holds, a person is asked
about each change; with --yes it stays. 'sandboxfs undo' takes a commit back."""

EXAMPLES = [
    "sandboxfs commit",
    "sandboxfs commit src docs/readme.md",
    "sandboxfs commit --dry-run --json",
    "sandboxfs commit --yes --on-conflict merge -m 'fix the parser'",
    "sandboxfs commit -p src",
    "sandboxfs commit --hunk 3f2a9c01 src/a.py",
    'sandboxfs commit --yes --if-match "$revision"',
]

EXIT_DECLINED = 1


class Arguments(argparse.Namespace):
    paths: list[str]
    sandbox: str | None
    on_conflict: str
    patch: bool
    hunk: list[str]
    all: bool
    if_match: str | None
    ignored: bool
    include_git: bool
    allow_special: bool
    approve: bool
    message: str | None
    dry_run: bool
    yes: bool
    json: bool


def parser() -> Parser:
    made = verb_parser(
        "commit",
        DESCRIPTION,
        EXAMPLES,
        [NoSuchSandbox, SandboxBusy, CommitConflict, DaemonLost],
        {EXIT_DECLINED: "not confirmed"},
    )
    add_sandbox_option(made)
    made.add_argument("paths", nargs="*", metavar="PATH", help="only what is at or below these paths")
    made.add_argument(
        "--on-conflict",
        choices=ON_CONFLICT,
        metavar="WORD",
        default=ON_CONFLICT[0],
        help="what to do where the workspace changed as well: apply nothing at all (fail, the default), "
        "merge texts, skip these changes, or let the sandbox's (ours) or the workspace's side (theirs) win",
    )
    made.add_argument(
        "-p", "--patch", action="store_true", help="ask about every hunk, with the keys of 'git add -p'"
    )
    made.add_argument(
        "--hunk", metavar="ID", action="append", default=[], help="only this hunk; may be repeated"
    )
    made.add_argument("--all", action="store_true", help="everything, also of a home, without one by one")
    add_scope_options(made, "apply")
    made.add_argument(
        "--if-match",
        metavar="REVISION",
        help="only if all is as it was when 'diff --revision' of the same paths gave REVISION",
    )
    made.add_argument(
        "--allow-special", action="store_true", help="apply device nodes, setuid and setgid bits, too"
    )
    made.add_argument("--approve", action="store_true", help="apply held changes, too")
    made.add_argument("-m", "--message", metavar="TEXT", help="kept with the record, shown by 'undo --list'")
    made.add_argument("--dry-run", action="store_true", help="show the plan, and do nothing")
    made.add_argument("-y", "--yes", action="store_true", help="do not ask")
    return made


def run(words: list[str]) -> int:
    arguments = parser().parse_args(words, namespace=Arguments())
    if arguments.patch and (arguments.hunk or arguments.json):
        raise UsageError("-p goes with neither --hunk nor --json: it asks a person")
    if arguments.all and arguments.paths:
        raise UsageError("name paths, or --all")
    request = CommitRequest(
        arguments.sandbox,
        tuple(arguments.paths),
        arguments.on_conflict,
        by_hunk=arguments.patch,
        hunks=tuple(arguments.hunk),
        everything=arguments.all,
        ignored=arguments.ignored,
        include_git=arguments.include_git,
        if_match=arguments.if_match,
        allow_special=arguments.allow_special,
        approve=arguments.approve,
        message=arguments.message,
        dry_run=arguments.dry_run,
        confirmed=arguments.yes,
    )
    caller = caller_context(as_json=arguments.json)
    with text.conflicts_told():
        with PreviewEvents("commit", _preview, as_json=arguments.json) as events:
            result = commit(request, caller, events, ask_hunks)
        _show(result, as_json=arguments.json)
        result.check()
    return EXIT_DECLINED if result.declined else 0


def _preview(prompt: Prompt) -> Iterable[str] | None:
    if not isinstance(prompt, CommitPrompt) or prompt.preview is None:
        return None
    return *text.plan_lines(prompt.preview, text.MOST), text.summary(prompt.preview)


def _show(result: CommitResult, *, as_json: bool) -> None:
    if result.declined:
        output.note(f"nothing was changed: sandbox {output.named(result.preview)}")
    elif as_json:
        output.document(result.as_json())
    elif result.dry_run:
        for line in (*text.plan_lines(result.preview), text.summary(result.preview, result.preview)):
            output.data(line)
    elif result.record is not None:
        _show_done(result)
    elif not result.preview.conflicts:
        output.note(f"nothing to commit: sandbox {output.named(result.preview)}")
        for line in text.plan_lines(result.preview):
            output.note(line)


def _show_done(result: CommitResult) -> None:
    preview = result.preview
    if preview.changes:
        output.note(f"committed {text.summary(preview, preview)}")
    else:
        output.note(f"nothing was committed: sandbox {output.named(preview)}")
    for line in text.besides(replace(preview, conflicts=())):
        output.note(line)
    for path in result.stayed:
        output.note(f"note: {quoted(path)} changed in the sandbox meanwhile; that stays there")
