"""Comparing layers: two versions of one path, the kind of change; conflicts are found here.

A version is made from the status of a host object, or from a baseline entry. No file is read without need: a
workspace file with the identity of its baseline entry is unchanged, and files of different sizes differ.
Times never count; owners count only where the sandbox could have kept them.

The rules here are those of one path; the scan and the links call them.
"""

import os
import stat
from dataclasses import dataclass, replace
from functools import cache

from sandboxfs.hostfs.copy import is_private
from sandboxfs.hostfs.tree import ChangedWhileRead, DirTree, Unreadable, vanished
from sandboxfs.paths import parted
from sandboxfs.review import change, git_files
from sandboxfs.review.change import ChangeKind, PathChange, Version
from sandboxfs.review.text_merge import has_markers
from sandboxfs.upper.baseline import BaselineEntry, digest_of
from sandboxfs.upper.sandbox_layers import Layers

_CHUNK = 1 << 20
_COMPARED_XATTRS = (b"user.", b"system.posix_acl_")
_ACCESS_LISTS = b"system.posix_acl_"
_GIVEN = _ACCESS_LISTS + b"default"


@dataclass(frozen=True)
class LayerFile:
    """A path in a layer; a call returns the content of the file there."""

    tree: DirTree
    path: bytes

    def __call__(self) -> bytes:
        return self.tree.read(self.path)


@dataclass(frozen=True)
class BaselineContent:
    """The content of a file as the baseline has it: saved, or still there in the workspace."""

    layers: Layers
    entry: BaselineEntry

    def __call__(self) -> bytes:
        seen = self.entry
        saved = self.layers.baseline.content(seen)
        if saved is not None:
            return saved
        data, status = self.layers.workspace.read_with_status(seen.path)
        if is_as_seen(Version.of(status), seen) or digest_of(data) == seen.digest:
            return data
        raise Unreadable("changed in the workspace, and how it was is not known any more")


def upper_side(layers: Layers, path: bytes, status: os.stat_result) -> Version | None:
    """Return the upper's version of *path*; None when the entry has just gone."""
    return _if_still_there(layers.upper, path, status)


def indexed_side(layers: Layers, name: bytes, status: os.stat_result) -> Version:
    """Return the version of the file *name* in the index, which stands for several names of the view."""
    return _host_side(layers.index, name, status)


def lower_side(layers: Layers, path: bytes) -> Version | None:
    """Return the workspace's present version of *path*."""
    if path in layers.masked:
        return None
    status = layers.workspace.stat(path)
    if status is None:
        return None
    return _if_still_there(layers.workspace, path, status)


def _if_still_there(tree: DirTree, path: bytes, status: os.stat_result) -> Version | None:
    try:
        return _host_side(tree, path, status)
    except OSError as error:
        if vanished(error):
            return None
        raise


def _host_side(tree: DirTree, path: bytes, status: os.stat_result) -> Version:
    target = tree.readlink(path) if stat.S_ISLNK(status.st_mode) else b""
    # For an entry that is no regular file, the LayerFile only tells where the attributes are.
    return Version.of(status, target, LayerFile(tree, path))


def seen_side(layers: Layers, seen: BaselineEntry) -> Version:
    """Return the version that a baseline entry describes."""
    side = Version(
        mode=seen.mode,
        size=seen.size,
        uid=seen.uid,
        gid=seen.gid,
        mtime_ns=seen.mtime_ns,
        ctime_ns=seen.ctime_ns,
        dev=seen.dev,
        ino=seen.ino,
        nlink=seen.nlink,
        target=seen.target or b"",
    )
    return _with_content(side, BaselineContent(layers, seen))


def _with_content(side: Version, content: BaselineContent) -> Version:
    # dataclasses.replace costs five times as much, and every change comes through here.
    object.__setattr__(side, "read", content)
    return side


def has_moved(layers: Layers, seen: BaselineEntry, lower: Version | None) -> bool:
    """Whether the workspace's present version differs from the baseline entry."""
    if lower is None or stat.S_IFMT(lower.mode) != stat.S_IFMT(seen.mode):
        return True
    if lower.mode != seen.mode or lower.target != (seen.target or b""):
        return True
    if not lower.is_file or is_as_seen(lower, seen):
        return False
    is_index = parted(seen.path)[1] == git_files.INDEX_NAME and seen.saved is not None
    if seen.digest is None or (lower.size != seen.size and not is_index):
        return True
    try:
        now = lower.read()
        if digest_of(now) == seen.digest:
            return False
        return not (is_index and git_files.same_entries(now, layers.baseline.content(seen) or b""))
    except Unreadable:
        return True


def same(one: Version, other: Version) -> bool:
    """Whether two versions are the same: type, permissions and content."""
    return (
        one.mode == other.mode
        and one.target == other.target
        and one.rdev == other.rdev
        and (not one.is_file or _same_content(one, other))
    )


def change_kind(
    layers: Layers, seen: BaselineEntry, new: Version, lower: Version | None, place: LayerFile
) -> ChangeKind | None:
    """Return how the sandbox changed the baseline entry *seen*; raise `Unreadable` when that cannot be told.

    *place* is the changed object in its layer, *lower* the workspace's version.
    """
    if stat.S_IFMT(seen.mode) != stat.S_IFMT(new.mode):
        return ChangeKind.TYPE
    if new.target != (seen.target or b""):
        return ChangeKind.MODIFIED
    if new.is_file and not _content_as_seen(layers, seen, new, lower):
        return ChangeKind.MODIFIED
    if new.mode != seen.mode or _owner_differs(seen, new):
        return ChangeKind.MODE
    if lower is not None and not _same_xattrs(place, LayerFile(layers.workspace, seen.path)):
        return ChangeKind.MODE
    return None


def _content_as_seen(layers: Layers, seen: BaselineEntry, new: Version, lower: Version | None) -> bool:
    if new.size != seen.size:
        return False
    if seen.digest is not None:
        return digest_of(new.read()) == seen.digest
    if lower is None or not is_as_seen(lower, seen):
        return False
    return _same_content(new, lower)


def _same_content(one: Version, other: Version) -> bool:
    if one.size != other.size:
        return False
    if one.size > _CHUNK and isinstance(one.read, LayerFile) and isinstance(other.read, LayerFile):
        return _same_streams(one.read, other.read)
    return one.read() == other.read()


def access_list(side: Version, *, new: bool = False) -> frozenset[tuple[bytes, bytes]]:
    """Return the access lists of *side*, as far as the layers still have the object; otherwise none.

    With *new*, only lists of the object's own count: lists that the parent directory gives to every new entry
    were chosen by nobody.
    """
    place = _place_of(side)
    if place is None:
        return frozenset()
    try:
        found = frozenset(place.tree.xattrs(place.path, _is_access_list).items())
        given = new and found and _GIVEN in place.tree.xattrs(parted(place.path)[0], _is_access_list)
    except OSError:
        return frozenset()
    return frozenset() if given else found


def differ_in_attributes(old: Version, new: Version) -> bool:
    """Whether both versions have other extended attributes, as far as the layers still have the objects."""
    before, now = _place_of(old), _place_of(new)
    if before is None or now is None:
        return False
    try:
        return before.tree.stat(before.path) is not None and not _same_xattrs(now, before)
    except OSError:
        return False


def _place_of(side: Version) -> LayerFile | None:
    """Return where the attributes of *side* are: for a baseline entry, in the workspace."""
    match side.read:
        case LayerFile():
            return side.read
        case BaselineContent(layers, seen):
            return LayerFile(layers.workspace, seen.path)
        case _:
            return None


def _is_access_list(attribute: bytes) -> bool:
    return attribute.startswith(_ACCESS_LISTS)


def head(side: Version, length: int) -> bytes:
    """Read the first *length* bytes of a file."""
    if not isinstance(side.read, LayerFile):
        return side.read()[:length]
    fd = side.read.tree.open(side.read.path)
    try:
        return os.pread(fd, length, 0)
    except OSError as error:
        raise Unreadable(error.strerror or str(error)) from error
    finally:
        os.close(fd)


def _same_streams(one: LayerFile, other: LayerFile) -> bool:
    first = one.tree.open(one.path)
    try:
        second = other.tree.open(other.path)
        try:
            at = 0
            while True:
                left, right = os.pread(first, _CHUNK, at), os.pread(second, _CHUNK, at)
                if left != right or not left:
                    return left == right
                at += len(left)
        finally:
            os.close(second)
    except OSError as error:
        raise Unreadable(error.strerror or str(error)) from error
    finally:
        os.close(first)


def _owner_differs(seen: BaselineEntry, new: Version) -> bool:
    if (seen.uid, seen.gid) == (new.uid, new.gid):
        return False
    if os.geteuid() == 0:
        return True
    # A copy of another user's file belongs to us without anybody's choice, and only root can give files away.
    return seen.gid != new.gid and seen.gid in _own_groups()


@cache
def _own_groups() -> frozenset[int]:
    return frozenset({os.getegid(), *os.getgroups()})


def _same_xattrs(copy: LayerFile, original: LayerFile) -> bool:
    """Whether a copy has the attributes of its original, as far as attributes can be copied."""
    return copy.tree.xattrs(copy.path, _is_compared) == original.tree.xattrs(original.path, _is_compared)


def _is_compared(attribute: bytes) -> bool:
    # Only the host gives labels and capabilities: a copy has others.
    return attribute.startswith(_COMPARED_XATTRS) and not is_private(attribute)


def is_as_seen(lower: Version, seen: BaselineEntry) -> bool:
    """Whether the workspace still has the object of the baseline entry, untouched.

    The device does not count: some filesystems have another number after each mount.
    """
    return lower.identity[1:] == (seen.ino, seen.size, seen.mtime_ns, seen.ctime_ns)


def added(path: bytes, new: Version, lower: Version | None, lower_path: bytes) -> PathChange | None:
    """Judge an object that the sandbox made: None when the workspace has the same by now."""
    changing = False
    if lower is not None:
        try:
            if same(new, lower):
                return None
        except Unreadable as error:
            changing = isinstance(error, ChangedWhileRead)
    return PathChange(
        path,
        ChangeKind.ADDED,
        None,
        new,
        lower,
        lower_path,
        conflict=None if lower is None else change.MADE_TOO,
        changing=changing,
        changed_ns=new.ctime_ns,
    )


def changed(
    layers: Layers,
    path: bytes,
    place: LayerFile,
    seen: BaselineEntry,
    new: Version,
    lower: Version | None,
    lower_path: bytes,
) -> PathChange | None:
    """Judge the sandbox's object at *place* against the baseline entry *seen*.

    Return None when both are the same, or when the workspace has come to the same as the sandbox.
    """
    changing = False
    try:
        kind = change_kind(layers, seen, new, lower, place)
    except Unreadable as error:
        kind, changing = ChangeKind.MODIFIED, isinstance(error, ChangedWhileRead)
    if kind is None:
        return None
    conflict = None
    if has_moved(layers, seen, lower):
        conflict = change.DELETED if lower is None else change.CHANGED
        if lower is not None and not changing and _came_to(new, lower):
            return None
    old = seen_side(layers, seen)
    if is_unresolved(seen, old, new):
        conflict = change.UNRESOLVED
    return PathChange(
        path,
        kind,
        old,
        new,
        lower,
        lower_path,
        conflict=conflict,
        changing=changing,
        changed_ns=new.ctime_ns,
    )


def is_unresolved(seen: BaselineEntry, old: Version | None, new: Version) -> bool:
    """Whether conflict markers that a commit wrote are still in the sandbox's file."""
    if not seen.marked or not new.is_file:
        return False
    try:
        after = new.read()
    except Unreadable:
        # A program is writing the file; until the end can be read nothing is resolved.
        return True
    try:
        before = old.read() if old is not None and old.is_file else b""
    except Unreadable:
        before = b""
    return has_markers(after, before)


def _came_to(new: Version, lower: Version) -> bool:
    try:
        return same(new, lower)
    except Unreadable:
        return False


def deleted(
    layers: Layers, path: bytes, seen: BaselineEntry | None, lower: Version, lower_path: bytes, when: int
) -> PathChange:
    """Judge a deletion of an object that the workspace has; without *seen* the host made it later."""
    old, conflict = None, None
    if seen is None:
        conflict = change.MADE_BELOW
    else:
        old = seen_side(layers, seen)
        conflict = change.CHANGED_AND_DELETED if has_moved(layers, seen, lower) else None
    return PathChange(
        path, ChangeKind.DELETED, old, None, lower, lower_path, conflict=conflict, changed_ns=when
    )


def moved_directory(
    layers: Layers,
    path: bytes,
    source: bytes,
    seen: BaselineEntry | None,
    new: Version,
    lower: Version | None,
) -> PathChange:
    """Judge a directory of the workspace that the view has at another path."""
    conflict = None
    if lower is None:
        conflict = change.DELETED
    elif seen is not None and has_moved(layers, seen, lower):
        conflict = change.CHANGED
    return PathChange(
        path,
        ChangeKind.RENAMED,
        lower if seen is None else seen_side(layers, seen),
        new,
        lower,
        source,
        old_path=source,
        conflict=conflict,
        changed_ns=new.ctime_ns,
    )


def orphaned(layers: Layers, path: bytes, seen: BaselineEntry, new: Version, lower_path: bytes) -> PathChange:
    """Judge a directory that the host deleted and that the sandbox's entries in it need."""
    return PathChange(
        path,
        ChangeKind.ADDED,
        seen_side(layers, seen),
        new,
        None,
        lower_path,
        conflict=change.DELETED,
        changed_ns=new.ctime_ns,
    )


def filled(finding: PathChange) -> PathChange:
    """Mark a deletion as a conflict: the host has made entries in the deleted directory."""
    return finding if finding.conflict is not None else replace(finding, conflict=change.FILLED)


def assumed(lower: Version, path: bytes) -> BaselineEntry:
    """Make a baseline entry from the workspace's present version, for sandboxes that kept no baseline."""
    return BaselineEntry(
        path=path,
        mode=lower.mode,
        uid=lower.uid,
        gid=lower.gid,
        size=lower.size,
        nlink=lower.nlink,
        mtime_ns=lower.mtime_ns,
        ctime_ns=lower.ctime_ns,
        dev=lower.dev,
        ino=lower.ino,
        number=lower.ino,
        digest=None,
        target=lower.target if stat.S_ISLNK(lower.mode) else None,
        saved=None,
    )
