"""Error classes and exit codes, by audience.

    SandboxError             one sentence for a person, perhaps a hint and details
    ├── UsageError        2  bad command line, policy file, configuration or record
    ├── NoSuchSandbox     3  nothing by that name
    ├── SandboxBusy       4  mounted, locked, or held by another process
    ├── CommitConflict    5  the workspace moved on meanwhile
    ├── MountFailed       6  this machine, mountpoint or state directory cannot do it
    ├── DaemonLost        7  the serving process died or does not answer
    └── TimedOut        124  a program was ended because its time was up
    anything else        70  a bug

`OSError` is not here: the filesystem core answers the kernel with it. Only the command line turns these
classes into messages and exit codes, so no number appears where one is raised.
"""

from collections.abc import Mapping
from typing import ClassVar

EXIT_BUG = 70
EXIT_INTERRUPTED = 130


class SandboxError(Exception):
    """A failure that a person can understand and act on; *details* are for programs only."""

    exit_code: ClassVar[int]
    code: ClassVar[str]
    meaning: ClassVar[str]

    def __init__(
        self, message: str, *, hint: str | None = None, details: Mapping[str, object] | None = None
    ) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.details = dict(details or {})

    def as_json(self) -> dict[str, object]:
        """Describe the error as the object that `--json` and the daemon's start-up report carry."""
        described = {"code": self.code, "exit": self.exit_code, "message": self.message, "hint": self.hint}
        return self.details | described

    def as_text(self, *, as_json: bool) -> str:
        """Write the error as stderr shows it: for a person, or with *as_json* as one line for a program."""
        if as_json:
            # Imported late: nearly no command ends with an error for a program.
            from sandboxfs.codec import document

            return document({"error": self.as_json()}, indent=None)
        return f"sandboxfs: {self.message}" + (f"\nhint: {self.hint}" if self.hint else "")


class UsageError(SandboxError):
    """The command line, the configuration or a stored record is not acceptable."""

    exit_code = 2
    code = "usage"
    meaning = "bad command line, configuration or sandbox record"


class NoSuchSandbox(SandboxError):
    """No sandbox matches the request."""

    exit_code = 3
    code = "no-such-sandbox"
    meaning = "no such sandbox"


class SandboxBusy(SandboxError):
    """The sandbox is mounted, locked, or in use by another process."""

    exit_code = 4
    code = "busy"
    meaning = "the sandbox is mounted or in use"


class CommitConflict(SandboxError):
    """A change cannot be applied: the workspace moved away from the sandbox's baseline."""

    exit_code = 5
    code = "conflict"
    meaning = "the workspace changed meanwhile"


class MountFailed(SandboxError):
    """The view cannot be mounted here."""

    exit_code = 6
    code = "mount-failed"
    meaning = "the view cannot be mounted"


class DaemonLost(SandboxError):
    """The process that serves the sandbox died or does not answer."""

    exit_code = 7
    code = "daemon-lost"
    meaning = "the serving process died or does not answer"


class TimedOut(SandboxError):
    """The program exceeded its time limit, and was ended."""

    exit_code = 124
    code = "timeout"
    meaning = "the program's time was up"


def error_from_json(described: Mapping[str, object]) -> SandboxError:
    """Rebuild an error described by `SandboxError.as_json`; an unknown code becomes `DaemonLost`."""
    from sandboxfs.codec import restored

    kinds: dict[object, type[SandboxError]] = {kind.code: kind for kind in SandboxError.__subclasses__()}
    kind = kinds.get(described.get("code"), DaemonLost)
    hint = described.get("hint")
    details = {key: value for key, value in restored(described).items() if key not in _DESCRIBED}
    return kind(
        str(described.get("message", "unknown error")),
        hint=None if hint is None else str(hint),
        details=details,
    )


_DESCRIBED = frozenset({"code", "exit", "message", "hint"})
