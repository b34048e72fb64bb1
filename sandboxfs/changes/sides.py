"""How does each layer have something, and do two of them have the same?

A side is made from what the host says of an object, or from a sighting in the baseline. Nothing is read that
need not be: a workspace file with the very identity it was seen with is what it was, and files of different
sizes differ. Times never count, owners only where the sandbox could have kept them.
"""

import os
import stat
from dataclasses import dataclass
from functools import cache

from sandboxfs.changes.finding import Side
from sandboxfs.changes.layers import Layers
from sandboxfs.changes.patch import Kind
from sandboxfs.changes.tree import Tree, Unreadable, vanished
from sandboxfs.layers.baseline import Sighting, digest_of

_CHUNK = 1 << 20
_COMPARED_XATTRS = (b"user.", b"system.posix_acl_")
_OWN_XATTRS = b"user.overlay."


@dataclass(frozen=True)
class Place:
    """A path in a layer; called, it gives the content of the file there."""

    tree: Tree
    path: bytes

    def __call__(self) -> bytes:
        return self.tree.read(self.path)


@dataclass(frozen=True)
class SeenContent:
    """The content of a file as the baseline saw it: saved, or still there in the workspace."""

    layers: Layers
    sighting: Sighting

    def __call__(self) -> bytes:
        seen = self.sighting
        saved = self.layers.baseline.content(seen)
        if saved is not None:
            return saved
        data, status = self.layers.workspace.read_with_status(seen.path)
        if is_as_seen(Side.of(status), seen) or digest_of(data) == seen.digest:
            return data
        raise Unreadable("changed in the workspace, and how it was is not known any more")


def upper_side(layers: Layers, path: bytes, status: os.stat_result) -> Side | None:
    """How the upper has *path*; None when it has just gone."""
    return _if_still_there(layers.upper, path, status)


def indexed_side(layers: Layers, name: bytes, status: os.stat_result) -> Side:
    """How the index has the file *name*, which stands for several names of the view."""
    return _host_side(layers.index, name, status)


def lower_side(layers: Layers, path: bytes) -> Side | None:
    """How the workspace has *path* now."""
    if path in layers.masked:
        return None
    status = layers.workspace.stat(path)
    if status is None:
        return None
    return _if_still_there(layers.workspace, path, status)


def _if_still_there(tree: Tree, path: bytes, status: os.stat_result) -> Side | None:
    try:
        return _host_side(tree, path, status)
    except OSError as error:
        if vanished(error):
            return None
        raise


def _host_side(tree: Tree, path: bytes, status: os.stat_result) -> Side:
    target = tree.readlink(path) if stat.S_ISLNK(status.st_mode) else b""
    if stat.S_ISREG(status.st_mode):
        return Side.of(status, read=Place(tree, path))
    return Side.of(status, target)


def seen_side(layers: Layers, seen: Sighting) -> Side:
    """How the baseline saw something."""
    side = Side(
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
    return side if not side.is_file else _with_content(side, SeenContent(layers, seen))


def _with_content(side: Side, content: SeenContent) -> Side:
    # dataclasses.replace costs five times as much, for every change there is.
    object.__setattr__(side, "read", content)
    return side


def has_moved(seen: Sighting, lower: Side | None) -> bool:
    """Whether the workspace has something else by now than the baseline saw."""
    if lower is None or stat.S_IFMT(lower.mode) != stat.S_IFMT(seen.mode):
        return True
    if lower.mode != seen.mode or lower.target != (seen.target or b""):
        return True
    if not lower.is_file or is_as_seen(lower, seen):
        return False
    if lower.size != seen.size or seen.digest is None:
        return True
    try:
        return digest_of(lower.read()) != seen.digest
    except Unreadable:
        return True


def same(one: Side, other: Side) -> bool:
    """Whether two layers have the same: type, permissions and content."""
    return (
        one.mode == other.mode
        and one.target == other.target
        and one.rdev == other.rdev
        and (not one.is_file or _same_content(one, other))
    )


def change(layers: Layers, seen: Sighting, new: Side, lower: Side | None, place: Place) -> Kind | None:
    """What the sandbox made of what it saw; `Unreadable` when that cannot be told.

    *place* is where it has that, *lower* what the workspace has.
    """
    if stat.S_IFMT(seen.mode) != stat.S_IFMT(new.mode):
        return Kind.TYPE
    if new.target != (seen.target or b""):
        return Kind.MODIFIED
    if new.is_file and not _content_as_seen(layers, seen, new, lower):
        return Kind.MODIFIED
    if new.mode != seen.mode or _owner_differs(seen, new):
        return Kind.MODE
    if lower is not None and not _same_xattrs(place, Place(layers.workspace, seen.path)):
        return Kind.MODE
    return None


def _content_as_seen(layers: Layers, seen: Sighting, new: Side, lower: Side | None) -> bool:
    if new.size != seen.size:
        return False
    if seen.digest is not None:
        return digest_of(new.read()) == seen.digest
    if lower is None or not is_as_seen(lower, seen):
        return False
    return _same_content(new, lower)


def _same_content(one: Side, other: Side) -> bool:
    if one.size != other.size:
        return False
    if one.size > _CHUNK and isinstance(one.read, Place) and isinstance(other.read, Place):
        return _same_streams(one.read, other.read)
    return one.read() == other.read()


def head(side: Side, length: int) -> bytes:
    """Read no more than the start of a file."""
    if not isinstance(side.read, Place):
        return side.read()[:length]
    fd = side.read.tree.open(side.read.path)
    try:
        return os.pread(fd, length, 0)
    except OSError as error:
        raise Unreadable(error.strerror or str(error)) from error
    finally:
        os.close(fd)


def _same_streams(one: Place, other: Place) -> bool:
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


def _owner_differs(seen: Sighting, new: Side) -> bool:
    if (seen.uid, seen.gid) == (new.uid, new.gid):
        return False
    if os.geteuid() == 0:
        return True
    # The copy of somebody else's file is ours: that nobody chose. Nor can anybody but root give files away.
    return seen.gid != new.gid and seen.gid in _own_groups()


@cache
def _own_groups() -> frozenset[int]:
    return frozenset({os.getegid(), *os.getgroups()})


def _same_xattrs(copy: Place, original: Place) -> bool:
    """Whether a copy has the attributes of what it is a copy of, as far as those can be copied."""
    return copy.tree.xattrs(copy.path, _is_compared) == original.tree.xattrs(original.path, _is_compared)


def _is_compared(attribute: bytes) -> bool:
    # Labels and capabilities are the host's to give: a copy has others.
    return attribute.startswith(_COMPARED_XATTRS) and not attribute.startswith(_OWN_XATTRS)


def is_as_seen(lower: Side, seen: Sighting) -> bool:
    """Whether the workspace has the very object that was seen, untouched.

    The device does not count: some filesystems have another number after each mount.
    """
    return lower.identity[1:] == (seen.ino, seen.size, seen.mtime_ns, seen.ctime_ns)
