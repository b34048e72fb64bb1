"""Where is something made before it appears? The work directory beside the upper.

Whatever takes more than one call to make (a copied file, a marked directory) is made here under a name of
its own and moved into the upper with one rename, so that the upper never shows half of it, also not after
`kill -9`. What a killed daemon left behind is removed by `clear`.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count

from sandboxfs.layers.hostdir import HostDir


class Staging:
    """The work directory of one upper."""

    def __init__(self, directory: HostDir) -> None:
        self.directory = directory
        self._serial = count(1)

    def clear(self) -> None:
        """Remove what an earlier session left behind."""
        for name in self.directory.names():
            self.directory.remove_tree(name)

    def fresh_name(self) -> bytes:
        return b"%x" % next(self._serial)

    @contextmanager
    def name(self) -> Iterator[bytes]:
        """A free name; whatever is still there at the end is removed."""
        name = self.fresh_name()
        try:
            yield name
        finally:
            self.directory.remove_tree(name)

    def absorb(self, directory: HostDir, name: bytes) -> None:
        """Remove *name* with all below it; it disappears at once."""
        with self.name() as staged:
            directory.rename(name, self.directory, staged)
