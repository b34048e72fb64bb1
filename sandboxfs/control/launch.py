"""How is a daemon started, and how does it tell that the view is ready?

The daemon gets the sandbox's lock and its log through a channel, and answers with a line of JSON: ready, or
the error that kept it from starting. Silence until the channel closes means that it died. A daemon that is to
end with its users sends the lifeline that it made, before anything else.
"""

import json
import os
import select
import socket
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from sandboxfs.control import advance
from sandboxfs.control.advance import Waiting
from sandboxfs.errors import DaemonLost, error_from_json
from sandboxfs.paths import quoted
from sandboxfs.state.locations import CONFIG_VARIABLE, STATE_VARIABLE, Locations
from sandboxfs.state.lock import SandboxLock

PATIENCE = 60.0
_PATIENCE_AT_THE_END = 5.0
_LOG_LIMIT = 1 << 20


@dataclass(frozen=True)
class Launched:
    """A daemon that serves its sandbox; it ends when nobody holds its *lifeline*, if it has one."""

    pid: int
    lifeline: int | None


def launch(
    locations: Locations,
    name: str,
    lock: SandboxLock,
    waiting: Waiting | None = None,
    *,
    with_lifeline: bool = False,
) -> Launched:
    """Have the sandbox called *name* served, by the daemon that is *waiting* if any; return once it is ready.

    The daemon takes *lock* over; the caller still has to give up its own share by closing it. Raises what the
    daemon reports, or `DaemonLost`; then no process is left behind.
    """
    log = locations.sandbox(name).log
    _rotate(log)
    output = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        daemon = waiting if waiting is not None and waiting.waits else Waiting.start()
        places = {"state": str(locations.state), "config": str(locations.config)}
        orders = {"name": name, "lifeline": with_lifeline} | places
        daemon.give_orders(json.dumps(orders).encode(), [lock.descriptor, output])
    finally:
        os.close(output)
    try:
        lifeline = _await_ready(daemon.channel, log)
    except BaseException:
        daemon.end(_PATIENCE_AT_THE_END)
        raise
    daemon.channel.close()
    # It lives on without this object, which would complain about that, or wait for it in our place.
    daemon.process.returncode = 0
    return Launched(daemon.process.pid, lifeline)


def become(locations: Locations, name: str, lock: SandboxLock, arguments: list[str]) -> NoReturn:
    """Turn this process into the daemon of the sandbox called *name*, on the same terminal."""
    os.set_inheritable(lock.descriptor, True)
    sys.stdout.flush()
    sys.stderr.flush()
    command = [*advance.daemon_command(), name, "--lock-fd", str(lock.descriptor), *arguments]
    os.execve(sys.executable, command, daemon_environment(locations))  # noqa: S606 - no shell is wanted


def daemon_environment(locations: Locations) -> dict[str, str]:
    """Return this process's environment, with what the daemon must find again made explicit."""
    places = {STATE_VARIABLE: str(locations.state), CONFIG_VARIABLE: str(locations.config)}
    return advance.package_environment() | places


def _await_ready(channel: socket.socket, log: Path) -> int | None:
    """Wait until the daemon is ready; return its lifeline if it sent one."""
    deadline = time.monotonic() + PATIENCE
    lifeline = None
    try:
        while True:
            text, descriptors = _receive(channel, deadline, log)
            for descriptor in descriptors:
                lifeline = descriptor
            message = json.loads(text)
            if message.get("ready"):
                return lifeline
            if "error" in message:
                raise error_from_json(message["error"])
    except BaseException:
        if lifeline is not None:
            os.close(lifeline)
        raise


def _receive(channel: socket.socket, deadline: float, log: Path) -> tuple[bytes, list[int]]:
    remaining = deadline - time.monotonic()
    if remaining <= 0 or not select.select([channel], [], [], remaining)[0]:
        raise DaemonLost(f"the daemon was not ready within {PATIENCE:.0f} seconds", hint=_see(log))
    try:
        text, descriptors, _, _ = socket.recv_fds(
            channel, advance.MESSAGE_LIMIT, advance.DESCRIPTOR_LIMIT, socket.MSG_CMSG_CLOEXEC
        )
    except ConnectionResetError:
        # It ended without having read its orders.
        text, descriptors = b"", []
    if not text:
        raise DaemonLost(f"the daemon died while starting{_last_lines(log)}", hint=_see(log))
    return text, descriptors


def _last_lines(log: Path, count: int = 5) -> str:
    try:
        lines = log.read_bytes()[-4096:].decode(errors="replace").splitlines()[-count:]
    except OSError:
        return ""
    return ":\n  " + "\n  ".join(lines) if lines else ""


def _see(log: Path) -> str:
    return f"see {quoted(log)}"


def _rotate(log: Path) -> None:
    try:
        if log.stat(follow_symlinks=False).st_size > _LOG_LIMIT:
            log.rename(log.with_name(log.name + ".1"))
    except FileNotFoundError:
        return
