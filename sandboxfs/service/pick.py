"""Picking by hunk, as a door offers it: which changes are asked about, and what comes along with the answers.

The changes that a summary would show are laid before the person, one after the other. What they imply is not
asked about: the directory around a new file comes along, and one whose content is all taken goes with it. Of
several names of one file only the first is asked about: they go together. Quitting keeps what was taken
before.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from pathlib import Path

from sandboxfs.commit.pick import CannotAnswer, OfferedChange, Picking, Question, offer
from sandboxfs.commit.plan import FlagsOf
from sandboxfs.commit.selection import COMMENT, BadEdit, Choose, SelectedPart, Verb, without_comments
from sandboxfs.hostfs.tree import Unreadable
from sandboxfs.paths import PathSet, quoted
from sandboxfs.review.change import ChangeKind, PathChange
from sandboxfs.review.scope import HeldChange
from sandboxfs.review.summary import without_implied
from sandboxfs.service.events import Events
from sandboxfs.state.locations import Locations

__all__ = ["BadEdit", "CannotAnswer", "Picking", "Question", "without_comments"]

AskByHunk = Callable[[Picking], None]
"""A door's way to take a person through the questions."""


def comment_lines(text: str) -> Iterator[bytes]:
    """Return *text* as lines that do not count in an edited hunk."""
    for line in text.splitlines():
        yield (COMMENT + b" " + line.encode(errors="backslashreplace")).rstrip() + b"\n"


def editing_directory(environment: Mapping[str, str]) -> Path:
    """Return where hunks are edited: beside the sockets, as the runtime directory is in no workspace."""
    return Locations.from_environment(environment).runtime / "edit"


def picked_by_hunk(
    verb: Verb,
    findings: list[PathChange],
    flags_of: FlagsOf,
    ask: AskByHunk | None,
    events: Events,
    held: Collection[HeldChange] = (),
) -> Choose | None:
    """Have a person pick from *findings*, of which some are *held*; None where nobody is to be asked."""
    if ask is None:
        return None
    asked = list(_asked_about(findings, held))
    why_held = {id(one.change): one.why for one in held}
    picking = Picking(_items(asked, flags_of, why_held, events), verb)
    ask(picking)
    picks = picking.picks
    left = PathSet(finding.path for finding in asked if picks.get(finding.path) is not True)

    def choose(finding: PathChange) -> SelectedPart | bool:
        if finding.path not in picks and finding.kind is ChangeKind.DELETED and finding.is_dir:
            return not left.reach_into(finding.path)
        return picks.get(finding.path, False)

    return choose


def _items(
    asked: Iterable[PathChange],
    flags_of: FlagsOf,
    why_held: Mapping[int, str],
    events: Events,
) -> Iterator[OfferedChange]:
    for finding in asked:
        try:
            item = offer(finding, notes=tuple(_notes(finding, flags_of, why_held)))
        except (OSError, Unreadable) as error:
            events.note(f"note: {quoted(finding.path)} cannot be read, and is passed over: {error}")
            continue
        yield item


def _asked_about(findings: list[PathChange], held: Collection[HeldChange] = ()) -> Iterator[PathChange]:
    answered: set[bytes] = set()
    # What is not held says nothing about a held directory around it.
    own = [one.change for one in held if one.behind is None]
    meant = {id(finding) for finding in (*without_implied(findings), *without_implied(own))}
    for finding in findings:
        if id(finding) in meant and finding.path not in answered:
            yield finding
            answered.update(finding.links)


def _notes(finding: PathChange, flags_of: FlagsOf, why_held: Mapping[int, str]) -> Iterable[bytes]:
    held = why_held.get(id(finding))
    if held is not None:
        yield held.encode(errors="backslashreplace")
    flags = flags_of(finding)
    if flags:
        yield b"look twice: " + ", ".join(flags).encode()
    if finding.conflict is not None:
        yield b"conflict: " + finding.conflict.encode()
