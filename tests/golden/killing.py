"""A command that is killed, as by the kernel, when its journal has come to a certain line.

`python -m tests.golden.killing LINE COUNT WORD…` runs `sandboxfs WORD…` in this process, which ends before
the change of the host that would be the next after COUNT ones, counted from when the new record had a line
LINE. To have it write `applied false`, the first change after `applied` fails as on a full disk.
"""

import errno
import os
import runpy
import sys
from pathlib import Path

from tests.support.faults import counted

STATUS = 9


def records() -> list[int]:
    """The numbers of all records."""
    commits = _commits()
    return [int(name) for name in os.listdir(commits)] if commits.is_dir() else []


def _commits() -> Path:
    return Path(os.environ["SANDBOXFS_STATE_DIR"]) / "sandboxes/golden/commits"


class Killer:
    """Counts the changes of the host, and ends the process in time."""

    def __init__(self, line: str, count: int) -> None:
        self._full = line == "applied false"
        self._line = '{"applied":false}' if self._full else f'{{"{line}":'
        self._left = count
        self._failed = False
        self._journal = _commits() / str(max(records(), default=0) + 1) / "journal"

    def __call__(self, _: int) -> None:
        found = self._journal.read_text() if self._journal.exists() else ""
        if self._line in found:
            if self._left == 0:
                os._exit(STATUS)
            self._left -= 1
        elif self._full and '{"applied":true}' in found and not self._failed:
            self._failed = True
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def main() -> None:
    line, count, *words = sys.argv[1:]
    sys.argv = ["sandboxfs", *words]
    with counted(Killer(line, int(count))):
        runpy.run_module("sandboxfs", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
