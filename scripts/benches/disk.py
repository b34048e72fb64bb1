"""On which filesystem is measured? On a new one, where that can be had: ext4 with a journal, in a file.

What a filesystem does to whoever makes files depends on what was removed on it before. An ext4 without a
journal takes ten times as long then, and the rows that write would tell of that, and of nobody's own cost.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

NEW_DISK = "everything on a new ext4 with a journal, in a file"
"""How such a filesystem is named in a table."""
_LARGEST = 40 << 30
_LEAST = 16 << 30


@contextmanager
def new_filesystem(place: Path) -> Iterator[Path]:
    """A directory on a filesystem of its own, below *place*; *place* itself where none can be made."""
    device = _attached(place / "disk.img")
    if device is None:
        yield place
        return
    inside = place / "disk"
    try:
        inside.mkdir()
        mounted = _said("mount", "-o", "noinit_itable", device, str(inside)) is not None
        yield inside if mounted else place
    finally:
        if inside.is_mount():
            # Lazily: what is measured may have been interrupted.
            _said("umount", "--lazy", str(inside))
        _said("losetup", "--detach", device)


def _attached(image: Path) -> str | None:
    """The device of a new filesystem in the file *image*, made as large as this disk has room for."""
    size = min(_LARGEST, shutil.disk_usage(image.parent).free * 3 // 4)
    if os.geteuid() != 0 or size < _LEAST:
        return None
    image.touch()
    os.truncate(image, size)
    if _said("mkfs.ext4", "-q", "-F", str(image)) is None:
        return None
    return _said("losetup", "--find", "--show", "--direct-io=on", str(image))


def _said(*words: str) -> str | None:
    """What a command printed; None when it failed, or is not there."""
    try:
        done = subprocess.run(words, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return None
    if done.returncode:
        print(f"bench: {words[0]}: {done.stderr.strip()}", file=sys.stderr)
        return None
    return done.stdout.strip()
