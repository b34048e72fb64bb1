"""What do a client and a daemon say to each other?

One JSON object a line, in UTF-8, each way. A request names a verb and its arguments; the answer has the
request's `id` and a result or an error. Both sides refuse what is larger than agreed, and a version that they
do not speak. `docs/control.md` describes the messages.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, NoReturn

from sandboxfs.errors import EXIT_BUG, DaemonLost, SandboxError, UsageError, error_from_json

VERSION: Final = 1
REQUEST_LIMIT: Final = 64 << 10
ANSWER_LIMIT: Final = 4 << 20

_DESCRIBED = {"code", "exit", "message", "hint"}


class DaemonBug(Exception):
    """The daemon failed in a way it should not have; its log has the traceback."""


@dataclass(frozen=True)
class Request:
    """What a client asks. *number* is its `id`, given back in the answer."""

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

    def flag(self, key: str) -> bool:
        """Return the argument *key*, which must be true or false; false when it is missing."""
        value = self.args.get(key, False)
        if not isinstance(value, bool):
            raise UsageError(f"'{key}' of '{self.verb}' is true or false")
        return value


def encode_request(request: Request) -> bytes:
    """Write *request* as a line; `UsageError` when it is larger than a daemon accepts."""
    message = {"v": VERSION, "id": request.number, "verb": request.verb, "args": dict(request.args)}
    line = _line(message)
    if len(line) > REQUEST_LIMIT:
        raise UsageError(f"the request is larger than {REQUEST_LIMIT >> 10} KiB")
    return line


def parse_request(line: bytes) -> Request:
    """Read a client's *line*; `UsageError` when it is not a request of a version spoken here."""
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
    """Return the `id` of a *line* that may be no good request, if it has one."""
    try:
        number = _object(line, "the request").get("id")
    except UsageError:
        return None
    return number if type(number) is int else None


def encode_result(number: int | None, result: object) -> bytes:
    """Write the answer *result*; ValueError or TypeError when it cannot be sent."""
    line = _line({"v": VERSION, "id": number, "ok": True, "result": result})
    if len(line) > ANSWER_LIMIT:
        raise ValueError(f"an answer of {len(line)} bytes is larger than {ANSWER_LIMIT >> 20} MiB")
    return line


def encode_error(number: int | None, error: SandboxError) -> bytes:
    """Write the answer that *error* is."""
    return _line({"v": VERSION, "id": number, "ok": False, "error": error.as_json()})


def encode_bug(number: int | None, error: Exception) -> bytes:
    """Write the answer that an unexpected *error* is."""
    described = {
        "code": "bug",
        "exit": EXIT_BUG,
        "message": f"bug in the daemon: {type(error).__name__}: {str(error)[:1000]}",
        "hint": None,
    }
    return _line({"v": VERSION, "id": number, "ok": False, "error": described})


def parse_answer(line: bytes, number: int | None) -> object:
    """Return the result that the daemon's *line* has for request *number*, or raise the error it has."""
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
    # ASCII, so that names in no valid encoding pass as the surrogates that Python has for them.
    return json.dumps(message, ensure_ascii=True, allow_nan=False, separators=(",", ":")).encode() + b"\n"


def _object(line: bytes, what: str) -> dict[str, object]:
    try:
        found: object = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{what} is not JSON") from error
    if not isinstance(found, dict):
        raise UsageError(f"{what} is not a JSON object")
    return found
