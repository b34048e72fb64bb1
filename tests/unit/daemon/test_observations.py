"""An observation counts everything, keeps some examples, and ends with the command it is for."""

import os
import subprocess
from collections.abc import Awaitable
from pathlib import Path

import pytest
import trio

from sandboxfs.control.control_socket import ANSWER_LIMIT, Request, encode_result
from sandboxfs.daemon.control_peers import Peer
from sandboxfs.daemon.observations import OBSERVATIONS, Observations
from sandboxfs.errors import SandboxBusy, UsageError
from sandboxfs.overlay.overlay import Overlay, OverlayPaths
from sandboxfs.policy.assertions import Assertions
from sandboxfs.policy.model import Access, Decision, Mode, Rule, RuleSource, SourceKind
from sandboxfs.runs.run import ViewResult, broken
from sandboxfs.runs.run_views import RunObservation

SELF = Peer(os.getpid(), os.getuid(), os.getgid())
REFUSED = Decision.by(Rule("**", Mode.RO, RuleSource(SourceKind.USER)))
ALLOWED = Decision.by(Rule("**", Mode.RW, RuleSource(SourceKind.USER)))


@pytest.fixture
def observations(tmp_path: Path) -> Observations:
    for name in ("lower", "upper", "work", "index", "baseline"):
        (tmp_path / name).mkdir()
    paths = OverlayPaths(
        lowers=[tmp_path / "lower"],
        upper=tmp_path / "upper",
        work=tmp_path / "work",
        index=tmp_path / "index",
        baseline=tmp_path / "baseline",
    )
    return Observations(Overlay(paths), str(tmp_path / "lower"))


def ask(observations: Observations, verb: str, peer: Peer = SELF, **args: object) -> dict[str, object]:
    handler = observations.handlers()[verb]

    async def asked() -> object:
        answer = handler(Request(1, verb, args), peer)
        return await answer if isinstance(answer, Awaitable) else answer

    found = trio.run(asked)
    assert isinstance(found, dict)
    return found


def write(observations: Observations, path: bytes, error: int = 0) -> None:
    decision = REFUSED if error else ALLOWED
    observations.saw("create", Access.WRITE, path, None, decision, error)


def test_more_than_can_be_told_is_counted_and_the_answer_is_never_too_large(
    observations: Observations,
) -> None:
    number = ask(observations, "observe", no_writes=["**"])["observation"]
    for serial in range(5000):
        # Bytes that are no UTF-8 take six characters each.
        path = b"/".join([b"\xff" * 255] * 15 + [b"%d" % serial])
        write(observations, path)
        write(observations, path, error=30)
    told = ask(observations, "observed", observation=number)
    listed, denials = told["objections"], told["denials"]
    assert isinstance(listed, list)
    assert isinstance(denials, list)
    assert listed
    assert told["more_objections"] == 5000 - len(listed)
    assert told["more_denials"] == 5000 - len(denials)
    assert len(encode_result(1, told)) < ANSWER_LIMIT


def test_an_observation_counts_nothing_of_before_it_and_nothing_after_its_end(
    observations: Observations,
) -> None:
    write(observations, b"a")
    number = ask(observations, "observe", no_writes=["a"])["observation"]
    assert ask(observations, "observed", observation=number)["objections"] == []
    write(observations, b"a/b")
    expected = [{"path": "a/b", "assertion": "--assert-no-writes 'a'"}]
    assert ask(observations, "observed", observation=number, end=True)["objections"] == expected
    with pytest.raises(UsageError):
        ask(observations, "observed", observation=number)
    assert not observations


def test_observations_of_commands_that_were_killed_make_room_for_others(observations: Observations) -> None:
    with subprocess.Popen(["true"]) as ended:
        pass
    for _ in range(OBSERVATIONS):
        ask(observations, "observe", peer=Peer(ended.pid, 0, 0))
    for _ in range(OBSERVATIONS):
        ask(observations, "observe")
    with pytest.raises(SandboxBusy):
        ask(observations, "observe")


@pytest.mark.parametrize("args", [{"no_writes": "a"}, {"no_writes": [1]}, {"writes_only": ["a["]}])
def test_what_is_no_list_of_patterns_is_refused(observations: Observations, args: dict[str, object]) -> None:
    with pytest.raises(UsageError):
        trio.run(observations.observe, Request(1, "observe", args), SELF)


@pytest.mark.parametrize(
    "assertions", [Assertions(no_writes=("a",)), Assertions(writes_only=("a",)), Assertions(no_denials=True)]
)
def test_a_daemon_that_does_not_tell_what_it_saw_breaks_every_assertion(assertions: Assertions) -> None:
    happened = [
        ViewResult("app", Path("/w"), seen=RunObservation(lost="the daemon of sandbox 'app' is gone"))
    ]
    assert broken(assertions, happened) == [
        "what was asserted of sandbox 'app' cannot be known: the daemon of sandbox 'app' is gone"
    ]
    assert broken(Assertions(), happened) == []
