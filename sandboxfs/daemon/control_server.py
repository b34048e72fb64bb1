"""Control server: connections, dispatch; the verbs: `session_control`, `observations`, `question_control`.

One task serves each connection; `ControlConnections` decides the order. A handler may give an iterator of
results: then the connection carries these until either side ends it. Every wait for a client has a time
limit, so that no client can hold up the others or the daemon. One error boundary: a `SandboxError` is an
answer; any other exception is a bug, which is logged and answered, and ends the connection but never the
daemon. Plain handlers run in the thread that serves the kernel and must not wait.
"""

import inspect
import logging
import os
import socket
import stat
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Collection, Mapping
from contextlib import aclosing, suppress
from functools import partial
from pathlib import Path
from typing import cast

import trio

from sandboxfs.control.control_socket import (
    REQUEST_LIMIT,
    ControlAddress,
    Request,
    bindable,
    encode_bug,
    encode_error,
    encode_result,
    parse_request,
    request_number,
)
from sandboxfs.daemon.control_peers import (
    PLACES,
    ControlConnection,
    ControlConnections,
    Peer,
    ViewWatch,
    peer_of,
)
from sandboxfs.errors import MountFailed, SandboxError, UsageError
from sandboxfs.paths import make_directories, quoted

log = logging.getLogger(__name__)

PATIENCE = 5.0
_BACKLOG = 128
_CHUNK = 64 << 10
# Seconds until the next attempt, after a connection could not be accepted.
_AGAIN = 0.1
# How long, in seconds, and for how many processes the server remembers whether they are inside the view.
_ACQUAINTANCE, _ACQUAINTANCES = 1.0, 1024

Handler = Callable[[Request, Peer], object | Awaitable[object]]


class ControlServer:
    """Answers requests by verb."""

    def __init__(
        self,
        handlers: Mapping[str, Handler],
        *,
        view: ViewWatch | None = None,
        harmless: Collection[str] = (),
        patience: float = PATIENCE,
        connections: int = PLACES,
    ) -> None:
        """Answer the verbs of *handlers*; for processes inside *view* only those that are *harmless*.

        A client has *patience* seconds to send a request, and to receive an answer. *connections* is how many
        are served at once; further ones wait.
        """
        self._handlers = handlers
        self._view = view
        self._harmless = frozenset(harmless)
        self._patience = patience
        self._places = ControlConnections(connections)
        # By process id: whether the process is inside the view, and when the server looked.
        self._known: dict[int, tuple[bool, float]] = {}

    async def serve(
        self, address: ControlAddress, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        """Listen at *address* until cancelled, then remove the socket. The sandbox's lock must be held."""
        listener = _listen(address.socket)
        try:
            _link(address)
            async with trio.open_nursery() as nursery:
                task_status.started()
                await self._accept(trio.socket.from_stdlib_socket(listener), nursery)
        finally:
            listener.close()
            for path in (address.link, address.socket):
                with suppress(OSError):
                    path.unlink()

    async def _accept(self, listener: trio.socket.SocketType, nursery: trio.Nursery) -> None:
        failing = False
        while True:
            try:
                connection, _ = await listener.accept()
            except OSError as error:
                if not failing:
                    log.warning("cannot accept a control connection, trying again: %s", error)
                failing = True
                # Descriptors or memory are short, which may change in a moment.
                await trio.sleep(_AGAIN)
                continue
            failing = False
            nursery.start_soon(self._attend, trio.SocketStream(connection))

    async def _attend(self, stream: trio.SocketStream) -> None:
        try:
            async with stream:
                peer = peer_of(stream.socket)
                connection = _Connection(stream, peer, self._patience, self._answer)
                lost = await self._places.serve(peer.pid, partial(self._is_inside, peer), connection.attend)
                if lost is not None:
                    # With a short time limit: the client may not receive the answer.
                    with trio.move_on_after(_AGAIN):
                        await stream.send_all(encode_error(None, lost))
        except (trio.BrokenResourceError, trio.ClosedResourceError, trio.TooSlowError, OSError) as error:
            log.debug("a control client went away: %r", error)
        except Exception:
            log.exception("bug in serving a control client; the daemon goes on")

    def _is_inside(self, peer: Peer) -> bool:
        """Say whether *peer* counts as inside the view when places are given.

        Cached for places only: the verbs that the peer may ask are checked at each request.
        """
        if self._view is None:
            return False
        known = self._known.get(peer.pid)
        if known is not None and time.monotonic() - known[1] < _ACQUAINTANCE:
            return known[0]
        if len(self._known) > _ACQUAINTANCES:
            self._known.clear()
        try:
            inside = self._view.objection(peer) is not None
        except OSError:
            # /proc cannot be read just now, so the peer gets the smaller share.
            inside = True
        self._known[peer.pid] = inside, time.monotonic()
        return inside

    async def _answer(self, line: bytes, peer: Peer) -> "tuple[bytes | AsyncIterator[bytes], bool]":
        """Return the answer to *line*, and whether the connection may go on. The one error boundary."""
        number = request_number(line)
        try:
            request = parse_request(line)
            handler = self._handler(request, peer)
        except SandboxError as error:
            return encode_error(number, error), False
        try:
            if request.verb in self._harmless:
                await self._places.turn(peer.pid)
            result = handler(request, peer)
            if isinstance(result, AsyncIterator):
                return _encoded(number, result), False
            if inspect.isawaitable(result):
                result = await result
            return encode_result(number, result), True
        except SandboxError as error:
            return encode_error(number, error), True
        except Exception as error:
            log.exception("bug in control verb %r; the daemon goes on", request.verb)
            return encode_bug(number, error), False

    def _handler(self, request: Request, peer: Peer) -> Handler:
        if not peer.trusted:
            raise UsageError("only the user who serves the sandbox, and root, may ask its daemon")
        handler = self._handlers.get(request.verb)
        if handler is None:
            raise UsageError(
                f"the daemon knows no verb {quoted(request.verb)}", details={"verbs": sorted(self._handlers)}
            )
        if self._view is not None and request.verb not in self._harmless:
            objection = self._view.objection(peer)
            if objection is not None:
                raise UsageError(
                    f"'{request.verb}' is not for processes inside the view: {objection}",
                    hint="ask from a directory outside the mountpoint",
                    details={"inside": True},
                )
        return handler


class _Connection:
    """One client: its requests are answered in order, as long as the client is quick enough."""

    def __init__(
        self,
        stream: trio.SocketStream,
        peer: Peer,
        patience: float,
        answer: Callable[[bytes, Peer], "Awaitable[tuple[bytes | AsyncIterator[bytes], bool]]"],
    ) -> None:
        self._stream = stream
        self._peer = peer
        self._patience = patience
        self._answer = answer
        self._received = bytearray()

    async def attend(self, place: ControlConnection) -> None:
        """Answer until the client closes or an answer ends the connection.

        TooSlowError when the client does not receive. *place* is told whether client or daemon acts next.
        """
        going_on = True
        while going_on:
            try:
                place.client()
                with trio.fail_after(self._patience):
                    line = await self._line()
                if line is None:
                    return
                place.daemon()
                answer, going_on = await self._answer(line, self._peer)
                if not isinstance(answer, bytes):
                    await self._send_all(answer)
                    return
            except trio.TooSlowError:
                if not self._received:
                    return
                message = f"the request was not complete after {self._patience:g} seconds"
                answer, going_on = encode_error(None, UsageError(message)), False
            except UsageError as error:
                answer, going_on = encode_error(None, error), False
            place.client()
            await self._send(answer)

    async def _line(self) -> bytes | None:
        """Return the next line, None at the end; `UsageError` when the line is too long or has no newline."""
        searched = 0
        while (end := self._received.find(b"\n", searched)) < 0:
            searched = len(self._received)
            if searched > REQUEST_LIMIT:
                raise UsageError(f"the request is larger than {REQUEST_LIMIT >> 10} KiB")
            chunk = await self._stream.receive_some(_CHUNK)
            if not chunk:
                if self._received:
                    raise UsageError("the request does not end with a newline")
                return None
            self._received += chunk
        if end >= REQUEST_LIMIT:
            raise UsageError(f"the request is larger than {REQUEST_LIMIT >> 10} KiB")
        line = bytes(self._received[:end])
        del self._received[: end + 1]
        return line

    async def _send_all(self, answers: AsyncIterator[bytes]) -> None:
        """Send answers until there are no more, or the client closes; what the client sends is ignored."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._until_closed, nursery.cancel_scope)
            # A client that is gone, or takes nothing, ends the answers; a nursery would wrap the error.
            with suppress(trio.BrokenResourceError, trio.ClosedResourceError, trio.TooSlowError):
                async with aclosing(cast(AsyncGenerator[bytes, None], answers)) as each:
                    async for answer in each:
                        await self._send(answer)
            nursery.cancel_scope.cancel()

    async def _until_closed(self, scope: trio.CancelScope) -> None:
        with suppress(trio.BrokenResourceError, trio.ClosedResourceError):
            while await self._stream.receive_some(_CHUNK):
                pass
        scope.cancel()

    async def _send(self, answer: bytes) -> None:
        for start in range(0, len(answer), _CHUNK):
            with trio.fail_after(self._patience):
                await self._stream.send_all(answer[start : start + _CHUNK])


async def _encoded(number: int | None, results: AsyncIterator[object]) -> AsyncIterator[bytes]:
    async with aclosing(cast(AsyncGenerator[object, None], results)) as each:
        async for result in each:
            yield encode_result(number, result)


def _listen(path: Path) -> socket.socket:
    """Listen at *path*, in a directory that is made when missing and that only this user can enter."""
    _private_directory(path.parent)
    # No other process can be listening: the process that serves the sandbox holds its lock.
    path.unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
    try:
        # bind gives the file the mode that the socket has: so the file never has a wider one.
        os.fchmod(listener.fileno(), stat.S_IRUSR | stat.S_IWUSR)
        with bindable(path) as name:
            listener.bind(name)
        listener.listen(_BACKLOG)
    except OSError:
        listener.close()
        raise
    return listener


def _private_directory(directory: Path) -> None:
    make_directories(directory)
    descriptor = os.open(directory, os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        found = os.fstat(descriptor)
        if found.st_uid != os.geteuid():
            raise MountFailed(
                f"cannot use {quoted(directory)} for the control socket: it belongs to another user"
            )
        if stat.S_IMODE(found.st_mode) != stat.S_IRWXU:
            os.fchmod(descriptor, stat.S_IRWXU)
    finally:
        os.close(descriptor)


def _link(address: ControlAddress) -> None:
    """Make the link to the socket. Without the link only clients with the daemon's environment find it."""
    try:
        address.link.unlink(missing_ok=True)
        address.link.symlink_to(address.socket)
    except OSError as error:
        log.warning("cannot leave a link to the control socket: %s", error)
