"""Does a grant decide about what the person meant, and about nothing else?"""

from dataclasses import replace

import pytest

from sandboxfs.errors import UsageError
from sandboxfs.policy.grants import (
    Asker,
    Attempt,
    Audience,
    Extent,
    Grant,
    ProcessMark,
    Recipient,
    directory_of,
    duration_of,
    extent_of,
)
from sandboxfs.policy.model import Access, Mode, Rule, RuleSource, SourceKind

RULE = Rule("**/.env*", Mode.ASK, RuleSource(SourceKind.COMMAND_LINE))
ATTEMPT = Attempt(Access.READ, RULE, "a/.env", "/workspace")
SHELL, CAT, OTHER = ProcessMark(1, 10), ProcessMark(2, 20), ProcessMark(2, 99)


def cat() -> Asker:
    return Asker("/usr/bin/cat", (CAT, SHELL))


def nobody() -> Asker:
    raise AssertionError("it does not matter who asks")


ANYBODY = Recipient()


def granted(extent: Extent, target: str, recipient: Recipient = ANYBODY) -> Grant:
    return Grant(1, True, Access.READ, RULE, extent, target, recipient)


@pytest.mark.parametrize(
    ("extent", "target", "path", "covered"),
    [
        (Extent.ONCE, "a/.env", "a/.env", False),
        (Extent.PATH, "a/.env", "a/.env", True),
        (Extent.PATH, "a/.env", "a/.env.local", False),
        (Extent.PATH, "a", "a/.env", False),
        (Extent.DIRECTORY, "a", "a/.env", True),
        (Extent.DIRECTORY, "a", "a/b/c/.env", True),
        (Extent.DIRECTORY, "a", "ab/.env", False),
        (Extent.DIRECTORY, "a", "a", False),
        (Extent.DIRECTORY, "", "x/.env", True),
        (Extent.GLOB, "*.local", "a/.env.local", True),
        (Extent.GLOB, "./.env", "a/.env", False),
        (Extent.GLOB, "/workspace/a", "a/.env", True),
        (Extent.GLOB, "/elsewhere", "a/.env", False),
        (Extent.CONTENT, "1234", "a/.env", False),
    ],
)
def test_a_grant_covers_the_paths_that_it_names(
    extent: Extent, target: str, path: str, covered: bool
) -> None:
    assert granted(extent, target).covers(replace(ATTEMPT, path=path), nobody) is covered


def test_a_grant_belongs_to_the_rule_that_asked_and_to_the_access() -> None:
    grant = granted(Extent.PATH, "a/.env")
    assert grant.covers(ATTEMPT, nobody)
    assert not grant.covers(replace(ATTEMPT, access=Access.EXECUTE), nobody)
    assert not grant.covers(replace(ATTEMPT, rule=replace(RULE, pattern="a/**")), nobody)


def test_a_grant_of_a_content_is_for_that_content_wherever_it_is() -> None:
    grant = granted(Extent.CONTENT, "1234")
    assert grant.covers(replace(ATTEMPT, content="1234", path="elsewhere"), nobody)
    assert not grant.covers(replace(ATTEMPT, content="5678"), nobody)


def test_a_grant_is_for_those_who_were_meant() -> None:
    program = granted(Extent.PATH, "a/.env", Recipient(Audience.PROGRAM, exe="/usr/bin/cat"))
    assert program.covers(ATTEMPT, cat)
    assert not program.covers(ATTEMPT, lambda: Asker("/usr/bin/less", (CAT,)))
    assert not program.covers(ATTEMPT, lambda: Asker(None, (CAT,)))
    for root in (SHELL, CAT):
        tree = granted(Extent.PATH, "a/.env", Recipient(Audience.TREE, root=root))
        assert tree.covers(ATTEMPT, cat)
        # The number of a process that has ended is given to another one.
        assert not tree.covers(ATTEMPT, lambda: Asker("/usr/bin/cat", (OTHER,)))


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        ("once", (Extent.ONCE, "a/.env")),
        ("path", (Extent.PATH, "a/.env")),
        ("directory", (Extent.DIRECTORY, "a")),
        ("content", (Extent.CONTENT, "1234")),
        ("**/.env*", (Extent.GLOB, "**/.env*")),
    ],
)
def test_what_an_answer_is_for_is_read(word: str, expected: tuple[Extent, str]) -> None:
    assert extent_of(word, "a/.env", "1234") == expected


def test_what_an_answer_cannot_be_for_is_refused() -> None:
    with pytest.raises(UsageError, match="new program"):
        extent_of("content", "a/.env", None)
    with pytest.raises(UsageError, match="for"):
        extent_of("a[", "a/.env", None)


@pytest.mark.parametrize(
    ("word", "seconds"),
    [("session", None), ("always", None), ("90s", 90), ("30m", 1800), ("2h", 7200), ("1d", 86400)],
)
def test_a_duration_is_read(word: str, seconds: float | None) -> None:
    assert duration_of(word) == seconds


@pytest.mark.parametrize("word", ["", "m", "30", "0s", "-1s", "1.5h", "1w", "9999999d", "٣m"])
def test_what_is_no_duration_is_refused(word: str) -> None:
    with pytest.raises(UsageError, match="during"):
        duration_of(word)


def test_the_directory_of_a_path() -> None:
    assert (directory_of("a/b/c"), directory_of("a")) == ("a/b", "")
