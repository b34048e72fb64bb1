"""Which part of a change is meant?

All of it, nothing, or some of its text. Programs name hunks by the ids that `diff --json` gives: an id that
no change has, or more than one, is refused before anything is done: the text it named is not there now.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from sandboxfs.changes.finding import Finding, Side
from sandboxfs.changes.hunks import Hunk, apply_hunks, hunks, is_binary
from sandboxfs.changes.patch import Kind
from sandboxfs.changes.tree import Unreadable
from sandboxfs.errors import UsageError


@dataclass(frozen=True)
class Part:
    """Only a part of a file's change.

    Of a commit, *content* is what the workspace gets, of a discard what the sandbox keeps. *mode* tells
    whether the change of mode and other attributes goes with it.
    """

    content: bytes
    mode: bool = False


Choose = Callable[[Finding], Part | bool]
"""Says what is taken of a change: all, nothing or a part. Asked once about each, in order."""


def hunks_of(finding: Finding) -> list[Hunk]:
    """The pieces in which *finding* can be taken, as `diff` shows them; none where it goes as a whole."""
    sides = [side for side in (finding.old, finding.new) if side is not None]
    if finding.kind in (Kind.MODE, Kind.TYPE) or finding.links or not all(side.is_file for side in sides):
        return []
    try:
        before, after = _content(finding.old), _content(finding.new)
    except Unreadable:
        return []
    if is_binary(before) or is_binary(after):
        return []
    return hunks(before, after, path=finding.path)


def _content(side: Side | None) -> bytes:
    return b"" if side is None else side.read()


def by_id(ids: Sequence[str], findings: Iterable[Finding]) -> Choose:
    """Choose the hunks named by *ids*; `UsageError` unless each names exactly one of *findings*."""
    wanted = dict.fromkeys(ids)
    found: dict[str, bytes] = {}
    for finding in findings:
        for hunk in hunks_of(finding):
            if hunk.id in wanted:
                if hunk.id in found:
                    raise UsageError(f"hunk {hunk.id} is in more than one file", hint="name the path, too")
                found[hunk.id] = finding.path
    unknown = [name for name in wanted if name not in found]
    if unknown:
        raise UsageError(
            f"no such hunk: {', '.join(unknown)}",
            hint="hunks change their ids when their lines change; 'sandboxfs diff --json' has them",
        )

    def choose(finding: Finding) -> Part | bool:
        pieces = hunks_of(finding) if finding.path in found.values() else []
        chosen = [hunk for hunk in pieces if hunk.id in found]
        if not chosen or len(chosen) == len(pieces):
            return bool(chosen)
        return Part(apply_hunks(_content(finding.old), chosen))

    return choose
