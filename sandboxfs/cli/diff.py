"""`sandboxfs diff`: what did the sandbox change, as a patch, a summary or JSON?"""

import argparse
import os
import sys

from sandboxfs.changes.scan import survey
from sandboxfs.changes.summary import Aside
from sandboxfs.cli import output
from sandboxfs.cli.paging import paged
from sandboxfs.cli.painting import Painter, wants_colour
from sandboxfs.cli.parser import Parser, add_sandbox_option, verb_parser
from sandboxfs.cli.places import place_in
from sandboxfs.cli.record_list import unfinished_note
from sandboxfs.cli.reviewing import Review, last_commit, reviewed
from sandboxfs.cli.touching import untouched
from sandboxfs.control.sandboxes import select
from sandboxfs.errors import NoSuchSandbox
from sandboxfs.state.locations import Locations
from sandboxfs.state.store import Store

DESCRIPTION = """\
Show what the sandbox changed, compared with the workspace as the sandbox found it: as a
patch that 'git apply' and 'patch -p1' take, or in short. Works mounted or not, and while
programs are writing. Conflicts, where the workspace has changed as well, and what should
be looked at twice are told with it. Changes of ignored files are folded."""

EXAMPLES = [
    "sandboxfs diff",
    "sandboxfs diff --stat src",
    "sandboxfs diff --binary > changes.patch",
    "sandboxfs diff -s app --json",
]

EXIT_CHANGES = 1


class Arguments(argparse.Namespace):
    paths: list[str]
    sandbox: str | None
    stat: bool
    name_status: bool
    exit_code: bool
    since_commit: bool
    context: int
    no_renames: bool
    binary: bool
    ignored: bool
    color: str
    no_pager: bool
    json: bool


def parser() -> Parser:
    made = verb_parser(
        "diff", DESCRIPTION, EXAMPLES, [NoSuchSandbox], {EXIT_CHANGES: "--exit-code found changes"}
    )
    add_sandbox_option(made)
    made.add_argument("paths", nargs="*", metavar="PATH", help="only what is at or below these paths")
    form = made.add_mutually_exclusive_group()
    form.add_argument("--stat", action="store_true", help="one line for each change, with how much changed")
    form.add_argument("--name-status", action="store_true", help="one line for each change, with its kind")
    made.add_argument("--exit-code", action="store_true", help="exit with 1 when there are changes")
    made.add_argument("--since-commit", action="store_true", help="only what changed after the last commit")
    made.add_argument(
        "-U",
        "--unified",
        dest="context",
        metavar="N",
        type=_context,
        default=3,
        help="show N common lines around each change; default: 3",
    )
    made.add_argument("--no-renames", action="store_true", help="show a rename as deletion and addition")
    made.add_argument("--binary", action="store_true", help="write binary files into the patch")
    made.add_argument("--ignored", action="store_true", help="show ignored files and .git like all others")
    made.add_argument("--color", choices=["auto", "always", "never"], default="auto", help="default: auto")
    made.add_argument("--no-pager", action="store_true", help="do not page on a terminal")
    return made


def _context(text: str) -> int:
    if not text.isascii() or not text.isdecimal():
        raise argparse.ArgumentTypeError(f"not a number of lines: '{text}'")
    return int(text)


def run(words: list[str]) -> int:
    arguments = parser().parse_args(words, namespace=Arguments())
    store = Store(Locations.from_environment())
    record = select(store, arguments.sandbox)
    paths = {os.fsencode(place_in(record, path)): path for path in arguments.paths}
    since = last_commit(store.places(record.name).commits) if arguments.since_commit else 0
    unfinished = unfinished_note(store.places(record.name))
    if unfinished is not None:
        output.note(f"note: {unfinished}")
    with reviewed(store, record) as layers:
        found = survey(layers, list(paths), renames=not arguments.no_renames)
        for complaint in untouched(paths, found.findings):
            output.note(f"note: {complaint}")
        review = Review(
            survey=found,
            findings=[finding for finding in found.findings if finding.changed_ns > since],
            aside=None if arguments.ignored else Aside(found.view),
            root=os.fsencode(record.workspace),
            renames=not arguments.no_renames,
        )
        _show(review, record.name, arguments)
    return EXIT_CHANGES if review.findings and arguments.exit_code else 0


def _show(review: Review, name: str, arguments: Arguments) -> None:
    """Write the review in the form that was asked for; only that one is imported."""
    if arguments.json:
        from sandboxfs.cli.diff_json import write_json

        write_json(review, name, arguments.context)
        return
    terminal = sys.stdout.isatty()
    painter = Painter(colour=wants_colour(arguments.color, terminal=terminal), terminal=terminal)
    pager = paged(wanted=bool(review.findings) and not arguments.no_pager)
    if arguments.stat or arguments.name_status:
        from sandboxfs.cli.diff_summary import write_names, write_stat

        write = write_stat if arguments.stat else write_names
        write(review, painter, pager)
    else:
        from sandboxfs.cli.diff_patch import write_patch

        write_patch(review, painter, pager, arguments.context, binary=arguments.binary)
