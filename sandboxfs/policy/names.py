"""Which of many globs match a name?

`NameIndex` answers in about the same time for a thousand globs as for one: plain names, `text*` and `*text`
are looked up, others only tried when the name contains three bytes that they need. What is left (`?.c`) is
one regular expression. Names are bytes as the kernel gives them. Answers can be remembered, within a bound.
"""

import re
from collections.abc import Iterable

from sandboxfs.policy.glob import Glob

_REMEMBERED = 16_384
_GRAM = 3

# Numbers by text, by the length of the text.
_Affixes = dict[int, dict[bytes, list[int]]]


def decoded(name: bytes) -> str:
    """Return *name* as patterns see it: bytes that are no UTF-8 become one odd character each."""
    return name.decode("utf-8", "surrogateescape")


def encoded(name: str) -> bytes:
    """Return the bytes of a name that `decoded` gave."""
    return name.encode("utf-8", "surrogateescape")


class NameIndex:
    """Globs, each with a number; a lookup gives the numbers of those that match, in ascending order."""

    __slots__ = (
        "_any",
        "_grams",
        "_literals",
        "_odd",
        "_prefixes",
        "_regexes",
        "_rest",
        "_suffixes",
        "cache",
    )

    def __init__(self, globs: Iterable[tuple[Glob, int]]) -> None:
        self._any: list[int] = []
        self._literals: dict[bytes, list[int]] = {}
        # By the one byte at the end of the name where the text is, because most names fail there already.
        self._prefixes: dict[int, _Affixes] = {}
        self._suffixes: dict[int, _Affixes] = {}
        self._grams: dict[tuple[int, ...], list[int]] = {}
        self._regexes: dict[int, re.Pattern[str]] = {}
        self._rest: list[int] = []
        # Public for the one caller that cannot afford a function call: empty tuples are answers too.
        self.cache: dict[bytes, tuple[int, ...]] = {}
        for glob, number in globs:
            self._add(glob, number)
        # One expression for all of the rest, because most names match none of it.
        odd = (self._regexes[number].pattern for number in self._rest)
        self._odd = re.compile("|".join(f"(?:{expression})" for expression in odd), re.DOTALL)

    def _add(self, glob: Glob, number: int) -> None:
        if glob.anything:
            self._any.append(number)
        elif glob.literal is not None:
            self._literals.setdefault(encoded(glob.literal), []).append(number)
        elif glob.prefix is not None and _whole_characters(glob.prefix):
            text = encoded(glob.prefix)
            _affixes(self._prefixes, text, text[0]).append(number)
        elif glob.suffix is not None and _whole_characters(glob.suffix):
            text = encoded(glob.suffix)
            _affixes(self._suffixes, text, text[-1]).append(number)
        else:
            self._regexes[number] = re.compile(glob.expression, re.DOTALL)
            needed = glob.longest_literal
            gram = tuple(encoded(needed)[:_GRAM]) if _whole_characters(needed) else ()
            if len(gram) == _GRAM:
                self._grams.setdefault(gram, []).append(number)
            else:
                self._rest.append(number)

    def lookup(self, name: bytes) -> tuple[int, ...]:
        """Return the numbers of the globs that match *name*, and remember them."""
        found = self.cache.get(name)
        if found is None:
            found = self.search(name)
            if len(self.cache) >= _REMEMBERED:
                self.cache.clear()
            self.cache[name] = found
        return found

    def search(self, name: bytes) -> tuple[int, ...]:
        """Return what `lookup` would, and remember nothing."""
        found = self._any.copy()
        if name in self._literals:
            found += self._literals[name]
        if name[0] in self._prefixes:
            for length, texts in self._prefixes[name[0]].items():
                found += texts.get(name[:length], ())
        if name[-1] in self._suffixes:
            for length, texts in self._suffixes[name[-1]].items():
                found += texts.get(name[-length:], ())
        if self._rest and self._odd.fullmatch(decoded(name)):
            found += self._tried(name, self._rest)
        if self._grams:
            # Whether any is there is found out without leaving C; which ones matters rarely.
            grams = zip(name, name[1:], name[2:], strict=False)
            if not self._grams.keys().isdisjoint(grams):
                grams = zip(name, name[1:], name[2:], strict=False)
                for gram in self._grams.keys() & set(grams):
                    found += self._tried(name, self._grams[gram])
        return tuple(sorted(found)) if found else ()

    def _tried(self, name: bytes, numbers: list[int]) -> list[int]:
        text = decoded(name)
        return [number for number in numbers if self._regexes[number].fullmatch(text)]


def _whole_characters(text: str) -> bool:
    # A stray byte may be part of a character in one name and stand alone in another, so texts that contain
    # one are compared as characters only.
    return not any("\udc80" <= character <= "\udcff" for character in text)


def _affixes(by_byte: dict[int, _Affixes], text: bytes, byte: int) -> list[int]:
    return by_byte.setdefault(byte, {}).setdefault(len(text), {}).setdefault(text, [])
