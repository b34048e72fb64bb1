"""Which paths does a pattern name?

A pattern is a list of globs, one for each component of a path; each may be preceded by a gap, which stands
for any number of directories. `parse` turns the text of docs/policy.md's dialect into that list or says what
is wrong with it; `within` turns one that names a place on the host into what is left of it inside a root.
A pattern covers what it matches and everything below.
"""

import os
from dataclasses import dataclass

from sandboxfs.paths import quoted
from sandboxfs.policy.glob import Glob, GlobError, parse_glob

ANYTHING = parse_glob("*")
_LONGEST = 4096


class PatternError(ValueError):
    """The text is no pattern; the message says why."""


@dataclass(frozen=True)
class Component:
    """One step of a pattern; with *gap*, any number of directories may come before it."""

    glob: Glob
    gap: bool = False


@dataclass(frozen=True)
class Pattern:
    """What a text means. No components: the whole root, itself included."""

    components: tuple[Component, ...]
    absolute: bool = False
    directories_only: bool = False


WHOLE = Pattern(())


def parse(text: str, *, home: str | None = None) -> Pattern:
    """Read a pattern; raise `PatternError` for what is none. *home* is what `~` stands for."""
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
    # A lone name floats; one slash anywhere but at the end, be it that of "./", ties it to the root.
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
    return Pattern(components, absolute, directories_only and bool(components))


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
            # At the end `**` is everything below, which one `*` covers as well.
            glob = ANYTHING if name == "**" else parse_glob(name)
        except GlobError as error:
            raise PatternError(f"{error} in {quoted(name)}") from error
        components.append(Component(glob, gap))
        gap = False
    return tuple(components)


def within(pattern: Pattern, root: str) -> tuple[Pattern, ...]:
    """Return what *pattern* means inside the directory *root* of the host, as patterns relative to it.

    A relative pattern is meant for every root. An absolute one that names *root* or a directory above it
    covers all of it; one that names no place in it gives nothing.
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
    return tuple(Pattern(rest, directories_only=pattern.directories_only) for rest in rests)


def _advance(pattern: Pattern, alive: set[int], name: str) -> set[int]:
    after = set()
    for place in alive:
        component = pattern.components[place]
        if component.glob.matches(name):
            after.add(place + 1)
        if component.gap:
            after.add(place)
    return after


def covers_path(pattern: Pattern, names: list[str], is_dir: bool) -> bool:
    """Tell whether *pattern*, relative to the root, matches the path of *names* or a directory above it."""
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
    """Write *path* so that every character in it stands for itself."""
    return "".join("\\" + character if character in "\\*?[]" else character for character in path)


def naming(path: str) -> str:
    """Write the pattern that names exactly the relative *path* and what is below it."""
    names = [name for name in path.split("/") if name not in ("", ".")]
    if not names:
        return "."
    text = escape("/".join(names))
    return text if len(names) > 1 and text[0] not in "~!" else "./" + text
