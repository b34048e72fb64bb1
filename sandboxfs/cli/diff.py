"""`sandboxfs diff`: what the sandbox changed, as a patch, a summary or JSON."""

import argparse
import json
import stat
import sys
from collections.abc import Iterable
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import IO

from sandboxfs.cli import output
from sandboxfs.cli.output import Painter, paged, wants_colour
from sandboxfs.cli.parser import Parser, add_sandbox_option, add_scope_options, verb_parser
from sandboxfs.cli.terminal import TerminalEvents, caller_context
from sandboxfs.cli.text import (
    attribute_words,
    last_line,
    paths_of,
    shown,
    tell,
    tell_conflicts,
    tell_folded,
    tell_held,
    type_word,
)
from sandboxfs.codec import document, lossless
from sandboxfs.errors import NoSuchSandbox, SandboxBusy
from sandboxfs.paths import counted
from sandboxfs.review.change import ChangeKind, PathChange, Version
from sandboxfs.review.flags import Flag
from sandboxfs.review.patch import StatRow, format_stat, quote_name, stat_row
from sandboxfs.review.scope import Reason
from sandboxfs.review.summary import FoldedDirectory
from sandboxfs.service.review import (
    IN_PATCHES,
    PatchPiece,
    Review,
    ReviewPatch,
    ReviewRequest,
    Uncarried,
    review,
    revision_of,
)

DESCRIPTION = """\
Show what the sandbox changed, compared with the workspace as the sandbox found it: as a
patch that 'git apply' and 'patch -p1' take, or in short. Works mounted or not, and while
programs are writing. Conflicts, where the workspace has changed as well, and what should
be looked at twice are told with it. What 'commit' leaves out is folded: added files that
are ignored, and .git."""

EXAMPLES = [
    "sandboxfs diff",
    "sandboxfs diff --stat src",
    "sandboxfs diff --binary > changes.patch",
    "sandboxfs diff -s app --json",
    "sandboxfs diff --revision",
]

EXIT_CHANGES = 1


class Arguments(argparse.Namespace):
    paths: list[str]
    sandbox: str | None
    stat: bool
    name_status: bool
    revision: bool
    exit_code: bool
    since_commit: bool
    context: int
    no_renames: bool
    binary: bool
    ignored: bool
    include_git: bool
    color: str
    no_pager: bool
    json: bool


def parser() -> Parser:
    made = verb_parser(
        "diff",
        DESCRIPTION,
        EXAMPLES,
        [NoSuchSandbox, SandboxBusy],
        {EXIT_CHANGES: "--exit-code found changes"},
    )
    add_sandbox_option(made)
    made.add_argument("paths", nargs="*", metavar="PATH", help="only what is at or below these paths")
    form = made.add_mutually_exclusive_group()
    form.add_argument("--stat", action="store_true", help="one line for each change, with how much changed")
    form.add_argument("--name-status", action="store_true", help="one line for each change, with its kind")
    form.add_argument(
        "--revision", action="store_true", help="one value for all of it, which 'commit --if-match' takes"
    )
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
    add_scope_options(made, "show")
    made.add_argument("--color", choices=["auto", "always", "never"], default="auto", help="default: auto")
    made.add_argument("--no-pager", action="store_true", help="do not page on a terminal")
    return made


def _context(text: str) -> int:
    if not text.isascii() or not text.isdecimal():
        raise argparse.ArgumentTypeError(f"not a number of lines: '{text}'")
    return int(text)


def run(words: list[str]) -> int:
    arguments = parser().parse_args(words, namespace=Arguments())
    request = ReviewRequest(
        arguments.sandbox,
        tuple(arguments.paths),
        ignored=arguments.ignored,
        include_git=arguments.include_git,
        renames=not arguments.no_renames,
        since_commit=arguments.since_commit,
        revision=arguments.json,
    )
    caller = caller_context(as_json=arguments.json)
    with TerminalEvents() as events:
        if arguments.revision:
            output.data(revision_of(request, caller, events))
            return 0
        with review(request, caller, events) as found:
            _show(found, arguments)
    return EXIT_CHANGES if found.findings and arguments.exit_code else 0


def _show(review: Review, arguments: Arguments) -> None:
    """Write the review in the form that was asked for."""
    if arguments.json:
        write_json(review, arguments.context)
        return
    terminal = sys.stdout.isatty()
    painter = Painter(colour=wants_colour(arguments.color, terminal=terminal), terminal=terminal)
    pager = paged(wanted=bool(review.findings or review.folded) and not arguments.no_pager)
    if arguments.stat or arguments.name_status:
        write = write_stat if arguments.stat else write_names
        write(review, painter, pager)
    else:
        write_patch(review, painter, pager, arguments.context, binary=arguments.binary)


def write_json(review: Review, context: int) -> None:
    """Write the whole review to stdout; no more than one file is in memory at a time."""
    write = sys.stdout.write
    head = document({"name": review.name, "revision": review.revision})
    write(head.removesuffix("\n}") + ',\n  "changes": [')
    separator = "\n    "
    for described in review.each_as_json(context):
        write(separator + json.dumps(lossless(described)))
        separator = ",\n    "
    rest = json.dumps(lossless(review.rest_as_json()), indent=2).removeprefix("{")
    write(("]," if separator.startswith("\n") else "\n  ],") + rest + "\n")
    sys.stdout.flush()


# As a patch: each piece is painted and written before the next is made


def write_patch(
    review: Review,
    painter: Painter,
    place: AbstractContextManager[IO[bytes]],
    context: int,
    *,
    binary: bool,
) -> None:
    """Write the patch to *place* and everything beside it to stderr."""
    tell_conflicts(review.findings)
    tell_held(review.selection.held_back)
    patch = ReviewPatch(review, context, with_binary=binary)
    flags: list[str] = []
    problems: list[str] = []
    begun = False
    with place as stream:
        for piece in patch:
            if piece.data:
                stream.write(painter.patch(piece.data))
                if not begun:
                    stream.flush()
                begun = True
            flags += _flags(piece)
            problems += _problems(piece)
        stream.write(last_line(_unsaid(patch.uncarried()), "this patch"))
    # All of them: what is marked is never passed over.
    for line in flags:
        output.note(line)
    tell(problems)
    _tell_tools(patch)
    tell_folded(review.folded)


def _flags(piece: PatchPiece) -> list[str]:
    if not piece.flags:
        return []
    return [f"look at: {shown(piece.path)}: {', '.join(flag.value for flag in piece.flags)}"]


def _problems(piece: PatchPiece) -> list[str]:
    changing = [f"note: {shown(piece.path)} is still changing"] if piece.changing else []
    if piece.problem is None:
        return changing
    return [*changing, f"note: {shown(piece.path)}: {piece.problem}; the patch cannot carry it"]


def _tell_tools(patch: ReviewPatch) -> None:
    """Say which tools do not take the patch as it is, and what would have them do so."""
    named = patch.binary
    if named:
        some = ", ".join(map(shown, named[:3])) + (", …" if len(named) > 3 else "")
        count, them = counted(len(named), "binary file"), "it" if len(named) == 1 else "them"
        output.note(f"note: {count} that the patch does not carry: {some}; --binary writes {them}")
    if patch.in_git:
        output.note("note: 'git apply' refuses a patch of files in .git, 'patch -p1' takes it")


def _attributes(finding: PathChange) -> list[str]:
    """Say what changed around the content of a file, but for the mode where the patch has that."""
    words = attribute_words(finding.kind, finding.old, finding.new)
    modes = 0 if finding.old is None or finding.new is None else finding.old.mode ^ finding.new.mode
    return words[1:] if modes and not modes & ~IN_PATCHES else words


def _unsaid(uncarried: Uncarried) -> list[str]:
    """Name what the patch does not carry."""
    dressed = [
        f"{shown(finding.path)} ({', '.join(words)})"
        for finding in uncarried.attributes
        if (words := _attributes(finding))
    ]
    return [
        *paths_of(uncarried.unsaid),
        *paths_of(uncarried.only_named),
        *dressed,
        *(f"{shown(path)} (comes along)" for path in uncarried.repositories),
        *paths_of(uncarried.unshown),
    ]


# In short: one line for each change, renamed directory, or directory put aside

_LETTERS = {ChangeKind.MODE: "M"}


def write_stat(review: Review, painter: Painter, place: AbstractContextManager[IO[bytes]]) -> None:
    """Write how much each path changed."""
    remarks: list[str] = []
    rows = [_row(review, change, remarks) for change in review.changes()]
    rows += [_folded_row(line) for line in review.folded]
    tell_conflicts(review.findings)
    tell_held(review.selection.held_back)
    tell(remarks)
    # Imported here: no other form needs it.
    from shutil import get_terminal_size

    width = get_terminal_size().columns if painter.terminal else 80
    _write(place, review, (painter.stat(line) for line in format_stat(rows, width)))


def write_names(review: Review, _painter: Painter, place: AbstractContextManager[IO[bytes]]) -> None:
    """Write what kind of change each path has."""
    tell_conflicts(review.findings)
    tell_held(review.selection.held_back)
    lines = [_named(review, change) for change in review.changes()]
    lines += [f"!\t{_folded_name(line)}\t[{_folded_words(line)}]" for line in review.folded]
    _write(place, review, lines)


def _write(place: AbstractContextManager[IO[bytes]], review: Review, lines: Iterable[str]) -> None:
    with place as stream:
        for line in lines:
            stream.write(line.encode(errors="surrogateescape") + b"\n")
        stream.write(last_line(paths_of(review.unshown), "this list"))
    tell_folded(review.folded)


# Rows


def _row(review: Review, change: PathChange, remarks: list[str]) -> StatRow:
    if change.is_dir:
        return _directory_row(review, change)
    loaded = review.load(change)
    mark = _mark(review, change, review.flags(change, loaded))
    if loaded.changing or change.changing:
        remarks.append(f"note: {shown(change.path)} is still changing")
    if loaded.problem is not None:
        remarks.append(f"note: {shown(change.path)}: {loaded.problem}")
        sizes = _size(change.old), _size(change.new)
        return StatRow(change.path, sizes=sizes, mark=mark)
    words = _words(change)
    row = stat_row(loaded)
    if words is None and not mark and (change.moved_from is None or change.kind is ChangeKind.RENAMED):
        return row
    return replace(
        row, words=words, mark=mark, old_path=change.moved_from if change.kind is ChangeKind.RENAMED else None
    )


def _directory_row(review: Review, change: PathChange) -> StatRow:
    old_path = None if change.moved_from is None else change.moved_from + b"/"
    words = {
        ChangeKind.ADDED: "new directory",
        ChangeKind.DELETED: "directory deleted",
        ChangeKind.TYPE: f"was a {type_word(change.old)}, is a directory",
    }.get(change.kind)
    if change.kind is ChangeKind.RENAMED:
        words = f"directory renamed, {counted(review.files_below(change.path), 'file')}"
    elif words is None:
        words = "directory, " + _mode_words(change)
    mark = _mark(review, change, review.flags(change))
    return StatRow(change.path + b"/", old_path=old_path, words=words, mark=mark, files=0)


def _words(change: PathChange) -> str | None:
    """What there is to say of something that has no lines."""
    if change.kind is ChangeKind.MODE:
        return _mode_words(change)
    side = change.new or change.old
    if side is None:
        return "not known to the sandbox"
    if change.kind is ChangeKind.TYPE and change.old is not None and change.old.is_dir:
        return f"was a directory, is a {type_word(change.new)}"
    if stat.S_ISREG(side.mode) or stat.S_ISLNK(side.mode):
        return None
    return f"{type_word(side)} {change.kind.value}"


def _mode_words(change: PathChange) -> str:
    return ", ".join(attribute_words(change.kind, change.old, change.new))


def _size(side: Version | None) -> int:
    return 0 if side is None else side.size


def _folded_row(line: FoldedDirectory) -> StatRow:
    return StatRow(_folded_path(line), words=_folded_words(line), files=0)


# Names


def _named(review: Review, change: PathChange) -> str:
    end = "/" if change.is_dir else ""
    # The top of the view has no name.
    name = quote_name(change.path or b".").decode() + end
    if change.kind is ChangeKind.RENAMED and change.moved_from is not None:
        name = f"{quote_name(change.moved_from).decode()}{end}\t{name}"
    marks = _mark(review, change, review.flags(change))
    marks = ", ".join(filter(None, [_mode_words(change), marks]))
    letter = _LETTERS.get(change.kind, change.kind.value[0].upper())
    return f"{letter}\t{name}" + (f"\t[{marks}]" if marks else "")


def _mark(review: Review, change: PathChange, flags: list[Flag]) -> str:
    conflict = ["conflict"] if change.conflict is not None else []
    held = ["held"] if review.held(change) is not None else []
    return ", ".join([*conflict, *held, *(flag.value for flag in flags)])


def _folded_path(line: FoldedDirectory) -> bytes:
    return line.directory + b"/" if line.directory else b"./"


def _folded_name(line: FoldedDirectory) -> str:
    return quote_name(_folded_path(line)).decode()


def _folded_words(line: FoldedDirectory) -> str:
    words = [counted(line.changes, "change" if line.reason == Reason.GIT else "ignored change")]
    if line.conflicts:
        words.append(counted(line.conflicts, "conflict"))
    return ", ".join([*words, *(f"{count:,} {flag.value}" for flag, count in sorted(line.flags.items()))])
