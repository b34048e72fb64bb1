"""Building actions: from chosen changes to actions, hard links to unchanged files included.

A program that gave an unchanged file a second name made the upper copy the file: the new name is a change,
the old one is not. Commit links the new name to the workspace's file and needs the copy no more; unless the
host meanwhile made the file into something else, which the sandbox never saw. Where one of several names of
an unchanged file was renamed, the new name becomes a hard link to that file in the same way.

A new directory comes as one tree with all that is new in it, and a deleted one goes as one. A renamed
directory moves; changes inside it are applied after the move. Everything else replaces one object by another,
or changes the attributes of the same object.
"""

import os
import stat
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from sandboxfs.commit.actions import (
    Actions,
    ActionTarget,
    ChangeAttributes,
    Expected,
    MoveDirectory,
    NewObject,
    ReplaceObject,
    identity_seen,
)
from sandboxfs.commit.plan import Resolution
from sandboxfs.hostfs.copy import Attributes, of_the_sandbox, own_attributes
from sandboxfs.hostfs.identity import ObjectIdentity
from sandboxfs.hostfs.tree import Unreadable, contents
from sandboxfs.paths import MovedPaths, joined, parted
from sandboxfs.review.change import ChangeKind, PathChange, Version
from sandboxfs.review.compare import LayerFile, change_kind, lower_side, same, upper_side
from sandboxfs.review.scan import ScanResult, number_kept
from sandboxfs.upper.edits import RemoveEntry, UpperIdentity
from sandboxfs.upper.sandbox_layers import Layers

Inode = tuple[int, int]


@dataclass(frozen=True)
class UnchangedLink:
    """An unchanged copy at *path* in the upper, and *lower_path*, the path of its original."""

    path: bytes
    lower_path: bytes
    original: ObjectIdentity
    copy: UpperIdentity

    def drop(self, keep: bytes) -> RemoveEntry:
        return RemoveEntry(self.path, self.copy, keep)


def twins(survey: ScanResult, findings: Iterable[PathChange]) -> Mapping[Inode, list[UnchangedLink]]:
    """The unchanged names of files to which *findings* add further names, by the copy's inode."""
    wanted = {
        (finding.new.dev, finding.new.ino)
        for finding in findings
        if finding.new is not None and finding.new.is_file and finding.new.nlink > 1
    }
    found: dict[Inode, list[UnchangedLink]] = defaultdict(list)
    if not wanted:
        return found
    changed = {finding.path for finding in survey.findings if finding.new is not None}
    for directory in survey.view.upper:
        for name, status in directory.entries.items():
            if status is None or status.st_nlink < 2 or not stat.S_ISREG(status.st_mode):
                continue
            inode, path = (status.st_dev, status.st_ino), joined(directory.path, name)
            lower_path = survey.view.upper.below(directory, name)
            if inode not in wanted or path in changed or lower_path is None or directory.hidden:
                continue
            twin = _twin(survey.view.layers, path, status, lower_path)
            if twin is not None:
                found[inode].append(twin)
    return found


def renamed_names(
    survey: ScanResult, findings: Iterable[PathChange]
) -> Mapping[Inode, tuple[bytes, ObjectIdentity]]:
    """Files of the workspace of which *findings* only rename one of several names, by the copy's inode."""
    layers = survey.view.layers
    sources: dict[int, tuple[bytes, Version]] = {}
    for finding in survey.findings:
        seen = layers.baseline.get(finding.lower_path) if _leaves(finding) else None
        if seen is not None and finding.lower is not None:
            sources[seen.number] = finding.lower_path, finding.lower
    found: dict[Inode, tuple[bytes, ObjectIdentity]] = {}
    for finding in findings if sources else ():
        copy = finding.new
        if copy is None or not copy.is_file or copy.nlink < 2:
            continue
        source = sources.get(number_kept(survey.view, finding))
        if source is not None and _is_unchanged(layers, copy, source[1], source[0]):
            found[copy.dev, copy.ino] = source[0], identity_seen(source[1])
    return found


def _leaves(finding: PathChange) -> bool:
    """Whether the change takes away one of several names of a file."""
    if finding.kind not in (ChangeKind.DELETED, ChangeKind.RENAMED):
        return False
    return finding.lower is not None and finding.lower.is_file and finding.lower.nlink > 1


def _is_unchanged(layers: Layers, copy: Version, lower: Version, lower_path: bytes) -> bool:
    """Whether *copy* is still the workspace's file, but for its name."""
    seen = layers.baseline.get(lower_path)
    if seen is None or not isinstance(copy.read, LayerFile):
        return False
    try:
        return same(copy, lower) and change_kind(layers, seen, copy, lower, copy.read) is None
    except Unreadable:
        return False


def _twin(layers: Layers, path: bytes, status: os.stat_result, lower_path: bytes) -> UnchangedLink | None:
    """The upper's file at *path* as an unchanged link, if *lower_path* still is the same."""
    copy, lower = upper_side(layers, path, status), lower_side(layers, lower_path)
    try:
        if copy is None or lower is None or not same(copy, lower):
            return None
    except Unreadable:
        return None
    return UnchangedLink(path, lower_path, identity_seen(lower), UpperIdentity.of(status))


UPPER, INDEX = "upper", "index"


class ActionBuilder:
    """Turns *items* of *survey*, with all that they need, into actions. *mounts* are mountpoints."""

    def __init__(
        self, survey: ScanResult, items: Sequence[Resolution], mounts: frozenset[bytes] = frozenset()
    ) -> None:
        self._layers: Layers = survey.view.layers
        self._upper = survey.view.upper
        self._mounts = mounts
        findings = [item.finding for item in items]
        moves = [one for one in findings if one.kind is ChangeKind.RENAMED and one.is_dir]
        self.moved = MovedPaths({one.old_path: one.path for one in moves if one.old_path is not None})
        self._moving = {one.path for one in moves}
        self._trees = {one.path for one in findings if _is_new_tree(one)}
        self._inside: dict[bytes, dict[bytes, NewObject]] = {path: {} for path in self._trees}
        self._below: dict[bytes, dict[bytes, ObjectIdentity]] = {}
        self._gone = self._deletions(findings)
        self._changes: list[ReplaceObject] = []
        self._moves: list[MoveDirectory] = []
        self._dresses: list[ChangeAttributes] = []
        for item in sorted(items, key=lambda item: item.finding.path.split(b"/")):
            self._add(item)
        self.twins = twins(survey, findings)
        existing = dict(renamed_names(survey, findings))
        existing |= {inode: (found[0].lower_path, found[0].original) for inode, found in self.twins.items()}
        self.actions = Actions(tuple(self._changes), tuple(self._moves), tuple(self._dresses), existing)

    # Deletions

    def _deletions(self, findings: Iterable[PathChange]) -> dict[bytes, PathChange]:
        """Note what is below each deleted directory; return the deletions that stand alone, by lower path."""
        deleted = {one.lower_path: one for one in findings if one.kind is ChangeKind.DELETED}
        tops = {one.lower_path for one in findings if one.kind is ChangeKind.TYPE} | deleted.keys()
        moved = {one.old_path: one for one in findings if one.kind is ChangeKind.RENAMED and not one.is_dir}
        # The host may have put a directory in place of a file that was renamed.
        tops |= {path for path, one in moved.items() if path and one.lower is not None and one.lower.is_dir}
        alone: dict[bytes, PathChange] = {}
        for path, finding in (deleted | {path: one for path, one in moved.items() if path}).items():
            top = _topmost(path, tops)
            if top == path:
                alone[path] = finding
            elif finding.lower is not None:
                below = self._below.setdefault(top, {})
                below[path[len(top) + 1 :]] = identity_seen(finding.lower)
        return alone

    def _known(self, lower: Version | None, lower_path: bytes) -> Expected | None:
        if lower is None:
            return None
        return Expected(identity_seen(lower), self._below.get(lower_path, {}))

    # Changes

    def _add(self, item: Resolution) -> None:
        finding = item.finding
        match finding.kind:
            case ChangeKind.DELETED:
                self._delete(finding)
            case ChangeKind.RENAMED if finding.is_dir:
                self._move(finding)
            case ChangeKind.RENAMED:
                self._put(item, self._at_target(finding))
                self._delete(finding)
            case ChangeKind.MODE if self._is_dressed_in_place(finding):
                self._dress(finding)
            case ChangeKind.ADDED | ChangeKind.TYPE if finding.is_dir and finding.path not in self._trees:
                self._dress(finding)
            case ChangeKind.ADDED:
                self._put(item, self._in_the_way(finding))
            case _:
                self._put(item, self._replaced(finding))

    def _delete(self, finding: PathChange) -> None:
        """Remove the workspace's object at the lower path, unless its directory takes it away."""
        replaced = self.moved(finding.lower_path) in self._moving
        if finding.lower_path in self._gone and not replaced:
            spot = self._spot_of(finding.lower_path)
            self._changes.append(ReplaceObject(spot, self._replaced(finding), None))

    def _put(self, item: Resolution, old: Expected | None) -> None:
        finding = item.finding
        thing = self._thing(item)
        top = self._tree_around(finding.path)
        if top is not None:
            self._inside[top][finding.path[len(top) + 1 :]] = thing
            return
        spot = self._spot_at(finding)
        in_place = joined(spot.before, spot.name) in self._mounts
        self._changes.append(ReplaceObject(spot, old, thing, in_place))

    def _tree_around(self, path: bytes) -> bytes | None:
        """The topmost new directory that contains *path*; None when no new directory does."""
        found = None
        while (above := parted(path)[0]) in self._trees:
            found = path = above
        return found

    def _thing(self, item: Resolution) -> NewObject:
        side = item.finding.new
        if side is None:
            raise ValueError("nothing to make")
        source, path, links = UPPER, item.finding.path, side.nlink
        if isinstance(side.read, LayerFile) and side.read.tree is self._layers.index:
            # The file of the index stands for names that the host does not count.
            source, path, links = INDEX, side.read.path, max(side.nlink, 2)
        attributes = None if item.content is None else merged_attributes(item.finding, mode=item.mode)
        inside = self._inside.get(item.finding.path, {})
        return NewObject(source, path, identity_seen(side), links, item.content, attributes, inside)

    # What is in the way

    def _at_target(self, finding: PathChange) -> Expected | None:
        """The workspace's object at the target of a renamed file: none, or one that the host put there."""
        folder, name = parted(finding.path)
        above = self._upper.get(folder)
        if above is None or above.lower is None:
            return None
        return self._host_made(joined(above.lower, name))

    def _in_the_way(self, finding: PathChange) -> Expected | None:
        return None if finding.lower is None else self._host_made(finding.lower_path)

    def _host_made(self, path: bytes) -> Expected | None:
        """The object that the host made at *path*, with everything in it."""
        lower = lower_side(self._layers, path)
        if lower is None or self.moved(path) != path:
            return None
        return self._with_contents(lower, path)

    def _replaced(self, finding: PathChange) -> Expected | None:
        """The workspace's object to be replaced, whatever it is by now; a directory with everything in it."""
        lower, path = finding.lower, finding.lower_path
        was_dir = finding.old is not None and finding.old.is_dir
        if lower is None or was_dir or finding.kind is ChangeKind.DELETED:
            # Deletions inside a directory are changes of their own.
            return self._known(lower, path)
        return self._with_contents(lower, path)

    def _with_contents(self, lower: Version, path: bytes) -> Expected:
        if not lower.is_dir:
            return Expected(identity_seen(lower))
        with self._layers.workspace.directory(path).again() as top:
            return Expected(
                identity_seen(lower), {below: ObjectIdentity.of(found) for below, found in contents(top)}
            )

    # Directories

    def _move(self, finding: PathChange) -> None:
        source = finding.old_path
        if source is None or finding.lower is None or finding.new is None:
            raise ValueError("nothing to move")
        target = self._spot_at(finding)
        replaced = self._gone.get(joined(target.before, target.name))
        known = None if replaced is None else self._known(replaced.lower, replaced.lower_path)
        came = self._spot_of(source)
        self._moves.append(MoveDirectory(came, target, identity_seen(finding.lower), known))
        if finding.old is None or finding.new.mode != finding.old.mode:
            self._dress(finding, came)

    def _is_dressed_in_place(self, finding: PathChange) -> bool:
        """Whether attributes can be changed on the object itself: no other name of it may be affected."""
        lower, new = finding.lower, finding.new
        if lower is None or new is None or self._tree_around(finding.path) is not None:
            return False
        if lower.is_dir or new.is_dir:
            return lower.is_dir and new.is_dir
        # In a conflict the workspace's content is not the sandbox's.
        return lower.is_file and lower.nlink == 1 and finding.conflict is None

    def _dress(self, finding: PathChange, came: ActionTarget | None = None) -> None:
        if finding.new is None or finding.lower is None:
            raise ValueError("nothing to dress")
        status = self._layers.upper.stat(finding.path)
        if status is None:
            raise FileNotFoundError(finding.path)
        folder, name = parted(finding.path)
        attributes = own_attributes(self._layers.upper.directory(folder), name, status, of_the_sandbox)
        if not finding.path:
            spot = ActionTarget(b"", b"", b".")
        elif came is not None:
            spot = self._spot_at(finding)
        else:
            spot = self._spot_of(finding.lower_path)
        self._dresses.append(ChangeAttributes(spot, identity_seen(finding.lower), attributes, came))

    # Targets

    def _spot_of(self, lower_path: bytes) -> ActionTarget:
        """The target of an object that the workspace has now."""
        folder, name = parted(lower_path)
        return ActionTarget(folder, self.moved(folder), name)

    def _spot_at(self, finding: PathChange) -> ActionTarget:
        """The target of an object by its place in the view; its directory may be a new one."""
        folder, name = parted(finding.path)
        above = self._upper.get(folder)
        if above is None:
            return self._spot_of(finding.lower_path)
        return ActionTarget(folder if above.lower is None else above.lower, folder, name)


def _is_new_tree(finding: PathChange) -> bool:
    """Whether a change adds a directory that the workspace does not have."""
    if (
        finding.kind not in (ChangeKind.ADDED, ChangeKind.TYPE)
        or finding.new is None
        or not finding.new.is_dir
    ):
        return False
    return finding.lower is None or not finding.lower.is_dir


def _topmost(path: bytes, tops: Iterable[bytes] | set[bytes]) -> bytes:
    """The outermost of *tops* around *path*, in an unbroken chain; *path* itself when there is none."""
    top = path
    while (above := parted(top)[0]) in tops and above:
        top = above
    return top


def merged_attributes(finding: PathChange, *, mode: bool) -> Attributes:
    """The attributes of a merged file, which come partly from the sandbox and partly from the workspace.

    With *mode*, a change of mode is the sandbox's.
    """
    old, new, lower = finding.old, finding.new, finding.lower
    if new is None:
        raise ValueError("nothing to make")
    bits, owner = new.mode, new
    if lower is not None and stat.S_ISREG(lower.mode):
        owner = lower
        if not mode or (old is not None and old.mode == new.mode):
            bits = lower.mode
    now = time.time_ns()
    return Attributes(bits, owner.uid, owner.gid, now, now)
