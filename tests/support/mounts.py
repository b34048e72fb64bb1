"""What is mounted, and how is what an aborted run left behind cleared away?

Reads the kernel's table only: looking at a mountpoint whose daemon died fails, and at one that hangs, hangs.
"""

import os
import re
import subprocess
from pathlib import Path

from tests.support.syscalls import detach

FSTYPE = "fuse.sandboxfs"


def mountpoints(fstype: str = FSTYPE) -> list[Path]:
    """Every place where a filesystem of that type is mounted, innermost mounts last."""
    found = []
    for line in Path("/proc/self/mountinfo").read_bytes().splitlines():
        before, _, after = line.partition(b" - ")
        if after.split(b" ")[0] == fstype.encode():
            path = re.sub(rb"\\([0-7]{3})", lambda code: bytes([int(code[1], 8)]), before.split(b" ")[4])
            found.append(Path(os.fsdecode(path)))
    return found


def detach_mount(mountpoint: Path) -> None:
    """Take a mount away at once, whoever uses it, whether its daemon lives or not."""
    if os.geteuid() == 0:
        detach(os.fsencode(mountpoint))
    else:
        subprocess.run(["fusermount3", "-u", "-z", mountpoint], check=True, timeout=30)


def new_mounts(basetemp: Path, before: list[Path]) -> list[Path]:
    """What is mounted below *basetemp* and was not *before*, as the mount that tests share may be."""
    return [path for path in mountpoints() if path.is_relative_to(basetemp) and path not in before]


def detach_below(place: Path) -> list[Path]:
    """Detach what is mounted below *place*; return where it was."""
    left = [path for path in reversed(mountpoints()) if path.is_relative_to(place)]
    for mountpoint in left:
        detach_mount(mountpoint)
    return left


def sweep_stale_mounts(basetemp: Path) -> list[Path]:
    """Detach the mounts below *basetemp*'s siblings whose test run has ended; return where they were.

    pytest keeps a lock file with its pid in each run's directory, so that runs beside this one are safe.
    """
    swept = []
    for mountpoint in reversed(mountpoints()):
        if not mountpoint.is_relative_to(basetemp.parent):
            continue
        run = basetemp.parent / mountpoint.relative_to(basetemp.parent).parts[0]
        if re.fullmatch(r"pytest-\d+", run.name) and not _is_running(run):
            detach_mount(mountpoint)
            swept.append(mountpoint)
    return swept


def _is_running(run: Path) -> bool:
    try:
        os.kill(int((run / ".lock").read_text()), 0)
    except PermissionError:
        return True
    except (OSError, ValueError):
        return False
    return True
