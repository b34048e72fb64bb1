"""A webhook answers by one whole response of success, and by nothing else."""

import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from sandboxfs.responder.answer_object import ANSWER_SIZE, NoAnswer
from sandboxfs.responder.webhook import is_loopback, post

QUESTION = b'{"id": 3}\n'
ANSWER = b'{"decision": "allow"}'


@dataclass
class Server:
    """A server that gives each connection the same bytes; *heard* are its requests."""

    url: str
    heard: list[bytes] = field(default_factory=list)


@contextmanager
def serving(response: bytes, *, closes: bool = True) -> Iterator[Server]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = Server(f"http://127.0.0.1:{listener.getsockname()[1]}/ask")
        stopped = threading.Event()

        def work() -> None:
            while True:
                try:
                    connection, _ = listener.accept()
                except OSError:
                    return
                with connection:
                    if stopped.is_set():
                        return
                    server.heard.append(_request(connection))
                    connection.sendall(response)
                    if not closes:
                        stopped.wait(60)

        thread = threading.Thread(target=work)
        thread.start()
        try:
            yield server
        finally:
            stopped.set()
            with socket.create_connection(listener.getsockname()):
                pass
            thread.join()


def _request(connection: socket.socket) -> bytes:
    heard = b""
    while b"\r\n\r\n" not in heard:
        heard += connection.recv(65536)
    head, _, body = heard.partition(b"\r\n\r\n")
    lengths = [line.split(b":")[1] for line in head.splitlines() if line.lower().startswith(b"content-len")]
    while len(body) < int(lengths[0]):
        more = connection.recv(65536)
        heard, body = heard + more, body + more
    return heard


def response(status: str, body: bytes = b"", *headers: str) -> bytes:
    lines = [f"HTTP/1.1 {status}", *headers, f"Content-Length: {len(body)}", "", ""]
    return "\r\n".join(lines).encode() + body


def test_a_question_is_posted_with_the_token_and_the_answer_comes_back(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("s3cret\n")
    token.chmod(0o600)
    with serving(response("200 OK", ANSWER)) as server:
        assert post(server.url, token, QUESTION) == ANSWER
    (heard,) = server.heard
    head, _, body = heard.partition(b"\r\n\r\n")
    assert body == QUESTION
    lines = head.decode().splitlines()
    assert lines[0] == "POST /ask HTTP/1.1"
    assert "Authorization: Bearer s3cret" in lines
    assert "Content-Type: application/json" in lines


def test_a_token_that_others_can_read_is_not_sent(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("s3cret")
    token.chmod(0o640)
    with serving(response("200 OK", ANSWER)) as server, pytest.raises(NoAnswer, match="token"):
        post(server.url, token, QUESTION)
    assert server.heard == []


@pytest.mark.parametrize(
    ("said", "why"),
    [
        (response("500 Internal Server Error", ANSWER), "status 500"),
        (response("403 Forbidden"), "status 403"),
        (response("302 Found", ANSWER, "Location: file:///etc/passwd"), "status 302"),
        (response("307 Temporary Redirect", ANSWER, "Location: /other"), "status 307"),
        (response("200 OK", b" " * (ANSWER_SIZE + 1)), "more than 16 KiB"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 999\r\n\r\n" + ANSWER, "broke off"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", "malformed response"),
        (b"SSH-2.0-OpenSSH\r\n", "malformed response"),
        (b"", "broke off|malformed response"),
    ],
)
def test_a_response_that_is_no_success_is_no_answer(said: bytes, why: str) -> None:
    with serving(said) as server, pytest.raises(NoAnswer, match=why) as refused:
        post(server.url, None, QUESTION)
    assert len(server.heard) == 1, "asked again"
    # The program in the view is told of it.
    assert "127.0.0.1" not in str(refused.value)
    assert str(refused.value).isprintable()


def test_a_response_without_content_is_empty() -> None:
    with serving(b"HTTP/1.1 204 No Content\r\n\r\n") as server:
        assert post(server.url, None, QUESTION) == b""


def test_a_server_that_is_not_there_is_no_answer() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    with pytest.raises(NoAnswer, match="cannot be reached: Connection refused"):
        post(f"http://127.0.0.1:{port}/", None, QUESTION)


def test_a_server_that_cannot_be_trusted_is_no_answer() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def work() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.recv(65536)
                connection.sendall(b"HTTP/1.1 200 OK\r\n\r\n")

        thread = threading.Thread(target=work)
        thread.start()
        with pytest.raises(NoAnswer, match="cannot be reached: no connection that can be trusted"):
            post(f"https://127.0.0.1:{listener.getsockname()[1]}/", None, QUESTION)
        thread.join()


def test_a_proxy_is_asked_for_other_machines_and_not_for_this_one(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("no_proxy", "NO_PROXY", "HTTP_PROXY"):
        monkeypatch.delenv(name, raising=False)
    with serving(response("200 OK", ANSWER)) as proxy, serving(response("200 OK", b"{}")) as server:
        monkeypatch.setenv("http_proxy", proxy.url)
        assert post(server.url, None, QUESTION) == b"{}"
        assert proxy.heard == []
        assert post("http://bot.example/ask", None, QUESTION) == ANSWER
        assert proxy.heard[0].startswith(b"POST http://bot.example/ask ")
    assert json.loads(proxy.heard[0].partition(b"\r\n\r\n")[2]) == {"id": 3}


def test_this_machine_has_several_names() -> None:
    for host in ("localhost", "bot.localhost", "127.0.0.1", "127.9.9.9", "::1"):
        assert is_loopback(host)
    for host in ("localhost.example", "10.0.0.1", "", "127.0.0.1.example"):
        assert not is_loopback(host)
