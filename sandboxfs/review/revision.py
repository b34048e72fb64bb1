"""Revisions: one value for everything that a commit would take, as a review saw it.

A revision is a digest over the taken changes: paths, kinds, marks of the upper, and for each version
(baseline, view, workspace) the identity of the object: inode, size, times, mode and owner. The change time is
part of the identity, and no program can set the change time back; so content that was changed and given its
old size and times has another revision. The device is not part of it, as device numbers change with a
restart. Left-out changes do not count: a test run that writes ignored files leaves the revision as it is.
Held changes count, approved or not: an approval leaves the revision as it is.

Clocks of filesystems tick, some every 10 ms, and a second write within one tick leaves no trace in the times.
So a revision is only given of changes that are older than the last tick (`is_settled`).
"""

import hashlib
import stat
import time
from collections.abc import Callable

from sandboxfs.hostfs.copy import is_private
from sandboxfs.hostfs.tree import Unreadable
from sandboxfs.review.change import PathChange, Version
from sandboxfs.review.scope import ScopedChanges

# Part of the digest: revisions of another version are never equal.
_VERSION = b"1"
_PATIENCE = 2.0
_TICK = 0.011
# CLOCK_REALTIME_COARSE, the kernel's clock for file times; Python has no name for it.
_COARSE_CLOCK = 5

Look = Callable[[], ScopedChanges]


def revision(selection: ScopedChanges) -> str:
    """Return the revision of what *selection* takes or holds; the layers must still be open."""
    digest = hashlib.sha256(b"sandboxfs revision " + _VERSION)
    for finding in selection.taken_or_held:
        digest.update(repr(_described(selection, finding)).encode())
    return digest.hexdigest()[:40]


def settled(look: Look) -> ScopedChanges | None:
    """Scan until no change is as young as the last tick of the clock; None when time runs out.

    Each call of *look* scans anew.
    """
    deadline = time.monotonic() + _PATIENCE
    while True:
        before = time.clock_gettime_ns(_COARSE_CLOCK)
        selection = look()
        if is_settled(selection, before):
            return selection
        if time.monotonic() > deadline:
            return None
        time.sleep(_TICK)


def is_settled(selection: ScopedChanges, now: int) -> bool:
    """Whether a write from *now* on can be told from the versions in *selection*."""
    return all(
        side is None or side.is_dir or side.ctime_ns < now
        for finding in selection.taken_or_held
        for side in (finding.new, finding.lower)
    )


def _described(selection: ScopedChanges, finding: PathChange) -> tuple[object, ...]:
    return (
        finding.path,
        finding.kind.value,
        finding.old_path,
        finding.lower_path,
        finding.conflict,
        finding.links,
        finding.opaque,
        _side(finding.old),
        _side(finding.new, ours=True),
        _side(finding.lower),
        _attributes(selection, finding),
    )


def _side(side: Version | None, *, ours: bool = False) -> tuple[object, ...] | None:
    if side is None:
        return None
    known = (side.mode, side.uid, side.gid)
    if side.is_dir:
        # A directory's size and times change with every name in it, and names are changes of their own.
        return known
    stamp: object = side.ctime_ns
    if ours and side.is_file and not side.mode & stat.S_IRUSR:
        # Reading an unreadable file unlocks it for a moment, which moves its change time.
        stamp = _content(side)
    return (*known, side.ino, side.size, side.mtime_ns, stamp, side.rdev, side.target)


def _content(side: Version) -> object:
    try:
        return hashlib.sha256(side.read()).digest()
    except Unreadable:
        return side.ctime_ns


def _attributes(selection: ScopedChanges, finding: PathChange) -> list[tuple[bytes, bytes]]:
    """Return the extended attributes of a directory, whose times do not count."""
    if finding.new is None or not finding.new.is_dir:
        return []
    upper = selection.survey.view.layers.upper
    return sorted(upper.xattrs(finding.path, lambda name: not is_private(name)).items())
