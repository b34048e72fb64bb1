"""The opened layers of one sandbox: upper, workspace, index and baseline, for review.

Only for reading, with no lock and no daemon: programs may go on working in the view meanwhile. Masked paths
of the workspace (a mountpoint in it, the state directory) are never accessed, because the daemon that serves
such a mount may be the reader itself. Covered paths are masked, and upper entries there are no change: in
runs other views are shown in their place.
"""

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from sandboxfs.hostfs.directory import HostDir
from sandboxfs.hostfs.tree import DirTree
from sandboxfs.upper.baseline import Baseline
from sandboxfs.upper.marks import Index, Staging


@dataclass(frozen=True)
class LayerPaths:
    """The paths of the layers: *lowers* from the topmost down, the workspace last.

    *masked* and *covered* are paths in the workspace.
    """

    lowers: Sequence[Path]
    upper: Path
    index: Path
    baseline: Path
    masked: frozenset[bytes] = field(default_factory=frozenset)
    covered: frozenset[bytes] = field(default_factory=frozenset)


def masked_paths(workspace: Path, places: Iterable[Path]) -> frozenset[bytes]:
    """Return the paths in *workspace* of those of *places* that lie in it."""
    inside = (place for place in places if place != workspace and place.is_relative_to(workspace))
    return frozenset(os.fsencode(place.relative_to(workspace)) for place in inside)


class Layers:
    """The opened layers."""

    def __init__(self, paths: LayerPaths, stack: ExitStack) -> None:
        if len(paths.lowers) != 1:
            raise ValueError("a review looks at one workspace; frozen layers are not known yet")
        self._stack = stack
        self._index = stack.enter_context(HostDir.at(paths.index))
        self._notes: HostDir | None = None
        try:
            self._notes = stack.enter_context(HostDir.at(paths.baseline))
        except FileNotFoundError:
            # A sandbox that was not mounted since sandboxfs keeps baselines.
            pass
        self._baseline: Baseline | None = None
        self.upper = self._tree(paths.upper, ours=True)
        self.covered = paths.covered
        self.workspace = self._tree(paths.lowers[-1], ours=False)
        self.index = self._tree(paths.index, ours=True)
        self.masked = paths.masked | paths.covered

    @cached_property
    def numbers(self) -> Index:
        # A reader of an index stages nothing.
        return Index(self._index, Staging(self._index))

    @property
    def baseline(self) -> Baseline:
        if self._baseline is None:
            return self.read_baseline()
        return self._baseline

    def read_baseline(self) -> Baseline:
        """Read the baseline anew.

        To be done after the upper was scanned: every upper entry has its baseline entry by then, but a
        baseline read before may lack the entries of later changes.
        """
        self._baseline = Baseline(self._index, {}) if self._notes is None else Baseline.load(self._notes)
        return self._baseline

    def look_again(self) -> None:
        """Have every path looked up anew, for another scan of the same layers."""
        for tree in (self.upper, self.workspace, self.index):
            tree.let_go()

    def _tree(self, path: Path, *, ours: bool) -> DirTree:
        opened = DirTree(HostDir.at(path), ours=ours)
        self._stack.callback(opened.close)
        return opened


@contextmanager
def open_layers(paths: LayerPaths) -> Iterator[Layers]:
    """Open the layers for as long as the block runs; versions found in it can be read in it only."""
    with ExitStack() as stack:
        yield Layers(paths, stack)
