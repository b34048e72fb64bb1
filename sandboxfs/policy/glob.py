"""Which names does a glob match?

One glob is about one name, never about a path: `*`, `?`, `[a-z]`, `[!x]` and the backslash. It matches
characters, not bytes; bytes of a name that are no UTF-8 count as one character each. Matching takes time
linear in the name for any number of stars, because a project's rules are untrusted and so are names.
"""

import re
from dataclasses import dataclass
from functools import cached_property

# How many texts a glob's classes may be written out as, and so how many characters one of them may stand for.
_MOST_TEXTS = 16
# Bytes that are no UTF-8, as they are read.
_STRAY = re.compile("[\udc80-\udcff]")


class GlobError(ValueError):
    """The text is no glob; the message says why."""


@dataclass(frozen=True)
class Glob:
    """A glob as read: *segments* are what stands between its stars, each a literal or a regular expression.

    A segment is a tuple of parts; a part is one literal character, or a regular expression for one character.
    """

    segments: tuple[tuple["Part", ...], ...]

    @cached_property
    def literal(self) -> str | None:
        """The one name it matches, when it is one."""
        return _text(self.segments[0]) if len(self.segments) == 1 else None

    @cached_property
    def prefix(self) -> str | None:
        """The text before the star, when it is `text*`."""
        return _text(self.segments[0]) if len(self.segments) == 2 and not self.segments[1] else None

    @cached_property
    def suffix(self) -> str | None:
        """The text behind the star, when it is `*text`."""
        return _text(self.segments[1]) if len(self.segments) == 2 and not self.segments[0] else None

    @property
    def anything(self) -> bool:
        """Whether it matches every name."""
        return self.segments == ((), ())

    @cached_property
    def longest_literal(self) -> str:
        """The longest text without stray bytes that every matching name contains."""
        runs = [""]
        for segment in self.segments:
            runs.append("")
            for part in segment:
                if part.literal:
                    runs[-1] += part.text
                else:
                    runs.append("")
        return max((run for run in runs if not _STRAY.search(run)), key=len)

    @cached_property
    def beginnings(self) -> tuple[str, ...]:
        """Texts of one length: every matching name begins with one of them. Where none is known it is ""."""
        return _written_out(self.segments[0])

    @cached_property
    def endings(self) -> tuple[str, ...]:
        """Texts of one length: every matching name ends with one of them. Where none is known it is ""."""
        return tuple(text[::-1] for text in _written_out(self.segments[-1][::-1]))

    @cached_property
    def expression(self) -> str:
        """A regular expression for the whole name."""
        texts = ["".join(part.expression for part in segment) for segment in self.segments]
        if len(texts) == 1:
            return texts[0]
        # A segment is of fixed length, so the first place where it fits is as good as any other; the atomic
        # group keeps the engine from trying those, which would take time exponential in the stars.
        middle = "".join(f"(?>.*?{text})" for text in texts[1:-1])
        return f"{texts[0]}{middle}.*{texts[-1]}"

    @cached_property
    def _regex(self) -> re.Pattern[str]:
        return re.compile(self.expression, re.DOTALL)

    def matches(self, name: str) -> bool:
        """Tell whether *name* matches."""
        return self._regex.fullmatch(name) is not None

    def includes(self, other: "Glob") -> bool:
        """Tell whether every name that *other* matches is matched too; False where it is hard to tell."""
        if self.literal is not None:
            return self.literal == other.literal
        if self == other or self.anything:
            return True
        if other.literal is not None:
            return self.matches(other.literal)
        if self.prefix is not None:
            first = _text(other.segments[0])
            return first is not None and first.startswith(self.prefix)
        if self.suffix is not None:
            last = _text(other.segments[-1])
            return last is not None and last.endswith(self.suffix)
        return False


@dataclass(frozen=True)
class Part:
    """One character of a name: *text* itself when *literal*, else an expression for it.

    *members* are the characters that a class stands for, where it names them and they are few.
    """

    text: str
    literal: bool = True
    members: str = ""

    @property
    def expression(self) -> str:
        """The regular expression for it."""
        return re.escape(self.text) if self.literal else self.text


def _text(segment: tuple[Part, ...]) -> str | None:
    return "".join(part.text for part in segment) if all(part.literal for part in segment) else None


def _written_out(parts: tuple[Part, ...]) -> tuple[str, ...]:
    """Write out as many of the first *parts* as can be told: `[ab]c?` gives `ac` and `bc`.

    The texts hold no stray bytes: such a byte may be part of a character in one name and stand alone in
    another, so that a name which has the bytes of a text need not have its characters.
    """
    texts = [""]
    for part in parts:
        characters = part.text if part.literal else part.members
        if not characters or len(texts) * len(characters) > _MOST_TEXTS or _STRAY.search(characters):
            break
        texts = [text + character for text in texts for character in characters]
    return tuple(texts)


def parse_glob(text: str) -> Glob:
    """Read a glob for one name; raise `GlobError` for what is none."""
    segments: list[list[Part]] = [[]]
    place = 0
    while place < len(text):
        character = text[place]
        place += 1
        if character == "*":
            # Several stars in a row are one.
            if len(segments) == 1 or segments[-1]:
                segments.append([])
        elif character == "?":
            segments[-1].append(Part(".", literal=False))
        elif character == "[":
            part, place = _class(text, place)
            segments[-1].append(part)
        elif character == "\\":
            if place == len(text):
                raise GlobError("a backslash with nothing behind it")
            segments[-1].append(Part(text[place]))
            place += 1
        else:
            segments[-1].append(Part(character))
    return Glob(tuple(tuple(segment) for segment in segments))


def _class(text: str, place: int) -> tuple[Part, int]:
    """Read a character class whose `[` is just before *place*; return it and the place behind its `]`."""
    negated = text[place : place + 1] in ("!", "^")
    place += negated
    items: list[str] = []
    members: list[str] = []
    first = True
    while True:
        if place >= len(text):
            raise GlobError("unbalanced '['")
        if text[place] == "]" and not first:
            break
        first = False
        low, place = _member(text, place)
        high = low
        if text[place : place + 1] == "-" and text[place + 1 : place + 2] not in ("", "]"):
            high, place = _member(text, place + 1)
        if high < low:
            raise GlobError(f"the range '{low}-{high}' runs backwards")
        items.append(re.escape(low) + "-" + re.escape(high))
        members += map(chr, range(ord(low), min(ord(high), ord(low) + _MOST_TEXTS) + 1))
    few = not negated and len(members) <= _MOST_TEXTS
    part = Part(
        f"[{'^' if negated else ''}{''.join(items)}]",
        literal=False,
        members="".join(dict.fromkeys(members)) if few else "",
    )
    return part, place + 1


def _member(text: str, place: int) -> tuple[str, int]:
    """Read one character of a class, which a backslash may come before."""
    if text[place] == "\\":
        place += 1
        if place >= len(text):
            raise GlobError("unbalanced '['")
    return text[place], place + 1
