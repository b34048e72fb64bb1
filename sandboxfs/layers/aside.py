"""What becomes of a sighting when the upper lets go of what it is of?

It is put aside: whatever is made at that path later starts from what the workspace has then. When the entry
comes back, so does its sighting. Both are told to the baseline only after the upper was changed, and only by
whoever changed it: no entry is ever without what it started from, whoever is killed in between.
"""

from sandboxfs.layers.uppertree import UpperTree, join


class Aside:
    """Puts sightings of one upper's entries aside, by their path in the view."""

    def __init__(self, tree: UpperTree) -> None:
        self._tree = tree
        # The lower paths of directories.
        self._lowers: dict[bytes, bytes | None] = {}

    def look_again(self) -> None:
        """Directories may have come, gone or got other marks."""
        self._lowers.clear()

    def settled(self, path: bytes, *, whole: bool = False) -> None:
        """The upper has nothing at *path* any more; as a *whole*, nor elsewhere of what was in it."""
        lower = self._natural(path)
        if self._tree.baseline is not None and lower is not None:
            self._tree.baseline.settled(lower, whole=whole)

    def returned(self, path: bytes, *, whole: bool = False) -> None:
        """What was at *path* is there again."""
        lower = self._natural(path)
        if self._tree.baseline is not None and lower is not None:
            self._tree.baseline.returned(lower, whole=whole)

    def _natural(self, path: bytes) -> bytes | None:
        """The lower path that the entry at *path* has by its name."""
        folder, _, name = path.rpartition(b"/")
        if folder not in self._lowers:
            self._lowers[folder] = self._tree.lower_of(folder)
        lower = self._lowers[folder]
        return None if lower is None else join(lower, name)
