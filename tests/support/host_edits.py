"""How does the host change a file? In place, or as editors do."""

import os
from pathlib import Path


def overwrite(path: Path, data: bytes) -> None:
    """Write in place, without truncating."""
    fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    os.pwrite(fd, data, 0)
    os.close(fd)


def replace(path: Path, data: bytes) -> None:
    """Save as editors do: another file takes the name."""
    path.with_name("saving").write_bytes(data)
    os.replace(path.with_name("saving"), path)
