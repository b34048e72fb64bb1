"""Request limit: the time within which the kernel wants every request of a FUSE mount answered.

Kernels from 6.15 on have two settings in `/proc/sys/fs/fuse`: a default for mounts that name no limit, as
ours, and a maximum for all. When a request is older, the kernel ends the mount. Both are read when a view is
mounted; 0, the usual value, is no limit.
"""

from pathlib import Path
from typing import Final

DIRECTORY: Final = Path("/proc/sys/fs/fuse")
SETTINGS: Final = "default_request_timeout", "max_request_timeout"
# The share of the limit that a wait for a person may take.
SHARE: Final = 0.8


def request_limit(directory: Path = DIRECTORY) -> float | None:
    """Return the seconds after which the kernel ends a mount with an unanswered request; None without any."""
    limits = []
    for name in SETTINGS:
        try:
            limits.append(int((directory / name).read_text()))
        except (OSError, ValueError):
            continue
    return min((float(limit) for limit in limits if limit > 0), default=None)
