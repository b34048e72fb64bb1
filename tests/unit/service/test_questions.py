"""What a daemon says about questions is checked, and what was granted becomes rules that say no more."""

import tomllib
from datetime import UTC, datetime
from pathlib import Path

import pytest

from sandboxfs.errors import DaemonLost, UsageError
from sandboxfs.policy.config import read_user_config
from sandboxfs.service.grant_tables import tables_to_keep
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


@pytest.mark.parametrize("during", ["", "soon", "10", "-1s"])
def test_an_answer_is_for_the_session_for_a_time_or_for_good(during: str) -> None:
    with pytest.raises(UsageError):
        AnswerTerms(during=during).checked()
    AnswerTerms(during="30m").checked()
    AnswerTerms("path", during="always", program=True).checked()


def test_an_answer_for_once_or_for_a_process_cannot_be_kept() -> None:
    with pytest.raises(UsageError, match="once"):
        AnswerTerms(during="always").checked()
    for tree in (True, 7):
        with pytest.raises(UsageError, match="ends with them"):
            AnswerTerms("path", during="always", tree=tree).checked()


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
    exe = "/usr/bin/cat" if who == "program" else None
    pid = 7 if who == "tree" else None
    return ShownGrant(4, decision, access, extent, path, rule, who, exe, pid, None, "", remaining, 0, 0)


def kept(*grants: ShownGrant) -> str:
    record = SandboxRecord("app", WORKSPACE, Path("/view"), datetime.now(UTC))
    return tables_to_keep(GrantsInForce(record, grants))


@pytest.mark.parametrize(
    ("one", "said"),
    [
        (grant(), {"path": ".env"}),
        (grant(path="a*\n"), {"path": "a*\n"}),
        (grant("directory", "config"), {"directory": "config"}),
        (grant("directory", ""), {"directory": "."}),
        (grant("glob", ".env*"), {"pattern": ".env*"}),
        (grant("content", "0" * 64, access="execute"), {"content": "0" * 64, "access": "execute"}),
        (grant(decision="deny"), {"path": ".env", "decision": "deny"}),
        (grant(rule=AskingRule("**", "ask", "c:1", "user", ignored=True)), {"rule": "**", "ignored": True}),
        (grant(who="program"), {"path": ".env", "program": "/usr/bin/cat"}),
        (
            grant(rule=AskingRule("a", "ask", "--ask", "command line")),
            {"rule": "a", "source": "command line"},
        ),
    ],
)
def test_a_grant_is_kept_as_a_table_of_this_workspace(
    one: ShownGrant, said: dict[str, object], tmp_path: Path
) -> None:
    printed = kept(one)
    (table,) = tomllib.loads(printed)["grant"]
    assert said.items() <= table.items()
    assert (table["workspace"], table["rule"]) == (str(WORKSPACE), one.rule.pattern)
    config = tmp_path / "config.toml"
    config.write_text(printed)
    (read,) = read_user_config(config).grants
    assert (read.target, read.access.value) == (one.path, one.access)
    assert read.toml() in printed


@pytest.mark.parametrize(
    "one",
    [
        grant("once"),
        grant(who="tree"),
        grant(remaining=10.0),
        grant(path="\udcff"),
        grant(rule=AskingRule(".env", "ask", "runtime", "runtime")),
    ],
)
def test_what_ends_with_its_session_is_a_comment(one: ShownGrant) -> None:
    assert tomllib.loads(kept(one)) == {}
    assert kept() == ""


def test_a_directory_that_was_granted_is_a_comment() -> None:
    shown = AskingRule("/srv/lib", "ro", "sandboxfs request", "runtime")
    text = kept(grant(path="/srv/lib", rule=shown, access="widen"))
    assert tomllib.loads(text) == {}
    assert "as long as the session lasts" in text
