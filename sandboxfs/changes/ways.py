"""Where does a path lead, if symlinks on the way are followed as the view has them?

For rules: a program that opens `link/a` is judged by what the link leads to. Only the layers are asked, and
only along the way, never the mount. The last name stands for itself, and so does a path whose links lead out
of the view, in circles or nowhere.
"""

import os
import stat
from collections.abc import Sequence

from sandboxfs.changes.tree import Tree, join, split, vanished
from sandboxfs.layers import marks

_MOST_LINKS = 40
# Either encoding is understood, whatever this upper's filesystem can do.
_WHITEOUTS = marks.Whiteouts(devices=False)


class Ways:
    """The ways through one view; *tops* are the absolute paths that it is known by.

    Without *upper* the view is the workspace as it is. *masked* paths of the workspace are not looked at.
    """

    def __init__(
        self, upper: Tree | None, workspace: Tree, masked: frozenset[bytes], tops: Sequence[bytes]
    ) -> None:
        self._upper = upper
        self._workspace = workspace
        self._masked = masked
        self._tops = tops

    def followed(self, path: bytes) -> bytes:
        """Return *path* with the links on the way followed."""
        pending = list(reversed(path.split(b"/")))
        here = b""
        links = 0
        while pending:
            name = pending.pop()
            if name in (b"", b"."):
                continue
            if name == b"..":
                if not here:
                    return path
                here = split(here)[0]
                continue
            here = join(here, name)
            target = self._link(here) if pending else None
            if target is None:
                continue
            links += 1
            way = self._from_top(target)
            if links > _MOST_LINKS or way is None:
                return path
            here = b"" if target.startswith(b"/") else split(here)[0]
            pending.extend(reversed(way.split(b"/")))
        return here

    def is_directory(self, path: bytes) -> bool:
        """Whether the view shows a directory at *path*, on the way to which are no links."""
        found = self._found(path)
        return found is not None and stat.S_ISDIR(found[2].st_mode)

    def _from_top(self, target: bytes) -> bytes | None:
        """What is left of a link's *target* once it comes to the top of the view, None if it does not."""
        if not target.startswith(b"/"):
            return target
        target = os.path.normpath(target)
        for top in self._tops:
            if target == top:
                return b""
            if target.startswith(top.rstrip(b"/") + b"/"):
                return target[len(top.rstrip(b"/")) + 1 :]
        return None

    def _link(self, path: bytes) -> bytes | None:
        """The target of the symlink that the view shows at *path*, if it does."""
        found = self._found(path)
        if found is None or not stat.S_ISLNK(found[2].st_mode):
            return None
        try:
            return found[0].readlink(found[1])
        except OSError:
            return None

    def _found(self, path: bytes) -> tuple[Tree, bytes, os.stat_result] | None:
        """Return the layer that has what the view shows at *path*, where in it, and its status."""
        here, lower = b"", b""
        merged = True
        above = self._upper
        for name in path.split(b"/") if path else ():
            inner, lower = join(here, name), join(lower, name)
            status = None if above is None else above.stat(inner)
            if above is None or status is None:
                # From here on the workspace alone has it, if anyone does.
                above = None
            elif not stat.S_ISDIR(status.st_mode):
                if inner != path or _WHITEOUTS.covers(above.directory(here), name, status):
                    return None
                return above, inner, status
            else:
                mark = self._marks(above, here, name)
                merged = not mark.opaque and (merged or mark.redirect is not None)
                if mark.redirect is not None:
                    lower = marks.redirected_path(mark.redirect, split(lower)[0])
            if above is None and (not merged or lower in self._masked):
                return None
            here = inner
        layer, place = (self._workspace, lower) if above is None else (above, here)
        status = layer.stat(place)
        return None if status is None else (layer, place, status)

    @staticmethod
    def _marks(upper: Tree, parent: bytes, name: bytes) -> marks.DirMarks:
        directory = upper.directory(parent)
        try:
            return upper.reaching(directory, lambda: marks.read_directory(directory, name))
        except OSError as error:
            if not vanished(error):
                raise
            return marks.NO_MARKS
