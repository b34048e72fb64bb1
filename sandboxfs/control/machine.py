"""Can this machine mount, as this user?

Each check raises `MountFailed` with the one line that mends it, and creates nothing.
"""

import errno
import os
import shutil
import stat
from pathlib import Path

from sandboxfs.errors import MountFailed

DEVICE = Path("/dev/fuse")
FUSE_CONFIG = Path("/etc/fuse.conf")
_IN_CONTAINER = "in a container: docker run --device /dev/fuse --cap-add SYS_ADMIN"


def check_device(device: Path = DEVICE) -> None:
    """Open the FUSE device."""
    try:
        os.close(os.open(device, os.O_RDWR | os.O_CLOEXEC))
    except FileNotFoundError as error:
        raise MountFailed(f"there is no {device}", hint=f"modprobe fuse; {_IN_CONTAINER}") from error
    except PermissionError as error:
        hint = f"chmod 666 {device} (as root); {_IN_CONTAINER}"
        raise MountFailed(f"cannot open {device}: {error.strerror}", hint=hint) from error
    except OSError as error:
        absent = error.errno in (errno.ENODEV, errno.ENXIO)
        raise MountFailed(
            f"cannot open {device}: {error.strerror}", hint="modprobe fuse" if absent else None
        ) from error


def check_helper(*, privileged: bool) -> None:
    """Find fusermount3, setuid, without which nobody but root mounts."""
    if privileged:
        return
    helper = shutil.which("fusermount3")
    if helper is None:
        raise MountFailed("there is no fusermount3 on the PATH", hint="apt install fuse3")
    status = Path(helper).stat()
    if status.st_uid != 0 or not status.st_mode & stat.S_ISUID:
        raise MountFailed(f"{helper} is not setuid root", hint=f"chmod u+s {helper} (as root)")


def allow_other_permitted(config: Path = FUSE_CONFIG) -> bool:
    """Say whether an ordinary user may let other users into a mount."""
    try:
        lines = config.read_text(errors="replace").splitlines()
    except OSError:
        return False
    return any(line.strip() == "user_allow_other" for line in lines)


def check_allow_other(*, privileged: bool, config: Path = FUSE_CONFIG) -> None:
    """Make sure that `--allow-other` will be granted."""
    if not privileged and not allow_other_permitted(config):
        raise MountFailed(
            "an ordinary user may not use --allow-other here",
            hint=f"echo user_allow_other >> {config} (as root)",
        )


def is_privileged() -> bool:
    return os.geteuid() == 0
