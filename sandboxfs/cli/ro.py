"""`sandboxfs ro`: let nothing be changed that no rule names, for this session."""

from sandboxfs.cli.parser import Parser
from sandboxfs.cli.switching import switch, switch_parser

DESCRIPTION = """\
Make read-only what no rule names, in the running session and at once: also for files
that are open already. Rules stay in force. The next mount starts from the files again."""

EXAMPLES = ["sandboxfs ro", "sandboxfs ro -s app --json"]


def parser() -> Parser:
    return switch_parser("ro", DESCRIPTION, EXAMPLES)


def run(words: list[str]) -> int:
    return switch(parser(), words, "ro")
