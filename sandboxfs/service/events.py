"""Callers and events: prompts, progress, and until when a change may be interrupted.

Every door implements `Events`: the command line with a terminal, a server with a connection. A function of
`service` never prints, never reads a terminal and sets no signal handler. Events come in the thread that
called the function.
"""

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Protocol

YES, NO = "yes", "no"


class Cancelled(Exception):
    """The caller cancelled the call; what was prepared has been taken back, and nothing was changed."""


@dataclass(frozen=True)
class CallerContext:
    """The caller's current *directory*, None where there is none any more, and its *environment*.

    Where *is_program* is true, a program reads the result: it is not asked which sandbox is meant.
    """

    directory: str | None
    environment: Mapping[str, str]
    is_program: bool = False


@dataclass(frozen=True)
class Prompt:
    """A question to the person behind a door, with the answers that there are."""

    text: str
    choices: tuple[str, ...] = (YES, NO)


@dataclass(frozen=True)
class Candidate:
    """One of several sandboxes that may be meant, and when it was last *used*."""

    name: str
    workspace: Path
    used: datetime


@dataclass(frozen=True)
class SandboxPrompt(Prompt):
    """The question which of *candidates* is meant, the last used first; their names are the choices."""

    candidates: tuple[Candidate, ...] = ()


class Interruptible(Protocol):
    """A change that an exception in the caller's thread, such as KeyboardInterrupt, still takes back."""

    def hold(self) -> None:
        """Let every interruption wait from now on: the change is completed."""


class Events(Protocol):
    """What happens during a call."""

    def note(self, text: str) -> None:
        """Tell a sentence that is not the result."""

    def progress(self, done: int, total: int | None, what: str, *, in_bytes: bool = False) -> None:
        """Tell that *done* of *total* things or bytes are dealt with; *what* is being done with them."""

    def ask(self, prompt: Prompt) -> str | None:
        """Return one of the answers to *prompt*; None where nobody answers."""

    def cancelled(self) -> bool:
        """Say whether the call is to be given up."""

    def interruptible(self) -> AbstractContextManager[Interruptible]:
        """Surround a change: interruptions may come until `hold` is called, and wait from then on."""


class _Uninterrupted:
    def hold(self) -> None:
        return


class Unattended:
    """Events of a caller that wants to hear nothing, and answers nothing."""

    def note(self, text: str) -> None:
        return

    def progress(self, done: int, total: int | None, what: str, *, in_bytes: bool = False) -> None:
        return

    def ask(self, prompt: Prompt) -> str | None:
        return None

    def cancelled(self) -> bool:
        return False

    def interruptible(self) -> AbstractContextManager[Interruptible]:
        return nullcontext(_Uninterrupted())


def check_cancelled(events: Events) -> None:
    """Raise `Cancelled` when the caller cancelled the call."""
    if events.cancelled():
        raise Cancelled


class ByteProgress:
    """Progress in bytes that are dealt with piece by piece."""

    def __init__(self, events: Events, what: str = "") -> None:
        self._events = events
        self.phase(what)

    def phase(self, what: str, total: int | None = None) -> None:
        """Begin to do something else."""
        self._what, self._total, self._done = what, total, 0

    def advance(self, count: int) -> None:
        """Add *count* bytes; `Cancelled` when the caller wants no more."""
        check_cancelled(self._events)
        self._done += count
        self._events.progress(self._done, self._total, self._what, in_bytes=True)


class ChangeProgress:
    """Progress of a change that may be cancelled until `hold` is called, and not any more afterwards."""

    def __init__(self, events: Events, interruptible: Interruptible, what: str) -> None:
        self._events = events
        self._interruptible = interruptible
        self._what = what
        self._held = False

    def hold(self) -> None:
        """Let the change be completed, whatever the caller wants from now on."""
        check_cancelled(self._events)
        self._interruptible.hold()
        self._held = True

    def __call__(self, done: int, total: int) -> None:
        if not self._held:
            check_cancelled(self._events)
        self._events.progress(done, total, self._what)
