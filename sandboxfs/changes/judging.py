"""Is it a change at all, of which kind, and did the workspace move meanwhile?

The rules of one path, whoever found it.
"""

import stat
from dataclasses import replace

from sandboxfs.changes import conflicts
from sandboxfs.changes.finding import Finding, Side
from sandboxfs.changes.layers import Layers
from sandboxfs.changes.merge import has_markers
from sandboxfs.changes.patch import Kind
from sandboxfs.changes.sides import Place, change, has_moved, same, seen_side
from sandboxfs.changes.tree import StillChanging, Unreadable
from sandboxfs.layers.baseline import Sighting


def added(path: bytes, new: Side, lower: Side | None, lower_path: bytes) -> Finding | None:
    """Judge what the sandbox made where it saw nothing: None when the workspace has the same by now."""
    changing = False
    if lower is not None:
        try:
            if same(new, lower):
                return None
        except Unreadable as error:
            changing = isinstance(error, StillChanging)
    return Finding(
        path,
        Kind.ADDED,
        None,
        new,
        lower,
        lower_path,
        conflict=None if lower is None else conflicts.MADE_TOO,
        changing=changing,
        changed_ns=new.ctime_ns,
    )


def changed(
    layers: Layers,
    path: bytes,
    place: Place,
    seen: Sighting,
    new: Side,
    lower: Side | None,
    lower_path: bytes,
) -> Finding | None:
    """Judge what the sandbox has at *place* instead of what it saw.

    None when that is the same, or when the workspace has come to the same.
    """
    changing = False
    try:
        kind = change(layers, seen, new, lower, place)
    except Unreadable as error:
        kind, changing = Kind.MODIFIED, isinstance(error, StillChanging)
    if kind is None:
        return None
    conflict = None
    if has_moved(seen, lower):
        conflict = conflicts.DELETED if lower is None else conflicts.CHANGED
        if lower is not None and not changing and _came_to(new, lower):
            return None
    old = seen_side(layers, seen)
    if is_unresolved(seen, old, new):
        conflict = conflicts.UNRESOLVED
    return Finding(
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


def is_unresolved(seen: Sighting, old: Side | None, new: Side) -> bool:
    """Whether conflict markers that a commit has put there are still in what the sandbox has."""
    if not seen.marked or not new.is_file:
        return False
    try:
        after = new.read()
    except Unreadable:
        # Somebody is at it; until the end is seen nothing is resolved.
        return True
    try:
        before = old.read() if old is not None and old.is_file else b""
    except Unreadable:
        before = b""
    return has_markers(after, before)


def _came_to(new: Side, lower: Side) -> bool:
    try:
        return same(new, lower)
    except Unreadable:
        return False


def deleted(
    layers: Layers, path: bytes, seen: Sighting | None, lower: Side, lower_path: bytes, when: int
) -> Finding:
    """Judge what the workspace still has and the sandbox deleted; without a sighting it came later."""
    old, conflict = None, None
    if seen is None:
        conflict = conflicts.MADE_BELOW
    else:
        old = seen_side(layers, seen)
        conflict = conflicts.CHANGED_AND_DELETED if has_moved(seen, lower) else None
    return Finding(path, Kind.DELETED, old, None, lower, lower_path, conflict=conflict, changed_ns=when)


def moved_directory(
    layers: Layers, path: bytes, source: bytes, seen: Sighting | None, new: Side, lower: Side | None
) -> Finding:
    """Judge a directory of the workspace that the view has in another place."""
    conflict = None
    if lower is None:
        conflict = conflicts.DELETED
    elif seen is not None and has_moved(seen, lower):
        conflict = conflicts.CHANGED
    return Finding(
        path,
        Kind.RENAMED,
        lower if seen is None else seen_side(layers, seen),
        new,
        lower,
        source,
        old_path=source,
        conflict=conflict,
        changed_ns=new.ctime_ns,
    )


def orphaned(layers: Layers, path: bytes, seen: Sighting, new: Side, lower_path: bytes) -> Finding:
    """Judge a directory that the host deleted and that what the sandbox has in it needs."""
    return Finding(
        path,
        Kind.ADDED,
        seen_side(layers, seen),
        new,
        None,
        lower_path,
        conflict=conflicts.DELETED,
        changed_ns=new.ctime_ns,
    )


def filled(finding: Finding) -> Finding:
    """Note that the host has put something into what the sandbox deleted."""
    return finding if finding.conflict is not None else replace(finding, conflict=conflicts.FILLED)


def assumed(lower: Side, path: bytes) -> Sighting:
    """Take the workspace as it is for what the sandbox saw: nobody kept a baseline then."""
    return Sighting(
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
