"""What becomes of a change whose place in the workspace moved on meanwhile?

`ours` applies it all the same (what the workspace had is kept in the record), `theirs` drops it, `skip`
leaves it in the sandbox, and `merge` puts both sides' edits together where both are text and it is known what
they started from. What cannot be resolved stays a conflict. Of a change of which only a part is taken, the
rest stays in the sandbox, whatever becomes of the part.
"""

import stat
import time
from dataclasses import dataclass
from enum import StrEnum

from sandboxfs.changes import conflicts
from sandboxfs.changes.choosing import Part
from sandboxfs.changes.finding import Finding, Side
from sandboxfs.changes.merge import merge
from sandboxfs.changes.patch import Kind
from sandboxfs.changes.tree import Unreadable
from sandboxfs.layers.replica import Attributes

# Larger texts are not put together line by line.
_LARGEST = 64 << 20


class OnConflict(StrEnum):
    """What to do about conflicts."""

    FAIL = "fail"
    MERGE = "merge"
    SKIP = "skip"
    OURS = "ours"
    THEIRS = "theirs"


class Fate(StrEnum):
    """What becomes of one change."""

    TAKE = "take"
    LEAVE = "leave"
    DROP = "drop"
    # A part is dropped: the sandbox keeps the rest.
    TRIM = "trim"
    # Both sides with conflict markers go into the view.
    MARK = "mark"
    CONFLICT = "conflict"


@dataclass(frozen=True)
class Resolution:
    """The fate of a change; *content* instead of what the sandbox has, where it was merged.

    *rest* is the text that the sandbox has in place of its own afterwards, where only a part is taken.
    """

    fate: Fate
    content: bytes | None = None
    rest: bytes | None = None


_TAKE = Resolution(Fate.TAKE)
_CONFLICT = Resolution(Fate.CONFLICT)


def resolve(finding: Finding, how: OnConflict) -> Resolution:
    """Decide about *finding*."""
    if finding.conflict is None:
        return _TAKE
    if how is OnConflict.SKIP:
        return Resolution(Fate.LEAVE)
    if how is OnConflict.THEIRS:
        return Resolution(Fate.DROP)
    if how is OnConflict.OURS:
        return _TAKE if _can_be_forced(finding) else _CONFLICT
    return _merged(finding) if how is OnConflict.MERGE else _CONFLICT


def resolve_part(finding: Finding, part: Part, how: OnConflict) -> Resolution:
    """Decide about *part* of *finding*."""
    if finding.conflict is None:
        return Resolution(Fate.TAKE, part.content)
    if how is OnConflict.SKIP:
        return Resolution(Fate.LEAVE)
    try:
        if how is OnConflict.THEIRS:
            return _trimmed(finding, part)
        if how is OnConflict.MERGE:
            return _merged_part(finding, part)
    except Unreadable:
        return _CONFLICT
    # All that the workspace changed would go for a part of what the sandbox did.
    return _CONFLICT


def _merged_part(finding: Finding, part: Part) -> Resolution:
    """Merge *part* with what the workspace has, and also the rest, which would take that back otherwise."""
    whole = _merged(finding)
    if whole.fate is not Fate.TAKE or finding.old is None or finding.lower is None:
        return _CONFLICT
    if finding.kind is Kind.RENAMED:
        # The edits are at the old name, the rest would be at the new one.
        return _CONFLICT
    merged = merge(finding.old.read(), part.content, finding.lower.read())
    return Resolution(Fate.TAKE, merged.text, whole.content) if merged.clean else _CONFLICT


def _trimmed(finding: Finding, part: Part) -> Resolution:
    """Take *part* out of what the sandbox has."""
    if finding.new is None:
        return _CONFLICT
    before = b"" if finding.old is None else finding.old.read()
    rest = merge(part.content, finding.new.read(), before)
    # A hunk that was edited by hand may be no part of the change at all.
    return Resolution(Fate.TRIM, rest=rest.text) if rest.clean else _CONFLICT


def _can_be_forced(finding: Finding) -> bool:
    """Whether there is anything left to apply the change to: a directory that is gone cannot be moved."""
    return not (finding.kind is Kind.RENAMED and finding.is_dir and finding.lower is None)


def _merged(finding: Finding) -> Resolution:
    old, new, lower = finding.old, finding.new, finding.lower
    mergeable = finding.kind in (Kind.MODIFIED, Kind.MODE, Kind.RENAMED) and not finding.is_dir
    if not mergeable or finding.conflict != conflicts.CHANGED:
        return _CONFLICT
    if not (_is_text_sized(old) and _is_text_sized(new) and _is_text_sized(lower)):
        return _CONFLICT
    if old is None or new is None or lower is None or _modes_clash(old, new, lower):
        return _CONFLICT
    try:
        merged = merge(old.read(), new.read(), lower.read())
    except Unreadable:
        return _CONFLICT
    if merged.binary:
        return _CONFLICT
    return Resolution(Fate.TAKE if merged.clean else Fate.MARK, merged.text)


def _is_text_sized(side: Side | None) -> bool:
    return side is not None and side.is_file and side.size <= _LARGEST


def _modes_clash(old: Side, new: Side, lower: Side) -> bool:
    return len({old.mode, new.mode, lower.mode}) == 3


def merged_attributes(finding: Finding, *, mode: bool) -> Attributes:
    """The attributes of a file that is neither all the sandbox's nor all the workspace's.

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
