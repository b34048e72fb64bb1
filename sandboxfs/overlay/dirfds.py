"""Which directories are held open? A bounded number, those opened last.

A directory's descriptors are opened when first needed and closed when many others have been opened since or
the kernel forgets the directory; a tree of any size is walked with the same few descriptors. One that is in
use all the time is now and then opened again: that costs less than keeping track of who uses what.
"""

from sandboxfs.layers.hostdir import HostDir
from sandboxfs.overlay.node import Directory, LowerPart
from sandboxfs.overlay.stack import by_its_name, stale

LIMIT = 512


class DirectoryFds:
    """Host directories of the view's directories, opened on demand."""

    def __init__(self, upper: HostDir, lowers: list[HostDir], limit: int = LIMIT) -> None:
        self._upper = upper
        self._lowers = lowers
        self._limit = limit
        self._recent: dict[Directory | LowerPart, None] = {}

    def upper(self, directory: Directory) -> HostDir:
        """The upper part, which must exist."""
        return directory.held or self._hold(directory, self._open_upper(directory))

    def lower(self, part: LowerPart) -> HostDir:
        """A lower part; ESTALE when the host has put another directory in its place."""
        if part.held is not None:
            return part.held
        try:
            opened = self._lowers[part.layer].descend(part.path)
        except OSError as error:
            raise by_its_name(error) from None
        status = opened.own_stat()
        if (status.st_dev, status.st_ino) != (part.dev, part.ino):
            opened.close()
            raise stale()
        return self._hold(part, opened)

    def drop(self, directory: Directory) -> None:
        """Close what is held of a directory that is no longer needed."""
        self._drop(directory)
        for part in directory.lowers:
            self._drop(part)

    def close(self) -> None:
        for holder in list(self._recent):
            self._drop(holder)

    def _open_upper(self, directory: Directory) -> HostDir:
        names: list[bytes] = []
        at = directory
        while at.held is None and at.parent is not None:
            names.append(at.name)
            at = at.parent
        start = at.held if at.held is not None else self._upper
        return start.descend(b"/".join(reversed(names)))

    def _hold(self, holder: Directory | LowerPart, opened: HostDir) -> HostDir:
        holder.held = opened
        self._recent[holder] = None
        if len(self._recent) > self._limit:
            # Closed as soon as nobody uses it: whoever has it may be in the middle of something.
            oldest = next(iter(self._recent))
            del self._recent[oldest]
            oldest.held = None
        return opened

    def _drop(self, holder: Directory | LowerPart) -> None:
        if holder.held is not None:
            self._recent.pop(holder, None)
            holder.held = None
