"""Command-line parsing: typed values, help that fits the terminal, options that verbs share.

Paragraphs are filled anew. A line that begins with spaces stands by itself, as does an entry of two columns,
whose continuation lines begin where its second column does.

argparse, with four changes: a complaint is a `UsageError` like any other, with the nearest option or word
that exists; options are never guessed from abbreviations; every verb's help ends with its examples and its
exit status; and no line of it is wider than the terminal.
"""

import argparse
import re
from collections.abc import Mapping, Sequence
from typing import NoReturn

from sandboxfs.cli.output import nearest, terminal_width
from sandboxfs.errors import EXIT_BUG, EXIT_INTERRUPTED, SandboxError, UsageError
from sandboxfs.policy.builtin import Preset
from sandboxfs.policy.config import AuditLevel, PolicyRequest, Symlinks

_ENTRY = re.compile(r"(\s*\S+\s{2,})\S")


def wrapped(text: str, width: int) -> str:
    """Return *text* with no line longer than *width*, as far as words allow."""
    return "\n\n".join(_paragraph(part.split("\n"), width) for part in text.split("\n\n"))


def _paragraph(lines: list[str], width: int) -> str:
    if not any(line.startswith(" ") for line in lines):
        return _filled(" ".join(lines), width)
    return "\n".join(_filled(line, width) for line in _entries(lines))


def _entries(lines: list[str]) -> list[str]:
    """Join the continuation lines of two-column entries with the line that begins the entry."""
    found: list[str] = []
    for line in lines:
        entry = _ENTRY.match(found[-1]) if found else None
        if entry is not None and line.startswith(" " * len(entry[1])):
            found[-1] += " " + line.strip()
        else:
            found.append(line)
    return found


def _filled(line: str, width: int) -> str:
    entry = _ENTRY.match(line)
    start = len(line) - len(line.lstrip())
    indent = " " * (len(entry[1]) if entry is not None else start + 4 if start else 0)
    # Imported here: help is seldom asked for.
    import textwrap

    return textwrap.fill(
        line,
        width,
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
        drop_whitespace=True,
    )


def _formatter(prog: str) -> argparse.HelpFormatter:
    # argparse would import what it takes to find the width, at every start.
    return argparse.RawDescriptionHelpFormatter(prog, width=terminal_width() - 2)


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

    def format_help(self) -> str:
        # Imported here: most commands show no help.
        width = terminal_width() - 2
        whole = self.description, self.epilog
        self.description, self.epilog = (wrapped(text or "", width) for text in whole)
        try:
            return super().format_help()
        finally:
            self.description, self.epilog = whole

    def has_option(self, word: str) -> bool:
        return word in self._option_string_actions

    def error(self, message: str) -> NoReturn:
        see = f"see '{self.prog} --help'"
        near = self._nearest(message)
        raise UsageError(message, hint=see if near is None else f"did you mean '{near}'? {see}")

    def _nearest(self, message: str) -> str | None:
        """Return the option or word that exists and looks most like the one that argparse complains about."""
        unknown = re.match(r"unrecognized arguments: (?:.* )?(--?[^ =]+)", message)
        if unknown is not None:
            return nearest(unknown[1], re.findall(r"(?<![\w-])--?[a-z][a-z-]*", super().format_help()))
        choice = re.search(r"invalid choice: '(.*?)' \(choose from (.*)\)", message)
        if choice is not None:
            return nearest(choice[1], [word.strip(" '") for word in choice[2].split(",")])
        return None


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
        "holds the current directory",
    )


def add_scope_options(parser: Parser, verb: str) -> None:
    """Offer the options that say what is meant besides what everybody means."""
    parser.add_argument("--ignored", action="store_true", help=f"{verb} added files that are ignored as well")
    parser.add_argument("--include-git", action="store_true", help=f"{verb} changes in .git as well")


class PolicyArguments(argparse.Namespace):
    mode: str | None
    preset: str | None
    rule: list[str]
    allow: list[str]
    config: str | None
    symlinks: str | None
    log_level: str | None
    ask_command: str | None
    ask_url: str | None
    replace_policy: bool


def add_policy_options(made: Parser, *, allow: str) -> None:
    """Add the options about policy; *allow* explains `--allow`."""
    policy = made.add_argument_group("policy")
    policy.add_argument(
        "--mode", choices=("ro", "rw"), help="what paths that no rule names may be used for; default: rw"
    )
    policy.add_argument(
        "--preset",
        choices=[one.value for one in Preset],
        metavar="NAME",
        help=f"a policy in one word: {', '.join(Preset)}; --mode overrides it",
    )
    policy.add_argument(
        "--rule",
        action="append",
        default=[],
        metavar="PATTERN=MODE",
        help="a rule: hide, deny, ro, ask, hold or rw; several are asked in the order given",
    )
    policy.add_argument(
        "--ask",
        action="append",
        dest="rule",
        default=[],
        type="{}=ask".format,
        metavar="PATTERN",
        help="short for --rule PATTERN=ask: a person is asked before anything there is read or executed",
    )
    policy.add_argument(
        "--ask-command",
        metavar="CMD",
        help="a command that is asked: it reads a question as JSON and writes the answer as JSON; no shell "
        "reads CMD",
    )
    policy.add_argument(
        "--ask-url", metavar="URL", help="a web address that is asked: a question is posted there as JSON"
    )
    policy.add_argument(
        "--hold",
        action="append",
        dest="rule",
        default=[],
        type="{}=hold".format,
        metavar="PATTERN",
        help="short for --rule PATTERN=hold: commit leaves changes there out until a person approves them",
    )
    policy.add_argument(
        "--allow",
        action="append",
        default=[],
        metavar="PATH[:MODE]",
        help=allow,
    )
    policy.add_argument("--config", metavar="FILE", help="read this file instead of the user's configuration")
    policy.add_argument(
        "--symlinks",
        choices=[one.value for one in Symlinks],
        help="what becomes of links that lead out of the view",
    )
    policy.add_argument(
        "--log-level",
        choices=[one.value for one in AuditLevel],
        help="what the audit log holds; default: writes",
    )
    policy.add_argument(
        "--replace-policy",
        action="store_true",
        help="forget the options about policy that the sandbox was made with",
    )


def policy_request(arguments: PolicyArguments, *, roots: bool = False) -> PolicyRequest:
    """Return what *arguments* say about policy; with *roots* places outside the workspace can be allowed."""
    return PolicyRequest(
        mode=arguments.mode,
        preset=arguments.preset,
        rules=tuple(arguments.rule),
        allows=tuple(arguments.allow),
        symlinks=arguments.symlinks,
        log_level=arguments.log_level,
        roots=roots,
        replace=arguments.replace_policy,
        ask_command=arguments.ask_command,
        ask_url=arguments.ask_url,
    )
