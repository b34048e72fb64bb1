"""Picking by hunk: which parts of a change can be chosen, and what each answer does. No terminal.

Changed text is offered hunk by hunk, after its rename and its change of mode, which are questions of their
own. Every other change (binary and very large files, deletions, symlinks, directories, special files, changes
of type) is offered as a whole. An offer looks like a patch, but also names changes that git has no words for.

A person goes through a sequence of paths, each with one question per part: first the path as a whole (a
rename, a mode, or all of a change that has no hunks), then hunk by hunk. Answers are the letters of
`git add -p`. The asker shows `question`, and hands the letter to `answer` or the edited text to `edit`. When
all parts of a path are decided the next path follows; a path left behind cannot be asked for again.
"""

import re
import stat
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import pairwise

from sandboxfs.commit.selection import SelectedPart, Verb, edited, reverse
from sandboxfs.review.change import ChangeKind, PathChange, Version
from sandboxfs.review.hunks import Hunk, apply_hunks, hunks, is_binary, split
from sandboxfs.review.patch import quote_name

# Nobody reads more; and a diff holds both texts in memory.
LARGEST_TEXT = 64 << 20

_TYPES = {
    stat.S_IFREG: b"file",
    stat.S_IFDIR: b"directory",
    stat.S_IFLNK: b"symlink",
    stat.S_IFIFO: b"fifo",
    stat.S_IFSOCK: b"socket",
    stat.S_IFCHR: b"character device",
    stat.S_IFBLK: b"block device",
}


class Subject(StrEnum):
    """The subject of a question, in words."""

    HUNK = "hunk"
    ADDITION = "addition"
    DELETION = "deletion"
    RENAME = "rename"
    MODE = "mode change"
    TYPE = "type change"
    CHANGE = "change"


_SUBJECTS = {
    ChangeKind.ADDED: Subject.ADDITION,
    ChangeKind.DELETED: Subject.DELETION,
    ChangeKind.RENAMED: Subject.RENAME,
    ChangeKind.MODE: Subject.MODE,
    ChangeKind.TYPE: Subject.TYPE,
    ChangeKind.MODIFIED: Subject.CHANGE,
}


@dataclass(frozen=True)
class OfferedPart:
    """A part of a change, and whether it is *taken*, once that is decided; *text* shows it as a patch would.

    *edited* says that a person made the *hunk* another one.
    """

    subject: Subject
    text: bytes
    hunk: Hunk | None = None
    edited: bool = False
    taken: bool | None = None


@dataclass(frozen=True)
class OfferedChange:
    """One changed path: its *parts*, in the order in which they are asked about.

    Hunks, which turn *old* text into *new*, come last. A change without hunks has one part, which stands for
    the whole change. A rename carries the hunks: their edits can only be at the new path. *header* is shown
    above.
    """

    path: bytes
    parts: tuple[OfferedPart, ...] = ()
    old: bytes = b""
    new: bytes = b""
    header: tuple[bytes, ...] = ()


def offer(finding: PathChange, context: int = 3, notes: tuple[bytes, ...] = ()) -> OfferedChange:
    """The parts of *finding* that a person can choose from; *notes* are lines to show under its name.

    The content of regular files is read.
    """
    old_name = quote_name(finding.path if finding.old_path is None else finding.old_path, b"a/")
    new_name = quote_name(finding.path, b"b/")
    header = (b"diff --git %s %s" % (old_name, new_name), *notes)
    old, new = finding.old, finding.new
    if finding.kind is ChangeKind.MODE or not _may_be_text(old) or not _may_be_text(new):
        return OfferedChange(finding.path, (_whole(finding, _unread(finding)),), header=header)
    before, after = old.read() if old else b"", new.read() if new else b""
    if is_binary(before) or is_binary(after):
        differ = b"Binary files differ: %d bytes before, %d after\n" % (len(before), len(after))
        return OfferedChange(
            finding.path, (_whole(finding, differ if before != after else b""),), header=header
        )
    found = tuple(hunks(before, after, context, finding.path))
    if new is None or not found or finding.links:
        # All names of one file go together, and as a whole.
        return OfferedChange(
            finding.path, (_whole(finding, b"".join(hunk.text for hunk in found)),), header=header
        )
    subject = Subject.HUNK if old else Subject.ADDITION
    return OfferedChange(
        finding.path,
        (*_leads(finding), *(OfferedPart(subject, hunk.text, hunk) for hunk in found)),
        before,
        after,
        (*header, *_opening(old, new), b"--- " + (old_name if old else b"/dev/null"), b"+++ " + new_name),
    )


def _may_be_text(side: Version | None) -> bool:
    return side is None or (side.is_file and side.size <= LARGEST_TEXT)


def _unread(finding: PathChange) -> bytes:
    """Show a change without reading contents: symlinks by their targets, large files by their sizes."""
    old, new = _glance(finding.old), _glance(finding.new)
    if finding.kind is ChangeKind.MODE or (old == new and old.startswith(b"symlink")):
        return b""
    return b"".join(sign + text + b"\n" for sign, text in ((b"-", old), (b"+", new)) if text)


def _glance(side: Version | None) -> bytes:
    if side is not None and stat.S_ISLNK(side.mode):
        return b"symlink to " + quote_name(side.target)
    return b"file of %d bytes" % side.size if side is not None and side.is_file else b""


def _whole(finding: PathChange, content: bytes) -> OfferedPart:
    """Put the whole change into one question."""
    subject = _SUBJECTS[finding.kind]
    if subject is Subject.CHANGE and not content:
        # The content is unchanged, so the change is one of attributes.
        subject = Subject.MODE
    texts = [_rename(finding), *_opening(finding.old, finding.new), *_attributes(finding)]
    if not any(texts) and not content:
        texts.append(b"extended attributes changed")
    return OfferedPart(subject, b"".join(text + b"\n" for text in texts if text) + content)


def _leads(finding: PathChange) -> Iterator[OfferedPart]:
    """Ask about a rename and about attributes before the hunks."""
    if finding.old_path is not None:
        yield OfferedPart(Subject.RENAME, _rename(finding) + b"\n")
    attributes = list(_attributes(finding))
    if attributes:
        yield OfferedPart(Subject.MODE, b"".join(line + b"\n" for line in attributes))


def _rename(finding: PathChange) -> bytes:
    if finding.old_path is None:
        return b""
    return b"rename from %s\nrename to %s" % (quote_name(finding.old_path), quote_name(finding.path))


def _opening(old: Version | None, new: Version | None) -> Iterator[bytes]:
    """Show the type and mode of an object that appeared or disappeared."""
    if old is None and new is not None:
        yield b"new %s mode %o" % (_type(new), new.mode)
    elif new is None and old is not None:
        yield b"deleted %s mode %o" % (_type(old), old.mode)
    elif old is not None and new is not None and _type(old) != _type(new):
        yield b"%s becomes %s" % (_type(old), _type(new))


def _attributes(finding: PathChange) -> Iterator[bytes]:
    """Show how the mode and owner of an existing object changed."""
    old, new = finding.old, finding.new
    if old is None or new is None:
        return
    if old.mode != new.mode:
        yield b"old mode %o" % old.mode
        yield b"new mode %o" % new.mode
    if (old.uid, old.gid) != (new.uid, new.gid):
        yield b"old owner %d:%d" % (old.uid, old.gid)
        yield b"new owner %d:%d" % (new.uid, new.gid)


def _type(side: Version) -> bytes:
    return _TYPES.get(stat.S_IFMT(side.mode), b"object")


class CannotAnswer(ValueError):
    """An answer is not possible here; the message is a sentence for the person."""


@dataclass(frozen=True)
class Question:
    """The present question: about *part*, *number* of *count*, of the change that is the one at *position*.

    *header* is shown above the change. *letters* are the answers that apply; *takes_all* says whether all
    that changed in the file goes with this part. A part that was decided before has that decision.
    """

    position: int
    header: tuple[bytes, ...]
    number: int
    count: int
    part: OfferedPart
    letters: tuple[str, ...]
    takes_all: bool


Picks = Mapping[bytes, SelectedPart | bool]
"""How much is taken of the change at each path that was asked about."""


class Picking:
    """Takes a person through *items*, which are requested one by one, when their turn comes."""

    def __init__(self, items: Iterable[OfferedChange], verb: Verb) -> None:
        self.verb: Verb = verb
        self._items: Iterator[OfferedChange] = iter(items)
        self._picks: dict[bytes, SelectedPart | bool] = {}
        self._item: OfferedChange | None = None
        self._parts: list[OfferedPart] = []
        # Which change is asked about, of those that have parts; none before the first question.
        self._position = 0
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

    @property
    def question(self) -> Question | None:
        """The present question; None when every question has been asked."""
        if not self._position:
            self._next_item()
        if self._item is None:
            return None
        part, count = self._parts[self._at], len(self._parts)
        return Question(
            position=self._position,
            header=self._item.header,
            number=self._at + 1,
            count=count,
            part=part,
            letters=tuple(self._letters(part)),
            # Without its rename nothing of a file's changes has a place.
            takes_all=part.subject is Subject.RENAME and self.verb == "discard" and count > 1,
        )

    @property
    def picks(self) -> Picks:
        """What was picked of the paths that are finished."""
        return dict(self._picks)

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

        Return False when *text* holds no line of a hunk any more, and raise `BadEdit` when the hunk
        does not fit; both leave everything as it was.
        """
        question = self.question
        if question is None or self._item is None or question.part.hunk is None:
            raise CannotAnswer(_REFUSALS["e"])
        part, item = question.part, self._item
        others = [other.hunk for other in self._parts if other.hunk is not None and other is not part]
        backwards = self.verb == "discard"
        result = edited(
            question.part.hunk, text, item.new if backwards else item.old, others, backwards=backwards
        )
        if result is None:
            return False
        if result is not part.hunk:
            self._parts[self._at] = replace(part, hunk=result, text=result.text, edited=True)
        self._decide(taken=True)
        return True

    def overview(self) -> list[bytes]:
        """Return a line for each part of the path: its decision, number, position and subject."""
        signs = {None: b" ", True: b"+", False: b"-"}
        return [
            b"%s%3d: %s" % (signs[part.taken], number, _summary(part))
            for number, part in enumerate(self._parts, 1)
        ]

    def _letters(self, part: OfferedPart) -> Iterator[str]:
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
        self._set(self._at, taken=taken)
        told = ""
        # The hunks of a renamed file have no other path to go to, or to stay at.
        if self._parts[self._at].subject is Subject.RENAME and taken == (self.verb == "discard"):
            told = "" if len(self._parts) == 1 else f"That decides all of its {len(self._parts)} parts."
            for index in range(len(self._parts)):
                self._set(index, taken=taken)
        self._advance()
        return told

    def _set(self, index: int, *, taken: bool) -> None:
        self._parts[index] = replace(self._parts[index], taken=taken)

    def _decide_rest(self, *, taken: bool) -> str:
        for index in self._undecided(self._at + 1, None):
            self._set(index, taken=taken)
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
            self._picks[self._item.path] = _picked(self._item, self._parts, self.verb)
        self._next_item()

    def _next_item(self) -> None:
        self._position += 1
        self._at = 0
        for item in self._items:
            if item.parts:
                self._item, self._parts = item, list(item.parts)
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
        made = [OfferedPart(part.subject, piece.text, piece, part.edited) for piece in pieces]
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


def _picked(item: OfferedChange, parts: list[OfferedPart], verb: Verb) -> SelectedPart | bool:
    """How much of *item* is taken: of a part, the text that it comes to in the workspace or the sandbox."""
    taken = [part for part in parts if part.taken]
    stranded = verb == "commit" and any(part.subject is Subject.RENAME and not part.taken for part in parts)
    if not taken or stranded:
        return False
    if len(taken) == len(parts) and not any(part.edited for part in parts):
        return True
    pieces = [part.hunk for part in taken if part.hunk is not None]
    text = apply_hunks(item.old, pieces) if verb == "commit" else apply_hunks(item.new, map(reverse, pieces))
    return SelectedPart(text, any(part.subject is Subject.MODE for part in taken))


def _summary(part: OfferedPart) -> bytes:
    if part.hunk is None:
        return part.subject.encode()
    place = part.hunk.header.split(b"@@")[1].strip()
    changed = next(line for line in part.hunk.lines if line[:1] != b" ")
    return b"%-15s %s" % (place, changed.rstrip(b"\n"))


def _divisible(hunk: Hunk) -> bool:
    starts = sum(before[:1] == b" " and line[:1] != b" " for before, line in pairwise((b" ", *hunk.lines)))
    return starts > 1
