"""What if the process dies, or a call fails, at this very moment?

Every call with which the host is changed is counted. A process that is killed before the n-th of them does
nothing afterwards, whatever cleans up on the way out; a call that fails, fails once.
"""

import errno
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from sandboxfs.hostfs import syscalls

_CHANGES = (
    *("mkdir", "mknod", "symlink", "link", "unlink", "rmdir", "rename", "chmod", "fchmod", "chown", "fchown"),
    *("utime", "setxattr", "removexattr", "write", "pwrite", "ftruncate", "copy_file_range"),
)
_MAKES = os.O_CREAT | os.O_TRUNC

Before = Callable[[int], None]
"""Called with the number of the call that is about to be made, counted from 0."""


class Killed(BaseException):
    """The process is dead."""


@contextmanager
def counted(before: Before) -> Iterator[list[str]]:
    """Have *before* called before every change of the host; gives the calls made."""
    made: list[str] = []

    def note(name: str) -> None:
        before(len(made))
        made.append(name)

    def wrapped(name: str, call: object) -> object:
        def noted(*args: object, **kwargs: object) -> object:
            note(name)
            return call(*args, **kwargs)  # type: ignore[operator]

        return noted

    opened = os.open

    def noted_open(path: str | bytes, flags: int, *args: int, **kwargs: int) -> int:
        if flags & _MAKES:
            note("open")
        return opened(path, flags, *args, **kwargs)

    with pytest.MonkeyPatch.context() as patch:
        for name in _CHANGES:
            patch.setattr(os, name, wrapped(name, getattr(os, name)))
        patch.setattr(os, "open", noted_open)
        patch.setattr(syscalls, "rename", wrapped("renameat2", syscalls.rename))
        yield made


@contextmanager
def killed_before(number: int) -> Iterator[list[str]]:
    """Die before the host is changed for the *number*-th time, counted from 0."""

    def before(count: int) -> None:
        if count >= number:
            raise Killed

    with counted(before) as made:
        yield made


@contextmanager
def failing_at(number: int, error: BaseException | None = None) -> Iterator[list[str]]:
    """Have one change of the host fail, and all others go well."""
    over = False

    def before(count: int) -> None:
        nonlocal over
        if count == number and not over:
            over = True
            raise error or OSError(errno.EIO, os.strerror(errno.EIO))

    with counted(before) as made:
        yield made
