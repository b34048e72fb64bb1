"""The process that serves one sandbox: `python -m sandboxfs.daemon NAME`.

Started by `sandboxfs mount`, never by hand. A thin shell: it takes the lock over, opens the log, and makes
sure that whoever started it hears of a failure and that the log holds every bug.
"""

import argparse
import faulthandler
import logging
import os
import sys
from contextlib import suppress
from typing import NoReturn, TextIO

from sandboxfs.daemon.readiness import Starter
from sandboxfs.errors import EXIT_BUG, DaemonLost, MountFailed, SandboxBusy, SandboxError
from sandboxfs.state.locations import Locations
from sandboxfs.state.lock import SandboxLock
from sandboxfs.state.store import Store

log = logging.getLogger("sandboxfs.daemon")


class Arguments(argparse.Namespace):
    name: str
    ready_fd: int | None
    lock_fd: int | None
    foreground: bool
    announce: str | None
    created: bool
    json: bool


def parse(words: list[str] | None = None) -> Arguments:
    parser = argparse.ArgumentParser(prog="sandboxfs.daemon", description="Serve one sandbox.")
    parser.add_argument("name")
    parser.add_argument("--ready-fd", type=int, help="tell how the start went through this descriptor")
    parser.add_argument("--lock-fd", type=int, help="this descriptor holds the sandbox's lock already")
    parser.add_argument("--foreground", action="store_true", help="log to stderr as well")
    parser.add_argument("--announce", help="print this when the view is ready")
    parser.add_argument("--created", action="store_true", help="remove the sandbox again if the start fails")
    parser.add_argument("--json", action="store_true", help="tell a person of a failure in JSON")
    return parser.parse_args(words, namespace=Arguments())


def main() -> int:
    arguments = parse()
    os.chdir("/")
    starter = Starter(arguments.ready_fd, arguments.announce, as_json=arguments.json)
    store = Store(Locations.from_environment())
    try:
        return _serve(store, arguments, starter)
    except SandboxError as error:
        log.error("%s", error.message)
        starter.failed(error)
        return error.exit_code
    except Exception as error:
        log.exception("the daemon ends")
        starter.failed(_unexpected(error))
        return MountFailed.exit_code if isinstance(error, OSError) else EXIT_BUG


def _serve(store: Store, arguments: Arguments, starter: Starter) -> int:
    # Never given up by hand: it goes with the process, after everything else the process holds.
    _take_lock(store, arguments)
    try:
        record = store.load(arguments.name)
        _open_log(store, arguments)
        # Late, so that even a failing import is reported.
        from sandboxfs.daemon.serve import serve_sandbox

        log.info("serving %s at %s", record.workspace, record.mountpoint)
        serve_sandbox(store.locations, record, starter.ready, foreground=arguments.foreground)
        log.info("unmounted")
    finally:
        if arguments.created and not starter.told:
            with suppress(OSError):
                store.remove(arguments.name)
    return 0


def _take_lock(store: Store, arguments: Arguments) -> SandboxLock:
    if arguments.lock_fd is not None:
        os.set_inheritable(arguments.lock_fd, False)
        return SandboxLock(arguments.lock_fd)
    lock = SandboxLock.acquire(store.places(arguments.name).lock)
    if lock is None:
        raise SandboxBusy(f"sandbox '{arguments.name}' is held by another process")
    return lock


def _open_log(store: Store, arguments: Arguments) -> None:
    path = store.places(arguments.name).log
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    file = open(descriptor, "a", buffering=1, errors="backslashreplace")  # noqa: SIM115 - lives as long as the process
    streams: list[TextIO] = [file, sys.stderr] if arguments.foreground else [file]
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


def run() -> NoReturn:
    """End at once when done: taking a large interpreter apart would only keep waiting whoever unmounted."""
    code = main()
    logging.shutdown()
    sys.stdout.flush()
    os._exit(code)


if __name__ == "__main__":
    run()
