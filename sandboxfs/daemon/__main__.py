"""The process that serves one sandbox, `python -m sandboxfs.daemon`: orders, readiness, reports of failure.

sandboxfs itself starts the daemon; a person never does. The orders are on the command line, or come through a
channel (`control/prestart`). Start-up takes the lock over and opens the log; the command or person that
started the daemon hears of a failure, and the log holds every bug.

The channel carries the lifeline that the command is to hold, then one line of JSON. The daemon then closes
the channel at once: if a process that the daemon starts inherited the channel, the command would wait for
that process too.
"""

import gc

if __name__ == "__main__":
    # Imported modules are no garbage; collecting takes a tenth of the time. `serve` turns the collector on.
    gc.disable()

import faulthandler
import json
import logging
import os
import socket
import sys
import threading
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import TextIO

from sandboxfs.control.prestart import DESCRIPTOR_LIMIT, MESSAGE_LIMIT
from sandboxfs.control.start_responder import have_follow
from sandboxfs.errors import EXIT_BUG, DaemonLost, MountFailed, SandboxBusy, SandboxError
from sandboxfs.state.disk import keep_reserve
from sandboxfs.state.locations import CONFIG_VARIABLE, STATE_VARIABLE, Locations
from sandboxfs.state.lock import SandboxLock, lifeline_path, make_lifeline
from sandboxfs.state.store import Store


class StartReporter:
    """Reports to the starter of the daemon: a command at the other end of a channel, or a person."""

    def __init__(
        self,
        channel: socket.socket | None,
        announcement: str | None,
        *,
        as_json: bool,
        responder: socket.socket | None = None,
    ) -> None:
        """Report through *channel*, or print *announcement* once the *responder*, if any, follows."""
        self._channel = channel
        self._announcement = announcement
        self._responder = responder
        self._as_json = as_json
        self.told = False

    def hand_over(self, lifeline: int) -> None:
        """Give the command its end of the lifeline; without a living command no process holds that end."""
        if self._channel is not None:
            with suppress(ConnectionError):
                socket.send_fds(self._channel, [b"{}"], [lifeline])
        os.close(lifeline)

    def ready(self) -> None:
        """Report that the view can be used."""
        self._send({"ready": True, "pid": os.getpid()})
        if self._responder is not None:
            # In a thread: the responder is answered by this one.
            threading.Thread(target=self._announce_when_followed, args=[self._responder], daemon=True).start()
        else:
            self._announce()

    def _announce_when_followed(self, responder: socket.socket) -> None:
        problem = have_follow(responder, os.getpid())
        if problem is not None:
            log.warning("the responder does not follow: %s", problem)
        self._announce()

    def _announce(self) -> None:
        if self._announcement is not None:
            print(self._announcement, flush=True)

    def failed(self, error: SandboxError) -> None:
        """Report why the view will not come; without effect after `ready`."""
        if self.told:
            return
        if self._channel is None:
            print(error.as_text(as_json=self._as_json), file=sys.stderr)
        self._send({"error": error.as_json()})

    def _send(self, message: Mapping[str, object]) -> None:
        self.told = True
        channel, self._channel = self._channel, None
        if channel is None:
            return
        # The command may have been interrupted; then the command ends the daemon.
        with channel, suppress(ConnectionError):
            channel.send(json.dumps(message).encode())


log = logging.getLogger("sandboxfs.daemon")

# Seconds that a killed process may take to end.
_ENDING = 1.0


@dataclass
class DaemonOrders:
    """The sandbox to serve, and how.

    *lock_fd* holds the sandbox's lock already. With *lifeline* the daemon ends when no process holds its
    lifeline. *created*: the sandbox is new, and is removed again if the start fails. A responder waits at the
    other end of *responder_fd* to be told that the daemon serves.
    """

    name: str = ""
    channel: socket.socket | None = None
    lock_fd: int | None = None
    lifeline: bool = False
    foreground: bool = False
    announce: str | None = None
    created: bool = False
    json: bool = False
    responder_fd: int | None = None


def parse(words: list[str] | None = None) -> DaemonOrders:
    """Read the orders of a daemon that took the place of the command."""
    # Imported here: most daemons get their orders through a channel.
    import argparse

    parser = argparse.ArgumentParser(prog="sandboxfs.daemon", description="Serve one sandbox.")
    parser.add_argument("name")
    parser.add_argument("--lock-fd", type=int, help="this descriptor holds the sandbox's lock already")
    parser.add_argument("--foreground", action="store_true", help="log to stderr as well")
    parser.add_argument("--announce", help="print this when the view is ready")
    parser.add_argument("--created", action="store_true", help="remove the sandbox again if the start fails")
    parser.add_argument("--json", action="store_true", help="tell a person of a failure in JSON")
    parser.add_argument("--responder-fd", type=int, help="tell a responder there that the view is ready")
    return parser.parse_args(words, namespace=DaemonOrders())


def receive(descriptor: int) -> DaemonOrders | None:
    """Import everything, then wait for orders from the channel at *descriptor*; None when none come."""
    channel = socket.socket(fileno=descriptor)
    channel.set_inheritable(False)
    # `_serve` imports the module again, and then a failure is reported.
    with suppress(Exception):
        import sandboxfs.daemon.serve  # noqa: F401
    try:
        text, descriptors, _, _ = socket.recv_fds(
            channel, MESSAGE_LIMIT, DESCRIPTOR_LIMIT, socket.MSG_CMSG_CLOEXEC
        )
    except ConnectionError:
        return None
    if not text:
        return None
    lock, output = descriptors
    for standard in (1, 2):
        os.dup2(output, standard)
    os.close(output)
    message = json.loads(text)
    os.environ[STATE_VARIABLE] = str(message["state"])
    os.environ[CONFIG_VARIABLE] = str(message["config"])
    return DaemonOrders(str(message["name"]), channel, lock, lifeline=bool(message["lifeline"]))


def main() -> int:
    if sys.argv[1] == "--orders-fd":
        orders = receive(int(sys.argv[2]))
        if orders is None:
            _take_back(int(sys.argv[3]))
            return 0
    else:
        orders = parse()
    os.chdir("/")
    responder = None if orders.responder_fd is None else socket.socket(fileno=orders.responder_fd)
    if responder is not None:
        responder.set_inheritable(False)
    starter = StartReporter(orders.channel, orders.announce, as_json=orders.json, responder=responder)
    store = Store(Locations.from_environment())
    try:
        return _serve(store, orders, starter)
    except SandboxError as error:
        log.error("%s", error.message)
        starter.failed(error)
        return error.exit_code
    except Exception as error:
        log.exception("the daemon ends")
        starter.failed(_unexpected(error))
        return MountFailed.exit_code if isinstance(error, OSError) else EXIT_BUG


def _take_back(starter: int) -> None:
    """Remove the sandbox that the command which started this daemon was making, if the command was killed."""
    # Imported here: most daemons get their orders.
    from sandboxfs.control.unmount import ProcessWatch

    # The kernel closes the command's end of the channel a moment before the process has ended.
    with ProcessWatch([starter]) as watch, suppress(OSError, SandboxError):
        if watch.wait_for_all(_ENDING):
            Store(Locations.from_environment()).take_back(starter)


def _serve(store: Store, orders: DaemonOrders, starter: StartReporter) -> int:
    # Never released explicitly: the lock goes with the process, after everything else the process holds.
    _take_lock(store, orders)
    try:
        record = store.load(orders.name)
        _open_log(store, orders)
        # Late, so that even a failing import is reported.
        from sandboxfs.daemon.serve import serve_sandbox

        log.info("serving %s at %s", record.workspace, record.mountpoint)
        lifeline = None
        if orders.lifeline:
            lifeline, held = make_lifeline(lifeline_path(store.places(orders.name)))
            starter.hand_over(held)

        def ready() -> None:
            # First: from the moment that the command returns, the view can fill the disk.
            keep_reserve(store.locations)
            starter.ready()

        serve_sandbox(store.locations, record, ready, foreground=orders.foreground, lifeline=lifeline)
        log.info("unmounted")
    finally:
        if orders.created and not starter.told:
            with suppress(OSError):
                store.remove(orders.name)
    return 0


def _take_lock(store: Store, orders: DaemonOrders) -> SandboxLock:
    if orders.lock_fd is not None:
        os.set_inheritable(orders.lock_fd, False)
        return SandboxLock(orders.lock_fd)
    lock = SandboxLock.acquire(store.places(orders.name).lock)
    if lock is None:
        raise SandboxBusy(f"sandbox '{orders.name}' is held by another process")
    return lock


def _open_log(store: Store, orders: DaemonOrders) -> None:
    path = store.places(orders.name).log
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    file = open(descriptor, "a", buffering=1, errors="backslashreplace")  # noqa: SIM115 - lives as long as the process
    streams: list[TextIO] = [file, sys.stderr] if orders.foreground else [file]
    logging.basicConfig(
        level=logging.INFO,
        format="%(asctime)s %(levelname)s %(name)s: %(message)s",
        handlers=[logging.StreamHandler(stream) for stream in streams],
    )
    faulthandler.enable(file)


def _unexpected(error: Exception) -> SandboxError:
    if isinstance(error, OSError):
        return MountFailed(f"cannot serve the view: {error}")
    return DaemonLost(f"the daemon failed to start: {type(error).__name__}: {error}")


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    # At once: tearing a large interpreter down would only delay the unmounting command.
    os._exit(code)
