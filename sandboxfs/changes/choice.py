"""What did a person choose?

Values only. Of each path everything is taken, nothing, or a part; a part is turned into text by applying its
hunks to one text or taking them back from the other. Who carries it out makes sure that these texts are still
what was shown.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

from sandboxfs.changes.editing import reverse
from sandboxfs.changes.hunks import Hunk, apply_hunks

Verb = Literal["commit", "discard"]


class Extent(StrEnum):
    """How much of a change is taken."""

    ALL = "all"
    PART = "part"
    NOTHING = "nothing"


@dataclass(frozen=True)
class Pick:
    """How much of a path's change is taken.

    Of a part, *hunks* are the chosen ones: as they were, split, or edited; *mode* tells whether the change of
    mode and other attributes is taken as well. A commit of a part takes a rename, a discard of one leaves it.
    """

    path: bytes
    extent: Extent = Extent.NOTHING
    mode: bool = False
    hunks: tuple[Hunk, ...] = ()

    def committed(self, old: bytes) -> bytes:
        """Return the text that a commit of a part puts into the workspace, which has *old*."""
        return apply_hunks(old, self.hunks)

    def kept(self, new: bytes) -> bytes:
        """Return the text that a discard of a part leaves in the sandbox, which has *new*."""
        return apply_hunks(new, map(reverse, self.hunks))


@dataclass(frozen=True)
class Choice:
    """What was picked, by path; of a path that was never asked about, nothing is."""

    picks: Mapping[bytes, Pick]

    @property
    def taken(self) -> list[Pick]:
        """The paths of which anything is taken, in the order they were asked about."""
        return [pick for pick in self.picks.values() if pick.extent is not Extent.NOTHING]

    def of(self, path: bytes) -> Pick:
        """Return how much of the change at *path* is taken."""
        return self.picks.get(path, Pick(path))
