"""A command has operations done by the daemon in requests that it takes, or does them itself."""

import os
from pathlib import Path

import pytest

from sandboxfs.control import settling
from sandboxfs.control.address import control_address
from sandboxfs.control.messages import REQUEST_LIMIT, Request, encode_request
from sandboxfs.control.settling import DaemonSettler, DirectSettler
from sandboxfs.errors import DaemonLost, UsageError
from sandboxfs.layers.settlement import (
    WHITEOUT,
    Close,
    Drop,
    Identity,
    Open,
    Operation,
    Outcome,
    Prune,
    refused,
)
from sandboxfs.layers.settlement_json import operation_to_json
from sandboxfs.state.locations import Locations, SandboxPlaces

DONE = {"done": True}


class Daemon:
    """Stands in for a daemon: takes so many operations at once, and answers what it is told to."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, takes: int = 10**9, answer: object = None) -> None:
        self.batches: list[list[object]] = []
        self._takes = takes
        self._answer = answer
        monkeypatch.setattr(settling, "ask", self.ask)

    def ask(self, address: object, verb: str, args: dict[str, object], timeout: float) -> object:
        assert len(encode_request(Request(1, verb, args))) <= REQUEST_LIMIT
        assert args["record"] == 7
        operations = args["operations"]
        assert isinstance(operations, list)
        taken = operations[: self._takes]
        self.batches.append(taken)
        return {"outcomes": [DONE for _ in taken]} if self._answer is None else self._answer


@pytest.fixture
def settler(tmp_path: Path) -> DaemonSettler:
    locations = Locations(tmp_path, tmp_path, tmp_path)
    return DaemonSettler(control_address(locations, "test"))


def drops(count: int) -> list[Operation]:
    return [Drop(b"some/path/%d" % number + b"x" * 200, WHITEOUT, b"%d" % number) for number in range(count)]


def test_all_operations_are_asked_for_once_and_in_order(
    settler: DaemonSettler, monkeypatch: pytest.MonkeyPatch
) -> None:
    daemon = Daemon(monkeypatch)
    operations = drops(1000)
    assert settler.settle(7, operations) == [Outcome(done=True)] * 1000
    assert len(daemon.batches) > 3
    assert [one for batch in daemon.batches for one in batch] == [operation_to_json(o) for o in operations]


def test_what_a_daemon_left_for_later_is_asked_for_again(
    settler: DaemonSettler, monkeypatch: pytest.MonkeyPatch
) -> None:
    daemon = Daemon(monkeypatch, takes=3)
    operations = drops(10)
    assert settler.settle(7, operations) == [Outcome(done=True)] * 10
    assert [one for batch in daemon.batches for one in batch] == [operation_to_json(o) for o in operations]


def test_nothing_to_do_asks_nobody(settler: DaemonSettler, monkeypatch: pytest.MonkeyPatch) -> None:
    daemon = Daemon(monkeypatch)
    assert settler.settle(7, []) == []
    assert daemon.batches == []


def test_names_that_do_not_fit_into_a_request_are_taken_from_the_record(
    settler: DaemonSettler, monkeypatch: pytest.MonkeyPatch
) -> None:
    daemon = Daemon(monkeypatch)
    names = tuple(b"%d" % number + b"\xff" * 100 for number in range(1000))
    close = Close(b"dir", opaque=True, redirect=None, whiteouts=names)
    assert settler.settle(7, [Open(b"dir"), close]) == [Outcome(done=True)] * 2
    short = Close(b"dir", opaque=True, redirect=None, whiteouts=None)
    assert daemon.batches[-1][-1] == operation_to_json(short)


@pytest.mark.parametrize(
    "answer", [{}, {"outcomes": []}, {"outcomes": [DONE, DONE]}, {"outcomes": [1]}, "done"]
)
def test_an_answer_that_makes_no_sense_means_that_the_daemon_is_lost(
    settler: DaemonSettler, monkeypatch: pytest.MonkeyPatch, answer: object
) -> None:
    Daemon(monkeypatch, answer=answer)
    with pytest.raises(DaemonLost):
        settler.settle(7, drops(1))


def test_a_daemon_that_does_not_answer_is_lost(settler: DaemonSettler) -> None:
    with pytest.raises(DaemonLost):
        settler.settle(7, drops(1))


@pytest.fixture
def places(tmp_path: Path) -> SandboxPlaces:
    places = SandboxPlaces(tmp_path / "sandbox")
    for directory in (places.upper, places.work, places.index, places.commits / "7" / "upper"):
        directory.mkdir(parents=True)
    (tmp_path / "workspace").mkdir()
    return places


def test_a_sandbox_that_nobody_serves_is_settled_directly(places: SandboxPlaces, tmp_path: Path) -> None:
    (places.upper / "dir").mkdir()
    (places.upper / "dir/file").write_text("upper")
    # A killed daemon left this behind, under a name that will be used again.
    (places.work / "1").mkdir()
    expect = Identity.of((places.upper / "dir/file").lstat())
    settler = DirectSettler(places, tmp_path / "workspace")
    operations: list[Operation] = [
        Drop(b"dir/file", expect, b"1"),
        Prune(b"dir", b"2"),
        Prune(b"nowhere", b"3"),
    ]
    assert settler.settle(7, operations) == [Outcome(done=True), Outcome(done=True), refused("absent")]
    assert (places.commits / "7/upper/1").read_text() == "upper"
    assert os.listdir(places.upper) == os.listdir(places.work) == []


def test_a_record_that_is_not_there_is_told_to_a_person(places: SandboxPlaces, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no record 8"):
        DirectSettler(places, tmp_path / "workspace").settle(8, drops(1))
