"""Git settings: files of the workspace that its own repository has git run or obey.

The settings are read from the workspace as it is on the host, never from the view: a configuration that the
sandbox writes is a flagged change by itself. This module reads the configuration without git, because git
would obey it.
"""

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

_LARGEST = 1 << 20
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
        if not path.is_file() or path.stat().st_size > _LARGEST:
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
