"""The layer stack: lower layers, the upper with its work directory, hidden names; putting whiteouts.

A *hidden* name (the state directory) does not exist in the view. A *sealed* name is shown as an empty
directory: the mountpoint itself, where a lookup would make the daemon wait for its own answer, and the mounts
of other sandboxes inside the workspace, whose daemons may in turn be waiting for ours. A *covered* directory
has a view of its own in a run, with rules of its own: this view seals it, at its path and wherever else the
host moves it. The directories above a covered one keep their names, because a run mounts there.

The stack is opened once, before the mount exists, and owned by one `Overlay`.
"""

import os
import stat
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path, PurePath

from sandboxfs.hostfs.directory import HostDir
from sandboxfs.hostfs.probe import device_whiteouts
from sandboxfs.hostfs.syscalls import RENAME_EXCHANGE
from sandboxfs.overlay.nodes import LowerPart
from sandboxfs.upper.baseline_log import BaselineWriter
from sandboxfs.upper.marks import Index, Staging, Whiteouts

Shown = os.stat_result | None
"""The entry to show for a name: a directory's status, or None for no entry."""


class HiddenNames:
    """Hidden, sealed and covered names, by the identity of their host directory, or by its path in the layer.

    *pinned* are the paths of directories above covered ones; *covered* are the identities of covered ones.
    """

    def __init__(
        self, hidden: Iterable[Path], sealed: Iterable[Path], root: Path, covered: Iterable[Path] = ()
    ) -> None:
        self._lasting: dict[tuple[int, int], dict[bytes, Shown]] = {}
        for path in hidden:
            _add(self._lasting, path, None)
        for path in sealed:
            _add(self._lasting, path, path.stat())
        self._foreign: dict[tuple[int, int], dict[bytes, Shown]] = {}
        self._by_path: dict[bytes, dict[bytes, Shown]] = {}
        self.pinned: set[bytes] = set()
        self.covered: set[tuple[int, int]] = set()
        for path in covered:
            self._cover(path.relative_to(root), path.stat())

    def _cover(self, path: PurePath, status: os.stat_result) -> None:
        *above, name = map(os.fsencode, path.parts)
        self._by_path.setdefault(b"/".join(above), {})[name] = status
        self.pinned |= {b"/".join(above[:depth]) for depth in range(1, len(above) + 1)}
        self.covered.add((status.st_dev, status.st_ino))

    def seal_foreign(self, places: Iterable[Path]) -> None:
        """Seal other sandboxes' mountpoints, instead of those of the last call.

        The mounts themselves are not read: the parent's status is shown, with another number.
        """
        self._foreign = {}
        for place in places:
            try:
                _add(self._foreign, place, _numbered(place.parent.stat()))
            except OSError:
                # The mountpoint is gone, or out of reach: then the view cannot lead there either.
                continue

    def in_directory(self, part: LowerPart) -> dict[bytes, Shown]:
        here = part.dev, part.ino
        found = self._foreign.get(here, {}) | self._lasting.get(here, {})
        return found | self._by_path[part.path] if part.path in self._by_path else found


def _add(masks: dict[tuple[int, int], dict[bytes, Shown]], path: Path, shown: Shown) -> None:
    parent = path.parent.stat()
    masks.setdefault((parent.st_dev, parent.st_ino), {})[os.fsencode(path.name)] = shown


def _numbered(status: os.stat_result) -> os.stat_result:
    """The status with an inode number that no host filesystem uses."""
    fields = list(status)
    fields[1] = status.st_ino | 1 << 55
    # The plain sequence lacks nanoseconds and blocks.
    others = {name: getattr(status, name) for name in dir(status) if name.startswith("st_")}
    return os.stat_result(fields, others)


@dataclass(frozen=True)
class OverlayPaths:
    """The paths of the layers: *lowers* from the topmost down, the workspace last.

    Without *baseline* no baseline is written.
    """

    lowers: list[Path]
    upper: Path
    work: Path
    index: Path
    baseline: Path | None = None


@dataclass(frozen=True)
class Layer:
    """A read-only layer. *marked*: it was an upper once, so its whiteouts and other marks count."""

    directory: HostDir
    marked: bool


class LayerStack:
    """The opened layers."""

    def __init__(
        self,
        paths: OverlayPaths,
        hidden: Iterable[Path] = (),
        sealed: Iterable[Path] = (),
        covered: Iterable[Path] = (),
    ) -> None:
        self._opened: list[HostDir] = []
        self.baseline: BaselineWriter | None = None
        try:
            *frozen, workspace = paths.lowers
            self.masks = HiddenNames(hidden, sealed, workspace, covered)
            self.layers = [Layer(self._open(path), marked=True) for path in frozen]
            self.layers.append(Layer(self._open(workspace), marked=False))
            self.upper = self._open(paths.upper)
            self.staging = Staging(self._open(paths.work))
            self.staging.clear()
            self.index = Index(self._open(paths.index), self.staging)
            self.whiteouts = Whiteouts(devices=_takes_devices(paths.work))
            # Decided once: with an empty upper, all earlier baseline entries are out of date.
            self.untouched = self.upper.is_empty()
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
        """Replace any entry at *name* in an upper directory by a whiteout, atomically."""
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
        # A full disk decides nothing, and nearly every filesystem supports device whiteouts.
        return True


def swap(one: HostDir, one_name: bytes, other: HostDir, other_name: bytes) -> None:
    """Exchange two names of upper directories atomically."""
    one.rename(one_name, other, other_name, RENAME_EXCHANGE)
