"""`sandboxfs disable`: enforce no rules, for this session."""

from sandboxfs.cli.parser import Parser
from sandboxfs.cli.switching import switch, switch_parser

DESCRIPTION = """\
Enforce no rule any more, in the running session and at once: nothing is refused or
hidden. What is written stays in the sandbox all the same."""

EXAMPLES = ["sandboxfs disable", "sandboxfs disable -s app --json"]


def parser() -> Parser:
    return switch_parser("disable", DESCRIPTION, EXAMPLES)


def run(words: list[str]) -> int:
    return switch(parser(), words, "disable")
