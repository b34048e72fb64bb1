"""Path patterns: gitignore-like globs, the clues by which an index finds them, and the paths that one names.

One glob matches one name, never a path: `*`, `?`, `[a-z]`, `[!x]` and the backslash. A glob matches
characters, not bytes; each byte of a name that is not UTF-8 counts as one character. Matching takes time
linear in the name for any number of stars, because a project's rules are untrusted and so are names.

A pattern is a list of globs, one for each component of a path. A gap may precede each glob and stands for any
number of directories. `parse` turns text in the dialect of docs/policy.md into that list or reports the
mistake. `within` turns a pattern for a path on the host into the part of the pattern inside a root. A pattern
covers every path that it matches and everything below.

A clue is what a name must have for a glob to match it, so that an index finds the few globs worth trying.
"""

import os
import re
from dataclasses import dataclass
from enum import Enum, auto
from functools import cached_property
from typing import NamedTuple

from sandboxfs.paths import quoted

# The most texts that a glob's classes are written out as, and so the most characters of one such class.
_MOST_TEXTS = 16
# Bytes that are not UTF-8, as `decoded` returns them.
_STRAY = re.compile("[\udc80-\udcff]")


# A glob without a known beginning and end is found by so many of its bytes.
_GRAM = 3


def decoded(name: bytes) -> str:
    """Return *name* as patterns see it: each byte that is not UTF-8 becomes one surrogate character."""
    return name.decode("utf-8", "surrogateescape")


def encoded(name: str) -> bytes:
    """Return the bytes of a name from `decoded`."""
    return name.encode("utf-8", "surrogateescape")


class GlobError(ValueError):
    """A text that is no glob; the message gives the reason."""


@dataclass(frozen=True)
class Glob:
    """A parsed glob: *segments* are the parts between its stars.

    A segment is a tuple of parts; a part is one literal character, or a regular expression for one character.
    """

    segments: tuple[tuple["GlobPart", ...], ...]

    @cached_property
    def literal(self) -> str | None:
        """The only name that the glob matches, when there is just one."""
        return _text(self.segments[0]) if len(self.segments) == 1 else None

    @cached_property
    def prefix(self) -> str | None:
        """The text before the star of a glob `text*`."""
        return _text(self.segments[0]) if len(self.segments) == 2 and not self.segments[1] else None

    @cached_property
    def suffix(self) -> str | None:
        """The text behind the star of a glob `*text`."""
        return _text(self.segments[1]) if len(self.segments) == 2 and not self.segments[0] else None

    @property
    def anything(self) -> bool:
        """Whether the glob matches every name."""
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
        """Texts of one length: every matching name begins with one of them. Unknown beginnings give ""."""
        return _written_out(self.segments[0])

    @cached_property
    def endings(self) -> tuple[str, ...]:
        """Texts of one length: every matching name ends with one of them. Unknown endings give ""."""
        return tuple(text[::-1] for text in _written_out(self.segments[-1][::-1]))

    @cached_property
    def expression(self) -> str:
        """A regular expression for the whole name."""
        texts = ["".join(part.expression for part in segment) for segment in self.segments]
        if len(texts) == 1:
            return texts[0]
        # A segment is of fixed length, so the first position where it fits is as good as any other; the
        # atomic group keeps the engine from trying others, which would take time exponential in the stars.
        middle = "".join(f"(?>.*?{text})" for text in texts[1:-1])
        return f"{texts[0]}{middle}.*{texts[-1]}"

    @cached_property
    def _regex(self) -> re.Pattern[str]:
        return re.compile(self.expression, re.DOTALL)

    def matches(self, name: str) -> bool:
        """Whether the glob matches *name*."""
        return self._regex.fullmatch(name) is not None

    def includes(self, other: "Glob") -> bool:
        """Whether the glob matches every name that *other* matches; False where it is hard to tell."""
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
class GlobPart:
    """One character of a name: *text* itself when *literal*, else a regular expression for the character.

    *members* are the characters of a class that lists only a few.
    """

    text: str
    literal: bool = True
    members: str = ""

    @property
    def expression(self) -> str:
        """The regular expression for the character."""
        return re.escape(self.text) if self.literal else self.text


def _text(segment: tuple[GlobPart, ...]) -> str | None:
    return "".join(part.text for part in segment) if all(part.literal for part in segment) else None


def _written_out(parts: tuple[GlobPart, ...]) -> tuple[str, ...]:
    """Write out as many of the first *parts* as are known: `[ab]c?` gives `ac` and `bc`.

    The texts hold no stray bytes: such a byte may be part of a character in one name and stand alone in
    another, so that a name with the bytes of a text need not have its characters.
    """
    texts = [""]
    for part in parts:
        characters = part.text if part.literal else part.members
        if not characters or len(texts) * len(characters) > _MOST_TEXTS or _STRAY.search(characters):
            break
        texts = [text + character for text in texts for character in characters]
    return tuple(texts)


def parse_glob(text: str) -> Glob:
    """Parse a glob for one name; raise `GlobError` for a bad one."""
    segments: list[list[GlobPart]] = [[]]
    place = 0
    while place < len(text):
        character = text[place]
        place += 1
        if character == "*":
            # Several stars in a row count as one.
            if len(segments) == 1 or segments[-1]:
                segments.append([])
        elif character == "?":
            segments[-1].append(GlobPart(".", literal=False))
        elif character == "[":
            part, place = _class(text, place)
            segments[-1].append(part)
        elif character == "\\":
            if place == len(text):
                raise GlobError("a backslash with nothing behind it")
            segments[-1].append(GlobPart(text[place]))
            place += 1
        else:
            segments[-1].append(GlobPart(character))
    return Glob(tuple(tuple(segment) for segment in segments))


def _class(text: str, place: int) -> tuple[GlobPart, int]:
    """Read a character class whose `[` is just before *place*; return it and the position behind its `]`."""
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
    part = GlobPart(
        f"[{'^' if negated else ''}{''.join(items)}]",
        literal=False,
        members="".join(dict.fromkeys(members)) if few else "",
    )
    return part, place + 1


def _member(text: str, place: int) -> tuple[str, int]:
    """Read one character of a class; a backslash may precede the character."""
    if text[place] == "\\":
        place += 1
        if place >= len(text):
            raise GlobError("unbalanced '['")
    return text[place], place + 1


ANYTHING = parse_glob("*")
_LONGEST = 4096


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


class PatternError(ValueError):
    """A text that is no pattern; the message gives the reason."""


@dataclass(frozen=True)
class Component:
    """One step of a pattern; with *gap*, any number of directories may precede it."""

    glob: Glob
    gap: bool = False


@dataclass(frozen=True)
class PathPattern:
    """A parsed pattern. Without components: the whole root, itself included."""

    components: tuple[Component, ...]
    absolute: bool = False
    directories_only: bool = False


WHOLE = PathPattern(())


def parse(text: str, *, home: str | None = None) -> PathPattern:
    """Parse a pattern; raise `PatternError` for a bad one. *home* is the value of `~`."""
    if not text:
        raise PatternError("the pattern is empty")
    if "\0" in text:
        raise PatternError("the pattern contains a NUL character")
    if len(text) > _LONGEST:
        raise PatternError(f"the pattern is longer than any path: more than {_LONGEST} characters")
    if text.startswith("!"):
        raise PatternError(
            "a leading '!' is not needed, the order of rules decides; write '\\!' for the name"
        )
    absolute = text.startswith("/")
    names = text.split("/")
    if names[0].startswith("~") and (len(names) > 1 or text == "~"):
        names[:1] = _home(names[0], home).split("/")
        absolute = True
    # A lone name floats; a slash anywhere but at the end, even that of "./", ties the pattern to the root.
    floating = not absolute and "/" not in text.rstrip("/")
    directories_only = text.endswith("/")
    names = [name for name in names if name not in ("", ".")]
    if ".." in names:
        raise PatternError("'..' cannot be part of a pattern")
    if names == ["**"] and not absolute and not directories_only:
        return WHOLE
    components = _components(names)
    if floating and components:
        components = (Component(components[0].glob, gap=True), *components[1:])
    return PathPattern(components, absolute, directories_only and bool(components))


def _home(first: str, home: str | None) -> str:
    if first != "~":
        raise PatternError(
            f"only '~' alone stands for a home directory; write {quoted(first)} as an absolute path, "
            "or with '\\~' for a name that starts so"
        )
    home = os.path.expanduser("~") if home is None else home  # noqa: PTH111
    if not home.startswith("/"):
        raise PatternError("'~' is used and the home directory is not known")
    return escape(home)


def _components(names: list[str]) -> tuple[Component, ...]:
    components: list[Component] = []
    gap = False
    for number, name in enumerate(names):
        if name == "**" and number < len(names) - 1:
            gap = True
            continue
        try:
            # A final `**` matches everything below, and one `*` covers the same.
            glob = ANYTHING if name == "**" else parse_glob(name)
        except GlobError as error:
            raise PatternError(f"{error} in {quoted(name)}") from error
        components.append(Component(glob, gap))
        gap = False
    return tuple(components)


def within(pattern: PathPattern, root: str) -> tuple[PathPattern, ...]:
    """Return the patterns, relative to the host's directory *root*, that *pattern* stands for inside *root*.

    A relative pattern holds in every root. An absolute one that names *root* or a directory above covers all
    of the root; one that names no path in the root gives no pattern.
    """
    if not pattern.absolute:
        return (pattern,)
    alive = {0}
    for name in filter(None, root.split("/")):
        if len(pattern.components) in alive:
            return (WHOLE,)
        alive = _advance(pattern, alive, name)
    if len(pattern.components) in alive:
        return (WHOLE,)
    rests = (pattern.components[place:] for place in sorted(alive))
    return tuple(PathPattern(rest, directories_only=pattern.directories_only) for rest in rests)


def _advance(pattern: PathPattern, alive: set[int], name: str) -> set[int]:
    after = set()
    for place in alive:
        component = pattern.components[place]
        if component.glob.matches(name):
            after.add(place + 1)
        if component.gap:
            after.add(place)
    return after


def covers_path(pattern: PathPattern, names: list[str], is_dir: bool) -> bool:
    """Whether *pattern*, relative to the root, matches the path of *names* or a directory above it."""
    if not pattern.components:
        return True
    alive = {0}
    for depth, name in enumerate(names, start=1):
        alive = _advance(pattern, alive, name)
        if len(pattern.components) in alive:
            if is_dir or depth < len(names) or not pattern.directories_only:
                return True
            alive.discard(len(pattern.components))
    return False


def escape(path: str) -> str:
    """Return *path* with escapes, so that every character stands for itself."""
    return "".join("\\" + character if character in "\\*?[]" else character for character in path)


def naming(path: str) -> str:
    """Return the pattern for exactly the relative *path* and all paths below."""
    names = [name for name in path.split("/") if name not in ("", ".")]
    if not names:
        return "."
    text = escape("/".join(names))
    return text if len(names) > 1 and text[0] not in "~!" else "./" + text
