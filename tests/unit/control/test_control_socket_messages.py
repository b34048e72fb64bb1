"""Requests and answers survive the way over the socket; everything else is refused with a reason."""

import json
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from sandboxfs.control.control_socket import (
    ANSWER_LIMIT,
    REQUEST_LIMIT,
    ControlAddress,
    DaemonBug,
    Request,
    ask,
    bindable,
    control_address,
    encode_bug,
    encode_error,
    encode_request,
    encode_result,
    parse_answer,
    parse_request,
    request_number,
)
from sandboxfs.errors import DaemonLost, SandboxBusy, SandboxError, UsageError
from sandboxfs.state.locations import Locations


def request(**changes: object) -> bytes:
    return json.dumps({"v": 1, "id": 7, "verb": "status", "args": {}} | changes).encode()


def test_a_request_is_read_as_it_was_written() -> None:
    sent = Request(3, "allow", {"path": "odd \udcff\n name", "deep": [1, None, {"x": True}]})
    line = encode_request(sent)
    assert line.endswith(b"\n")
    assert line.count(b"\n") == 1
    assert parse_request(line) == sent


def test_arguments_may_be_left_out() -> None:
    assert parse_request(b'{"v": 1, "verb": "status"}') == Request(None, "status", {})


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"null",
        b"[]",
        b"{",
        b"\xff\xfe",
        b"[" * 60_000,
        b"9" * 60_000,
        request(verb=None),
        request(verb=["status"]),
        request(args=[]),
        request(args="x"),
        request(id="7"),
        request(id=1.5),
        request(id=True),
    ],
)
def test_what_is_no_request_is_refused(line: bytes) -> None:
    with pytest.raises(UsageError):
        parse_request(line)


@pytest.mark.parametrize("version", [0, 2, "1", 1.0, True, None])
def test_another_version_is_refused_naming_the_one_that_is_spoken(version: object) -> None:
    with pytest.raises(UsageError, match="speaks version 1") as refused:
        parse_request(request(v=version))
    assert refused.value.details == {"supported": [1]}


def test_the_number_of_a_bad_request_is_found_where_it_has_one() -> None:
    assert request_number(request(v=2)) == 7
    assert request_number(b"{") is None
    assert request_number(request(id="7")) is None


def test_arguments_are_typed_or_refused() -> None:
    asked = Request(1, "allow", {"path": "a", "dry": True, "none": None})
    assert asked.text("path") == "a"
    assert asked.flag("dry") is True
    assert asked.flag("missing") is False
    assert asked.optional_text("missing") is None
    assert asked.optional_text("none") is None
    for wrong in (lambda: asked.text("dry"), lambda: asked.text("missing"), lambda: asked.flag("path")):
        with pytest.raises(UsageError, match="'allow'"):
            wrong()


def test_a_request_too_large_is_not_even_sent() -> None:
    with pytest.raises(UsageError, match="larger than 64 KiB"):
        encode_request(Request(1, "allow", {"path": "x" * REQUEST_LIMIT}))


def test_a_result_is_read_as_it_was_written() -> None:
    result: dict[str, object] = {"name": "\udc80", "rules": [], "none": None}
    assert parse_answer(encode_result(4, result), 4) == result


@pytest.mark.parametrize("result", [{1, 2}, b"bytes", float("nan"), "x" * ANSWER_LIMIT])
def test_a_result_that_cannot_be_sent_is_an_error_of_the_handler(result: object) -> None:
    with pytest.raises((TypeError, ValueError)):
        encode_result(1, result)


@pytest.mark.parametrize("kind", SandboxError.__subclasses__())
def test_an_error_is_raised_again_with_its_class_hint_and_details(kind: type[SandboxError]) -> None:
    with pytest.raises(kind) as raised:
        parse_answer(encode_error(1, kind("message", hint="hint", details={"users": [1]})), 1)
    assert type(raised.value) is kind
    assert (raised.value.message, raised.value.hint) == ("message", "hint")
    assert raised.value.details == {"users": [1]}


def test_a_bug_in_the_daemon_is_a_bug_and_no_sandbox_error() -> None:
    with pytest.raises(DaemonBug, match="bug in the daemon: ZeroDivisionError: by zero"):
        parse_answer(encode_bug(1, ZeroDivisionError("by zero")), 1)


@pytest.mark.parametrize(
    "answer", [b"", b"{", b"[]", b"{}", b'{"v": 1, "id": 2, "ok": true}', b'{"v": 2, "id": 1, "ok": true}']
)
def test_an_answer_that_makes_no_sense_is_a_lost_daemon(answer: bytes) -> None:
    with pytest.raises(DaemonLost):
        parse_answer(answer, 1)


def address(directory: Path) -> ControlAddress:
    return ControlAddress("app", directory / "app.sock", directory / "control", directory / "daemon.log")


@contextmanager
def answering(where: ControlAddress, behave: Callable[[socket.socket], None]) -> Iterator[None]:
    """Let *behave* meet the one client that connects."""
    with socket.socket(socket.AF_UNIX) as listener:
        with bindable(where.socket) as name:
            listener.bind(name)
        listener.listen()

        def serve() -> None:
            connection, _ = listener.accept()
            with connection:
                behave(connection)

        thread = threading.Thread(target=serve)
        thread.start()
        yield
        thread.join()


def received(connection: socket.socket) -> bytes:
    line = b""
    while not line.endswith(b"\n"):
        chunk = connection.recv(1 << 16)
        assert chunk, "the client went away"
        line += chunk
    return line


def test_a_client_gets_its_answer_however_it_is_cut_up(tmp_path: Path) -> None:
    def behave(connection: socket.socket) -> None:
        number = parse_request(received(connection)).number
        for byte in encode_result(number, {"x": "y"}):
            connection.sendall(bytes([byte]))

    with answering(address(tmp_path), behave):
        assert ask(address(tmp_path), "status") == {"x": "y"}


def test_a_client_raises_what_the_daemon_answers(tmp_path: Path) -> None:
    def behave(connection: socket.socket) -> None:
        received(connection)
        connection.sendall(encode_error(1, SandboxBusy("in use")))

    with answering(address(tmp_path), behave), pytest.raises(SandboxBusy, match="in use"):
        ask(address(tmp_path), "status")


def test_a_client_hears_why_it_was_turned_away_although_it_was_still_talking(tmp_path: Path) -> None:
    def behave(connection: socket.socket) -> None:
        connection.sendall(encode_error(None, SandboxBusy("too many")))

    with answering(address(tmp_path), behave), pytest.raises(SandboxBusy, match="too many"):
        ask(address(tmp_path), "status", {"path": "x" * 60_000})


@pytest.mark.parametrize(
    ("said", "told"),
    [
        (b"", "did not finish its answer"),
        (b'{"v": 1, "id": 1, "ok"', "did not finish its answer"),
        (b"x" * (ANSWER_LIMIT + 10), "did not finish its answer"),
    ],
    ids=["silence", "half", "endless"],
)
def test_a_daemon_that_breaks_off_is_lost_and_the_log_is_named(
    said: bytes, told: str, tmp_path: Path
) -> None:
    def behave(connection: socket.socket) -> None:
        received(connection)
        try:
            connection.sendall(said)
        except OSError:
            # The client has heard enough.
            return

    with answering(address(tmp_path), behave), pytest.raises(DaemonLost, match=told) as lost:
        ask(address(tmp_path), "status")
    assert lost.value.hint == f"its log is '{tmp_path / 'daemon.log'}'"


def test_a_daemon_that_does_not_answer_in_time_is_lost(tmp_path: Path) -> None:
    def behave(connection: socket.socket) -> None:
        # Until the client goes away, whether it came to send its request or not.
        while connection.recv(1 << 16):
            pass

    with answering(address(tmp_path), behave), pytest.raises(DaemonLost, match=r"within 0\.5 seconds"):
        ask(address(tmp_path), "status", timeout=0.5)


def test_a_daemon_that_is_not_there_is_lost(tmp_path: Path) -> None:
    with pytest.raises(DaemonLost, match="sandbox 'app' does not answer: No such file"):
        ask(address(tmp_path), "status")


def test_a_socket_that_nobody_listens_at_is_a_lost_daemon(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as left_behind:
        left_behind.bind(str(tmp_path / "app.sock"))
    with pytest.raises(DaemonLost, match="Connection refused"):
        ask(address(tmp_path), "status")


def test_a_client_with_another_environment_finds_the_socket_by_the_link(tmp_path: Path) -> None:
    def behave(connection: socket.socket) -> None:
        connection.sendall(encode_result(parse_request(received(connection)).number, "found"))

    there, here = tmp_path / "there", tmp_path / "here"
    there.mkdir()
    here.mkdir()
    (here / "control").symlink_to(address(there).socket)
    with answering(address(there), behave):
        assert ask(address(here), "status") == "found"


def test_a_path_too_long_for_a_socket_address_is_reached_all_the_same(tmp_path: Path) -> None:
    deep = tmp_path.joinpath(*["a-rather-long-directory-name"] * 8)
    deep.mkdir(parents=True)

    def behave(connection: socket.socket) -> None:
        connection.sendall(encode_result(parse_request(received(connection)).number, 1))

    assert len(str(deep)) > 200
    with answering(address(deep), behave):
        assert ask(address(deep), "status") == 1
    assert (deep / "app.sock").is_socket()


def test_two_state_directories_with_one_runtime_directory_have_two_sockets(tmp_path: Path) -> None:
    first = Locations(tmp_path / "one", tmp_path / "run", tmp_path / "config.toml")
    second = Locations(tmp_path / "two", tmp_path / "run", tmp_path / "config.toml")
    assert control_address(first, "app").socket.parent == tmp_path / "run" / "control"
    assert control_address(first, "app").socket != control_address(second, "app").socket
