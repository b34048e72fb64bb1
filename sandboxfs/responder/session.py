"""A responder's session: from its orders to the end of the daemon whose questions it answers.

The responder is of one daemon, which it knows by a pidfd, and ends when that ends, however it ends. A
connection that is lost before is made again: a follower that was too slow is let go by the daemon.
"""

import functools
import logging
import os
import select
import signal
import socket
import sys
import time
from contextlib import suppress
from logging.handlers import RotatingFileHandler
from pathlib import Path
from types import FrameType

from sandboxfs.control.start_responder import ResponderOrders, receive_daemon, report
from sandboxfs.errors import SandboxBusy, SandboxError
from sandboxfs.responder.asked_process import AskedProcess, ask_process, run_command, write_answer
from sandboxfs.responder.responding import Asking, Responding
from sandboxfs.service.events import CallerContext, Unattended
from sandboxfs.service.questions import follow
from sandboxfs.state.locations import Locations, SandboxPlaces
from sandboxfs.state.lock import SandboxLock

log = logging.getLogger("sandboxfs.responder")

_LOG_LIMIT = 1 << 20
# Seconds until another attempt to follow, and for the responder of the session before to end.
_AGAIN = 0.1
_PATIENCE = 10.0


def main(channel_fd: int, orders_fd: int) -> None:
    """Answer the questions of one session."""
    channel = socket.socket(fileno=channel_fd)
    channel.set_inheritable(False)
    with os.fdopen(orders_fd, "rb") as file:
        orders = ResponderOrders.load(file)
    with suppress(OSError):
        # So it is told who answered.
        Path("/proc/self/comm").write_text("responder")
    ways = _ways(orders)
    daemon = receive_daemon(channel)
    if daemon is None:
        return
    try:
        ended = os.pidfd_open(daemon)
    except ProcessLookupError:
        report(channel, "the daemon has ended")
        return
    places = Locations.from_environment().sandbox(orders.sandbox)
    signal.signal(signal.SIGTERM, _end)
    try:
        # Held for as long as this process lives.
        lock = _lock(places, ended)
        _open_log(places)
    except (OSError, SandboxError) as error:
        report(channel, str(error))
        return
    responding = Responding(ways, ended)
    try:
        _respond(orders.sandbox, daemon, ended, responding, channel)
    except Exception:
        log.exception("the responder ends")
        raise
    finally:
        responding.close()
        os.close(lock.descriptor)


def _end(number: int, frame: FrameType | None) -> None:
    sys.exit(128 + number)


def _respond(name: str, daemon: int, ended: int, responding: Responding, channel: socket.socket) -> None:
    caller = CallerContext("/", os.environ, is_program=True)
    waiting: socket.socket | None = channel
    while True:
        try:
            with follow(name, caller, Unattended()) as followed:
                if followed.session.sandbox.pid != daemon:
                    return
                log.info("following the questions of process %d", daemon)
                if waiting is not None:
                    report(waiting)
                    waiting = None
                responding.serve(followed)
        except SandboxError as error:
            if waiting is not None and not isinstance(error, SandboxBusy):
                report(waiting, error.message)
                waiting = None
            if not _is_over(ended, 0):
                log.warning("cannot follow the questions: %s", error.message)
        if _is_over(ended, _AGAIN):
            log.info("process %d has ended", daemon)
            return


def _is_over(ended: int, patience: float) -> bool:
    return bool(select.select([ended], [], [], patience)[0])


def _lock(places: SandboxPlaces, ended: int) -> SandboxLock:
    """Take the lock that tells of a responder; that of the session before may be about to end."""
    until = time.monotonic() + _PATIENCE
    while True:
        lock = SandboxLock.acquire(places.responder_lock)
        if lock is not None:
            return lock
        if time.monotonic() > until or _is_over(ended, 0.05):
            raise SandboxBusy("another responder is there")


def _open_log(places: SandboxPlaces) -> None:
    path = places.responder_log
    os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600))
    handler = RotatingFileHandler(path, maxBytes=_LOG_LIMIT, backupCount=1, errors="backslashreplace")
    # One session's troubles are not the next one's.
    handler.doRollover()
    # A full disk must not keep questions from being answered.
    logging.raiseExceptions = False
    logging.basicConfig(
        level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s", handlers=[handler]
    )


def _ways(orders: ResponderOrders) -> list[Asking]:
    ways = []
    if orders.command:
        # So that a command for several sandboxes knows which is meant.
        environment = {**orders.environment, "SANDBOXFS_SANDBOX": orders.sandbox}
        asked = functools.partial(run_command, orders.command, environment)
        ways.append(Asking("the ask command", functools.partial(ask_process, work=asked), time.monotonic()))
    if orders.url is not None:
        ways.append(Asking("the webhook", functools.partial(_post, orders), time.monotonic()))
        # Now, not in each child.
        import sandboxfs.responder.webhook  # noqa: F401
    return ways


def _post(orders: ResponderOrders, question: bytes) -> AskedProcess:
    from sandboxfs.responder.webhook import post, take_environment

    def work() -> None:
        take_environment(dict(orders.environment))
        token = None if orders.token_file is None else Path(orders.token_file)
        write_answer(post(orders.url or "", token, question))

    return ask_process(question, work)
