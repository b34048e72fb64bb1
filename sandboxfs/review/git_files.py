"""Git's own files, read without git: index files, and the settings of a workspace's repository.

Of an index only names and modes are read. An index that cannot be read for certain raises `UnreadableIndex`:
a split index, whose names are in another file, an unknown extension that must be understood, a damaged file.
A sparse index names a directory instead of the files in it.

`git status` writes the index anew when its inode numbers and times are outdated, as they are after a commit
of the sandbox. Such an index lists the same blobs for the same paths and is as good as the one before.
Format: gitformat-index(5), versions 2 to 4. Tracked paths are read with SHA-1 and SHA-256, comparisons are
made with SHA-1.

Settings tell which files of the workspace its own repository has git run or obey. They are read from the
workspace as it is on the host, never from the view: a configuration that the sandbox writes is a flagged
change by itself. git itself would obey what it reads.
"""

import hashlib
import os
import re
import struct
from bisect import bisect_left
from collections.abc import Iterator, Set
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import NamedTuple

INDEX_NAME = b"index"
LARGEST_INDEX = 64 << 20
"""Larger index files are not read."""
_MOST_NAMES = 4 * LARGEST_INDEX
"""Bytes of the names of one index: one that shares beginnings could name far more than it has bytes."""

_HEADER = struct.Struct(">4sII")
_EXTENSION = struct.Struct(">4sI")
_VERSIONS = (2, 3, 4)
_EXTENDED = 0x4000
_DIRECTORY = 0o040000
_SPARSE = b"sdir"
_SLASH = ord("/")
_SHA1, _SHA256 = 20, 32
# Times, device, inode; mode; owner and size; the object's name, by its length; flags. Of the status only the
# mode is more than a cache.
_ENTRIES = {size: struct.Struct(f">24xI12x{size}sH") for size in (_SHA1, _SHA256)}
# The errors of reading a damaged file.
_DAMAGED = (ValueError, struct.error, IndexError)


class UnreadableIndex(ValueError):
    """The index does not tell the tracked paths for certain; the text says why."""


class _Entry(NamedTuple):
    mode: int
    blob: bytes
    flags: int
    extended: bytes
    name: bytes


@dataclass(frozen=True)
class GitIndex:
    """The tracked *files*, and the *directories* that are tracked as a whole."""

    files: frozenset[bytes] = frozenset()
    directories: frozenset[bytes] = frozenset()

    def tracks_below(self, directory: bytes) -> bool:
        """Whether anything is tracked in a directory, or all of a directory around it."""
        inside = directory + b"/" if directory else b""
        at = bisect_left(self._sorted, inside)
        if at < len(self._sorted) and self._sorted[at].startswith(inside):
            return True
        return bool(self.directories) and (directory in self.directories or self.tracks(directory + b"/"))

    @cached_property
    def _sorted(self) -> list[bytes]:
        # No set of all directories: an index may be made so that they take far more memory than its names.
        return sorted([*self.files, *self.directories])

    def tracks(self, path: bytes) -> bool:
        if path in self.files:
            return True
        at = path.find(b"/") if self.directories else -1
        while at >= 0:
            if path[:at] in self.directories:
                return True
            at = path.find(b"/", at + 1)
        return False


def parse_index(data: bytes) -> GitIndex:
    """Read the content of an index file."""
    problem = "too short"
    # The file does not say which digest its repository uses.
    for hash_size in _ENTRIES:
        try:
            return _tracked(*_parts(data, hash_size))
        except _DAMAGED as error:
            problem = str(error)
    raise UnreadableIndex(problem)


def _tracked(entries: list[_Entry], extensions: list[bytes]) -> GitIndex:
    directories = [entry.name.removesuffix(b"/") for entry in entries if entry.mode == _DIRECTORY]
    for one in extensions:
        name = one[:4]
        # An extension whose name starts with a small letter must be understood.
        if not name.isalpha() or (not name[:1].isupper() and not (directories and name == _SPARSE)):
            raise UnreadableIndex(f"an extension that is not known: {name!r}")
    files = (entry.name for entry in entries if entry.mode != _DIRECTORY)
    return GitIndex(frozenset(files), frozenset(directories))


def same_entries(one: bytes, other: bytes) -> bool:
    """Whether two index files list the same entries; False where either is not understood."""
    try:
        return _listed(one) == _listed(other)
    except _DAMAGED:
        return False


def names_any(data: bytes, objects: Set[bytes]) -> bool:
    """Whether an index file names one of *objects*; with any objects, True if the index is not understood."""
    if not objects:
        return False
    try:
        entries, extensions = _whole_parts(data)
    except _DAMAGED:
        return True
    # An extension in small letters may refer to another file. Those in capitals may name trees.
    if any(not one[:1].isupper() for one in extensions) or any(entry.blob in objects for entry in entries):
        return True
    return any(one[at : at + _SHA1] in objects for one in extensions for at in range(len(one)))


def _listed(data: bytes) -> list[object]:
    """Return the content of an index, without extensions that do not change the meaning of its entries."""
    entries, extensions = _whole_parts(data)
    version = data[4:8]
    return [version, *entries, *(one for one in extensions if not one[:1].isupper())]


def _whole_parts(data: bytes) -> tuple[list[_Entry], list[bytes]]:
    """Return the entries and the extensions of an index whose digest, SHA-1, is right."""
    if hashlib.sha1(data[:-_SHA1], usedforsecurity=False).digest() != data[-_SHA1:]:
        raise UnreadableIndex("another digest than that of its content")
    return _parts(data, _SHA1)


def _parts(data: bytes, hash_size: int) -> tuple[list[_Entry], list[bytes]]:
    """Return the entries and the extensions of an index."""
    signature, version, count = _HEADER.unpack_from(data)
    if signature != b"DIRC" or version not in _VERSIONS:
        raise UnreadableIndex("not an index of version 2, 3 or 4")
    end = len(data) - hash_size
    layout = _ENTRIES[hash_size]
    entries: list[_Entry] = []
    at = _HEADER.size
    previous = b""
    named = 0
    for _ in range(count):
        mode, blob, flags = layout.unpack_from(data, at)
        start = at + layout.size
        extended = b""
        if flags & _EXTENDED:
            extended = data[start : start + 2]
            start += 2
        if version == 4:
            # A name is given by what differs from the name before.
            dropped, start = _number(data, start)
            name_end = data.index(b"\0", start, end)
            if dropped > len(previous):
                raise UnreadableIndex("a damaged entry")
            name = previous = previous[: len(previous) - dropped] + data[start:name_end]
            at = name_end + 1
        else:
            name_end = data.index(b"\0", start, end)
            name = data[start:name_end]
            # Entries are padded to a multiple of eight, with one zero at least.
            at += (name_end - at + 8) // 8 * 8
        named += len(name)
        if named > _MOST_NAMES:
            raise UnreadableIndex("too many long names")
        if not name or name[0] == _SLASH or not mode & 0o170000:
            raise UnreadableIndex("a damaged entry")
        entries.append(_Entry(mode, blob, flags, extended, name))
    return entries, list(_extensions(data, at, end))


def _number(data: bytes, at: int) -> tuple[int, int]:
    """Read a number of variable length, as in pack files; return it, and where it ends."""
    value = data[at] & 0x7F
    while data[at] & 0x80:
        at += 1
        value = (value + 1 << 7) | data[at] & 0x7F
    return value, at + 1


def _extensions(data: bytes, at: int, end: int) -> Iterator[bytes]:
    while at < end:
        _, size = _EXTENSION.unpack_from(data, at)
        behind = at + _EXTENSION.size + size
        yield data[at:behind]
        at = behind
    if at != end:
        raise UnreadableIndex("a damaged extension")


# Settings

_LARGEST_SETTINGS = 1 << 20
_MOST_FILES = 100
_SECTION = re.compile(r'\[\s*([A-Za-z0-9.-]+)\s*(?:"((?:[^"\\\n]|\\.)*)")?\s*\]')
_KEY = re.compile(r"([A-Za-z][A-Za-z0-9-]*)[ \t]*(=)?")
_ESCAPES = {"n": "\n", "t": "\t", "b": "\b"}

# Settings whose value is a command, or one file.
_COMMANDS = re.compile(
    r"core\.(?:fsmonitor|attributesfile|sshcommand|editor|pager|askpass|gitproxy|alternaterefscommand)"
    r"|(?:filter\..*\.(?:clean|smudge|process)|diff\..*\.(?:command|textconv)|diff\.external|merge\..*\.driver)"
    r"|(?:difftool|mergetool|guitool|browser|man)\..*\.(?:cmd|path)|(?:alias|pager)\..*|hook\..*\.command"
    r"|credential\.(?:.*\.)?helper|gpg\.(?:.*\.)?program|sequence\.editor|interactive\.difffilter"
    r"|uploadpack\.packobjectshook|trailer\..*\.(?:command|cmd)|remote\..*\.(?:uploadpack|receivepack)",
    re.DOTALL,
)
# Settings whose value is a directory of programs.
_DIRECTORIES = ("core.hookspath", "init.templatedir")
_INCLUDE = re.compile(r"include(?:if\..*)?\.path", re.DOTALL)


@dataclass(frozen=True)
class NamedByGit:
    """*files* and *directories* that a configuration names, relative to the workspace."""

    files: frozenset[bytes] = frozenset()
    directories: frozenset[bytes] = frozenset()

    def has(self, path: bytes) -> bool:
        """Whether the file at *path* is one of the named files, or in a named directory."""
        return path in self.files or any(_is_within(path, one) for one in self.directories)

    def any_below(self, path: bytes) -> bool:
        """Whether a named file or directory is at *path* or below it."""
        return any(_is_within(one, path) for one in self.files | self.directories)


def _is_within(path: bytes, directory: bytes) -> bool:
    return path == directory or path.startswith(directory + b"/")


def named_by_git(root: bytes) -> NamedByGit:
    """Return the paths in the workspace that the configuration of its repository, at *root*, names."""
    top = Path(os.fsdecode(root))
    # Called for every change: the file is read once for each state of the repository's own configuration.
    try:
        state = (top / ".git/config").stat()
    except OSError:
        return _named(top)
    return _kept(top, (state.st_ino, state.st_size, state.st_mtime_ns))


@lru_cache(maxsize=8)
def _kept(top: Path, _state: tuple[int, int, int]) -> NamedByGit:
    return _named(top)


def _named(top: Path) -> NamedByGit:
    files, directories = set[bytes](), set[bytes]()
    for path in _configurations(top):
        for place, key, value in _settings(path):
            if _INCLUDE.fullmatch(key):
                files |= _inside(top, place.parent, value)
            elif key in _DIRECTORIES:
                directories |= _inside(top, top, value)
            elif _COMMANDS.fullmatch(key) and not _names_gits_own(key, value):
                for word in _words(value):
                    files |= _inside(top, top, word)
    return NamedByGit(frozenset(files), frozenset(directories))


def _names_gits_own(key: str, value: str) -> bool:
    """Whether *value* is git's own command: an alias or credential helper without `!` or `/` in front."""
    return key.startswith(("alias.", "credential.")) and not value.startswith(("!", "/"))


def _configurations(top: Path) -> Iterator[Path]:
    """Yield the configuration files of the repository itself, also those of a linked work tree."""
    git = top / ".git"
    pointer = _content(git)
    if pointer is not None and pointer.startswith("gitdir:"):
        git = top / pointer.removeprefix("gitdir:").strip()
    common = _content(git / "commondir")
    yield (git if common is None else git / common.strip()) / "config"
    yield git / "config.worktree"


def _settings(path: Path) -> Iterator[tuple[Path, str, str]]:
    """Yield the settings of the file at *path* and of every file it may include, each with its own file."""
    waiting, seen = [path], set[str]()
    while waiting and len(seen) < _MOST_FILES:
        place = waiting.pop()
        content = _content(place)
        if content is None or os.path.realpath(place) in seen:
            continue
        seen.add(os.path.realpath(place))
        for key, value in _in_each_version(content):
            yield place, key, value
            if _INCLUDE.fullmatch(key) and not value.startswith("~"):
                waiting.append(place.parent / value)


def _in_each_version(content: str) -> Iterator[tuple[str, str]]:
    """The settings as any version of git reads them: which one runs here is not known."""
    yield from parse_settings(content)
    if "\t" in content:
        yield from parse_settings(content, verbatim=False)


def _words(value: str) -> list[str]:
    # Imported here: few repositories name a command.
    import shlex

    try:
        return shlex.split(value.removeprefix("!"))
    except ValueError:
        return value.split()


def _inside(top: Path, base: Path, text: str) -> set[bytes]:
    """Return the path in the workspace that *text*, relative to *base*, leads to, if any."""
    if not text or text.startswith(("-", "~", "%")):
        return set()
    path = os.path.normpath(base / text)
    inside = path.startswith(f"{str(top).rstrip('/')}/")
    return {os.fsencode(os.path.relpath(path, top))} if inside else set()


def _content(path: Path) -> str | None:
    try:
        if not path.is_file() or path.stat().st_size > _LARGEST_SETTINGS:
            return None
        return path.read_bytes().decode(errors="surrogateescape")
    except (OSError, ValueError):
        return None


def parse_settings(text: str, *, verbatim: bool = True) -> Iterator[tuple[str, str]]:
    """Yield the settings of a configuration file, as `section.subsection.key` and value, up to a mistake.

    Tabs within a value are kept *verbatim*, as git does since 2.45; earlier versions made each a space.
    """
    section, at = "", 0
    text = text.removeprefix("\ufeff").replace("\r\n", "\n")
    while at < len(text):
        if text[at] in " \t\n":
            at += 1
        elif text[at] in "#;":
            at = _line_end(text, at)
        elif text[at] == "[":
            found = _SECTION.match(text, at)
            if found is None:
                return
            section = found[1].lower() + ("" if found[2] is None else "." + re.sub(r"\\(.)", r"\1", found[2]))
            at = found.end()
        else:
            found = _KEY.match(text, at)
            if found is None:
                return
            # A key without a value means yes.
            tab = "\t" if verbatim else " "
            value, at = _value(text, found.end(), tab) if found[2] else ("true", found.end())
            if value is None or text[at : at + 1] not in ("", "\n"):
                return
            yield f"{section}.{found[1].lower()}", value


def _line_end(text: str, at: int) -> int:
    end = text.find("\n", at)
    return len(text) if end < 0 else end


def _value(text: str, at: int, tab: str) -> tuple[str | None, int]:
    """Read a value, which ends with its line; None where it is malformed. A *tab* outside quotes is that."""
    parts: list[str] = []
    # The length of the value without spaces at its end.
    kept, within = 0, False
    while at < len(text) and (text[at] != "\n"):
        letter = text[at]
        at += 1
        if letter == '"':
            within = not within
            kept = len(parts)
        elif letter in "#;" and not within:
            at = _line_end(text, at)
        elif letter == "\\":
            follows = text[at : at + 1]
            at += 1
            if follows == "\n":
                continue
            if follows not in ("\\", '"', *_ESCAPES):
                return None, at
            parts.append(_ESCAPES.get(follows, follows))
            kept = len(parts)
        elif letter in " \t" and not within:
            if parts:
                parts.append(tab if letter == "\t" else letter)
        else:
            parts.append(letter)
            kept = len(parts)
    return (None if within else "".join(parts[:kept])), at
