"""The daemon changes the policy of its session when asked, and explains it; without a mount."""

from collections.abc import Awaitable
from pathlib import Path

import pytest
import trio

from sandboxfs.control.messages import Request
from sandboxfs.daemon.control_peers import Peer
from sandboxfs.daemon.journal import SessionJournal
from sandboxfs.daemon.policing import Policing
from sandboxfs.errors import UsageError
from sandboxfs.overlay.filesystem import Somebody
from sandboxfs.policy.builtin import BUILT_IN
from sandboxfs.policy.decide import decide
from sandboxfs.policy.model import Access, Kind, Mode, Policy, Rule, Source
from sandboxfs.state.audit import AuditLog, Level

PEER = Peer(1, 0, 0)
SECRETS = Rule("secrets", Mode.HIDE, Source(Kind.USER, "config.toml", 3))


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    workspace = tmp_path / "app"
    (workspace / ".git" / "hooks").mkdir(parents=True)
    (workspace / "src").mkdir()
    return workspace


@pytest.fixture
def policing(workspace: Path, tmp_path: Path) -> Policing:
    journal = SessionJournal(AuditLog(tmp_path / "audit.jsonl", "app"), Level.WRITES)
    return Policing(Policy((SECRETS, *BUILT_IN)), workspace, journal)


def ask(policing: Policing, verb: str, **args: object) -> dict[str, object]:
    handler = policing.handlers()[verb]

    async def asked() -> object:
        answer = handler(Request(1, verb, args), PEER)
        return await answer if isinstance(answer, Awaitable) else answer

    found = trio.run(asked)
    assert isinstance(found, dict)
    return found


def written(policing: Policing, path: str, workspace: Path) -> bool:
    return decide(policing.policy, path, root=str(workspace)).allows(Access.WRITE)


def test_a_path_that_is_allowed_comes_before_every_other_rule(policing: Policing, workspace: Path) -> None:
    answer = ask(policing, "allow", path=str(workspace / "secrets" / "key"), mode="ro")
    expected = {"pattern": "secrets/key", "mode": "ro", "source": "runtime", "kind": "runtime", "hits": 0}
    assert answer["rule"] == expected
    listed = answer["rules"]
    assert isinstance(listed, list)
    assert listed[0] == expected
    assert policing.policy.rules[1] == SECRETS


def test_a_relative_path_is_one_in_the_workspace_and_the_default_is_rw(policing: Policing) -> None:
    ask(policing, "allow", path="secrets")
    assert policing.policy.rules[0] == Rule("./secrets", Mode.RW, Source(Kind.RUNTIME))
    ask(policing, "allow", path="secrets", mode="deny")
    assert [rule.mode for rule in policing.policy.rules[:2]] == [Mode.DENY, Mode.HIDE]


@pytest.mark.parametrize(
    "args",
    [
        {},
        {"path": ""},
        {"path": "a\0b"},
        {"path": 3},
        {"path": "/elsewhere"},
        {"path": "../elsewhere"},
        {"path": "a", "mode": "ask"},
        {"path": "a", "mode": "wr"},
        {"path": "a", "mode": 1},
    ],
)
def test_what_cannot_be_allowed_changes_nothing(policing: Policing, args: dict[str, object]) -> None:
    before = policing.policy
    with pytest.raises(UsageError):
        ask(policing, "allow", **args)
    assert policing.policy is before


def test_the_mode_and_whether_rules_are_on_can_be_changed(policing: Policing, workspace: Path) -> None:
    assert ask(policing, "ro")["mode"] == "ro"
    assert not written(policing, "src/a", workspace)
    answer = ask(policing, "disable")
    assert (answer["mode"], answer["enabled"]) == ("ro", False)
    assert written(policing, "secrets/key", workspace)
    assert ask(policing, "enable")["enabled"] is True
    assert ask(policing, "rw")["mode"] == "rw"
    assert written(policing, "src/a", workspace)
    assert not written(policing, "secrets/key", workspace)


def test_changes_that_come_together_are_all_made(policing: Policing) -> None:
    async def together() -> None:
        async with trio.open_nursery() as nursery:
            for number in range(20):
                nursery.start_soon(policing.allow, Request(1, "allow", {"path": f"p{number}"}), PEER)
            nursery.start_soon(policing.set_mode, Request(1, "ro", {}), PEER)

    trio.run(together)
    patterns = {rule.pattern for rule in policing.policy.rules if rule.source.kind is Kind.RUNTIME}
    assert patterns == {f"./p{number}" for number in range(20)}
    assert policing.policy.mode is Mode.RO


def test_status_has_the_rules_with_their_hits_and_what_was_counted(
    policing: Policing, workspace: Path
) -> None:
    decision = decide(policing.policy, "secrets", root=str(workspace))
    policing.journal.record("open", Access.WRITE, b"secrets", None, decision, Somebody(0, 0, 1), 13)
    answer = ask(policing, "status")
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
    assert ask(policing, "rules") == {key: answer[key] for key in ("mode", "enabled", "rules")}


def test_why_explains_by_the_policy_in_force(policing: Policing) -> None:
    answer = ask(policing, "why", path="secrets/key", access="write")
    assert answer["allowed"] is False
    assert answer["sentence"] == (
        "write denied for 'secrets/key': hidden by rule 'secrets = hide' (config.toml:3)"
    )
    ask(policing, "allow", path="secrets")
    assert ask(policing, "why", path="secrets/key", access="write")["allowed"] is True


def test_why_knows_what_the_workspace_holds_already(policing: Policing) -> None:
    assert ask(policing, "why", path=".git/hooks/new", access="write")["allowed"] is False
    assert ask(policing, "why", path="new/.git/hooks/x", access="write")["allowed"] is True
    assert ask(policing, "why", path=".")["access"] == "read"


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
def test_why_refuses_what_is_no_question(policing: Policing, args: dict[str, object]) -> None:
    with pytest.raises(UsageError):
        ask(policing, "why", **args)


def test_every_verb_is_in_the_document_of_the_control_socket(policing: Policing) -> None:
    text = (Path(__file__).parents[3] / "docs" / "control.md").read_text()
    for verb in policing.handlers():
        assert f"| `{verb}` |" in text
