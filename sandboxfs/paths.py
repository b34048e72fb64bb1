"""Byte paths: quoting and invisible characters, joining, sets of paths, making directories.

Nothing here follows a policy or knows a sandbox; everything works on plain host paths.
"""

import os
import re
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Final

# The longest path in bytes that the kernel takes in one call, and more levels than any real tree has. No tool
# can name a deeper entry, and the paths of one cost time and memory by the square of their depth: a review
# takes a directory with such entries as a whole.
LONGEST_PATH: Final = 4095
DEEPEST_PATH: Final = 512


def is_too_deep(path: bytes) -> bool:
    """Say whether the entry of a tree at *path* is too deep for a review."""
    return len(path) > LONGEST_PATH or path.count(b"/") >= DEEPEST_PATH


_EMOJI = "\u2190-\u2bff\u3030\u303d\u3297\u3299\ufe0f\U0001f000-\U0001faff"
# Characters that show as nothing, or change the order of others. `str.isprintable` lets some of them pass:
# fillers of Hangul and Khitan, the empty Braille cell and notehead, variation selectors. The joiner between
# two emoji and the selector behind one are allowed, and so are spaces of any width.
INVISIBLE = (
    "[\u00ad\u034f\u0600-\u0605\u061c\u06dd\u070f\u0890\u0891\u08e2\u115f\u1160\u17b4\u17b5\u180b-\u180f"
    "\u200b\u200c\u200e\u200f\u2028-\u202e\u2060-\u206f\u2800\u3164\ufe00-\ufe0d\ufeff\uffa0\ufff0-\ufffb"
    "\U00016fe4\U0001d159\U000110bd\U000110cd\U00013430-\U0001343f\U0001bca0-\U0001bca3\U0001d173-\U0001d17a"
    "\U000e0000-\U000e0fff]"
    f"|(?<![{_EMOJI}])\u200d|\u200d(?![{_EMOJI}])|(?<![0-9#*\u00a9\u00ae{_EMOJI}])[\ufe0e\ufe0f]|(?<=\ufe0f)[\ufe0e\ufe0f]"
)


@cache
def invisible() -> re.Pattern[str]:
    """Return the pattern of one invisible character; compiled when first needed, which is seldom."""
    return re.compile(INVISIBLE)


def invisible_in(text: str) -> set[int]:
    """Return the positions of invisible characters in *text*."""
    return set() if text.isascii() else {found.start() for found in invisible().finditer(text)}


def quoted(path: str | bytes | os.PathLike[str]) -> str:
    """Quote *path* for a message: on one line, with every odd character and undecodable byte visible."""
    shown = []
    text = os.fsdecode(path)
    hidden = invisible_in(text)
    for place, character in enumerate(text):
        if "\udc80" <= character <= "\udcff":
            shown.append(f"\\x{ord(character) - 0xDC00:02x}")
        elif character in "'\\":
            shown.append("\\" + character)
        elif character.isprintable() and place not in hidden:
            shown.append(character)
        else:
            shown.append(character.encode("unicode_escape").decode("ascii"))
    return "'" + "".join(shown) + "'"


def nearest_existing(path: Path) -> Path:
    """Return *path*, or the closest of its ancestors that exists."""
    while not os.path.lexists(path) and path != path.parent:
        path = path.parent
    return path


def make_directories(path: Path, mode: int = 0o700) -> list[Path]:
    """Make *path* and its missing ancestors with *mode*; return those made, innermost first.

    `remove_directories` can take the result and remove those directories again.
    """
    missing = []
    while not path.is_dir() and path != path.parent:
        missing.append(path)
        path = path.parent
    made: list[Path] = []
    try:
        for directory in reversed(missing):
            try:
                directory.mkdir(mode)
            except FileExistsError:
                # Another process made the directory meanwhile; any other object there is an error.
                if not directory.is_dir():
                    raise
            else:
                made.insert(0, directory)
    except OSError:
        remove_directories(made)
        raise
    return made


def remove_directories(made: list[Path]) -> None:
    """Remove the directories that `make_directories` made, as far as they are still empty."""
    for directory in made:
        try:
            directory.rmdir()
        except OSError:
            return


def find_program(name: str, besides: Path | None = None) -> Path | None:
    """Return the resolved path of the program *name*, which sandboxfs is to run itself, in the PATH.

    Never in a relative directory of the PATH, nor inside *besides*: a workspace's content is not trusted.
    """
    for directory in os.get_exec_path():
        path = Path(os.path.realpath(Path(directory, name)))
        trusted = directory.startswith("/") and not (besides is not None and path.is_relative_to(besides))
        if trusted and os.access(path, os.X_OK) and path.is_file():
            return path
    return None


def joined(directory: bytes, name: bytes) -> bytes:
    """The path of *name* in *directory*; the root is the empty path."""
    return directory + b"/" + name if directory else name


def parted(path: bytes) -> tuple[bytes, bytes]:
    """The directory and the last name of *path*, which is not empty."""
    directory, _, name = path.rpartition(b"/")
    return directory, name


def add_above(path: bytes, found: set[bytes]) -> None:
    """Add the directories above *path*, but for the root, to *found*, which has all above those it has."""
    while (path := parted(path)[0]) and path not in found:
        found.add(path)


def is_below(place: bytes, path: bytes) -> bool:
    """Whether *place* is *path* or below it; everything is below the root."""
    return not path or place == path or place.startswith(path + b"/")


class PathSet:
    """A set of paths with fast queries for members above or below a path, whatever the size of the set.

    A caller that compared every change with each of many paths would take quadratic time.
    """

    def __init__(self, paths: Iterable[bytes]) -> None:
        self._all = frozenset(paths)
        self._sorted: list[bytes] | None = None

    def __bool__(self) -> bool:
        return bool(self._all)

    def __iter__(self) -> Iterator[bytes]:
        return iter(self._all)

    def hold(self, path: bytes) -> bool:
        """Whether *path* is one of the members, or below one."""
        if not self._all:
            return False
        while path not in self._all:
            if not path:
                return False
            path = parted(path)[0]
        return True

    def reach_into(self, path: bytes) -> bool:
        """Whether one of the members is *path*, or below it."""
        if not path or path in self._all:
            return bool(self._all)
        if self._sorted is None:
            self._sorted = sorted(self._all)
        inside = path + b"/"
        at = bisect_left(self._sorted, inside)
        return at < len(self._sorted) and self._sorted[at].startswith(inside)


class MovedPaths:
    """Paths after moves of directories. *moves* maps their old paths to their new ones."""

    def __init__(self, moves: Mapping[bytes, bytes]) -> None:
        self._moves = moves

    def __call__(self, path: bytes) -> bytes:
        """The path afterwards of the object that is at *path* before the moves."""
        top = path if self._moves else b""
        while top:
            if top in self._moves:
                return self._moves[top] + path[len(top) :]
            top = parted(top)[0]
        return path


def counted(number: int, word: str) -> str:
    """Write a number with the noun *word*, in the plural where needed."""
    if number == 1:
        return f"1 {word}"
    return f"{number:,} {word[:-1]}ies" if word.endswith("ry") else f"{number:,} {word}s"
