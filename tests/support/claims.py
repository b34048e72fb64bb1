"""How are the claims that many tests make checked?"""

import errno
import os
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

# Longer than any clock tick of a filesystem, shorter than any test.
RECENT_NS = 300 * 10**9


@contextmanager
def fails_with(code: int) -> Iterator[None]:
    """The body must raise an OSError with that errno."""
    with pytest.raises(OSError) as caught:
        yield
    found = errno.errorcode.get(caught.value.errno or 0, "no errno")
    assert caught.value.errno == code, f"failed with {found}, not {errno.errorcode[code]}"


def is_whiteout(path: Path) -> bool:
    """Whether the upper has a whiteout there, in either encoding of overlayfs."""
    try:
        status = path.lstat()
    except FileNotFoundError:
        return False
    if stat.S_ISCHR(status.st_mode):
        return status.st_rdev == 0
    return (
        stat.S_ISREG(status.st_mode)
        and status.st_size == 0
        and "user.overlay.whiteout" in os.listxattr(path, follow_symlinks=False)
    )


def is_opaque(path: Path) -> bool:
    """Whether the upper directory hides everything below it."""
    try:
        return os.getxattr(path, "user.overlay.opaque") == b"y"
    except OSError as error:
        if error.errno == errno.ENODATA:
            return False
        raise


def upper_names(upper: Path) -> list[str]:
    """Every path in the upper, whiteouts too."""
    return sorted(str(path.relative_to(upper)) for path in upper.rglob("*"))


def is_recent(time_ns: int) -> bool:
    """Whether a time is one of this test's own."""
    return abs(time.time_ns() - time_ns) < RECENT_NS


class Limit:
    """So many seconds as they are on a quiet machine.

    What this thread has to wait for a processor does not count: a daemon has to wait as long for its own.
    """

    def __init__(self, seconds: float) -> None:
        self._end = self._now() + seconds

    @property
    def is_over(self) -> bool:
        return self._now() > self._end

    @staticmethod
    def _now() -> float:
        try:
            waited = int(Path("/proc/thread-self/schedstat").read_text().split()[1]) / 1e9
        except FileNotFoundError:
            # A kernel that does not tell.
            waited = 0.0
        return time.monotonic() - waited


def within_a_second(holds: Callable[[], bool]) -> bool:
    """Whether the claim comes true in the second that the view has to notice the host's doings."""
    # Nothing announces when the view caught up, so looking again is all that one can do.
    second = Limit(1.0)
    while not holds():
        if second.is_over:
            return holds()
        time.sleep(0.02)
    return True
