"""`sandboxfs shell`: `run` with the user's own shell."""

from typing import TYPE_CHECKING

from sandboxfs.cli import run as running

if TYPE_CHECKING:
    from sandboxfs.cli.parser import Parser


def parser() -> "Parser":
    return running.parser("shell")


def run(words: list[str]) -> int:
    return running.run(words, "shell")
