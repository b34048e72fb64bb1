"""Responders: what is asked instead of a person, a command or a webhook, checked, started and looked at.

A session has one responder, a process beside its daemon, which follows the questions like anybody else and
ends with the daemon. It is of one session: who mounts says who is asked, by options or by the configuration.

The command is looked for once, by whoever mounts, and never in a relative directory of the PATH: a project's
files must not be able to stand for it.
"""

import os
import stat
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from sandboxfs.control.start_responder import ResponderOrders, StartingResponder
from sandboxfs.errors import MountFailed, UsageError
from sandboxfs.paths import quoted
from sandboxfs.policy.ask_programs import AskedPrograms
from sandboxfs.service.workspace import current_directory
from sandboxfs.state.locations import SandboxPlaces
from sandboxfs.state.lock import holder
from sandboxfs.state.store import SandboxRecord, Store

_TOKEN_LIMIT = 4096
# The end of a log that is looked at for the last trouble.
_TAIL = 4096
TROUBLE = " WARNING "
"""Marks a line of the log that tells of trouble."""


def check_asked(asked: AskedPrograms, environment: Mapping[str, str], current: str | None) -> None:
    """Raise `UsageError` unless what is to be asked is there."""
    if asked.command:
        find_command(asked.command[0], environment, current)
    if asked.token_file is not None:
        read_token(asked.token_file)


def find_command(word: str, environment: Mapping[str, str], current: str | None) -> Path:
    """Return the path of the program that *word* names for somebody in the directory *current*."""
    if "/" in word:
        places = [Path(current or "/", word)]
    else:
        given = environment.get("PATH", os.defpath).split(os.pathsep)
        places = [Path(directory, word) for directory in given if directory.startswith("/")]
    for place in places:
        with suppress(OSError, ValueError):
            if place.is_file() and os.access(place, os.X_OK):
                return place
    raise UsageError(
        f"cannot find the command to ask, {quoted(word)}",
        hint="it is a program in an absolute directory of the PATH, or a path; no shell reads the command",
    )


def read_token(path: Path) -> str:
    """Return the token in the file at *path*, which is for its owner alone."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        raise UsageError(f"cannot read the token file {quoted(path)}: {error.strerror}") from error
    with os.fdopen(descriptor, "rb") as file:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise UsageError(f"the token file {quoted(path)} is not a regular file")
        if status.st_uid != os.geteuid() or stat.S_IMODE(status.st_mode) & 0o077:
            raise UsageError(
                f"the token file {quoted(path)} is not yours alone", hint=f"chmod 600 {quoted(path)}"
            )
        token = file.read(_TOKEN_LIMIT + 1).strip()
    text = token.decode("ascii", "replace")
    if not text or len(token) > _TOKEN_LIMIT or not text.isascii() or not text.isprintable() or " " in text:
        raise UsageError(f"the token file {quoted(path)} does not hold one word of ASCII")
    return text


def start_responder(
    store: Store, record: SandboxRecord, environment: Mapping[str, str], current: str | None
) -> StartingResponder | None:
    """Start the responder of the session that is about to begin; None where nothing is to be asked."""
    asked = record.settings.asked_programs
    if not asked.any:
        return None
    command = asked.command
    if command:
        here = current or current_directory()
        command = (str(find_command(command[0], environment, here)), *command)
    orders = ResponderOrders(
        record.name,
        command,
        asked.url,
        None if asked.token_file is None else str(asked.token_file),
        dict(environment),
    )
    try:
        return StartingResponder.start(orders, store.locations)
    except OSError as error:
        raise MountFailed(f"cannot start what is to be asked: {error.strerror}") from error


def begin_to_answer(responder: StartingResponder | None, daemon: int) -> tuple[str, ...]:
    """Have the questions of *daemon* answered from now on; return a warning if they are not."""
    problem = None if responder is None else responder.follow(daemon)
    return () if problem is None else (not_asked(problem),)


def not_asked(problem: str) -> str:
    return f"neither the command nor the webhook is asked: the responder does not follow: {problem}"


@dataclass(frozen=True)
class ResponderState:
    """What is asked in a session, by which process; *pid* is None when it has ended.

    *trouble* is the last line of its log that tells of any.
    """

    asked: AskedPrograms
    pid: int | None
    log: Path
    trouble: str | None

    def as_json(self) -> dict[str, object]:
        own = {"pid": self.pid, "log": str(self.log), "trouble": self.trouble}
        return asked_as_json(self.asked) | own


def asked_as_json(asked: AskedPrograms) -> dict[str, object]:
    """Describe what is asked, by the keys of the configuration."""
    return {
        "command": list(asked.command) or None,
        "url": asked.url,
        "token_file": None if asked.token_file is None else str(asked.token_file),
    }


def responder_state(places: SandboxPlaces, record: SandboxRecord) -> ResponderState | None:
    """Look at the responder of a session that goes on; None where nothing is asked."""
    asked = record.settings.asked_programs
    if not asked.any:
        return None
    held = holder(places.responder_lock)
    return ResponderState(
        asked, None if held is None else held.pid, places.responder_log, _trouble(places.responder_log)
    )


def _trouble(log: Path) -> str | None:
    try:
        with log.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - _TAIL))
            lines = file.read().decode(errors="replace").splitlines()
    except OSError:
        return None
    return next((line for line in reversed(lines) if TROUBLE in line), None)
