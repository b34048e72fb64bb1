"""Event stream: what a daemon tells of over one connection until that ends.

Each line is an answer with the `id` of the one request that was sent, and its result is an event. A reader
waits for the descriptor of the connection together with its other descriptors, and takes all events that have
arrived; a reader that takes none is let go by the daemon.
"""

import socket
import time
from collections.abc import Iterator, Mapping
from types import TracebackType
from typing import Self

from sandboxfs.control.control_socket import (
    ANSWER_LIMIT,
    PATIENCE,
    ControlAddress,
    Request,
    connect,
    encode_request,
    lost,
    parse_answer,
)

_NUMBER = 1


class EventStream:
    """The events that the daemon at *address* answers a *verb* with."""

    def __init__(self, address: ControlAddress, verb: str, args: Mapping[str, object]) -> None:
        self._address = address
        self._received = bytearray()
        self.ended = False
        self._connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            connect(self._connection, address, time.monotonic() + PATIENCE)
            self._connection.settimeout(PATIENCE)
            self._connection.sendall(encode_request(Request(_NUMBER, verb, args)))
        except OSError as error:
            self._connection.close()
            raise lost(address, f"does not answer: {error.strerror or error}") from error

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
            raise lost(self._address, "tells of more than is agreed")
        for line in lines:
            yield parse_answer(bytes(line), _NUMBER)
