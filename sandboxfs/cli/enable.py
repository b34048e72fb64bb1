"""`sandboxfs enable`: enforce the rules, for this session."""

from sandboxfs.cli.parser import Parser
from sandboxfs.cli.switching import switch, switch_parser

DESCRIPTION = """\
Enforce the rules again, in the running session and at once."""

EXAMPLES = ["sandboxfs enable", "sandboxfs enable -s app --json"]


def parser() -> Parser:
    return switch_parser("enable", DESCRIPTION, EXAMPLES)


def run(words: list[str]) -> int:
    return switch(parser(), words, "enable")
