"""The command line of `run`: its options end at the first word of the command."""

import pytest

from sandboxfs.cli.run_command import parse, parser
from sandboxfs.errors import UsageError

OURS = [
    [],
    ["--network"],
    ["--home", "cow"],
    ["--home=cow"],
    ["-s", "app"],
    ["-sapp"],
    ["--env", "A=1", "--network", "--quiet"],
    ["--rule", "x=ro", "--rule=y=rw"],
    ["--hold", "x", "--hold=y"],
]
COMMANDS = [
    ["sh", "-c", "echo $0", "x"],
    ["npm", "--version"],
    ["make", "--commit", "--json"],
    ["git", "commit", "-s", "-m", "--network"],
    ["tool", "--", "--", "file"],
    ["tool", "--home"],
    ["tool", "--home=none", "--nonsense", "-x", "-"],
    ["-", "--network"],
    ["tool", "--help", "-h", "--quiet"],
    ["tool", ""],
]


@pytest.mark.parametrize("ours", OURS, ids=" ".join)
@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
@pytest.mark.parametrize("dashes", [[], ["--"]], ids=["plain", "dashes"])
def test_everything_from_the_first_word_of_the_command_on_is_the_commands(
    ours: list[str], command: list[str], dashes: list[str]
) -> None:
    parsed = parse([*ours, *dashes, *command], "run")
    assert parsed.command == command
    alone = parse([*ours, "true"], "run")
    assert vars(parsed) | {"command": []} == vars(alone) | {"command": []}


def test_after_two_dashes_a_command_may_look_like_an_option() -> None:
    assert parse(["--network", "--", "--quiet", "--", "x"], "run").command == ["--quiet", "--", "x"]


@pytest.mark.parametrize("words", [["--nonsense", "true"], ["--home"], ["--home", "nowhere", "true"]])
def test_a_mistake_before_the_command_is_still_one(words: list[str]) -> None:
    with pytest.raises(UsageError):
        parse(words, "run")


@pytest.mark.parametrize("words", [[], ["--network"], ["--"], ["--network", "--"], [""]])
def test_without_a_command_there_is_nothing_to_run(words: list[str]) -> None:
    with pytest.raises(UsageError, match="no COMMAND"):
        parse(words, "run")


def test_a_shell_takes_options_and_no_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHELL", "/bin/sh")
    assert parse(["--network"], "shell").command == ["/bin/sh"]
    for words in (["ls"], ["--network", "ls", "--quiet"], ["--", "ls"]):
        with pytest.raises(UsageError, match="takes no COMMAND"):
            parse(words, "shell")


def test_the_help_says_that_two_dashes_are_optional() -> None:
    assert "[--] COMMAND" in parser().format_usage()


def test_what_is_to_be_held_is_a_rule_among_the_others_in_the_order_given() -> None:
    parsed = parse(["--rule", "a=ro", "--hold", "b=c", "--rule=d=rw", "--hold=e", "true"], "run")
    assert parsed.rule == ["a=ro", "b=c=hold", "d=rw", "e=hold"]
    assert parse(["--rule", "a=ro", "true"], "run").rule == ["a=ro"]
    assert parse(["true"], "run").rule == []
