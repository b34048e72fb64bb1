"""When is the log of a baseline written anew?

Every review adds lines and takes none away, and whoever reads the log reads all of it. So whoever is about to
write to one that has become several times as long as it was, writes down what its lines come to instead.
"""

import json
import logging
import os
from contextlib import suppress

from sandboxfs.layers.baseline import LOG, Log
from sandboxfs.layers.baseline_copy import line_of
from sandboxfs.layers.hostdir import HostDir

log = logging.getLogger(__name__)

SMALL = 1 << 17
"""Logs up to this many bytes are left alone."""

_TIMES = 4
_DRAFT = LOG + b".new"
# More than the first line of a condensed log has.
_FIRST_LINE = 100


def condense(directory: HostDir) -> None:
    """Write the log of a baseline anew if that is worth it; only for the one who may write to it.

    Killed at any moment, the old log stands, or the new one does.
    """
    fd = directory.open(LOG, os.O_RDWR | os.O_CREAT, 0o600)
    with open(fd, "rb") as file:
        size = os.fstat(fd).st_size
        if size <= SMALL or size <= _TIMES * _condensed_size(os.pread(fd, _FIRST_LINE, 0)):
            return
        lines = _lines(Log(file.read()))
    try:
        _exchange(directory, lines)
    except OSError as error:
        # Without room for another log the old one does.
        log.info("the baseline's log stays as it is: %s", error.strerror)
        with suppress(OSError):
            directory.unlink(_DRAFT)


def _exchange(directory: HostDir, lines: list[bytes]) -> None:
    flags = os.O_CREAT | os.O_TRUNC | os.O_WRONLY
    with open(directory.open(_DRAFT, flags, 0o600), "wb") as draft:
        draft.write(b'{"condensed":%d}\n' % sum(map(len, lines)))
        draft.writelines(lines)
        draft.flush()
        os.fsync(draft.fileno())
    directory.rename(_DRAFT, directory, LOG)


def _lines(found: Log) -> list[bytes]:
    lines = []
    for path, sighting in found.aside.items():
        settled = {"settled": path.decode("utf-8", "surrogateescape"), "whole": False}
        lines += [line_of(sighting), json.dumps(settled, separators=(",", ":")).encode("ascii") + b"\n"]
    return lines + [line_of(sighting) for sighting in found.sightings.values()]


def _condensed_size(beginning: bytes) -> int:
    """How long the log was when it was last written anew; 0 if it never was."""
    try:
        first = json.loads(beginning.split(b"\n")[0])
    except ValueError:
        return 0
    size = first.get("condensed", 0) if isinstance(first, dict) else 0
    return size if isinstance(size, int) else 0
