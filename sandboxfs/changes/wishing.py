"""What do chosen changes ask of the workspace?

A directory that is new comes as one tree with all that is new in it, one that is deleted goes as one; a
directory that was renamed moves, and what changed in it changes after that. Everything else is one object
instead of another, or other attributes for the same one.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from sandboxfs.changes.carrying import contents
from sandboxfs.changes.finding import Finding, Side
from sandboxfs.changes.layers import Layers
from sandboxfs.changes.patch import Kind
from sandboxfs.changes.resolving import merged_attributes
from sandboxfs.changes.scan import Survey
from sandboxfs.changes.sides import Place, lower_side
from sandboxfs.changes.steps import (
    Change,
    Dress,
    Identity,
    Known,
    Move,
    Moved,
    Spot,
    Thing,
    Wishes,
    joined,
    parted,
)
from sandboxfs.changes.twins import renamed_names, twins
from sandboxfs.layers.replica import attributes_at, of_the_sandbox

UPPER, INDEX = "upper", "index"


@dataclass(frozen=True)
class Item:
    """A change to apply; *content* instead of what the sandbox has.

    Unless *whole*, the rest stays in the sandbox; unless *mode*, so does a change of attributes.
    """

    finding: Finding
    content: bytes | None = None
    whole: bool = True
    mode: bool = True


class Wishing:
    """Turns *items* of *survey*, with all that they need, into wishes. *mounts* are mountpoints."""

    def __init__(self, survey: Survey, items: Sequence[Item], mounts: frozenset[bytes] = frozenset()) -> None:
        self._layers: Layers = survey.view.layers
        self._upper = survey.view.upper
        self._mounts = mounts
        findings = [item.finding for item in items]
        moves = [one for one in findings if one.kind is Kind.RENAMED and one.is_dir]
        self.moved = Moved({one.old_path: one.path for one in moves if one.old_path is not None})
        self._moving = {one.path for one in moves}
        self._trees = {one.path for one in findings if _is_new_tree(one)}
        self._inside: dict[bytes, dict[bytes, Thing]] = {path: {} for path in self._trees}
        self._below: dict[bytes, dict[bytes, Identity]] = {}
        self._gone = self._deletions(findings)
        self._changes: list[Change] = []
        self._moves: list[Move] = []
        self._dresses: list[Dress] = []
        for item in sorted(items, key=lambda item: item.finding.path.split(b"/")):
            self._wish(item)
        self.twins = twins(survey, findings)
        existing = dict(renamed_names(survey, findings))
        existing |= {inode: (found[0].lower_path, found[0].original) for inode, found in self.twins.items()}
        self.wishes = Wishes(tuple(self._changes), tuple(self._moves), tuple(self._dresses), existing)

    # Deletions

    def _deletions(self, findings: Iterable[Finding]) -> dict[bytes, Finding]:
        """Note what is below each directory that goes; return what goes by itself, by its lower path."""
        deleted = {one.lower_path: one for one in findings if one.kind is Kind.DELETED}
        tops = {one.lower_path for one in findings if one.kind is Kind.TYPE} | deleted.keys()
        moved = {one.old_path: one for one in findings if one.kind is Kind.RENAMED and not one.is_dir}
        # The host may have made a directory of what was renamed.
        tops |= {path for path, one in moved.items() if path and one.lower is not None and one.lower.is_dir}
        alone: dict[bytes, Finding] = {}
        for path, finding in (deleted | {path: one for path, one in moved.items() if path}).items():
            top = _topmost(path, tops)
            if top == path:
                alone[path] = finding
            elif finding.lower is not None:
                below = self._below.setdefault(top, {})
                below[path[len(top) + 1 :]] = Identity.seen(finding.lower)
        return alone

    def _known(self, lower: Side | None, lower_path: bytes) -> Known | None:
        if lower is None:
            return None
        return Known(Identity.seen(lower), self._below.get(lower_path, {}))

    # Changes

    def _wish(self, item: Item) -> None:
        finding = item.finding
        match finding.kind:
            case Kind.DELETED:
                self._delete(finding)
            case Kind.RENAMED if finding.is_dir:
                self._move(finding)
            case Kind.RENAMED:
                self._put(item, self._at_target(finding))
                self._delete(finding)
            case Kind.MODE if self._is_dressed_in_place(finding):
                self._dress(finding)
            case Kind.ADDED | Kind.TYPE if finding.is_dir and finding.path not in self._trees:
                self._dress(finding)
            case Kind.ADDED:
                self._put(item, self._in_the_way(finding))
            case _:
                self._put(item, self._replaced(finding))

    def _delete(self, finding: Finding) -> None:
        """Remove what the workspace has at the lower path, unless it goes with its directory."""
        replaced = self.moved(finding.lower_path) in self._moving
        if finding.lower_path in self._gone and not replaced:
            spot = self._spot_of(finding.lower_path)
            self._changes.append(Change(spot, self._replaced(finding), None))

    def _put(self, item: Item, old: Known | None) -> None:
        finding = item.finding
        thing = self._thing(item)
        top = self._tree_around(finding.path)
        if top is not None:
            self._inside[top][finding.path[len(top) + 1 :]] = thing
            return
        spot = self._spot_at(finding)
        in_place = joined(spot.before, spot.name) in self._mounts
        self._changes.append(Change(spot, old, thing, in_place))

    def _tree_around(self, path: bytes) -> bytes | None:
        """The topmost new directory that *path* comes with; None when it comes by itself."""
        found = None
        while (above := parted(path)[0]) in self._trees:
            found = path = above
        return found

    def _thing(self, item: Item) -> Thing:
        side = item.finding.new
        if side is None:
            raise ValueError("nothing to make")
        source, path, links = UPPER, item.finding.path, side.nlink
        if isinstance(side.read, Place) and side.read.tree is self._layers.index:
            # It stands for names that the host does not count.
            source, path, links = INDEX, side.read.path, max(side.nlink, 2)
        attributes = None if item.content is None else merged_attributes(item.finding, mode=item.mode)
        inside = self._inside.get(item.finding.path, {})
        return Thing(source, path, Identity.seen(side), links, item.content, attributes, inside)

    # What is in the way

    def _at_target(self, finding: Finding) -> Known | None:
        """What the workspace has where a renamed file goes: nothing, or what the host put there."""
        folder, name = parted(finding.path)
        above = self._upper.get(folder)
        if above is None or above.lower is None:
            return None
        return self._host_made(joined(above.lower, name))

    def _in_the_way(self, finding: Finding) -> Known | None:
        return None if finding.lower is None else self._host_made(finding.lower_path)

    def _host_made(self, path: bytes) -> Known | None:
        """What the host made at *path*, with everything in it."""
        lower = lower_side(self._layers, path)
        if lower is None or self.moved(path) != path:
            return None
        return self._with_contents(lower, path)

    def _replaced(self, finding: Finding) -> Known | None:
        """What the workspace has instead of what the sandbox saw there; a directory with everything in it."""
        lower, path = finding.lower, finding.lower_path
        was_dir = finding.old is not None and finding.old.is_dir
        if lower is None or was_dir or finding.kind is Kind.DELETED:
            # What is deleted in a directory are findings of their own.
            return self._known(lower, path)
        return self._with_contents(lower, path)

    def _with_contents(self, lower: Side, path: bytes) -> Known:
        if not lower.is_dir:
            return Known(Identity.seen(lower))
        with self._layers.workspace.directory(path).child(b".") as top:
            return Known(Identity.seen(lower), {below: Identity.of(found) for below, found in contents(top)})

    # Directories

    def _move(self, finding: Finding) -> None:
        source = finding.old_path
        if source is None or finding.lower is None or finding.new is None:
            raise ValueError("nothing to move")
        target = self._spot_at(finding)
        replaced = self._gone.get(joined(target.before, target.name))
        known = None if replaced is None else self._known(replaced.lower, replaced.lower_path)
        came = self._spot_of(source)
        self._moves.append(Move(came, target, Identity.seen(finding.lower), known))
        if finding.old is None or finding.new.mode != finding.old.mode:
            self._dress(finding, came)

    def _is_dressed_in_place(self, finding: Finding) -> bool:
        """Whether attributes can be changed on the object itself: no other name must notice."""
        lower, new = finding.lower, finding.new
        if lower is None or new is None or self._tree_around(finding.path) is not None:
            return False
        if lower.is_dir or new.is_dir:
            return lower.is_dir and new.is_dir
        # Where the workspace moved on, its content is not what the sandbox has.
        return lower.is_file and lower.nlink == 1 and finding.conflict is None

    def _dress(self, finding: Finding, came: Spot | None = None) -> None:
        if finding.new is None or finding.lower is None:
            raise ValueError("nothing to dress")
        status = self._layers.upper.stat(finding.path)
        if status is None:
            raise FileNotFoundError(finding.path)
        folder, name = parted(finding.path)
        attributes = attributes_at(self._layers.upper.directory(folder), name, status, of_the_sandbox)
        if not finding.path:
            spot = Spot(b"", b"", b".")
        elif came is not None:
            spot = self._spot_at(finding)
        else:
            spot = self._spot_of(finding.lower_path)
        self._dresses.append(Dress(spot, Identity.seen(finding.lower), attributes, came))

    # Spots

    def _spot_of(self, lower_path: bytes) -> Spot:
        """The spot of something that the workspace has now."""
        folder, name = parted(lower_path)
        return Spot(folder, self.moved(folder), name)

    def _spot_at(self, finding: Finding) -> Spot:
        """The spot of something by its place in the view; its directory may be one that is only made."""
        folder, name = parted(finding.path)
        above = self._upper.get(folder)
        if above is None:
            return self._spot_of(finding.lower_path)
        return Spot(folder if above.lower is None else above.lower, folder, name)


def _is_new_tree(finding: Finding) -> bool:
    """Whether a directory comes that the workspace does not have."""
    if finding.kind not in (Kind.ADDED, Kind.TYPE) or finding.new is None or not finding.new.is_dir:
        return False
    return finding.lower is None or not finding.lower.is_dir


def _topmost(path: bytes, tops: Iterable[bytes] | set[bytes]) -> bytes:
    """The outermost of *tops* around *path*, in an unbroken chain; *path* itself when there is none."""
    top = path
    while (above := parted(top)[0]) in tops and above:
        top = above
    return top
