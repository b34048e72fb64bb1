"""Which parts of which changes does a person want?

A sequence of paths, each with one question per part: what concerns the path as a whole first (a rename, a
mode, or all of a change that has no hunks), then hunk by hunk. Answers are the letters of `git add -p`.
Nothing here knows a terminal: the asker shows `question`, and hands the letter to `answer` or the edited text
to `edit`. A path is left for the next one when all its parts are decided; leaving is final.
"""

import re
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from sandboxfs.changes.choice import Choice, Extent, Pick, Verb
from sandboxfs.changes.editing import edited
from sandboxfs.changes.hunks import Hunk, split
from sandboxfs.changes.offering import Item, Subject


class CannotAnswer(ValueError):
    """An answer is not possible here; the message is a sentence for the person."""


@dataclass(frozen=True)
class Question:
    """What is asked now: part *number* of *count*.

    *letters* are the answers that apply; *was* is what was answered before, if anything.
    """

    item: Item
    number: int
    count: int
    subject: Subject
    text: bytes
    hunk: Hunk | None
    letters: tuple[str, ...]
    was: bool | None


@dataclass
class _Part:
    """One part of the current path and what was decided about it."""

    subject: Subject
    text: bytes
    hunk: Hunk | None = None
    edited: bool = False
    taken: bool | None = None


class Picking:
    """Takes a person through *items*, which are asked for one by one, when their turn comes."""

    def __init__(self, items: Iterable[Item], verb: Verb) -> None:
        self._items: Iterator[Item] = iter(items)
        self._verb: Verb = verb
        self._picks: dict[bytes, Pick] = {}
        self._item: Item | None = None
        self._parts: list[_Part] = []
        self._at = 0
        self._answers: dict[str, Callable[[str], str]] = {
            "y": lambda _: self._decide(taken=True),
            "n": lambda _: self._decide(taken=False),
            "a": lambda _: self._decide_rest(taken=True),
            "d": lambda _: self._decide_rest(taken=False),
            "q": lambda _: self._quit(),
            "j": lambda _: self._move(min(self._undecided(self._at + 1, None))),
            "J": lambda _: self._move(self._at + 1),
            "k": lambda _: self._move(max(self._undecided(0, self._at))),
            "K": lambda _: self._move(self._at - 1),
            "g": self._go,
            "/": self._search,
            "s": lambda _: self._split(),
        }
        self._next_item()

    @property
    def question(self) -> Question | None:
        """What to ask now; None when there is nothing more to ask."""
        if self._item is None:
            return None
        part = self._parts[self._at]
        return Question(
            item=self._item,
            number=self._at + 1,
            count=len(self._parts),
            subject=part.subject,
            text=part.text,
            hunk=part.hunk,
            letters=tuple(self._letters(part)),
            was=part.taken,
        )

    @property
    def choice(self) -> Choice:
        """What was picked on the paths that are done with."""
        return Choice(dict(self._picks))

    def answer(self, letter: str, argument: str = "") -> str:
        """Carry out the answer *letter*; return a sentence for the person, or nothing.

        `g` takes the number of a part as its *argument*, `/` a pattern. `e` goes to `edit` instead; `p` and
        `?` change nothing and are the asker's. `CannotAnswer` is raised where the answer does not apply.
        """
        question = self.question
        if question is None or letter not in question.letters or letter not in self._answers:
            unknown = f"There is no answer '{letter}': '?' explains those there are."
            raise CannotAnswer(_REFUSALS.get(letter, unknown))
        return self._answers[letter](argument)

    def edit(self, text: bytes) -> bool:
        """Put *text*, an edited hunk, in place of the current one and take it.

        Return False, and leave everything as it was, when *text* holds no line of a hunk any more.
        `editing.BadEdit` is raised, and everything left as it was, where it does not fit.
        """
        question = self.question
        if question is None or question.hunk is None or "e" not in question.letters:
            raise CannotAnswer(_REFUSALS["e"])
        part, item = self._parts[self._at], question.item
        others = [other.hunk for other in self._parts if other.hunk is not None and other is not part]
        backwards = self._verb == "discard"
        base = item.new if backwards else item.old
        result = edited(question.hunk, text, base, others, backwards=backwards)
        if result is None:
            return False
        if result is not question.hunk:
            part.hunk, part.text, part.edited = result, result.text, True
        self._decide(taken=True)
        return True

    def overview(self) -> list[bytes]:
        """Return a line for each part of the path: what was decided, its number, where it is, what it is."""
        signs = {None: b" ", True: b"+", False: b"-"}
        return [
            b"%s%3d: %s" % (signs[part.taken], number, _summary(part))
            for number, part in enumerate(self._parts, 1)
        ]

    def _letters(self, part: _Part) -> Iterator[str]:
        yield from "ynqad"
        if self._undecided(self._at + 1, None):
            yield "j"
        if self._at + 1 < len(self._parts):
            yield "J"
        if self._undecided(0, self._at):
            yield "k"
        if self._at:
            yield "K"
        if len(self._parts) > 1:
            yield from "g/"
        if part.hunk is not None:
            if _divisible(part.hunk):
                yield "s"
            yield "e"
        yield from "p?"

    def _undecided(self, low: int, high: int | None) -> list[int]:
        return [low + index for index, part in enumerate(self._parts[low:high]) if part.taken is None]

    def _move(self, to: int) -> str:
        self._at = to
        return ""

    def _decide(self, *, taken: bool) -> str:
        part = self._parts[self._at]
        part.taken = taken
        told = ""
        # Where a file is renamed, its hunks have no other place to go to, or to stay in.
        if part.subject is Subject.RENAME and taken == (self._verb == "discard"):
            told = "" if len(self._parts) == 1 else f"That decides all of its {len(self._parts)} parts."
            for other in self._parts:
                other.taken = taken
        self._advance()
        return told

    def _decide_rest(self, *, taken: bool) -> str:
        for index in self._undecided(self._at + 1, None):
            self._parts[index].taken = taken
        return self._decide(taken=taken)

    def _quit(self) -> str:
        self._items = iter(())
        self._leave()
        return ""

    def _advance(self) -> None:
        """Go to the next part that is undecided, from the last to the first, or else to the next path."""
        later = self._undecided(self._at + 1, None) or self._undecided(0, None)
        if later:
            self._at = later[0]
        else:
            self._leave()

    def _leave(self) -> None:
        if self._item is not None:
            self._picks[self._item.path] = _picked(self._item.path, self._parts, self._verb)
        self._next_item()

    def _next_item(self) -> None:
        self._at = 0
        for item in self._items:
            self._parts = [_Part(lead.subject, lead.text) for lead in item.leads]
            self._parts += [_Part(item.what, hunk.text, hunk) for hunk in item.hunks]
            if self._parts:
                self._item = item
                return
        self._item, self._parts = None, []

    def _go(self, argument: str) -> str:
        count = len(self._parts)
        try:
            number = int(argument)
        except ValueError:
            raise CannotAnswer(f"'{argument}' is not a number.") from None
        if not 1 <= number <= count:
            raise CannotAnswer(f"There is no number {number}, only 1 to {count}.")
        return self._move(number - 1)

    def _search(self, argument: str) -> str:
        try:
            with warnings.catch_warnings():
                # Python warns of patterns that it reads otherwise than other tools do.
                warnings.simplefilter("error")
                pattern = re.compile(argument.encode(errors="surrogateescape"), re.MULTILINE)
        except (re.error, Warning) as error:
            raise CannotAnswer(f"'{argument}' is not a pattern: {error}.") from None
        for index in (*range(self._at, len(self._parts)), *range(self._at)):
            if pattern.search(self._parts[index].text):
                return self._move(index)
        raise CannotAnswer(f"Nothing here matches '{argument}'.")

    def _split(self) -> str:
        part = self._parts[self._at]
        pieces = [] if part.hunk is None else split(part.hunk)
        made = [_Part(part.subject, piece.text, piece, part.edited) for piece in pieces]
        self._parts[self._at : self._at + 1] = made
        return f"Split into {len(made)} hunks."


_REFUSALS = {
    "j": "There is no undecided hunk after this one.",
    "J": "There is no hunk after this one.",
    "k": "There is no undecided hunk before this one.",
    "K": "There is no hunk before this one.",
    "g": "There is no other hunk to go to.",
    "/": "There is no other hunk to search.",
    "s": "This cannot be split: no unchanged line is between its changes.",
    "e": "This cannot be edited: it is taken as a whole.",
}


def _picked(path: bytes, parts: Sequence[_Part], verb: Verb) -> Pick:
    taken = [part for part in parts if part.taken]
    stranded = verb == "commit" and any(part.subject is Subject.RENAME and not part.taken for part in parts)
    if not taken or stranded:
        return Pick(path)
    whole = len(taken) == len(parts) and not any(part.edited for part in parts)
    return Pick(
        path,
        Extent.ALL if whole else Extent.PART,
        any(part.subject is Subject.MODE for part in taken),
        tuple(part.hunk for part in taken if part.hunk is not None),
    )


def _summary(part: _Part) -> bytes:
    if part.hunk is None:
        return part.subject.encode()
    place = part.hunk.header.split(b"@@")[1].strip()
    changed = next(line for line in part.hunk.lines if line[:1] != b" ")
    return b"%-15s %s" % (place, changed.rstrip(b"\n"))


def _divisible(hunk: Hunk) -> bool:
    starts = sum(before[:1] == b" " and line[:1] != b" " for before, line in pairwise((b" ", *hunk.lines)))
    return starts > 1
