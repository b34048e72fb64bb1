"""How does the daemon answer those who ask over its control socket?

One task a connection, so many at once and no more; every wait for a client has an end, so that none can hold
up the others or the daemon. One error boundary: a `SandboxError` is an answer, anything else is a bug, which
is logged, answered and ends the connection, never the daemon. Plain handlers run in the thread that serves
the kernel and must not wait.
"""

import errno
import inspect
import logging
import os
import socket
import stat
from collections.abc import Awaitable, Callable, Collection, Mapping
from contextlib import suppress
from pathlib import Path

import trio

from sandboxfs.control.address import ControlAddress, bindable
from sandboxfs.control.messages import (
    REQUEST_LIMIT,
    Request,
    encode_bug,
    encode_error,
    encode_result,
    parse_request,
    request_number,
)
from sandboxfs.daemon.control_peers import Peer, ViewWatch, peer_of
from sandboxfs.errors import MountFailed, SandboxError, UsageError
from sandboxfs.paths import make_directories, quoted

log = logging.getLogger(__name__)

CONNECTIONS = 32
PATIENCE = 5.0
_BACKLOG = 128
_CHUNK = 64 << 10
# Too few descriptors or too little memory: both may be better a moment later.
_TRANSIENT = {errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM}

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
        connections: int = CONNECTIONS,
    ) -> None:
        """Answer the verbs of *handlers*; to processes inside *view* only those that are *harmless*.

        A client has *patience* seconds to send a request and to take an answer. *connections* are served at
        once; the next ones wait.
        """
        self._handlers = handlers
        self._view = view
        self._harmless = frozenset(harmless)
        self._patience = patience
        self._slots = trio.CapacityLimiter(connections)

    async def serve(
        self, address: ControlAddress, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        """Listen at *address* until cancelled; then the socket is gone. The sandbox's lock must be held."""
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
        while True:
            # A slot first: who finds none waits in the kernel's queue and costs nothing here.
            slot = object()
            await self._slots.acquire_on_behalf_of(slot)
            try:
                connection, _ = await listener.accept()
            except OSError as error:
                self._slots.release_on_behalf_of(slot)
                log.warning("cannot accept a control connection: %s", error)
                await trio.sleep(0.1 if error.errno in _TRANSIENT else 0)
                continue
            except BaseException:
                self._slots.release_on_behalf_of(slot)
                raise
            nursery.start_soon(self._attend, trio.SocketStream(connection), slot)

    async def _attend(self, stream: trio.SocketStream, slot: object) -> None:
        try:
            async with stream:
                await _Connection(stream, self._patience, self._answer).attend()
        except (trio.BrokenResourceError, trio.ClosedResourceError, trio.TooSlowError, OSError) as error:
            log.debug("a control client went away: %r", error)
        except Exception:
            log.exception("bug in serving a control client; the daemon goes on")
        finally:
            self._slots.release_on_behalf_of(slot)

    async def _answer(self, line: bytes, peer: Peer) -> tuple[bytes, bool]:
        """Return the answer to *line*, and whether the connection can go on: the one error boundary."""
        number = request_number(line)
        try:
            request = parse_request(line)
            handler = self._handler(request, peer)
        except SandboxError as error:
            return encode_error(number, error), False
        try:
            result = handler(request, peer)
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
    """One client: requests come in, answers go out, in order, as long as it is quick enough."""

    def __init__(
        self,
        stream: trio.SocketStream,
        patience: float,
        answer: Callable[[bytes, Peer], Awaitable[tuple[bytes, bool]]],
    ) -> None:
        self._stream = stream
        self._patience = patience
        self._answer = answer
        self._received = bytearray()

    async def attend(self) -> None:
        """Answer until the client has had enough, or we have. TooSlowError when it does not listen."""
        peer = peer_of(self._stream.socket)
        going_on = True
        while going_on:
            try:
                with trio.fail_after(self._patience):
                    line = await self._line()
                if line is None:
                    return
                answer, going_on = await self._answer(line, peer)
            except trio.TooSlowError:
                if not self._received:
                    return
                message = f"the request was not complete after {self._patience:g} seconds"
                answer, going_on = encode_error(None, UsageError(message)), False
            except UsageError as error:
                answer, going_on = encode_error(None, error), False
            await self._send(answer)

    async def _line(self) -> bytes | None:
        """Return the next line, None at the end; `UsageError` when it is too long or has no end."""
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

    async def _send(self, answer: bytes) -> None:
        for start in range(0, len(answer), _CHUNK):
            with trio.fail_after(self._patience):
                await self._stream.send_all(answer[start : start + _CHUNK])


def _listen(path: Path) -> socket.socket:
    """Listen at *path*, in a directory that is made when missing and that only we can enter."""
    _private_directory(path.parent)
    # Nobody else can be listening: whoever serves the sandbox holds its lock.
    path.unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
    try:
        # The kernel gives the file the mode that the socket has when it is bound: it never has another.
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
    """Leave word where the socket is. Without it only clients with our environment find us."""
    try:
        address.link.unlink(missing_ok=True)
        address.link.symlink_to(address.socket)
    except OSError as error:
        log.warning("cannot leave a link to the control socket: %s", error)
