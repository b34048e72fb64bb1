"""What does a review look at? The upper, the workspace, the index and the baseline of one sandbox, opened.

Only for reading, with no lock and no daemon: programs may go on working in the view meanwhile. Masked paths
of the workspace (a mountpoint in it, the state directory) are never asked for, as whoever serves a mount may
be the one who asks.
"""

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from sandboxfs.changes.tree import Tree
from sandboxfs.layers.baseline import Baseline
from sandboxfs.layers.hostdir import HostDir
from sandboxfs.layers.index import Index
from sandboxfs.layers.staging import Staging


@dataclass(frozen=True)
class LayerPaths:
    """Where the layers are: *lowers* from the topmost down, the workspace last; *masked* are paths in it."""

    lowers: Sequence[Path]
    upper: Path
    index: Path
    baseline: Path
    masked: frozenset[bytes] = field(default_factory=frozenset)


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
            # A sandbox that was not mounted since baselines are kept.
            pass
        self._baseline: Baseline | None = None
        self.upper = self._tree(paths.upper, ours=True)
        self.workspace = self._tree(paths.lowers[-1], ours=False)
        self.index = self._tree(paths.index, ours=True)
        # Whoever only reads an index stages nothing.
        self.numbers = Index(self._index, Staging(self._index))
        self.masked = paths.masked

    @property
    def baseline(self) -> Baseline:
        if self._baseline is None:
            return self.read_baseline()
        return self._baseline

    def read_baseline(self) -> Baseline:
        """Read the baseline anew.

        To be done after the upper was looked at: what is in the upper has its sighting already, but one that
        was read before may lack those of what came since.
        """
        self._baseline = Baseline(self._index, {}) if self._notes is None else Baseline.load(self._notes)
        return self._baseline

    def _tree(self, path: Path, *, ours: bool) -> Tree:
        opened = Tree(HostDir.at(path), ours=ours)
        self._stack.callback(opened.close)
        return opened


@contextmanager
def open_layers(paths: LayerPaths) -> Iterator[Layers]:
    """Open the layers for as long as the block runs; sides found in it can be read in it only."""
    with ExitStack() as stack:
        yield Layers(paths, stack)
