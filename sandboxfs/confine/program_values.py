"""Confined programs, as values: what is to run, what keeps it in, and how it ended.

Nothing here is tied to a process: a value may go to a runner process of its own, together with the
descriptors that it names.
"""

import errno
import os
import signal
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from sandboxfs.confine.landlock import LandlockRules, TemporaryDirectory
from sandboxfs.confine.mounts import ConfinedMounts
from sandboxfs.paths import quoted


@dataclass(frozen=True)
class BubblewrapConfinement:
    """The bubblewrap at *program* shows *mounts*; *sizes* says whether it can limit temporary directories."""

    program: Path
    mounts: ConfinedMounts
    sizes: bool
    keep_from_abstract: bool


@dataclass(frozen=True)
class LandlockConfinement:
    """Landlock of version *abi* allows *rules*; *attended* when attributes of files are kept as well."""

    rules: LandlockRules
    abi: int
    attended: bool
    temporary: TemporaryDirectory | None = None


@dataclass(frozen=True)
class ConfinedProgram:
    """One program to run. Without a *confinement* it still ends with its run.

    *held* are descriptors that stay open until every process of the program has ended; *watched* are those
    that become readable when the program must not go on: pidfds of daemons, and of whoever wants it to run.
    *relayed* keeps descriptors of host files from the program.
    """

    command: tuple[str, ...]
    environment: Mapping[str, str]
    directory: Path
    confinement: BubblewrapConfinement | LandlockConfinement | None = None
    held: tuple[int, ...] = ()
    watched: tuple[int, ...] = ()
    relayed: bool = True


@dataclass(frozen=True)
class ProgramEnd:
    """How a run ended: with the wait *status* of the program, or without its having run.

    *stage* and *error* say what failed: to `confine`, to `enter` the directory or to `start`; both are empty
    when the starter itself never spoke. *lost* when the program was ended because a watched descriptor told
    so, *held* when something still had its output open after all of it had ended. *offline* when it failed
    after it had tried to use a network that was off, as far as that could be seen.
    """

    status: int | None = None
    stage: str = ""
    error: int = 0
    detail: str = ""
    lost: bool = False
    held: bool = False
    had_terminal: bool = False
    offline: bool = False

    def problem(self, name: str) -> str:
        """Say why the program called *name* could not be started."""
        why = "not found" if self.error == errno.ENOENT else self.reason
        return f"cannot run {quoted(name)}: {why}"

    @property
    def reason(self) -> str:
        """Why what failed did."""
        if self.error == errno.ELIBBAD:
            return "the interpreter that it names is missing"
        return os.strerror(self.error) if self.error else self.detail

    @property
    def signalled(self) -> int | None:
        """The signal that ended the program."""
        ended = self.status is not None and os.WIFSIGNALED(self.status)
        return os.WTERMSIG(self.status) if ended and self.status is not None else None

    @property
    def by_key(self) -> int | None:
        """The signal of a key that ended a program which had the terminal to itself."""
        keys = (signal.SIGINT, signal.SIGQUIT)
        return self.signalled if self.had_terminal and self.signalled in keys else None
