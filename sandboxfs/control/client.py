"""How does a command ask the daemon that serves a sandbox?

One connection, one request, one answer, over a plain socket and within a time that the caller sets.
"""

import socket
import time
from collections.abc import Mapping

from sandboxfs.control.address import ControlAddress, bindable
from sandboxfs.control.messages import ANSWER_LIMIT, Request, encode_request, parse_answer
from sandboxfs.errors import DaemonLost
from sandboxfs.paths import quoted

PATIENCE = 10.0


def ask(
    address: ControlAddress,
    verb: str,
    args: Mapping[str, object] | None = None,
    timeout: float = PATIENCE,
) -> object:
    """Ask the daemon at *address* for *verb* and return its result.

    Raises the `SandboxError` that the daemon answers with, `DaemonBug` when it failed unexpectedly, and
    `DaemonLost` when it does not answer within *timeout* seconds.
    """
    request = Request(1, verb, args or {})
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
        connection.settimeout(_remaining(deadline))
        with bindable(address.found()) as name:
            connection.connect(name)
        try:
            connection.sendall(sent)
        except (BrokenPipeError, ConnectionResetError):
            # It may have said why before it closed.
            pass
        received = bytearray()
        while not received.endswith(b"\n") and len(received) <= ANSWER_LIMIT:
            connection.settimeout(_remaining(deadline))
            chunk = connection.recv(1 << 18)
            if not chunk:
                break
            received += chunk
        return bytes(received)


def _remaining(deadline: float) -> float:
    remaining = deadline - time.monotonic()
    if remaining <= 0:
        raise TimeoutError
    return remaining


def _lost(address: ControlAddress, what: str) -> DaemonLost:
    return DaemonLost(
        f"the daemon of sandbox '{address.name}' {what}", hint=f"its log is {quoted(address.log)}"
    )
