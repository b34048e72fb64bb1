"""Where does a long result go? Through the user's pager on a terminal, else straight to stdout.

The pager comes from the user's environment alone, never from anything in the workspace or the view.
"""

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import IO

_DEFAULT = "less"


def pager_command() -> str | None:
    """Return the command that shows long output; None when the user wants none or there is none."""
    chosen = os.environ.get("PAGER")
    if chosen is None:
        import shutil

        return _DEFAULT if shutil.which(_DEFAULT) else None
    return chosen if chosen.strip() not in ("", "cat") else None


@contextmanager
def paged(*, wanted: bool) -> Iterator[IO[bytes]]:
    """Give a stream to write the result to; whoever quits the pager early has seen enough."""
    command = pager_command() if wanted and sys.stdout.isatty() else None
    sys.stdout.flush()
    if command is None:
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()
        return
    # Imported late: most results need no pager.
    import subprocess

    environment = {"LESS": "FRX", "LV": "-c", **os.environ}
    # The shell that runs it is what makes options in $PAGER work, as everywhere.
    pager = subprocess.Popen(["sh", "-c", command], stdin=subprocess.PIPE, env=environment)
    stream = pager.stdin or sys.stdout.buffer
    try:
        yield stream
    except (BrokenPipeError, KeyboardInterrupt):
        # Quit, or Ctrl-C, which the pager gets as well and may take for something else than its end.
        pass
    finally:
        try:
            stream.close()
        except BrokenPipeError:
            pass
        _wait(pager.wait)


def _wait(ended: Callable[[], int]) -> None:
    """Let the person read on; only the pager ends itself."""
    while True:
        try:
            ended()
            return
        except KeyboardInterrupt:
            continue
