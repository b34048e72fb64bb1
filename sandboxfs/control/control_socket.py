"""Control socket: messages between a command and a daemon, and the client that asks the daemon of a sandbox.

Each message, in both directions, is one JSON object on a line, in UTF-8. A request names a verb and its
arguments; the answer has the request's `id` and a result or an error. Both sides refuse messages larger than
agreed, and versions that they do not speak. `docs/control.md` describes the messages. They are read by hand
and not by `codec`: the version is checked before everything else, the `id` is wanted even where the rest is
refused, and another version may add keys.

The socket is in the runtime directory, which only its user may enter. Two state directories may share a
runtime directory, so the socket's name has a tag. A client's environment may name another runtime directory
than the daemon's did, so the daemon also makes a link to the socket in the sandbox's directory. The client
sends one request over one connection, and waits for the answer within a time that the caller sets. Or it
follows events: then every line is an answer with the `id` of the one request, and its result is an event. A
reader that takes no events is let go by the daemon.
"""

import json
import os
import socket
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Final, NoReturn, Self

from sandboxfs.errors import EXIT_BUG, DaemonLost, SandboxError, UsageError, error_from_json
from sandboxfs.paths import quoted
from sandboxfs.state.locations import Locations

VERSION: Final = 1
REQUEST_LIMIT: Final = 64 << 10
ANSWER_LIMIT: Final = 4 << 20

_DESCRIBED = {"code", "exit", "message", "hint"}


class DaemonBug(Exception):
    """The daemon failed by a bug of its own; the daemon's log has the traceback."""


@dataclass(frozen=True)
class Request:
    """A client's request. *number* is the request's `id`, which the answer repeats."""

    number: int | None
    verb: str
    args: Mapping[str, object]

    def text(self, key: str) -> str:
        """Return the argument *key*, which must be there and be text."""
        value = self.args.get(key)
        if not isinstance(value, str):
            raise UsageError(f"'{self.verb}' needs '{key}', a text")
        return value

    def optional_text(self, key: str) -> str | None:
        """Return the argument *key*, which must be text; None when it is missing or null."""
        return None if self.args.get(key) is None else self.text(key)

    def whole_number(self, key: str) -> int:
        """Return the argument *key*, which must be there and be a whole number."""
        value = self.args.get(key)
        if not isinstance(value, int) or isinstance(value, bool):
            raise UsageError(f"'{self.verb}' needs '{key}', a whole number")
        return value

    def flag(self, key: str) -> bool:
        """Return the argument *key*, which must be true or false; false when it is missing."""
        value = self.args.get(key, False)
        if not isinstance(value, bool):
            raise UsageError(f"'{key}' of '{self.verb}' is true or false")
        return value


def encode_request(request: Request) -> bytes:
    """Write *request* as a line; `UsageError` when the line is larger than a daemon accepts."""
    message = {"v": VERSION, "id": request.number, "verb": request.verb, "args": dict(request.args)}
    line = _line(message)
    if len(line) > REQUEST_LIMIT:
        raise UsageError(f"the request is larger than {REQUEST_LIMIT >> 10} KiB")
    return line


def parse_request(line: bytes) -> Request:
    """Read a client's *line*; `UsageError` when the line is not a request of a version spoken here."""
    message = _object(line, "the request")
    version = message.get("v")
    if type(version) is not int or version != VERSION:
        raise UsageError(
            f"the daemon speaks version {VERSION} of the control protocol",
            hint="unmount and mount the sandbox to have it served by this version of sandboxfs",
            details={"supported": [VERSION]},
        )
    number, verb, args = message.get("id"), message.get("verb"), message.get("args", {})
    if number is not None and type(number) is not int:
        raise UsageError("malformed request: 'id' is a whole number")
    if not isinstance(verb, str):
        raise UsageError("malformed request: 'verb' is a text")
    if not isinstance(args, dict):
        raise UsageError("malformed request: 'args' is an object")
    return Request(number, verb, args)


def request_number(line: bytes) -> int | None:
    """Return the `id` of a *line* that may be no valid request; None when the line has no `id`."""
    try:
        number = _object(line, "the request").get("id")
    except UsageError:
        return None
    return number if type(number) is int else None


def encode_result(number: int | None, result: object) -> bytes:
    """Write *result* as an answer; ValueError or TypeError when *result* cannot be sent."""
    line = _line({"v": VERSION, "id": number, "ok": True, "result": result})
    if len(line) > ANSWER_LIMIT:
        raise ValueError(f"an answer of {len(line)} bytes is larger than {ANSWER_LIMIT >> 20} MiB")
    return line


def encode_error(number: int | None, error: SandboxError) -> bytes:
    """Write *error* as an answer."""
    return _line({"v": VERSION, "id": number, "ok": False, "error": error.as_json()})


def encode_bug(number: int | None, error: Exception) -> bytes:
    """Write an unexpected *error* as an answer."""
    described = {
        "code": "bug",
        "exit": EXIT_BUG,
        "message": f"bug in the daemon: {type(error).__name__}: {str(error)[:1000]}",
        "hint": None,
    }
    return _line({"v": VERSION, "id": number, "ok": False, "error": described})


def parse_answer(line: bytes, number: int | None) -> object:
    """Return the result for request *number* in the daemon's *line*, or raise the error in that line."""
    try:
        message = _object(line, "the answer")
    except UsageError as error:
        raise DaemonLost(error.message) from error
    if message.get("ok") is True and message.get("v") == VERSION and message.get("id") == number:
        return message.get("result")
    described = message.get("error")
    if message.get("ok") is False and isinstance(described, dict):
        _raise(described)
    raise DaemonLost("the daemon's answer makes no sense")


def _raise(described: dict[str, object]) -> NoReturn:
    if described.get("code") == "bug":
        raise DaemonBug(str(described.get("message")))
    error = error_from_json(described)
    error.details = {key: value for key, value in described.items() if key not in _DESCRIBED}
    raise error


def _line(message: Mapping[str, object]) -> bytes:
    # ASCII, so that names that are no valid UTF-8 pass as the surrogates of `surrogateescape`.
    return json.dumps(message, ensure_ascii=True, allow_nan=False, separators=(",", ":")).encode() + b"\n"


def _object(line: bytes, what: str) -> dict[str, object]:
    try:
        found: object = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{what} is not JSON") from error
    if not isinstance(found, dict):
        raise UsageError(f"{what} is not a JSON object")
    return found


# sun_path has 108 bytes, one of them for the NUL at the end (unix(7)).
_PATH_LIMIT = 107


@dataclass(frozen=True)
class ControlAddress:
    """The address of the daemon of the sandbox called *name*.

    *link*, in the sandbox's directory, leads to *socket* while a daemon serves the sandbox; *log* explains
    why no daemon answers.
    """

    name: str
    socket: Path
    link: Path
    log: Path

    def found(self) -> Path:
        """Return the socket that the daemon's link names, else the one that this environment implies."""
        try:
            return self.link.readlink()
        except OSError:
            return self.socket


def control_address(locations: Locations, name: str) -> ControlAddress:
    """Return the address of the sandbox called *name*, which need not be served."""
    # Imported late: a run gets here only while its daemon is starting, and so waits anyway.
    import hashlib

    tag = hashlib.sha256(os.fsencode(locations.state)).hexdigest()[:8]
    places = locations.sandbox(name)
    return ControlAddress(
        name=name,
        socket=locations.runtime / "control" / f"{name}-{tag}.sock",
        link=places.home / "control",
        log=places.log,
    )


@contextmanager
def bindable(path: Path) -> Iterator[str]:
    """Give a name for *path* that fits a socket address, valid inside the block only."""
    if len(os.fsencode(path)) <= _PATH_LIMIT:
        yield str(path)
        return
    directory = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{directory}/{path.name}"
    finally:
        os.close(directory)


PATIENCE = 10.0
_AGAIN = 0.05
# The `id` of the one request that is sent over a connection.
_ONLY = 1


def ask(
    address: ControlAddress,
    verb: str,
    args: Mapping[str, object] | None = None,
    timeout: float = PATIENCE,
) -> object:
    """Ask the daemon at *address* for *verb* and return its result.

    Raises the `SandboxError` that the daemon answers with, `DaemonBug` when the daemon failed unexpectedly,
    and `DaemonLost` when the daemon does not answer within *timeout* seconds.
    """
    request = Request(_ONLY, verb, args or {})
    sent = encode_request(request)
    try:
        line = _exchange(address, sent, time.monotonic() + timeout)
    except TimeoutError as error:
        raise _lost(address, f"does not answer within {timeout:g} seconds") from error
    except OSError as error:
        raise _lost(address, f"does not answer: {error.strerror or error}") from error
    if not line.endswith(b"\n"):
        raise _lost(address, "did not finish its answer")
    return parse_answer(line, request.number)


def _exchange(address: ControlAddress, sent: bytes, deadline: float) -> bytes:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        _connect(connection, address, deadline)
        try:
            connection.sendall(sent)
        except (BrokenPipeError, ConnectionResetError):
            # The daemon may have sent an error before it closed the connection.
            pass
        received = bytearray()
        while not received.endswith(b"\n") and len(received) <= ANSWER_LIMIT:
            connection.settimeout(_remaining(deadline))
            chunk = connection.recv(1 << 18)
            if not chunk:
                break
            received += chunk
        return bytes(received)


def _connect(connection: socket.socket, address: ControlAddress, deadline: float) -> None:
    """Connect to the daemon at *address*; TimeoutError when the *deadline* passes, on the monotonic clock."""
    while True:
        connection.settimeout(_remaining(deadline))
        try:
            with bindable(address.found()) as name:
                connection.connect(name)
            return
        except BlockingIOError:
            # The socket's backlog is full, and no event tells when there is room.
            time.sleep(min(_AGAIN, _remaining(deadline)))


def _remaining(deadline: float) -> float:
    remaining = deadline - time.monotonic()
    if remaining <= 0:
        raise TimeoutError
    return remaining


def _lost(address: ControlAddress, what: str) -> DaemonLost:
    return DaemonLost(
        f"the daemon of sandbox '{address.name}' {what}", hint=f"its log is {quoted(address.log)}"
    )


class EventStream:
    """The events that the daemon at *address* answers a *verb* with.

    A reader waits for the descriptor of the connection together with its other descriptors.
    """

    def __init__(self, address: ControlAddress, verb: str, args: Mapping[str, object]) -> None:
        self._address = address
        self._received = bytearray()
        self.ended = False
        self._connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            _connect(self._connection, address, time.monotonic() + PATIENCE)
            self._connection.settimeout(PATIENCE)
            self._connection.sendall(encode_request(Request(_ONLY, verb, args)))
        except OSError as error:
            self._connection.close()
            raise _lost(address, f"does not answer: {error.strerror or error}") from error

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._connection.close()

    def fileno(self) -> int:
        return self._connection.fileno()

    def arrived(self) -> Iterator[object]:
        """Wait until something has arrived, and give all events that are whole; `ended` when no more come.

        Raises the `SandboxError` that the daemon answers with.
        """
        self._connection.settimeout(None)
        try:
            chunk = self._connection.recv(1 << 18)
        except ConnectionResetError:
            chunk = b""
        self.ended = not chunk
        self._received += chunk
        *lines, self._received = self._received.split(b"\n")
        if len(self._received) > ANSWER_LIMIT:
            raise _lost(self._address, "tells of more than is agreed")
        for line in lines:
            yield parse_answer(bytes(line), _ONLY)
