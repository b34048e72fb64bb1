"""What a daemon says about questions is checked, and what was granted becomes rules that say no more."""

import tomllib
from datetime import UTC, datetime
from pathlib import Path

import pytest

from sandboxfs.errors import DaemonLost, UsageError
from sandboxfs.policy.config import read_user_config
from sandboxfs.service.grant_rules import rules_to_keep
from sandboxfs.service.questions import (
    AnswerTerms,
    AskingRule,
    GrantsInForce,
    OverQuestion,
    Responder,
    ShownGrant,
    WaitingQuestion,
    over_of,
    question_events,
)
from sandboxfs.state.store import SandboxRecord

PROCESS = {"pid": 7, "exe": "/usr/bin/cat", "argv0": "cat", "command": "cat"}
RULE = {"pattern": ".env*", "mode": "ask", "source": "--ask", "kind": "command line"}
QUESTION: dict[str, object] = {
    "id": 3,
    "access": "read",
    "path": "a/\udcff",
    "path_bytes": "612fff",
    "more": 2,
    "directory": "a",
    "content": None,
    "rule": RULE | {"new": 1},
    "program": PROCESS | {"parents": [PROCESS]},
    "requests": 4,
    "since": "2026-11-19T06:04:07.000Z",
    "remaining": 59,
}


def test_a_question_is_read_with_what_a_newer_daemon_adds() -> None:
    (found,) = question_events({"event": "question", "question": QUESTION | {"new": 1}})
    assert isinstance(found, WaitingQuestion)
    assert (found.id, found.path, found.more, found.remaining) == (3, "a/\udcff", 2, 59.0)
    assert found.rule == AskingRule(".env*", "ask", "--ask", "command line")
    assert str(found.rule) == ".env* = ask"
    assert [parent.pid for parent in found.program.parents] == [7]
    # JSON documents have these bytes in a form of their own.
    assert found.as_json() == {key: QUESTION[key] for key in QUESTION if key != "path_bytes"} | {
        "rule": RULE | {"new": 1},
        "new": 1,
    }


def test_events_of_other_kinds_are_passed_over() -> None:
    assert len(list(question_events({"event": "begin", "questions": [QUESTION, QUESTION]}))) == 2
    assert list(question_events({"event": "something new"})) == []
    over = {"event": "over", "id": 3, "outcome": "denied", "by": {"pid": 1, "command": "sh"}, "reason": "no"}
    assert list(question_events(over)) == [OverQuestion(3, "denied", Responder(1, "sh"), "no")]
    assert over_of(UsageError("late", details={"over": over | {"by": None}})) == OverQuestion(
        3, "denied", None, "no"
    )
    assert over_of(UsageError("something else")) is None


@pytest.mark.parametrize(
    "event",
    [
        None,
        {"event": "begin"},
        {"event": "begin", "questions": [1]},
        {"event": "question"},
        {"event": "question", "question": QUESTION | {"id": "3"}},
        {"event": "question", "question": QUESTION | {"remaining": "soon"}},
        {"event": "question", "question": QUESTION | {"remaining": True}},
        {"event": "question", "question": QUESTION | {"program": None}},
        {"event": "over", "id": 3},
    ],
)
def test_what_makes_no_sense_is_refused(event: object) -> None:
    with pytest.raises(DaemonLost, match="makes no sense"):
        list(question_events(event))


@pytest.mark.parametrize("during", ["always", "", "soon", "10", "-1s"])
def test_an_answer_is_for_the_session_or_for_a_time(during: str) -> None:
    with pytest.raises(UsageError):
        AnswerTerms(during=during).checked()
    AnswerTerms(during="30m").checked()


WORKSPACE = Path("/home/you/app [1]")
USER_RULE = AskingRule("**/.env*", "ask", "config.toml:3", "user")


def grant(
    extent: str = "path",
    path: str = ".env",
    rule: AskingRule = USER_RULE,
    *,
    decision: str = "allow",
    access: str = "read",
    who: str = "anybody",
    remaining: float | None = None,
) -> ShownGrant:
    return ShownGrant(4, decision, access, extent, path, rule, who, None, None, None, "", remaining, 0, 0)


def kept(*grants: ShownGrant) -> str:
    record = SandboxRecord("app", WORKSPACE, Path("/view"), datetime.now(UTC))
    return rules_to_keep(GrantsInForce(record, grants))


SLASHLESS = AskingRule(".env*", "ask", "config.toml:3", "user")
PROGRAMS = AskingRule("bin", "rw", "config.toml:3", "user", hold=("delete",), execute="ask")
TOP = "/home/you/app \\[1\\]"


@pytest.mark.parametrize(
    ("one", "rule"),
    [
        (grant(), {"path": f"{TOP}/.env", "mode": "hold", "execute": "ask"}),
        (grant(path="a*\n"), {"path": f"{TOP}/a\\*\n", "mode": "hold", "execute": "ask"}),
        (
            grant("directory", "config", SLASHLESS),
            {"path": f"{TOP}/config/**/.env*", "mode": "hold", "execute": "ask"},
        ),
        (grant("directory", "", SLASHLESS), {"path": f"{TOP}/**/.env*", "mode": "hold", "execute": "ask"}),
        (grant("glob", ".env*", SLASHLESS), {"path": f"{TOP}/**/.env*", "mode": "hold", "execute": "ask"}),
        (grant(decision="deny"), {"path": f"{TOP}/.env", "mode": "deny"}),
        (grant("glob", "a/*", decision="deny"), {"path": f"{TOP}/a/*", "mode": "deny"}),
        (grant(access="execute"), {"path": f"{TOP}/.env", "mode": "ask", "execute": "allow"}),
        (
            grant(path="bin/x", rule=PROGRAMS, access="execute"),
            {"path": f"{TOP}/bin/x", "mode": "rw", "hold": ["delete"], "execute": "allow"},
        ),
        (
            grant(path="bin/x", rule=PROGRAMS, access="execute", decision="deny"),
            {"path": f"{TOP}/bin/x", "mode": "rw", "hold": ["delete"], "execute": "deny"},
        ),
    ],
)
def test_a_grant_is_kept_as_a_rule_of_this_workspace(
    one: ShownGrant, rule: dict[str, object], tmp_path: Path
) -> None:
    printed = kept(one)
    assert tomllib.loads(printed) == {"rule": [rule]}
    config = tmp_path / "config.toml"
    config.write_text(printed)
    (read,) = read_user_config(config).rules
    assert read.pattern == rule["path"]


@pytest.mark.parametrize(
    "one",
    [
        grant("once"),
        grant("content", "0" * 64),
        grant(who="program"),
        grant(who="tree"),
        grant(remaining=10.0),
        # These would allow what another rule refuses.
        grant("directory", "config"),
        grant("glob", "*", SLASHLESS),
    ],
)
def test_what_a_rule_cannot_say_or_says_of_more_is_a_comment(one: ShownGrant) -> None:
    assert tomllib.loads(kept(one)) == {}


def test_it_is_said_where_a_rule_would_come_too_late() -> None:
    early = AskingRule(".env", "ask", "--ask", "command line")
    assert "before your configuration" in kept(grant(rule=early))
    assert "before your configuration" not in kept(grant())
    assert kept() == ""
