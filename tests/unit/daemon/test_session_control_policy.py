"""The daemon changes the policy of its session when asked, and explains it; without a mount."""

from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
import trio

from sandboxfs.control.control_socket import Request
from sandboxfs.daemon.control_peers import Peer
from sandboxfs.daemon.session_control import PolicyControl
from sandboxfs.daemon.session_log import SessionJournal
from sandboxfs.errors import UsageError
from sandboxfs.overlay.filesystem import AnonymousCaller
from sandboxfs.policy.builtin import BUILT_IN
from sandboxfs.policy.explain import decide
from sandboxfs.policy.model import Access, Mode, Policy, Rule, RuleSource, SourceKind
from sandboxfs.state.audit import AuditLog, Level
from sandboxfs.state.session_rules import read_session_rules

PEER = Peer(1, 0, 0)
SECRETS = Rule("secrets", Mode.HIDE, RuleSource(SourceKind.USER, "config.toml", 3))


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    workspace = tmp_path / "app"
    (workspace / ".git" / "hooks").mkdir(parents=True)
    (workspace / "src").mkdir()
    return workspace


@pytest.fixture
def control(workspace: Path, tmp_path: Path) -> PolicyControl:
    journal = SessionJournal(AuditLog(tmp_path / "audit.jsonl", "app"), Level.WRITES)
    return PolicyControl(Policy((SECRETS, *BUILT_IN)), workspace, journal)


def ask(control: PolicyControl, verb: str, **args: object) -> dict[str, object]:
    handler = control.handlers()[verb]

    async def asked() -> object:
        answer = handler(Request(1, verb, args), PEER)
        return await answer if isinstance(answer, Awaitable) else answer

    found = trio.run(asked)
    assert isinstance(found, dict)
    return found


def written(control: PolicyControl, path: str, workspace: Path) -> bool:
    return decide(control.policy, path, root=str(workspace)).allows(Access.WRITE)


def test_a_path_that_is_allowed_comes_before_every_other_rule(
    control: PolicyControl, workspace: Path
) -> None:
    answer = ask(control, "allow", path=str(workspace / "secrets" / "key"), mode="ro")
    expected = {"pattern": "secrets/key", "mode": "ro", "source": "runtime", "kind": "runtime", "hits": 0}
    assert answer["rule"] == expected
    listed = answer["rules"]
    assert isinstance(listed, list)
    assert listed[0] == expected
    assert control.policy.rules[1] == SECRETS


def test_a_relative_path_is_one_in_the_workspace_and_the_default_is_rw(control: PolicyControl) -> None:
    ask(control, "allow", path="secrets")
    assert control.policy.rules[0] == Rule("./secrets", Mode.RW, RuleSource(SourceKind.RUNTIME))
    ask(control, "allow", path="secrets", mode="deny")
    assert [rule.mode for rule in control.policy.rules[:2]] == [Mode.DENY, Mode.HIDE]


@pytest.mark.parametrize(
    "args",
    [
        {},
        {"path": ""},
        {"path": "a\0b"},
        {"path": 3},
        {"path": "/elsewhere"},
        {"path": "../elsewhere"},
        {"path": "a", "mode": "wr"},
        {"path": "a", "mode": 1},
    ],
)
def test_what_cannot_be_allowed_changes_nothing(control: PolicyControl, args: dict[str, object]) -> None:
    before = control.policy
    with pytest.raises(UsageError):
        ask(control, "allow", **args)
    assert control.policy is before


def test_the_mode_and_whether_rules_are_on_can_be_changed(control: PolicyControl, workspace: Path) -> None:
    assert ask(control, "ro")["mode"] == "ro"
    assert not written(control, "src/a", workspace)
    answer = ask(control, "disable")
    assert (answer["mode"], answer["enabled"]) == ("ro", False)
    assert written(control, "secrets/key", workspace)
    assert ask(control, "enable")["enabled"] is True
    assert ask(control, "rw")["mode"] == "rw"
    assert written(control, "src/a", workspace)
    assert not written(control, "secrets/key", workspace)


def test_changes_that_come_together_are_all_made(control: PolicyControl) -> None:
    async def together() -> None:
        async with trio.open_nursery() as nursery:
            for number in range(20):
                nursery.start_soon(control.allow, Request(1, "allow", {"path": f"p{number}"}), PEER)
            nursery.start_soon(control.set_mode, Request(1, "ro", {}), PEER)

    trio.run(together)
    patterns = {rule.pattern for rule in control.policy.rules if rule.source.kind is SourceKind.RUNTIME}
    assert patterns == {f"./p{number}" for number in range(20)}
    assert control.policy.mode is Mode.RO


def test_status_has_the_rules_with_their_hits_and_what_was_counted(
    control: PolicyControl, workspace: Path
) -> None:
    decision = decide(control.policy, "secrets", root=str(workspace))
    control.journal.record("open", Access.WRITE, b"secrets", None, decision, AnonymousCaller(0, 0, 1), 13)
    answer = ask(control, "status")
    assert answer["counters"] == {"reads": 0, "writes": 0, "denials": 1}
    assert isinstance(answer["uptime"], float)
    listed = answer["rules"]
    assert isinstance(listed, list)
    assert listed[0] == {
        "pattern": "secrets",
        "mode": "hide",
        "source": "config.toml:3",
        "kind": "user",
        "hits": 1,
    }
    assert listed[-1]["source"] == "workspace mode"
    assert ask(control, "rules") == {key: answer[key] for key in ("mode", "enabled", "rules")}


def test_why_explains_by_the_policy_in_force(control: PolicyControl) -> None:
    answer = ask(control, "why", path="secrets/key", access="write")
    assert answer["allowed"] is False
    assert answer["sentence"] == (
        "write denied for 'secrets/key': hidden by rule 'secrets = hide' (config.toml:3)"
    )
    ask(control, "allow", path="secrets")
    assert ask(control, "why", path="secrets/key", access="write")["allowed"] is True


def test_why_knows_what_the_workspace_holds_already(control: PolicyControl) -> None:
    assert ask(control, "why", path=".git/hooks/new", access="write")["allowed"] is False
    assert ask(control, "why", path="new/.git/hooks/x", access="write")["allowed"] is True
    assert ask(control, "why", path=".")["access"] == "read"


@pytest.mark.parametrize(
    "args",
    [
        {},
        {"path": ""},
        {"path": "/etc/passwd"},
        {"path": "a/../b"},
        {"path": "a", "access": "look"},
        {"path": "a\0"},
    ],
)
def test_why_refuses_what_is_no_question(control: PolicyControl, args: dict[str, object]) -> None:
    with pytest.raises(UsageError):
        ask(control, "why", **args)


def test_every_verb_is_in_the_document_of_the_control_socket(control: PolicyControl) -> None:
    text = (Path(__file__).parents[3] / "docs" / "control.md").read_text()
    for verb in control.handlers():
        assert f"| `{verb}` |" in text


# Rules for reviews


@pytest.fixture
def lasting(workspace: Path, tmp_path: Path) -> Callable[[], PolicyControl]:
    """Begins another session each time."""
    (tmp_path / "home").mkdir()

    def begin() -> PolicyControl:
        journal = SessionJournal(AuditLog(tmp_path / "audit.jsonl", "app"), Level.WRITES)
        return PolicyControl(Policy((SECRETS, *BUILT_IN)), workspace, journal, tmp_path / "home")

    return begin


def kept(home: Path) -> list[str]:
    return [str(rule) for rule in read_session_rules(home)]


def test_the_rules_of_a_session_are_kept_for_reviews_where_any_of_them_holds(
    lasting: Callable[[], PolicyControl], tmp_path: Path
) -> None:
    session = lasting()
    ask(session, "allow", path="src", mode="ro")
    assert not list((tmp_path / "home").iterdir())
    ask(session, "allow", path="other", mode="hold")
    assert kept(tmp_path / "home") == ["./other = hold", "./src = ro"]
    ask(session, "allow", path="other", mode="rw")
    assert kept(tmp_path / "home") == ["./other = rw", "./src = ro"]


def test_only_what_a_session_held_is_kept_when_another_one_begins(
    lasting: Callable[[], PolicyControl], tmp_path: Path
) -> None:
    session = lasting()
    ask(session, "allow", path="src", mode="hold")
    ask(session, "allow", path="other", mode="rw")
    again = lasting()
    assert kept(tmp_path / "home") == ["./src = hold"]
    assert "runtime" not in [rule.source.kind.value for rule in again.policy.rules]
    ask(again, "allow", path="third", mode="hold")
    assert kept(tmp_path / "home") == ["./third = hold", "./src = hold"]
    ask(again, "allow", path="src", mode="rw")
    assert kept(tmp_path / "home") == ["./src = rw", "./third = hold"]
