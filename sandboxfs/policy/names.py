"""Which of many globs match a name?

`NameIndex` answers in about the same time for a thousand globs as for one: plain names are looked up, other
globs by the text that names must begin or end with, so that only those are tried that can match. Where a glob
has neither, the name must contain three bytes that it needs; what is left then (`?`) is one regular
expression. Names are bytes as the kernel gives them. Nothing is remembered from one search to the next.
"""

import re
from collections.abc import Iterable, Iterator
from enum import Enum, auto
from typing import NamedTuple, TypeVar

from sandboxfs.policy.glob import Glob

# Texts are found by their outermost bytes, this many where they are long enough.
_OUTERMOST = 3
_GRAM = 3

# The number of a glob, and the glob itself where it is still to be tried.
_Hit = tuple[int, Glob | None]
# Hits by text, by the length of the text.
_Texts = dict[int, dict[bytes, list[_Hit]]]
# Texts by their outermost bytes, by how many bytes that are.
_Affixes = tuple[tuple[int, dict[bytes, _Texts]], ...]
_Key = TypeVar("_Key")


def decoded(name: bytes) -> str:
    """Return *name* as patterns see it: bytes that are no UTF-8 become one odd character each."""
    return name.decode("utf-8", "surrogateescape")


def encoded(name: str) -> bytes:
    """Return the bytes of a name that `decoded` gave."""
    return name.encode("utf-8", "surrogateescape")


class Where(Enum):
    """Which part of a name gives a glob away."""

    NOTHING_NEEDED = auto()
    WHOLE = auto()
    BEGINNING = auto()
    END = auto()
    INSIDE = auto()
    UNKNOWN = auto()


class Clue(NamedTuple):
    """How the names are found that *glob* matches: one of *texts* is there, and is enough when *certain*."""

    glob: Glob
    where: Where
    texts: tuple[bytes, ...] = (b"",)
    certain: bool = False


def clue(glob: Glob) -> Clue:
    """Find out by what a name that *glob* matches is known."""
    if glob.anything:
        return Clue(glob, Where.NOTHING_NEEDED, certain=True)
    beginnings, endings = glob.beginnings, glob.endings
    if beginnings == (glob.literal,):
        return Clue(glob, Where.WHOLE, tuple(map(encoded, beginnings)), certain=True)
    # By the longer text, which fewer names have. When it is all of `text*` or `*text`, it is enough.
    if len(beginnings[0]) >= max(len(endings[0]), 1):
        return Clue(glob, Where.BEGINNING, tuple(map(encoded, beginnings)), beginnings == (glob.prefix,))
    if endings[0]:
        return Clue(glob, Where.END, tuple(map(encoded, endings)), endings == (glob.suffix,))
    needed = encoded(glob.longest_literal)
    if len(needed) >= _GRAM:
        return Clue(glob, Where.INSIDE, (needed[:_GRAM],))
    return Clue(glob, Where.UNKNOWN)


class NameIndex:
    """Globs by their clues, each with a number; a search gives the numbers of those that match, ascending.

    *plain*: that a name matches nothing is nearly always found out as quickly as it could be looked up.
    """

    __slots__ = (
        "_any", "_beginnings", "_endings", "_grams", "_heads", "_literals", "_odd", "_rest", "_tails",
        "plain",
    )  # fmt: skip

    def __init__(self, clues: Iterable[tuple[Clue, int]]) -> None:
        found: dict[Where, list[tuple[bytes, _Hit]]] = {where: [] for where in Where}
        for (glob, where, texts, certain), number in clues:
            hit = number, None if certain else glob
            found[where] += [(text, hit) for text in texts]
        self._any = tuple(sorted(number for _, (number, _) in found[Where.NOTHING_NEEDED]))
        self._literals = _gathered(found[Where.WHOLE])
        self._beginnings = _bucketed((text[:_OUTERMOST], text, hit) for text, hit in found[Where.BEGINNING])
        self._endings = _bucketed((text[-_OUTERMOST:], text, hit) for text, hit in found[Where.END])
        self._grams = _gathered((tuple(text), hit) for text, hit in found[Where.INSIDE])
        self._rest = [hit for _, hit in found[Where.UNKNOWN]]
        # By far most names begin and end like none of the texts; that is found out first, where it can be.
        lengths = {outermost for outermost, _ in self._beginnings + self._endings}
        self.plain = lengths <= {_OUTERMOST} and not self._grams and not self._rest
        self._heads = dict(self._beginnings).get(_OUTERMOST, {})
        self._tails = dict(self._endings).get(_OUTERMOST, {})
        # One expression for all of the rest, because most names match none of it.
        odd = (f"(?:{glob.expression})" for _, glob in self._rest if glob is not None)
        self._odd = re.compile("|".join(odd), re.DOTALL)

    def misses(self, name: bytes) -> bool:
        """Tell at a glance that no glob matches *name*; False where that takes a search."""
        # Every name that is seen for the first time comes here.
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
        """Find globs of which neither a beginning nor an end is known."""
        # Whether any is there is found out without leaving C; which ones matters rarely.
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
