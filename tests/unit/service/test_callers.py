"""Functions of the service know their caller by what they are given, and print nothing."""

import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Protocol

import pytest

from sandboxfs.errors import SandboxError, UsageError
from sandboxfs.policy.model import Access
from sandboxfs.service.config import check_configuration, configuration_file, effective_policy
from sandboxfs.service.events import CallerContext, Prompt, SandboxPrompt, Unattended
from sandboxfs.service.listing import describe_sandbox, list_sandboxes
from sandboxfs.service.policy import explain_access
from sandboxfs.service.read_log import LogQuery, LogRecord, read_log, verify_log
from sandboxfs.service.remove import RemovedSandbox, remove_empty_sandboxes, remove_sandboxes
from sandboxfs.service.select import select
from sandboxfs.state.audit import AuditLog
from sandboxfs.state.locations import Locations
from sandboxfs.state.store import SandboxRecord, Store


class Make(Protocol):
    def __call__(self, name: str, *sandboxes: str) -> CallerContext: ...


@pytest.fixture(autouse=True)
def _nothing_is_printed(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Iterator[None]:
    monkeypatch.setattr(sys, "argv", [])
    monkeypatch.setattr(sys, "stdin", None)
    yield
    assert capsys.readouterr() == ("", "")


@pytest.fixture
def make(tmp_path: Path) -> Make:
    """Makes callers, each with a state of its own and sandboxes in it, one workspace for all."""

    def caller(name: str, *sandboxes: str) -> CallerContext:
        workspace = tmp_path / name / "w"
        (workspace / "src").mkdir(parents=True)
        environment = {
            "SANDBOXFS_STATE_DIR": str(tmp_path / name / "state"),
            "SANDBOXFS_CONFIG": str(tmp_path / name / "config.toml"),
            "HOME": str(tmp_path / name),
        }
        store = Store(Locations.from_environment(environment))
        for one in sandboxes:
            mountpoint = tmp_path / name / f"{one}-view"
            store.create(
                SandboxRecord(one, workspace, mountpoint, datetime(2026, 1, 2, tzinfo=UTC))
            ).release()
        return CallerContext(str(workspace / "src"), environment)

    return caller


class Listening(Unattended):
    """Events that keep what is told, and answer with one word."""

    def __init__(self, answer: str | None = None) -> None:
        self.notes: list[str] = []
        self.questions: list[Prompt] = []
        self._answer = answer

    def note(self, text: str) -> None:
        self.notes.append(text)

    def ask(self, prompt: Prompt) -> str | None:
        self.questions.append(prompt)
        return self._answer


def test_callers_in_threads_see_their_own_sandboxes(make: Make) -> None:
    callers = {name: make(name, name) for name in ("one", "two", "three", "four")}
    together = threading.Barrier(len(callers))

    def described(name: str) -> tuple[list[str], str, str]:
        together.wait()
        caller = callers[name]
        listed = [one.name for one in list_sandboxes(caller).sandboxes]
        found = describe_sandbox(None, caller, Listening(), sized=True)
        why = explain_access("a", Access.WRITE, None, caller, Listening())
        return listed, found.name, f"{why.name} {why.path} {why.allowed}"

    with ThreadPoolExecutor(len(callers)) as pool:
        assert list(pool.map(described, callers)) == [
            ([name], name, f"{name} src/a True") for name in callers
        ]


def test_which_of_several_sandboxes_is_meant_is_asked_of_the_caller(make: Make) -> None:
    caller = make("user", "one", "two")
    events = Listening("two")
    assert describe_sandbox(None, caller, events, sized=False).name == "two"
    (question,) = events.questions
    assert isinstance(question, SandboxPrompt)
    assert sorted(question.choices) == ["one", "two"]
    assert {one.workspace for one in question.candidates} == {Path(str(caller.directory)).parent}


@pytest.mark.parametrize(
    ("answer", "told"), [(None, "which sandbox is meant"), ("x", "no sandbox was chosen")]
)
def test_without_an_answer_no_sandbox_is_taken(make: Make, answer: str | None, told: str) -> None:
    with pytest.raises(UsageError, match=told):
        describe_sandbox(None, make("user", "one", "two"), Listening(answer), sized=False)


def test_a_program_is_neither_asked_nor_told(make: Make) -> None:
    caller = replace(make("user", "one", "two"), is_program=True)
    events = Listening("two")
    with pytest.raises(UsageError, match="which sandbox is meant"):
        describe_sandbox(None, caller, events, sized=False)
    assert (events.questions, events.notes) == ([], [])


def test_the_only_sandbox_is_told_of_where_nothing_says_that_it_is_meant(make: Make) -> None:
    caller = replace(make("user", "one"), directory=None)
    events = Listening()
    store = Store(Locations.from_environment(caller.environment))
    assert select(store, None, caller, events, changing=False).name == "one"
    assert len(events.notes) == 1
    assert "this is sandbox 'one'" in events.notes[0]
    named = replace(caller, environment={**caller.environment, "SANDBOXFS_SANDBOX": "one"})
    assert select(store, None, named, events, changing=True).name == "one"


def test_a_log_that_is_followed_ends_when_the_caller_cancels(make: Make) -> None:
    class Cancelling(Listening):
        def cancelled(self) -> bool:
            return True

    caller = make("user", "one")
    places = Store(Locations.from_environment(caller.environment)).places("one")
    log = AuditLog(places.home / "audit.jsonl", "one")
    log.event("mounted")
    log.close()
    shown: list[LogRecord] = []
    ending = read_log(LogQuery(), None, caller, Cancelling(), shown.append, follow=True)
    assert [one.fields["event"] for one in shown] == ["mounted"]
    assert not ending.unmounted
    assert verify_log(None, caller, Listening()).verdict.records == 1


def test_relative_paths_start_where_the_caller_stands(make: Make) -> None:
    caller = make("user", "one")
    (Path(str(caller.directory)) / "rules.toml").write_text('[workspace]\nmode = "ro"\n')
    assert configuration_file("rules.toml", caller) == Path(str(caller.directory), "rules.toml")
    assert check_configuration("rules.toml", caller).exists
    found = effective_policy("..", None, "rules.toml", caller)
    assert found.workspace == Path(str(caller.directory)).parent
    assert found.as_json()["mode"] == "ro"


def test_sandboxes_are_removed_by_name_and_empty_ones_together(make: Make) -> None:
    caller = make("user", "one", "two", "three")
    upper = Store(Locations.from_environment(caller.environment)).places("one").upper
    (upper / "new").write_text("made in the sandbox")
    gone: list[RemovedSandbox] = []
    with pytest.raises(SandboxError, match="holds 1 change"):
        remove_sandboxes(["two", "one"], caller, Unattended(), gone.append, force=False)
    assert gone == []
    removed = remove_sandboxes(["two"], caller, Unattended(), gone.append, force=False)
    assert removed == tuple(gone)
    assert [(one.name, one.workspace is None) for one in gone] == [("two", False)]
    found = remove_empty_sandboxes(caller, dry_run=False)
    assert [one.name for one in found.removed] == ["three"]
    assert found.kept == {"one": "it holds changes"}
