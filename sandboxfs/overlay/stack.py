"""What is the view made of? The layers, the upper's staging and index, and what is kept out of sight.

Opened once, before the mount exists, and owned by one `Overlay`.
"""

import errno
import os
import stat
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from sandboxfs.layers.baseline_writer import BaselineWriter
from sandboxfs.layers.hostdir import HostDir
from sandboxfs.layers.index import Index
from sandboxfs.layers.marks import Whiteouts
from sandboxfs.layers.probe import device_whiteouts
from sandboxfs.layers.staging import Staging
from sandboxfs.layers.syscalls import RENAME_EXCHANGE
from sandboxfs.overlay.masks import Masks


@dataclass(frozen=True)
class OverlayPaths:
    """Where the layers are: *lowers* from the topmost down, the workspace last.

    Without a *baseline* nobody notes what the workspace was before it was changed.
    """

    lowers: list[Path]
    upper: Path
    work: Path
    index: Path
    baseline: Path | None = None


@dataclass(frozen=True)
class Layer:
    """A read-only layer. *marked*: it was an upper once, so its whiteouts and other marks mean something."""

    directory: HostDir
    marked: bool


class Stack:
    """The opened layers."""

    def __init__(self, paths: OverlayPaths, hidden: Iterable[Path] = (), sealed: Iterable[Path] = ()) -> None:
        self._opened: list[HostDir] = []
        self.baseline: BaselineWriter | None = None
        try:
            self.masks = Masks(hidden, sealed)
            *frozen, workspace = paths.lowers
            self.layers = [Layer(self._open(path), marked=True) for path in frozen]
            self.layers.append(Layer(self._open(workspace), marked=False))
            self.upper = self._open(paths.upper)
            self.staging = Staging(self._open(paths.work))
            self.staging.clear()
            self.index = Index(self._open(paths.index), self.staging)
            self.whiteouts = Whiteouts(devices=_takes_devices(paths.work))
            # Decided once: whatever was noted for an upper that hides nothing is out of date.
            self.untouched = next(self.upper.entries(), None) is None
            if paths.baseline is not None:
                self.baseline = BaselineWriter(self._open(paths.baseline))
                if self.untouched:
                    self.baseline.clear()
        except BaseException:
            self.close()
            raise

    @property
    def workspace(self) -> HostDir:
        return self.layers[-1].directory

    def put_whiteout(self, directory: HostDir, name: bytes) -> None:
        """Replace whatever is at *name* in an upper directory by a whiteout, at once."""
        if self.whiteouts.devices:
            try:
                self.whiteouts.create(directory, name)
            except FileExistsError:
                pass
            else:
                return
        status = directory.stat(name)
        work = self.staging.directory
        self.whiteouts.announce(directory)
        with self.staging.name() as staged:
            self.whiteouts.create(work, staged)
            if status is not None and stat.S_ISDIR(status.st_mode):
                swap(work, staged, directory, name)
            else:
                work.rename(staged, directory, name)

    def close(self) -> None:
        if self.baseline is not None:
            self.baseline.close()
            self.baseline = None
        for directory in self._opened:
            directory.close()
        self._opened.clear()

    def _open(self, path: Path) -> HostDir:
        directory = HostDir.at(path)
        self._opened.append(directory)
        return directory


def _takes_devices(directory: Path) -> bool:
    try:
        return device_whiteouts(directory)
    except OSError:
        # A full disk says nothing, and nearly every filesystem takes them.
        return True


def swap(one: HostDir, one_name: bytes, other: HostDir, other_name: bytes) -> None:
    """Exchange two names of upper directories at once."""
    one.rename(one_name, other, other_name, RENAME_EXCHANGE)


def host_error(number: int) -> OSError:
    """An OSError of the class that fits its number."""
    return OSError(number, os.strerror(number))


def stale() -> OSError:
    """The host object behind an inode was replaced: the kernel looks the name up again and retries."""
    return host_error(errno.ESTALE)


# What reaching something by the name it last had says when the host has moved, removed or replaced it since.
MOVED = {errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.EXDEV}


def by_its_name(error: OSError) -> OSError:
    """What to tell of an inode that could not be reached by the name it last had."""
    return stale() if error.errno in MOVED else error
