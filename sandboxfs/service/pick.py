"""Picking by hunk, as a door shows it: a question as a value, answered by a letter or an edited text.

The changes that a summary would show are laid before the person, one after the other. What they imply is not
asked about: the directory around a new file comes along, and one whose content is all taken goes with it. Of
several names of one file only the first is asked about: they go together. Quitting keeps what was taken
before.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from sandboxfs.commit.pick import CannotAnswer, OfferedChange, Picking, Subject, offer
from sandboxfs.commit.plan import FlagsOf
from sandboxfs.commit.selection import (
    COMMENT,
    BadEdit,
    Choose,
    PickedHunks,
    Picks,
    SelectedPart,
    Verb,
    without_comments,
)
from sandboxfs.hostfs.tree import Unreadable
from sandboxfs.paths import PathSet, quoted
from sandboxfs.review.change import ChangeKind, PathChange
from sandboxfs.review.scope import HeldChange
from sandboxfs.review.summary import without_implied
from sandboxfs.service.events import Events
from sandboxfs.state.locations import Locations


@dataclass(frozen=True)
class HunkQuestion:
    """Part *number* of *count* of the change that is the one at *position*.

    *header* is shown above the change, *text* is the part; *subject* names it, *takes_all* says whether all
    that changed in the file goes with it. *letters* are the answers that apply, *was* is an earlier one.
    """

    position: int
    header: tuple[bytes, ...]
    number: int
    count: int
    subject: str
    takes_all: bool
    text: bytes
    letters: tuple[str, ...]
    was: bool | None


@dataclass(frozen=True)
class Reply:
    """What came of an answer: a sentence for the person, or none; where it was *refused* nothing changed."""

    sentence: str
    refused: bool = False


@dataclass(frozen=True)
class EditReply:
    """What came of an edited hunk: *taken*, or left as it was.

    It is left where no line of it remained, or for the *reason* given; *body* is then what was edited.
    """

    taken: bool
    reason: str | None = None
    body: bytes = b""


class HunkPicking:
    """One round of questions about *items*; an item is made only when its turn comes."""

    def __init__(self, verb: Verb, items: Iterable[OfferedChange]) -> None:
        self.verb: Verb = verb
        self._items = items
        self._position = 0
        self._item: OfferedChange | None = None

    @cached_property
    def _picking(self) -> Picking:
        # Not before the first question: the first item is read then.
        return Picking(self._items, self.verb)

    @property
    def question(self) -> HunkQuestion | None:
        """What to ask now; None when there is nothing more to ask."""
        asked = self._picking.question
        if asked is None:
            return None
        if asked.item is not self._item:
            self._item = asked.item
            self._position += 1
        # Without its rename nothing of a file's changes has a place.
        takes_all = asked.subject is Subject.RENAME and self.verb == "discard" and asked.count > 1
        return HunkQuestion(
            position=self._position,
            header=asked.item.header,
            number=asked.number,
            count=asked.count,
            subject=asked.subject.value,
            takes_all=takes_all,
            text=asked.text,
            letters=asked.letters,
            was=asked.was,
        )

    def answer(self, letter: str, argument: str = "") -> Reply:
        """Carry out an answer: one of the question's letters, with what `g` and `/` need."""
        try:
            return Reply(self._picking.answer(letter, argument))
        except CannotAnswer as refusal:
            return Reply(str(refusal), refused=True)

    def edit(self, text: bytes) -> EditReply:
        """Put *text* in place of the hunk that is asked about, and take it."""
        try:
            return EditReply(self._picking.edit(text))
        except BadEdit as reason:
            return EditReply(taken=False, reason=str(reason), body=without_comments(text))

    def overview(self) -> list[bytes]:
        """Return a line for each part of the change."""
        return self._picking.overview()

    @property
    def picks(self) -> Picks:
        """What was picked of the changes that are done with."""
        return self._picking.picks


AskByHunk = Callable[[HunkPicking], None]
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
    picking = HunkPicking(verb, _items(asked, flags_of, why_held, events))
    ask(picking)
    picks = picking.picks
    left = PathSet(finding.path for finding in asked if picks.get(finding.path) is not True)

    def choose(finding: PathChange) -> SelectedPart | bool:
        if finding.path not in picks and finding.kind is ChangeKind.DELETED and finding.is_dir:
            return not left.reach_into(finding.path)
        return _taken(verb, finding, picks.get(finding.path, False))

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


def _taken(verb: Verb, finding: PathChange, picked: PickedHunks | bool) -> SelectedPart | bool:
    if isinstance(picked, bool):
        return picked
    return SelectedPart(_text(verb, finding, picked), picked.mode)


def _text(verb: Verb, finding: PathChange, picked: PickedHunks) -> bytes:
    if verb == "discard":
        return picked.kept(b"" if finding.new is None else finding.new.read())
    return picked.committed(b"" if finding.old is None else finding.old.read())
