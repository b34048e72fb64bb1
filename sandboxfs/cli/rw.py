"""`sandboxfs rw`: let everything be changed that no rule names, for this session."""

from sandboxfs.cli.parser import Parser
from sandboxfs.cli.switching import switch, switch_parser

DESCRIPTION = """\
Make writable what no rule names, in the running session and at once. Rules stay in
force, and what is written stays in the sandbox. The next mount starts from the files
again."""

EXAMPLES = ["sandboxfs rw", "sandboxfs rw -s app --json"]


def parser() -> Parser:
    return switch_parser("rw", DESCRIPTION, EXAMPLES)


def run(words: list[str]) -> int:
    return switch(parser(), words, "rw")
