"""What does the view show at a path, told from the layers and not from the mount?

For what a scan leaves out because it did not change: the ignore files of the tree, the content that a renamed
directory brought along, the other names of a hard link.
"""

import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass

from sandboxfs.changes.layers import Layers
from sandboxfs.changes.sides import Place
from sandboxfs.changes.tree import Unreadable, join, split
from sandboxfs.changes.uppers import UpperDirectory, UpperMap


@dataclass(frozen=True, slots=True)
class Shown:
    """Something in the view that is no directory; *upper* is its status there, None when it is lower only."""

    path: bytes
    lower_path: bytes | None
    upper: os.stat_result | None
    ino: int


class View:
    """The merged tree of some layers, as it was when the upper was looked at."""

    def __init__(self, layers: Layers, upper: UpperMap) -> None:
        self.layers = layers
        self.upper = upper

    def read(self, path: bytes) -> bytes | None:
        """Return the content of the file at *path*, None where there is none that can be read."""
        place = self.locate(path)
        try:
            return None if place is None else place()
        except Unreadable:
            return None

    def locate(self, path: bytes) -> Place | None:
        """Return where the layers have what the view shows at *path*, which may be nothing after all."""
        parent, name = split(path)
        rest = name
        while (directory := self.upper.get(parent)) is None:
            parent, name = split(parent)
            rest = join(name, rest)
        if name in directory.entries:
            # Only its own entries are in the upper: below a directory that is, there would have been one.
            here = rest == name and directory.entries[name] is not None
            return Place(self.layers.upper, path) if here else None
        if directory.hidden or directory.lower is None:
            return None
        lower = join(directory.lower, rest)
        if lower in self.layers.masked or join(directory.lower, name) in self.upper.moved:
            return None
        return Place(self.layers.workspace, lower)

    def below(self, top: bytes) -> Iterator[Shown]:
        """Everything in the view below the directory *top* that is no directory, in no order."""
        pending: list[tuple[bytes, bytes | None]] = [(top, None)]
        while pending:
            path, lower = pending.pop()
            directory = self.upper.get(path)
            if directory is not None:
                for name, status in directory.entries.items():
                    if status is None:
                        continue
                    inner = join(path, name)
                    if stat.S_ISDIR(status.st_mode):
                        pending.append((inner, None))
                    else:
                        yield Shown(inner, self.upper.below(directory, name), status, status.st_ino)
                lower = None if directory.hidden else directory.lower
            if lower is not None:
                for name, is_directory, ino in self._lower_names(directory, lower):
                    inner, lower_path = join(path, name), join(lower, name)
                    if is_directory:
                        pending.append((inner, lower_path))
                    else:
                        yield Shown(inner, lower_path, None, ino)

    def _lower_names(self, above: UpperDirectory | None, lower: bytes) -> list[tuple[bytes, bool, int]]:
        covered = {} if above is None else above.entries
        found = []
        for entry in self.layers.workspace.entries(lower):
            name = os.fsencode(entry.name)
            path = join(lower, name)
            if name not in covered and path not in self.layers.masked and path not in self.upper.moved:
                found.append((name, entry.is_dir(follow_symlinks=False), entry.inode()))
        return found
