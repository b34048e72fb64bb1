"""How is a daemon started, and how does it tell that the view is ready?

The daemon inherits the sandbox's lock and one end of a pipe, through which it sends a single line of JSON:
ready, or the error that kept it from starting. Silence until the pipe closes means that it died.
"""

import json
import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import NoReturn

from sandboxfs.errors import DaemonLost, error_from_json
from sandboxfs.paths import quoted
from sandboxfs.state.locations import STATE_VARIABLE, Locations
from sandboxfs.state.lock import SandboxLock

PATIENCE = 60.0
_LOG_LIMIT = 1 << 20


def launch(locations: Locations, name: str, lock: SandboxLock) -> int:
    """Start the daemon of the sandbox called *name* and return its pid once the view is ready.

    The daemon takes *lock* over; the caller still has to give up its own share by closing it. Raises what
    the daemon reports, or `DaemonLost`; then no process is left behind.
    """
    log = locations.sandbox(name).log
    _rotate(log)
    reading, writing = os.pipe()
    output = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        daemon = subprocess.Popen(
            [*daemon_command(name, lock), "--ready-fd", str(writing)],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            cwd="/",
            env=daemon_environment(locations),
            pass_fds=(writing, lock.descriptor),
            start_new_session=True,
        )
    finally:
        os.close(writing)
        os.close(output)
    try:
        _await_ready(reading, log)
    except BaseException:
        _end(daemon)
        raise
    finally:
        os.close(reading)
    return daemon.pid


def become(locations: Locations, name: str, lock: SandboxLock, arguments: list[str]) -> NoReturn:
    """Turn this process into the daemon of the sandbox called *name*, on the same terminal."""
    os.set_inheritable(lock.descriptor, True)
    sys.stdout.flush()
    sys.stderr.flush()
    command = [*daemon_command(name, lock), *arguments]
    os.execve(sys.executable, command, daemon_environment(locations))  # noqa: S606 - no shell is wanted


def daemon_command(name: str, lock: SandboxLock) -> list[str]:
    # -P: the daemon must never look for a module where it is started, which may be in its own view.
    return [sys.executable, "-P", "-m", "sandboxfs.daemon", name, "--lock-fd", str(lock.descriptor)]


def daemon_environment(locations: Locations) -> dict[str, str]:
    """Return this process's environment, with what the daemon must find again made explicit."""
    environment = {**os.environ, STATE_VARIABLE: str(locations.state)}
    package_parent = str(Path(__file__).resolve().parents[2])
    if sys.path and os.path.realpath(sys.path[0]) == package_parent:
        # Running from a source tree that only the current directory made importable.
        environment["PYTHONPATH"] = os.pathsep.join(
            filter(None, [package_parent, os.environ.get("PYTHONPATH")])
        )
    return environment


def _await_ready(reading: int, log: Path) -> None:
    deadline = time.monotonic() + PATIENCE
    received = b""
    while b"\n" not in received:
        remaining = deadline - time.monotonic()
        if remaining <= 0 or not select.select([reading], [], [], remaining)[0]:
            raise DaemonLost(f"the daemon was not ready within {PATIENCE:.0f} seconds", hint=_see(log))
        chunk = os.read(reading, 65536)
        if not chunk:
            raise DaemonLost(f"the daemon died while starting{_last_lines(log)}", hint=_see(log))
        received += chunk
    message = json.loads(received)
    if not message.get("ready"):
        raise error_from_json(message.get("error", {}))


def _end(daemon: subprocess.Popen[bytes]) -> None:
    """End a daemon that did not get ready; it unmounts by itself when it can."""
    daemon.send_signal(signal.SIGTERM)
    try:
        daemon.wait(5)
    except subprocess.TimeoutExpired:
        daemon.kill()
        daemon.wait()


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
