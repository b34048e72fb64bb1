"""`sandboxfs request`: asks, from inside a run, for a directory that is not there; a person decides."""

import argparse
import os

from sandboxfs.cli import output
from sandboxfs.cli.parser import Parser, verb_parser
from sandboxfs.errors import DaemonLost, SandboxBusy
from sandboxfs.paths import quoted
from sandboxfs.service.request import request_directory

DESCRIPTION = """\
Ask for a directory that a program in a run cannot see. A person outside is asked
('sandboxfs asks', 'sandboxfs answer'), with REASON. Once granted, the directory is there
at its own path, copy-on-write, as if it had been named with --allow when the run was
started. Waits for the answer; with --no-wait, the answer can be read from the file that
is named: opening it waits. For programs in a run; a person outside uses 'sandboxfs allow'."""

EXAMPLES = [
    "sandboxfs request ~/projects/lib ro --reason 'the tests import it'",
    "sandboxfs request /srv/data --no-wait --json",
]

EXIT_REFUSED = 1


class Arguments(argparse.Namespace):
    path: str
    mode: str
    reason: str | None
    no_wait: bool
    json: bool


def parser() -> Parser:
    made = verb_parser(
        "request",
        DESCRIPTION,
        EXAMPLES,
        [SandboxBusy, DaemonLost],
        {EXIT_REFUSED: "it was refused, or could not be shown"},
    )
    made.add_argument("path", metavar="PATH", help="a directory, by the path that it has outside")
    made.add_argument(
        "mode", nargs="?", default="rw", choices=("ro", "rw"), metavar="MODE", help="ro or rw; default: rw"
    )
    made.add_argument("--reason", metavar="TEXT", help="one line that is shown to the person")
    made.add_argument("--no-wait", action="store_true", help="do not wait for the answer")
    return made


def run(words: list[str]) -> int:
    arguments = parser().parse_args(words, namespace=Arguments())
    try:
        here: str | None = os.getcwd()  # noqa: PTH109
    except OSError:
        here = None
    found = request_directory(
        arguments.path, arguments.mode, arguments.reason, here, os.environ, wait=not arguments.no_wait
    )
    refused = not found.granted and not found.undecided
    if arguments.json:
        output.document(found.answer)
    elif found.granted:
        output.data(f"granted: {quoted(found.path)} ({found.mode})")
    elif found.undecided:
        output.data(f"request {found.number} waits for a person: {found.place}")
    else:
        why = "" if found.reason is None else f": {found.reason}"
        output.note(f"sandboxfs: refused ({found.state}){why}")
    return EXIT_REFUSED if refused else 0
