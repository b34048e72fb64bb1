"""Arguments of Python callers, checked; and what the machine refuses, raised as an error of ours.

The Python API raises a `SandboxError` for whatever goes wrong, an argument of the wrong type included: a
caller that is not checked by a type checker gets a sentence, and not a traceback from inside.
"""

import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager

from sandboxfs.errors import DaemonLost, UsageError
from sandboxfs.paths import quoted
from sandboxfs.service.policy import DaemonBug

Words = str | os.PathLike[str]
"""What `text_of` takes."""


@contextmanager
def failures(what: str) -> Iterator[None]:
    """Raise what the machine refuses, or a bug of the daemon, as an error of ours."""
    try:
        yield
    except DaemonBug as error:
        raise DaemonLost(f"cannot {what}: {error}") from error
    except (OSError, ValueError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or error
        place = getattr(error, "filename", None)
        where = f"{quoted(os.fsdecode(place))}: " if isinstance(place, str | bytes | os.PathLike) else ""
        raise UsageError(f"cannot {what}: {where}{reason}") from error


def check_kind(what: str, value: object, kind: type) -> None:
    """Raise unless *value*, which a caller gave as *what*, is of its *kind*."""
    if not isinstance(value, kind):
        raise UsageError(f"{what}: expected {kind.__name__}, found {type(value).__name__}")


def text_of(what: str, value: object) -> str:
    """Return a text or path that a caller gave as *what*."""
    text = os.fspath(value) if isinstance(value, os.PathLike) else value
    if not isinstance(text, str) or not can_be_passed_on(text):
        found = quoted(text) if isinstance(text, str) else type(value).__name__
        raise UsageError(f"{what}: expected a text or a path, found {found}")
    return text


def can_be_passed_on(text: str) -> bool:
    """Say whether the kernel takes *text* as a name or an argument."""
    try:
        return b"\0" not in os.fsencode(text)
    except UnicodeEncodeError:
        return False


def texts_of(what: str, values: object) -> tuple[str, ...]:
    """Return the texts or paths that a caller gave as *what*."""
    if isinstance(values, str | bytes | Mapping) or not isinstance(values, Iterable):
        raise UsageError(f"{what}: expected a sequence of texts, found {type(values).__name__}")
    return tuple(text_of(what, value) for value in values)
