"""How does a daemon get its orders, and who hears of its failures?

The orders are on the command line, or come through a channel (`control/advance`). A thin shell: it takes the
lock over, opens the log, and makes sure that whoever started it hears of a failure and that the log holds
every bug.
"""

import faulthandler
import json
import logging
import os
import socket
import sys
from contextlib import suppress
from dataclasses import dataclass
from typing import TextIO

from sandboxfs.control.advance import DESCRIPTOR_LIMIT, MESSAGE_LIMIT
from sandboxfs.control.lifeline import lifeline_path, make_lifeline
from sandboxfs.daemon.readiness import Starter
from sandboxfs.errors import EXIT_BUG, DaemonLost, MountFailed, SandboxBusy, SandboxError
from sandboxfs.state.locations import CONFIG_VARIABLE, STATE_VARIABLE, Locations
from sandboxfs.state.lock import SandboxLock
from sandboxfs.state.store import Store

log = logging.getLogger("sandboxfs.daemon")

# Seconds that a process which was killed may take to end.
_ENDING = 1.0


@dataclass
class Orders:
    """What to serve and how.

    *lock_fd* holds the sandbox's lock already. With *lifeline* the daemon ends when nobody holds that.
    *created* when the sandbox is to be removed again if the start fails.
    """

    name: str = ""
    channel: socket.socket | None = None
    lock_fd: int | None = None
    lifeline: bool = False
    foreground: bool = False
    announce: str | None = None
    created: bool = False
    json: bool = False


def parse(words: list[str] | None = None) -> Orders:
    """Read the orders of a daemon that took the place of the command."""
    # Imported here: most daemons do without.
    import argparse

    parser = argparse.ArgumentParser(prog="sandboxfs.daemon", description="Serve one sandbox.")
    parser.add_argument("name")
    parser.add_argument("--lock-fd", type=int, help="this descriptor holds the sandbox's lock already")
    parser.add_argument("--foreground", action="store_true", help="log to stderr as well")
    parser.add_argument("--announce", help="print this when the view is ready")
    parser.add_argument("--created", action="store_true", help="remove the sandbox again if the start fails")
    parser.add_argument("--json", action="store_true", help="tell a person of a failure in JSON")
    return parser.parse_args(words, namespace=Orders())


def receive(descriptor: int) -> Orders | None:
    """Import everything, then wait for orders from the channel at *descriptor*; None when none come."""
    channel = socket.socket(fileno=descriptor)
    channel.set_inheritable(False)
    # A failure is met again, and reported, by whoever imports it next.
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
    return Orders(str(message["name"]), channel, lock, lifeline=bool(message["lifeline"]))


def main() -> int:
    if sys.argv[1] == "--orders-fd":
        orders = receive(int(sys.argv[2]))
        if orders is None:
            _take_back(int(sys.argv[3]))
            return 0
    else:
        orders = parse()
    os.chdir("/")
    starter = Starter(orders.channel, orders.announce, as_json=orders.json)
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
    """Remove what the command that started this daemon was making, if it was killed."""
    # Imported here: most daemons get their orders.
    from sandboxfs.control.unmounting import ProcessWatch

    # Its end of the channel is closed a moment before it ends.
    with ProcessWatch([starter]) as watch, suppress(OSError, SandboxError):
        if watch.wait_for_all(_ENDING):
            Store(Locations.from_environment()).take_back(starter)


def _serve(store: Store, orders: Orders, starter: Starter) -> int:
    # Never given up by hand: it goes with the process, after everything else the process holds.
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
        serve_sandbox(store.locations, record, starter.ready, foreground=orders.foreground, lifeline=lifeline)
        log.info("unmounted")
    finally:
        if orders.created and not starter.told:
            with suppress(OSError):
                store.remove(orders.name)
    return 0


def _take_lock(store: Store, orders: Orders) -> SandboxLock:
    if orders.lock_fd is not None:
        os.set_inheritable(orders.lock_fd, False)
        return SandboxLock(orders.lock_fd)
    lock = SandboxLock.acquire(store.places(orders.name).lock)
    if lock is None:
        raise SandboxBusy(f"sandbox '{orders.name}' is held by another process")
    return lock


def _open_log(store: Store, orders: Orders) -> None:
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
