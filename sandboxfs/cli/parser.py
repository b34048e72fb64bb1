"""How does a command line become typed values, and what does its help say?

argparse, with three changes: a complaint is a `UsageError` like any other, options are never guessed from
abbreviations, and every verb's help ends with its examples and its exit status.
"""

import argparse
import os
from collections.abc import Mapping, Sequence
from typing import NoReturn

from sandboxfs.errors import EXIT_BUG, EXIT_INTERRUPTED, SandboxError, UsageError


def _formatter(prog: str) -> argparse.HelpFormatter:
    # argparse would import what it takes to find the width, at every start.
    try:
        width = int(os.environ.get("COLUMNS") or os.get_terminal_size(1).columns)
    except (OSError, ValueError):
        width = 80
    return argparse.RawDescriptionHelpFormatter(prog, width=(width or 80) - 2)


class Parser(argparse.ArgumentParser):
    """The parser of the whole command line or of one verb."""

    def __init__(self, program: str, description: str, epilog: str) -> None:
        super().__init__(
            prog=program,
            description=description,
            epilog=epilog,
            formatter_class=_formatter,
            allow_abbrev=False,
        )

    def error(self, message: str) -> NoReturn:
        raise UsageError(message, hint=f"see '{self.prog} --help'")


def verb_parser(
    verb: str,
    description: str,
    examples: Sequence[str],
    errors: Sequence[type[SandboxError]],
    endings: Mapping[int, str] | None = None,
    *,
    passes_status: bool = False,
) -> Parser:
    """Make the parser of *verb*, which may end with any of *errors* and with *endings* of its own.

    One that *passes_status* of another program on has no statuses of ours but those, and no `--json` either.
    """
    kinds: list[type[SandboxError]] = [] if passes_status else [UsageError, *errors]
    statuses = {0: "done", EXIT_INTERRUPTED: "interrupted"}
    statuses |= {} if passes_status else {EXIT_BUG: "a bug in sandboxfs"}
    statuses |= {kind.exit_code: kind.meaning for kind in kinds}
    statuses |= endings or {}
    lines = ["examples:", *(f"  {example}" for example in examples), "", "exit status:"]
    lines += [f"  {code:3}  {meaning}" for code, meaning in sorted(statuses.items())]
    parser = Parser(f"sandboxfs {verb}", description, "\n".join(lines))
    if not passes_status:
        parser.add_argument("--json", action="store_true", help="write the result, and any error, as JSON")
    return parser


def add_sandbox_option(parser: Parser) -> None:
    parser.add_argument(
        "-s",
        "--sandbox",
        metavar="NAME",
        help="the sandbox meant; default: $SANDBOXFS_SANDBOX, else the one whose workspace or mountpoint "
        "holds the current directory, else the only one",
    )
