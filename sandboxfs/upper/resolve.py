"""Resolution: which layer answers for a name of the view, and what of the layers below belongs to it.

One pure step, from a directory of the view to a name in it. The state of the upper at the name comes from
`marks`. Of the directory only its *lower path* counts: the path of the content of the layers below that is
merged into it, None where nothing is. The mounted view (`overlay/lookup`) and the walk by path (`upper/walk`)
take this step from the root down, and nothing else finds out what the view shows at a name. Two listings take
the rule about whiteouts by themselves, name after name in one pass: `Lookup.names`, where a whiteout hides
the name in the layers below, and `map_upper`. Code that edits an upper reads marks only to change them.

- A whiteout hides the entry below. Any other entry but a directory replaces it.
- A directory is merged with the content of the layers below at its name, unless it is opaque: then none of
  that shows in it, whatever redirect it has. A damaged redirect makes a directory opaque.
- A redirect leads to a path from the root of the layers below, whatever is above it in the view; or to a name
  beside the old one, which leads nowhere in a directory that merges nothing.

The caller finds out whether the layers below have an entry at a lower path, and whether that is a directory:
a lower entry that is no directory counts as none.
"""

from enum import Enum
from typing import Final, NamedTuple

from sandboxfs.paths import joined
from sandboxfs.upper.marks import ABSENT, FILE, WHITEOUT, NameState


class AnsweringLayer(Enum):
    """The layer, if any, that answers for a name of the view."""

    UPPER = "upper"
    LOWER = "lower"
    WHITEOUT = "whiteout"
    NOTHING = "nothing"


class Resolved(NamedTuple):
    """The answer for a name, and the content of the layers below that belongs to it.

    *beside*: the content of the directory's lower parts at the name itself. *redirect*: the content of the
    layers below at this path.
    """

    answer: AnsweringLayer
    beside: bool = False
    redirect: bytes | None = None

    def lower_path(self, parent: bytes | None, name: bytes) -> bytes | None:
        """The lower path of *name* in a directory with the lower path *parent*."""
        if self.redirect is not None:
            return self.redirect
        return joined(parent, name) if self.beside and parent is not None else None


# One object for each: every lookup takes this step, and callers may compare by identity.
NOTHING: Final = Resolved(AnsweringLayer.NOTHING)
COVERED: Final = Resolved(AnsweringLayer.WHITEOUT)
BELOW: Final = Resolved(AnsweringLayer.LOWER, beside=True)
_ALONE: Final = Resolved(AnsweringLayer.UPPER)
_MERGED: Final = Resolved(AnsweringLayer.UPPER, beside=True)


def resolve(state: NameState, parent: bytes | None) -> Resolved:
    """Resolve a name at which the upper has *state*, in a directory with the lower path *parent*."""
    if state is FILE:
        return _ALONE
    if state is ABSENT:
        return NOTHING if parent is None else BELOW
    if state is WHITEOUT:
        return COVERED
    if state.opaque:
        return _ALONE
    if state.redirect is None:
        return _ALONE if parent is None else _MERGED
    if state.redirect.startswith(b"/"):
        return Resolved(AnsweringLayer.UPPER, redirect=state.redirect[1:])
    return (
        _ALONE if parent is None else Resolved(AnsweringLayer.UPPER, redirect=joined(parent, state.redirect))
    )
