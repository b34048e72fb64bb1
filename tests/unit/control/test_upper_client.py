"""A command has operations done by the daemon in requests that it takes, or does them itself."""

import os
from pathlib import Path

import pytest

from sandboxfs.control import upper_client
from sandboxfs.control.control_socket import REQUEST_LIMIT, Request, control_address, encode_request
from sandboxfs.control.upper_client import DaemonUpperClient, DirectUpperClient
from sandboxfs.errors import DaemonLost, UsageError
from sandboxfs.state.locations import Locations, SandboxPlaces
from sandboxfs.upper.edits import (
    WHITEOUT,
    EditOutcome,
    Operation,
    Prune,
    Rehide,
    RemoveEntry,
    Unhide,
    UpperIdentity,
    operation_to_json,
    refused,
)

DONE = {"done": True}


class Daemon:
    """Stands in for a daemon: takes so many operations at once, and answers what it is told to."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, takes: int = 10**9, answer: object = None) -> None:
        self.batches: list[list[object]] = []
        self._takes = takes
        self._answer = answer
        monkeypatch.setattr(upper_client, "ask", self.ask)

    def ask(self, address: object, verb: str, args: dict[str, object], timeout: float) -> object:
        assert len(encode_request(Request(1, verb, args))) <= REQUEST_LIMIT
        assert args["record"] == 7
        operations = args["operations"]
        assert isinstance(operations, list)
        taken = operations[: self._takes]
        self.batches.append(taken)
        return {"outcomes": [DONE for _ in taken]} if self._answer is None else self._answer


@pytest.fixture
def editor(tmp_path: Path) -> DaemonUpperClient:
    locations = Locations(tmp_path, tmp_path, tmp_path)
    return DaemonUpperClient(control_address(locations, "test"))


def drops(count: int) -> list[Operation]:
    return [
        RemoveEntry(b"some/path/%d" % number + b"x" * 200, WHITEOUT, b"%d" % number)
        for number in range(count)
    ]


def test_all_operations_are_asked_for_once_and_in_order(
    editor: DaemonUpperClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    daemon = Daemon(monkeypatch)
    operations = drops(1000)
    assert editor.edit(7, operations) == [EditOutcome(done=True)] * 1000
    assert len(daemon.batches) > 3
    assert [one for batch in daemon.batches for one in batch] == [operation_to_json(o) for o in operations]


def test_what_a_daemon_left_for_later_is_asked_for_again(
    editor: DaemonUpperClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    daemon = Daemon(monkeypatch, takes=3)
    operations = drops(10)
    assert editor.edit(7, operations) == [EditOutcome(done=True)] * 10
    assert [one for batch in daemon.batches for one in batch] == [operation_to_json(o) for o in operations]


def test_nothing_to_do_asks_nobody(editor: DaemonUpperClient, monkeypatch: pytest.MonkeyPatch) -> None:
    daemon = Daemon(monkeypatch)
    assert editor.edit(7, []) == []
    assert daemon.batches == []


def test_names_that_do_not_fit_into_a_request_are_taken_from_the_record(
    editor: DaemonUpperClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    daemon = Daemon(monkeypatch)
    names = tuple(b"%d" % number + b"\xff" * 100 for number in range(1000))
    close = Rehide(b"dir", opaque=True, redirect=None, whiteouts=names)
    assert editor.edit(7, [Unhide(b"dir"), close]) == [EditOutcome(done=True)] * 2
    short = Rehide(b"dir", opaque=True, redirect=None, whiteouts=None)
    assert daemon.batches[-1][-1] == operation_to_json(short)


@pytest.mark.parametrize(
    "answer", [{}, {"outcomes": []}, {"outcomes": [DONE, DONE]}, {"outcomes": [1]}, "done"]
)
def test_an_answer_that_makes_no_sense_means_that_the_daemon_is_lost(
    editor: DaemonUpperClient, monkeypatch: pytest.MonkeyPatch, answer: object
) -> None:
    Daemon(monkeypatch, answer=answer)
    with pytest.raises(DaemonLost):
        editor.edit(7, drops(1))


def test_a_daemon_that_does_not_answer_is_lost(editor: DaemonUpperClient) -> None:
    with pytest.raises(DaemonLost):
        editor.edit(7, drops(1))


@pytest.fixture
def places(tmp_path: Path) -> SandboxPlaces:
    places = SandboxPlaces(tmp_path / "sandbox")
    for directory in (places.upper, places.work, places.index, places.commits / "7" / "upper"):
        directory.mkdir(parents=True)
    (tmp_path / "workspace").mkdir()
    return places


def test_a_sandbox_that_nobody_serves_is_edited_directly(places: SandboxPlaces, tmp_path: Path) -> None:
    (places.upper / "dir").mkdir()
    (places.upper / "dir/file").write_text("upper")
    # A killed daemon left this behind, under a name that will be used again.
    (places.work / "1").mkdir()
    expect = UpperIdentity.of((places.upper / "dir/file").lstat())
    editor = DirectUpperClient(places, tmp_path / "workspace")
    operations: list[Operation] = [
        RemoveEntry(b"dir/file", expect, b"1"),
        Prune(b"dir", b"2"),
        Prune(b"nowhere", b"3"),
    ]
    assert editor.edit(7, operations) == [
        EditOutcome(done=True),
        EditOutcome(done=True),
        refused("absent"),
    ]
    assert (places.commits / "7/upper/1").read_text() == "upper"
    assert os.listdir(places.upper) == os.listdir(places.work) == []


def test_a_record_that_is_not_there_is_told_to_a_person(places: SandboxPlaces, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no record 8"):
        DirectUpperClient(places, tmp_path / "workspace").edit(8, drops(1))
