"""Which standard streams does the command have, whatever it was started with?

One that was closed is as if it led nowhere. Its number is taken all the same: the next file to be opened
would get it, and what is printed would end up there.
"""

import io
import os
import sys
from typing import TYPE_CHECKING, Literal, TextIO

from sandboxfs.errors import UsageError

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer


class _Output(io.FileIO):
    """Standard output. That it cannot be written is nobody's bug; that nobody reads it is told elsewhere."""

    def write(self, data: "ReadableBuffer", /) -> int:
        try:
            return super().write(data)
        except BrokenPipeError:
            raise
        except OSError as error:
            raise UsageError(f"cannot write the output: {error.strerror}") from error


def set_up() -> None:
    """Make all three usable."""
    # The wrong way round, so that whoever inherits one fails to use it, as if it were closed.
    for number, way in ((0, os.O_WRONLY), (1, os.O_RDONLY), (2, os.O_RDONLY)):
        try:
            os.fstat(number)
        except OSError:
            os.set_inheritable(os.open(os.devnull, way), True)
    sys.stdin = sys.stdin or _nowhere("r")
    sys.stderr = sys.stderr or _nowhere("w")
    if sys.stdout is None:
        sys.stdout = _nowhere("w")
    else:
        sys.stdout = io.TextIOWrapper(
            io.BufferedWriter(_Output(1, "wb", closefd=False)),
            encoding=sys.stdout.encoding,
            line_buffering=sys.stdout.isatty(),
        )


def _nowhere(mode: Literal["r", "w"]) -> TextIO:
    return open(os.devnull, mode)  # noqa: PTH123 - this is no path of anybody's
