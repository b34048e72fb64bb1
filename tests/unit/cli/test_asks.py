"""Questions at the command line: what is shown, what a letter means, and what is sent to the daemon."""

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path

import pytest

from sandboxfs.cli.main import main
from sandboxfs.cli.question_prompt import described, ending, terms_of
from sandboxfs.control.mount_table import SandboxStatus
from sandboxfs.errors import UsageError
from sandboxfs.service import questions
from sandboxfs.service.questions import (
    AnswerTerms,
    OverQuestion,
    Responder,
    WaitingQuestion,
    question_events,
)
from sandboxfs.state.store import SandboxRecord
from tests.unit.service.test_questions import QUESTION, RULE

GRANT: dict[str, object] = {
    "id": 4,
    "decision": "allow",
    "access": "read",
    "for": "path",
    "path": "a/\u202e.env",
    "rule": RULE,
    "who": "program",
    "exe": "/usr/bin/cat",
    "pid": None,
    "reason": None,
    "question": 3,
    "since": "2026-11-19T06:04:07.000Z",
    "remaining": 90.5,
    "hits": 12,
    "open": 1,
}


class FakeDaemon:
    """Answers each verb with what a test says, and keeps what was asked."""

    def __init__(self) -> None:
        self.answers: dict[str, object] = {}
        self.asked: list[tuple[str, Mapping[str, object]]] = []

    def ask(
        self, store: object, sandbox: object, verb: str, args: Mapping[str, object] | None = None
    ) -> dict[str, object]:
        self.asked.append((verb, args or {}))
        answer = self.answers[verb]
        if isinstance(answer, Exception):
            raise answer
        assert isinstance(answer, dict)
        return answer


@pytest.fixture
def daemon(monkeypatch: pytest.MonkeyPatch) -> FakeDaemon:
    made = FakeDaemon()
    record = SandboxRecord("app", Path("/home/you/app"), Path("/view"), datetime.now(UTC))
    status = SandboxStatus(record, "mounted", None, held=True, uptime=None, mount=None)
    monkeypatch.setattr(questions, "select_observed", lambda *args, **more: (None, status))
    monkeypatch.setattr(questions, "ask_daemon", made.ask)
    return made


def test_questions_are_listed_for_persons_and_for_programs(
    daemon: FakeDaemon, capsys: pytest.CaptureFixture[str]
) -> None:
    unknown: dict[str, object] = {"pid": 7, "exe": None, "argv0": None, "parents": []}
    hostile = QUESTION | {"program": unknown | {"command": "a\x1b[2J"}}
    daemon.answers["asks"] = {"questions": [QUESTION, hostile], "followers": 1}
    assert main(["asks"]) == 0
    shown = capsys.readouterr()
    assert "cat[7] < cat[7]" in shown.out
    assert "a\\x1b[2J[7]" in shown.out
    assert "\x1b" not in shown.out
    assert shown.err == ""
    assert main(["asks", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["name"], told["followers"]) == ("app", 1)
    assert told["questions"][0]["path"] == "a/\ufffd"
    assert told["questions"][0]["path_bytes"] == "YS//"
    daemon.answers["asks"] = {"questions": [], "followers": 0}
    assert main(["asks"]) == 0
    assert "nobody follows" in capsys.readouterr().err


def test_an_answer_is_sent_with_its_terms(daemon: FakeDaemon, capsys: pytest.CaptureFixture[str]) -> None:
    daemon.answers["answer"] = {"question": QUESTION, "decision": "allow", "grant": GRANT}
    words = ["--for", "a/*", "--during", "30m", "--tree", "--reason", "why not"]
    assert main(["answer", "3", "allow", *words]) == 0
    assert "'sandboxfs revoke 4' takes it back" in capsys.readouterr().err
    sent = {"for": "a/*", "during": "30m", "program": False, "tree": True, "reason": "why not"}
    assert daemon.asked == [("answer", {"id": 3, "decision": "allow", **sent})]
    assert main(["answer", "3", "deny", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["grant"]["for"] == "path"
    sent = {"for": "once", "during": "session", "program": False, "tree": False}
    assert daemon.asked[1] == ("answer", {"id": 3, "decision": "deny", **sent})


@pytest.mark.parametrize(
    "words",
    [
        ["answer"],
        ["answer", "x", "allow"],
        ["answer", "3"],
        ["answer", "3", "maybe"],
        ["answer", "3", "allow", "--program", "--tree"],
        ["answer", "3", "allow", "--during", "always"],
        ["revoke"],
        ["revoke", "4", "--all"],
        ["grants", "--json", "--toml"],
        ["asks", "x"],
    ],
)
def test_what_means_nothing_is_refused_and_not_sent(words: list[str], daemon: FakeDaemon) -> None:
    assert main(words) == 2
    assert daemon.asked == []


def test_a_late_answer_tells_a_program_who_answered(
    daemon: FakeDaemon, capsys: pytest.CaptureFixture[str]
) -> None:
    daemon.answers["answer"] = UsageError("question 3 is over", details={"over": {"outcome": "allowed"}})
    assert main(["answer", "3", "allow", "--json"]) == 2
    assert json.loads(capsys.readouterr().err)["error"]["over"] == {"outcome": "allowed"}


def test_grants_are_listed_and_taken_back(daemon: FakeDaemon, capsys: pytest.CaptureFixture[str]) -> None:
    daemon.answers |= {"grants": {"grants": [GRANT]}, "revoke": {"revoked": [GRANT]}}
    assert main(["grants"]) == 0
    shown = capsys.readouterr().out
    assert "1m 30s" in shown
    assert "program /usr/bin/cat" in shown
    assert "\u202e" not in shown
    assert main(["grants", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["grants"] == [GRANT]
    assert main(["grants", "--toml"]) == 0
    assert "it is for a time only" in capsys.readouterr().out
    assert main(["revoke", "4"]) == 0
    assert "taken back: grant 4" in capsys.readouterr().out
    assert main(["revoke", "--all", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["revoked"] == [GRANT]
    assert daemon.asked[-2:] == [("revoke", {"id": 4}), ("revoke", {"all": True})]


def test_a_kept_grant_is_shown_with_its_place(daemon: FakeDaemon, capsys: pytest.CaptureFixture[str]) -> None:
    kept = {"file": "/home/you/config.toml", "line": 7}
    grant = GRANT | {"remaining": None, "during": "always", "kept": kept}
    daemon.answers["grants"] = {"grants": [grant]}
    daemon.answers["revoke"] = {"revoked": [grant | {"removed": True}, grant | {"removed": False}]}
    assert main(["grants"]) == 0
    assert "always, /home/you/config.toml:7" in capsys.readouterr().out
    assert main(["revoke", "--all"]) == 0
    first, second = capsys.readouterr().out.splitlines()
    assert first.endswith("; removed from /home/you/config.toml")
    assert second.endswith("; was no longer in /home/you/config.toml")


def waiting(**other: object) -> WaitingQuestion:
    (found,) = question_events({"event": "question", "question": QUESTION | other})
    assert isinstance(found, WaitingQuestion)
    return found


@pytest.mark.parametrize(
    ("line", "decision", "extent", "reason"),
    [
        ("o", "allow", "once", None),
        ("d", "allow", "directory", None),
        ("s", "allow", "path", None),
        ("n", "deny", "once", None),
        ("n use another", "deny", "once", "use another"),
        ("N", "deny", "path", None),
        ("always", "allow", "path", None),
        ("never use another", "deny", "path", "use another"),
    ],
)
def test_a_letter_is_an_answer(line: str, decision: str, extent: str, reason: str | None) -> None:
    during = "always" if line.startswith(("always", "never")) else "session"
    terms = AnswerTerms(extent, during, reason=reason)
    assert terms_of(waiting(), line) == (decision, terms)


@pytest.mark.parametrize(
    "line", ["", "?", "y", "yes", "ok", "no", "Now", "a", "alway", " n", "O", "D", "s x", "1"]
)
def test_nothing_else_is_an_answer(line: str) -> None:
    assert terms_of(waiting(), line) is None


def test_a_new_program_is_granted_by_its_content() -> None:
    found = terms_of(waiting(content="0" * 64), "s")
    assert found == ("allow", AnswerTerms("content"))


def test_a_request_for_a_directory_is_shown_with_what_the_program_says() -> None:
    rule = {"pattern": "/srv/lib", "mode": "ro", "source": "sandboxfs request", "kind": "runtime"}
    asked = waiting(
        access="widen", path="/srv/lib", rule=rule, mode="ro", reason="to read", problem="it is no directory"
    )
    assert asked.deed == "widen ro"
    lines = described(asked)
    assert "it says: to read" in lines
    assert "cannot be shown: it is no directory" in lines
    assert not any("asked by rule" in line for line in lines)


def test_it_is_said_who_asks_and_how_a_question_ended() -> None:
    lines = described(waiting())
    assert lines[0] == "by cat[7] /usr/bin/cat"
    assert lines[1] == "started by cat[7]"
    assert lines[2] == "asked by rule '.env* = ask' (--ask)"
    assert "4 opens waiting, 2 paths more in its directory" in lines[3]
    over = OverQuestion(3, "denied", Responder(9, "sh"), "no")
    assert ending(over) == "[3] denied by sh[9]: no"
    assert ending(OverQuestion(3, "timeout", None, None)) == "[3] refused: nobody answered in time"
