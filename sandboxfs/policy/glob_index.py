"""Glob index: which of many globs match one name.

`NameIndex` takes about the same time for a thousand globs as for one. Plain names are looked up; other globs
are found by the text that a matching name must begin or end with, so that only globs that can match are
tried. For a glob with neither text, the name must contain three bytes of the glob; the remaining globs (`?`)
form one regular expression. Names are bytes as the kernel gives them. A search remembers nothing.
"""

import re
from collections.abc import Iterable, Iterator
from enum import Enum, auto
from typing import NamedTuple, TypeVar

from sandboxfs.policy.patterns import Glob

# Texts are found by their outermost bytes: by so many, where the text is long enough.
_OUTERMOST = 3
_GRAM = 3

# The number of a glob, and the glob itself when the name still has to be matched.
_Hit = tuple[int, Glob | None]
# Hits by text, by the length of the text.
_Texts = dict[int, dict[bytes, list[_Hit]]]
# Texts by their outermost bytes, by the number of those bytes.
_Affixes = tuple[tuple[int, dict[bytes, _Texts]], ...]
_Key = TypeVar("_Key")


def decoded(name: bytes) -> str:
    """Return *name* as patterns see it: each byte that is not UTF-8 becomes one surrogate character."""
    return name.decode("utf-8", "surrogateescape")


def encoded(name: str) -> bytes:
    """Return the bytes of a name from `decoded`."""
    return name.encode("utf-8", "surrogateescape")


class CluePosition(Enum):
    """The part of a name by which a glob is found."""

    NOTHING_NEEDED = auto()
    WHOLE = auto()
    BEGINNING = auto()
    END = auto()
    INSIDE = auto()
    UNKNOWN = auto()


class Clue(NamedTuple):
    """How to find names that *glob* matches: one of *texts* is needed, and when *certain* also sufficient."""

    glob: Glob
    where: CluePosition
    texts: tuple[bytes, ...] = (b"",)
    certain: bool = False


def clue(glob: Glob) -> Clue:
    """Choose the clue of *glob*."""
    if glob.anything:
        return Clue(glob, CluePosition.NOTHING_NEEDED, certain=True)
    beginnings, endings = glob.beginnings, glob.endings
    if beginnings == (glob.literal,):
        return Clue(glob, CluePosition.WHOLE, tuple(map(encoded, beginnings)), certain=True)
    # The longer text is in fewer names. If the glob is just `text*` or `*text`, the text is sufficient.
    if len(beginnings[0]) >= max(len(endings[0]), 1):
        return Clue(
            glob, CluePosition.BEGINNING, tuple(map(encoded, beginnings)), beginnings == (glob.prefix,)
        )
    if endings[0]:
        return Clue(glob, CluePosition.END, tuple(map(encoded, endings)), endings == (glob.suffix,))
    needed = encoded(glob.longest_literal)
    if len(needed) >= _GRAM:
        return Clue(glob, CluePosition.INSIDE, (needed[:_GRAM],))
    return Clue(glob, CluePosition.UNKNOWN)


class NameIndex:
    """Globs by their clues, each with a number; a search gives the numbers of matching globs, ascending.

    *plain*: a search finds out nearly as quickly as a lookup that no glob matches a name.
    """

    __slots__ = (
        "_any", "_beginnings", "_endings", "_grams", "_heads", "_literals", "_odd", "_rest", "_tails",
        "plain",
    )  # fmt: skip

    def __init__(self, clues: Iterable[tuple[Clue, int]]) -> None:
        found: dict[CluePosition, list[tuple[bytes, _Hit]]] = {where: [] for where in CluePosition}
        for (glob, where, texts, certain), number in clues:
            hit = number, None if certain else glob
            found[where] += [(text, hit) for text in texts]
        self._any = tuple(sorted(number for _, (number, _) in found[CluePosition.NOTHING_NEEDED]))
        self._literals = _gathered(found[CluePosition.WHOLE])
        self._beginnings = _bucketed(
            (text[:_OUTERMOST], text, hit) for text, hit in found[CluePosition.BEGINNING]
        )
        self._endings = _bucketed((text[-_OUTERMOST:], text, hit) for text, hit in found[CluePosition.END])
        self._grams = _gathered((tuple(text), hit) for text, hit in found[CluePosition.INSIDE])
        self._rest = [hit for _, hit in found[CluePosition.UNKNOWN]]
        # Most names begin and end like none of the texts; `misses` checks this first, where it can.
        lengths = {outermost for outermost, _ in self._beginnings + self._endings}
        self.plain = lengths <= {_OUTERMOST} and not self._grams and not self._rest
        self._heads = dict(self._beginnings).get(_OUTERMOST, {})
        self._tails = dict(self._endings).get(_OUTERMOST, {})
        # One expression for all remaining globs, because most names match none of them.
        odd = (f"(?:{glob.expression})" for _, glob in self._rest if glob is not None)
        self._odd = re.compile("|".join(odd), re.DOTALL)

    def misses(self, name: bytes) -> bool:
        """Whether a quick look shows that no glob matches *name*; False when a search is needed."""
        # Called for every name that is new to the policy.
        return (
            self.plain
            and name[:_OUTERMOST] not in self._heads
            and name[-_OUTERMOST:] not in self._tails
            and name not in self._literals
            and not self._any
        )

    def search(self, name: bytes) -> tuple[int, ...]:
        """Return the numbers of the globs that match *name*."""
        return () if self.misses(name) else self._search(name)

    def _search(self, name: bytes) -> tuple[int, ...]:
        hits: list[_Hit] = []
        for outermost, buckets in self._beginnings:
            if (texts := buckets.get(name[:outermost])) is not None:
                for length, by_text in texts.items():
                    hits += by_text.get(name[:length], ())
        for outermost, buckets in self._endings:
            if (texts := buckets.get(name[-outermost:])) is not None:
                for length, by_text in texts.items():
                    hits += by_text.get(name[-length:], ())
        if self._grams or self._rest:
            hits += self._with_neither(name)
        if name in self._literals:
            hits += self._literals[name]
        if not hits:
            return self._any
        text = decoded(name)
        found = (number for number, glob in hits if glob is None or glob.matches(text))
        return tuple(sorted([*self._any, *found]))

    def _with_neither(self, name: bytes) -> Iterator[_Hit]:
        """Find globs that have neither a known beginning nor a known end."""
        # The check for any such glob runs in C; the list of them is seldom needed.
        grams = zip(name, name[1:], name[2:], strict=False)
        if not self._grams.keys().isdisjoint(grams):
            grams = zip(name, name[1:], name[2:], strict=False)
            for gram in self._grams.keys() & set(grams):
                yield from self._grams[gram]
        if self._rest and self._odd.fullmatch(decoded(name)):
            yield from self._rest


def _gathered(found: Iterable[tuple[_Key, _Hit]]) -> dict[_Key, list[_Hit]]:
    hits: dict[_Key, list[_Hit]] = {}
    for key, hit in found:
        hits.setdefault(key, []).append(hit)
    return hits


def _bucketed(found: Iterable[tuple[bytes, bytes, _Hit]]) -> _Affixes:
    """Arrange hits by the outermost bytes of their text, and then by the text."""
    buckets: dict[int, dict[bytes, _Texts]] = {}
    for outermost, text, hit in found:
        texts = buckets.setdefault(len(outermost), {}).setdefault(outermost, {})
        texts.setdefault(len(text), {}).setdefault(text, []).append(hit)
    return tuple(buckets.items())
