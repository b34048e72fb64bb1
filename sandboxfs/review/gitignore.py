"""Git's ignore rules: the `.gitignore` of every directory on the way to a path, and rules for everywhere.

Within one file the last match wins, a deeper file wins over those above and over the rules for everywhere,
and nothing below an ignored directory can be brought back. An ignore file is read once, for the first
question about a path below it.
"""

import re
import string
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import NamedTuple

Reader = Callable[[bytes], bytes | None]
Matcher = Callable[[bytes], bool]

_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
# No path is as long as a longer pattern needs; such patterns count as matching nothing.
_LONGEST = 8192
# Where memory is bounded: directories that are remembered, and bytes of ignore files.
_MOST_DIRECTORIES, _MOST_TEXT = 20_000, 1 << 19
_SPECIAL = re.compile(rb"[*?\[\\]")
_NAMED_CLASS = re.compile(rb"\[:([^]]*)]")
_CLASSES: dict[bytes, set[int]] = {
    name: set(letters.encode())
    for name, letters in {
        b"alnum": string.ascii_letters + string.digits,
        b"alpha": string.ascii_letters,
        b"blank": " \t",
        b"cntrl": "".join(map(chr, [*range(1, 32), 127])),
        b"digit": string.digits,
        b"graph": string.ascii_letters + string.digits + string.punctuation,
        b"lower": string.ascii_lowercase,
        b"print": string.ascii_letters + string.digits + string.punctuation + " ",
        b"punct": string.punctuation,
        b"space": " \t\n\r",
        b"upper": string.ascii_uppercase,
        b"xdigit": string.hexdigits,
    }.items()
}
# The tokens of a pattern, besides pieces of regular expression that match a fixed number of bytes.
_STAR, _DIRECTORIES, _SLASHED = b"*", b"**/", b"**\\/"


@dataclass(frozen=True, slots=True)
class IgnorePattern:
    """One line of an ignore file: its *number*, and its *text*."""

    number: int
    text: bytes
    matches: Matcher
    negated: bool
    directories_only: bool
    names_only: bool

    def applies(self, name: bytes, below: bytes, is_dir: bool) -> bool:
        """Whether the pattern matches *name*; *below* is its path from the directory of the ignore file."""
        return (is_dir or not self.directories_only) and self.matches(name if self.names_only else below)


def _always(_path: bytes) -> bool:
    return True


_EVERYTHING = IgnorePattern(0, b"(too large to be read)", _always, False, False, True)


def parse_patterns(text: bytes) -> list[IgnorePattern]:
    """Return the patterns of an ignore file, in order."""
    patterns = []
    for number, line in enumerate(text.removeprefix(_BYTE_ORDER_MARK).split(b"\n"), 1):
        pattern = _parse(number, line.removesuffix(b"\r"))
        if pattern is not None:
            patterns.append(pattern)
    return patterns


def _parse(number: int, text: bytes) -> IgnorePattern | None:
    # Git reads a line as a C string.
    line = _without_trailing_spaces(text.split(b"\0")[0])
    if not line or line.startswith(b"#"):
        return None
    negated = line.startswith(b"!")
    body = line[negated:]
    directories_only = body.endswith(b"/")
    body = body.removesuffix(b"/")
    names_only = b"/" not in body
    if not names_only:
        body = body.removeprefix(b"/")
    if not body:
        return None
    return IgnorePattern(number, line, compile_wildcard(body), negated, directories_only, names_only)


def _without_trailing_spaces(line: bytes) -> bytes:
    """Drop the spaces at the end of *line* that no backslash protects."""
    end = 0
    index = 0
    while index < len(line):
        if line[index : index + 1] == b"\\":
            index += 1
            end = index + 1
        elif line[index : index + 1] != b" ":
            end = index + 1
        index += 1
    return line[:end]


class IgnoreMatch(NamedTuple):
    """The *pattern* of a *file* by which git ignores a path, or a directory around it."""

    file: bytes
    pattern: IgnorePattern


class IgnoreRules:
    """The ignore files of one tree, read as they are needed."""

    def __init__(
        self,
        reader: Reader,
        everywhere: Iterable[tuple[bytes, bytes]] = (),
        longest: int | None = None,
    ) -> None:
        """Read ignore files by *reader*, which returns the bytes of a file, or None for an absent file.

        *everywhere* are the names and texts of further files; later ones win over earlier ones. Where the
        files on the way to a path have more than *longest* bytes, the one that is too much ignores everything
        around it, and memory is bounded.
        """
        self._reader = reader
        self._longest = longest
        # For each directory: its patterns, and the bytes of the files on the way.
        self._patterns: dict[bytes, tuple[list[IgnorePattern], int]] = {}
        self._directories: dict[bytes, IgnoreMatch | None] = {b"": None}
        self._everywhere: list[tuple[bytes, list[IgnorePattern]]] = []
        self._everywhere_size = 0
        for name, text in everywhere:
            patterns, self._everywhere_size = self._parsed(text, self._everywhere_size)
            self._everywhere.append((name, patterns))
        self._held = 0

    def ignored(self, path: bytes, is_dir: bool) -> bool:
        """Whether git would ignore *path*, relative to the top of the tree, if *path* were not tracked."""
        return self.match(path, is_dir) is not None

    def match(self, path: bytes, is_dir: bool) -> IgnoreMatch | None:
        """Return what makes git ignore *path*, None where it would not."""
        path = path.strip(b"/")
        if self._longest is not None and (
            len(self._directories) > _MOST_DIRECTORIES or self._held > _MOST_TEXT
        ):
            self._forget()
        if path in self._directories and is_dir:
            return self._directories[path]
        parent, _, name = path.rpartition(b"/")
        verdict = self._around(parent) or self._matched(path, parent, name, is_dir)
        if is_dir:
            self._directories[path] = verdict
        return verdict

    def _around(self, parent: bytes) -> IgnoreMatch | None:
        """What makes git ignore *parent* or a directory above it; asked from the top down, at any depth."""
        if parent in self._directories:
            return self._directories[parent]
        at = parent.find(b"/")
        while at >= 0:
            found = self.match(parent[:at], True)
            if found is not None:
                return found
            at = parent.find(b"/", at + 1)
        return self.match(parent, True)

    def _matched(self, path: bytes, parent: bytes, name: bytes, is_dir: bool) -> IgnoreMatch | None:
        directory = parent
        while True:
            below = path[len(directory) + 1 :] if directory else path
            for pattern in reversed(self._of(directory)):
                if pattern.applies(name, below, is_dir):
                    return None if pattern.negated else IgnoreMatch(_file_in(directory), pattern)
            if not directory:
                break
            directory = directory.rpartition(b"/")[0]
        for file, patterns in reversed(self._everywhere):
            for pattern in reversed(patterns):
                if pattern.applies(name, path, is_dir):
                    return None if pattern.negated else IgnoreMatch(file, pattern)
        return None

    def _of(self, directory: bytes) -> list[IgnorePattern]:
        unknown = []
        while directory not in self._patterns:
            unknown.append(directory)
            if not directory:
                break
            directory = directory.rpartition(b"/")[0]
        patterns, size = self._patterns.get(directory, ([], self._everywhere_size))
        for one in reversed(unknown):
            text = self._reader(_file_in(one))
            self._held += 0 if text is None else len(text)
            patterns, size = self._patterns[one] = ([], size) if text is None else self._parsed(text, size)
        return patterns

    def _parsed(self, text: bytes, above: int) -> tuple[list[IgnorePattern], int]:
        """Return the patterns of a file, and its size and that of the files *above*."""
        size = above + len(text)
        if self._longest is not None and size > self._longest:
            return [_EVERYTHING], above
        return parse_patterns(text), size

    def _forget(self) -> None:
        self._patterns.clear()
        self._directories = {b"": None}
        self._held = 0


def _file_in(directory: bytes) -> bytes:
    return directory + b"/.gitignore" if directory else b".gitignore"


def compile_wildcard(pattern: bytes) -> Matcher:
    """Return a function that tells whether *pattern* matches the whole of a name or path."""
    # Git compares the text before the first wildcard by itself, so a `**` right behind it counts as leading.
    special = _SPECIAL.search(pattern)
    if special is None:
        return pattern.__eq__
    expression = _expression(pattern[special.start() :]) if len(pattern) <= _LONGEST else None
    if expression is None:
        return _never
    compiled = re.compile(re.escape(pattern[: special.start()]) + expression, re.DOTALL)
    return lambda path: compiled.fullmatch(path) is not None


def _never(_path: bytes) -> bool:
    return False


def _expression(pattern: bytes) -> bytes | None:
    """Translate *pattern* to a regular expression; None for a pattern that never matches (open bracket).

    After every star but the last, the first match of the text that follows is as good as any later one. The
    expression says so (atomic groups), which keeps a hostile pattern from taking for ever.
    """
    tokens = _tokens(pattern)
    if tokens is None:
        return None
    blocks: list[tuple[bytes, list[bytes]]] = [(b"", [])]
    for token in tokens:
        if token in (_DIRECTORIES, _SLASHED):
            blocks.append((b"(?:.*?/)??" if token == _DIRECTORIES else b".*?/", []))
        else:
            blocks[-1][1].append(token)
    *inner, (last_lead, last) = blocks
    leading = [b"(?>%s%s)" % (lead, _block(block, final=False)) for lead, block in inner]
    return b"".join(leading) + last_lead + _block(last, final=True)


def _block(tokens: list[bytes], *, final: bool) -> bytes:
    segments: list[list[bytes]] = [[]]
    for token in tokens:
        if token == _STAR:
            segments.append([])
        else:
            segments[-1].append(token)
    first, *rest = map(b"".join, segments)
    if not rest:
        return first
    *middle, last = rest if final else [*rest, b""]
    bound = b"".join(b"(?>[^/]*?%s)" % segment for segment in middle)
    return first + bound + (b"[^/]*" + last if final else b"")


def _tokens(pattern: bytes) -> list[bytes] | None:
    tokens = []
    at = 0
    while at < len(pattern):
        byte = pattern[at : at + 1]
        if byte == b"*":
            token, at = _stars(pattern, at)
        elif byte == b"?":
            token, at = b"[^/]", at + 1
        elif byte == b"[":
            members, at = _bracket(pattern, at + 1)
            if members is None:
                return None
            token = _class(members)
        else:
            at += byte == b"\\"
            if at == len(pattern):
                return None
            token, at = re.escape(pattern[at : at + 1]), at + 1
        tokens.append(token)
    return tokens


def _stars(pattern: bytes, at: int) -> tuple[bytes, int]:
    """Read the stars that start at *at*; two or more between slashes or ends cross directories."""
    end = at
    while pattern[end : end + 1] == b"*":
        end += 1
    if end - at == 1 or (at and pattern[at - 1 : at] != b"/"):
        return _STAR, end
    if pattern.startswith(b"/", end):
        return _DIRECTORIES, end + 1
    if pattern.startswith(b"\\/", end):
        return _SLASHED, end + 2
    return (b".*", end) if end == len(pattern) else (_STAR, end)


def _bracket(pattern: bytes, at: int) -> tuple[set[int] | None, int]:
    """Read the bracket expression whose inside starts at *at*; return its bytes and its end."""
    negated = pattern[at : at + 1] in (b"!", b"^")
    at += negated
    start = at
    members: set[int] = set()
    previous: int | None = None
    while at == start or pattern[at : at + 1] != b"]":
        if (
            previous is not None
            and pattern[at : at + 1] == b"-"
            and pattern[at + 1 : at + 2] not in (b"", b"]")
        ):
            last, at = _member(pattern, at + 1)
            members |= set(range(previous, (-1 if last is None else last) + 1))
            previous = None
        elif pattern.startswith(b"[:", at) and not _literal_bracket(pattern, at):
            named = _NAMED_CLASS.match(pattern, at)
            letters = None if named is None else _CLASSES.get(named[1][:-1])
            if named is None or letters is None:
                return None, at
            members |= letters
            previous, at = None, named.end()
        else:
            previous, at = _member(pattern, at)
            if previous is None:
                return None, at
            members.add(previous)
    return set(range(256)) - members if negated else members, at + 1


def _literal_bracket(pattern: bytes, at: int) -> bool:
    """Whether a `]` without a colon closes the `[:` at *at*, which then names no class."""
    named = _NAMED_CLASS.match(pattern, at)
    return named is not None and not named[1].endswith(b":")


def _member(pattern: bytes, at: int) -> tuple[int | None, int]:
    """Read one byte of a bracket expression, which a backslash may protect."""
    at += pattern[at : at + 1] == b"\\"
    return (pattern[at], at + 1) if at < len(pattern) else (None, at)


def _class(members: set[int]) -> bytes:
    # As ranges: a pattern of few bytes must not become an expression of very many.
    listed = b""
    left = sorted(members - {ord("/")})
    start = 0
    for at, byte in enumerate(left):
        if at + 1 == len(left) or left[at + 1] != byte + 1:
            listed += b"\\x%02x-\\x%02x" % (left[start], byte)
            start = at + 1
    return b"[" + listed + b"]" if listed else b"(?!)"
