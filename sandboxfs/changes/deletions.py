"""What does the workspace still have that the sandbox deleted?

A whiteout over a directory deletes all that was in it; a directory made anew where another was hides it. What
was moved out is not deleted: the moved directory tells of it. What the host made there later the sandbox
never saw: it is a conflict, on itself and on every deleted directory around it, so that nothing gets lost.
"""

import os
import stat
from collections.abc import Iterator

from sandboxfs.changes import conflicts
from sandboxfs.changes.finding import Finding
from sandboxfs.changes.judging import deleted, filled
from sandboxfs.changes.sides import lower_side
from sandboxfs.changes.tree import join, split
from sandboxfs.changes.uppers import UpperDirectory
from sandboxfs.changes.view import View


class Deletions:
    """Finds what is deleted, by looking at the workspace."""

    def __init__(self, view: View) -> None:
        self._layers = view.layers
        self._moved = view.upper.moved

    def tree(self, lower_path: bytes, path: bytes, when: int) -> list[Finding]:
        """The deletion of *lower_path*, which was at *path* of the view, and of all in it."""
        return _marked(list(self._walk(lower_path, path, when)))

    def inside(self, lower_path: bytes, path: bytes, when: int) -> list[Finding]:
        """The deletion of all in *lower_path*, but not of itself."""
        return _marked(list(self._walk(lower_path, path, when))[1:])

    def hidden(self, directory: UpperDirectory) -> list[Finding]:
        """The deletion of what a directory made in the place of another does not show."""
        if not directory.hidden or directory.lower is None:
            return []
        seen = self._layers.baseline.get(directory.lower)
        knew = seen is not None and stat.S_ISDIR(seen.mode)
        found: list[Finding] = []
        for name in self._names(directory.lower):
            lower_path = join(directory.lower, name)
            if name in directory.entries or lower_path in self._moved:
                continue
            # A directory that the sandbox made without knowing of the host's says nothing about its content.
            if knew or self._layers.baseline.get(lower_path) is not None:
                found += self.tree(lower_path, join(directory.path, name), directory.status.st_ctime_ns)
        return found

    def _walk(self, lower_path: bytes, path: bytes, when: int) -> Iterator[Finding]:
        pending = [(lower_path, path)]
        while pending:
            lower_path, path = pending.pop()
            lower = lower_side(self._layers, lower_path)
            if lower is None:
                continue
            yield deleted(self._layers, path, self._layers.baseline.get(lower_path), lower, lower_path, when)
            if lower.is_dir:
                names = [
                    name for name in self._names(lower_path) if join(lower_path, name) not in self._moved
                ]
                pending += [(join(lower_path, name), join(path, name)) for name in names]

    def _names(self, lower_path: bytes) -> list[bytes]:
        return sorted(os.fsencode(entry.name) for entry in self._layers.workspace.entries(lower_path))


def _marked(found: list[Finding]) -> list[Finding]:
    """Carry the news of what the host made up to the directories it is in."""
    around: set[bytes] = set()
    for finding in found:
        if finding.conflict == conflicts.MADE_BELOW:
            parent = split(finding.path)[0]
            while parent and parent not in around:
                around.add(parent)
                parent = split(parent)[0]
    return [filled(finding) if finding.path in around else finding for finding in found] if around else found
