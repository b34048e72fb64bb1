"""What can a test do to a daemon, or learn of it, that no user can?

Give it a bug: the verb that the file $SANDBOXFS_FAULT names raises. Count: statfs writes into the file
$SANDBOXFS_COUNTS how many nodes and handles there are. Python imports this module by itself where its
directory is on PYTHONPATH; nothing in sandboxfs knows of it.
"""

import functools
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

VERBS = (
    "lookup forget getattr setattr readlink mknod mkdir symlink link unlink rmdir rename open create read "
    "write release fsync opendir readdir releasedir fsyncdir statfs getxattr setxattr listxattr removexattr"
)


def faulty(verb: str, method: Callable[P, T], order: Path) -> Callable[P, T]:
    @functools.wraps(method)
    def answered(*args: P.args, **kwargs: P.kwargs) -> T:
        if order.read_text() == verb:
            raise RuntimeError(f"injected into {verb}")
        return method(*args, **kwargs)

    return answered


def install_faults(order: Path) -> None:
    from sandboxfs.overlay.control_dir import ControlDir

    for name in VERBS.split():
        setattr(ControlDir, name, faulty(name, getattr(ControlDir, name), order))


def install_counts(target: Path) -> None:
    from sandboxfs.overlay.overlay import Overlay

    statfs = Overlay.statfs

    def counting(self: Overlay) -> os.statvfs_result:
        nodes, files, listings = len(self._inodes), len(self._files), len(self._listings)
        target.write_text(json.dumps({"nodes": nodes, "files": files, "listings": listings}))
        return statfs(self)

    setattr(Overlay, "statfs", counting)  # noqa: B010 - mypy refuses to assign to a method


if "sandboxfs.daemon" in sys.orig_argv:
    if "SANDBOXFS_FAULT" in os.environ:
        install_faults(Path(os.environ["SANDBOXFS_FAULT"]))
    if "SANDBOXFS_COUNTS" in os.environ:
        install_counts(Path(os.environ["SANDBOXFS_COUNTS"]))
