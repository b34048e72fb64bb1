"""Starting a daemon: whether this machine can mount, the start, and waiting until the view is ready.

A check of the machine that fails raises `MountFailed` with the one line that mends the machine. No check
creates anything.

The daemon gets the sandbox's lock and its log through a channel, and answers with a line of JSON: ready, or
the error that prevented the start. A channel that closes without an answer means that the daemon died. A
daemon that is to end with its runs makes a lifeline, and sends the lifeline before anything else.
"""

import errno
import json
import os
import select
import socket
import stat
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from sandboxfs.control import prestart
from sandboxfs.control.prestart import WaitingDaemon
from sandboxfs.errors import DaemonLost, MountFailed, error_from_json
from sandboxfs.paths import find_program, quoted
from sandboxfs.state.locations import CONFIG_VARIABLE, STATE_VARIABLE, Locations
from sandboxfs.state.lock import SandboxLock

DEVICE = Path("/dev/fuse")
FUSE_CONFIG = Path("/etc/fuse.conf")
_IN_CONTAINER = "in a container: docker run --device /dev/fuse --cap-add SYS_ADMIN"


def check_device(device: Path = DEVICE) -> None:
    """Open the FUSE device."""
    try:
        os.close(os.open(device, os.O_RDWR | os.O_CLOEXEC))
    except FileNotFoundError as error:
        raise MountFailed(f"there is no {device}", hint=f"modprobe fuse; {_IN_CONTAINER}") from error
    except PermissionError as error:
        hint = f"chmod 666 {device} (as root); {_IN_CONTAINER}"
        raise MountFailed(f"cannot open {device}: {error.strerror}", hint=hint) from error
    except OSError as error:
        absent = error.errno in (errno.ENODEV, errno.ENXIO)
        raise MountFailed(
            f"cannot open {device}: {error.strerror}", hint="modprobe fuse" if absent else None
        ) from error


def check_helper(*, privileged: bool) -> None:
    """Find fusermount3, setuid root: without fusermount3 only root can mount."""
    if privileged:
        return
    helper = find_program("fusermount3")
    if helper is None:
        raise MountFailed("there is no fusermount3 on the PATH", hint="apt install fuse3")
    status = Path(helper).stat()
    if status.st_uid != 0 or not status.st_mode & stat.S_ISUID:
        raise MountFailed(f"{helper} is not setuid root", hint=f"chmod u+s {helper} (as root)")


def allow_other_permitted(config: Path = FUSE_CONFIG) -> bool:
    """Say whether an ordinary user may let other users into a mount."""
    try:
        lines = config.read_text(errors="replace").splitlines()
    except OSError:
        return False
    return any(line.strip() == "user_allow_other" for line in lines)


def check_allow_other(*, privileged: bool, config: Path = FUSE_CONFIG) -> None:
    """Make sure that `--allow-other` will be granted."""
    if not privileged and not allow_other_permitted(config):
        raise MountFailed(
            "an ordinary user may not use --allow-other here",
            hint=f"echo user_allow_other >> {config} (as root)",
        )


def is_privileged() -> bool:
    return os.geteuid() == 0


PATIENCE = 60.0
_PATIENCE_AT_THE_END = 5.0
_LOG_LIMIT = 1 << 20


@dataclass(frozen=True)
class Launched:
    """A daemon that serves its sandbox; with a *lifeline* the daemon ends when no process holds that."""

    pid: int
    lifeline: int | None


def launch(
    locations: Locations,
    name: str,
    lock: SandboxLock,
    waiting: WaitingDaemon | None = None,
    *,
    with_lifeline: bool = False,
) -> Launched:
    """Have a daemon serve the sandbox called *name*, the *waiting* one if any; return once the view is ready.

    The daemon takes *lock* over; the caller still has to close its own descriptor of the lock. Raises the
    error that the daemon reports, or `DaemonLost`; then no process is left behind.
    """
    log = locations.sandbox(name).log
    _rotate(log)
    output = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        daemon = waiting if waiting is not None and waiting.waits else WaitingDaemon.start()
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
    # The daemon outlives the Popen object. With a return code set, that object neither warns nor waits.
    daemon.process.returncode = 0
    return Launched(daemon.process.pid, lifeline)


def become(
    locations: Locations,
    name: str,
    lock: SandboxLock,
    arguments: list[str],
    responder: socket.socket | None = None,
) -> NoReturn:
    """Turn this process into the daemon of the sandbox called *name*, on the same terminal.

    A *responder* waits at the other end of a channel to be told that the daemon serves.
    """
    os.set_inheritable(lock.descriptor, True)
    if responder is not None:
        responder.set_inheritable(True)
        arguments = [*arguments, "--responder-fd", str(responder.fileno())]
    sys.stdout.flush()
    sys.stderr.flush()
    command = [*prestart.daemon_command(), name, "--lock-fd", str(lock.descriptor), *arguments]
    os.execve(sys.executable, command, daemon_environment(locations))  # noqa: S606 - no shell is wanted


def daemon_environment(locations: Locations) -> dict[str, str]:
    """Return this process's environment, with the state directory and the configuration made explicit."""
    places = {STATE_VARIABLE: str(locations.state), CONFIG_VARIABLE: str(locations.config)}
    return prestart.package_environment() | places


def _await_ready(channel: socket.socket, log: Path) -> int | None:
    """Wait until the daemon is ready; return its lifeline, or None when the daemon sent none."""
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
            channel, prestart.MESSAGE_LIMIT, prestart.DESCRIPTOR_LIMIT, socket.MSG_CMSG_CLOEXEC
        )
    except ConnectionResetError:
        # The daemon ended before it had read its orders.
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
