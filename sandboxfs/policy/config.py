"""What does the user's configuration file ask for?

A missing file means the defaults. Anything in it that is not understood is refused, naming the file, the
line where it can be known, the key and what was expected: a sandbox never starts on a guessed policy.
"""

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from sandboxfs.errors import UsageError
from sandboxfs.paths import quoted

Mode = Literal["ro", "rw"]

# Words of the configuration language that this version knows of and cannot honour yet.
_NOT_YET = {
    ("rule",),
    ("workspace", "allow"),
    ("workspace", "enabled"),
    ("workspace", "symlinks"),
    ("symlinks",),
}


@dataclass(frozen=True)
class UserConfig:
    """The configuration as read: *root* is absolute, or None when the file names none."""

    root: Path | None = None
    mode: Mode = "rw"


def load_config(path: Path) -> UserConfig:
    """Read the configuration file at *path*; raise `UsageError` for all but a missing or understood one."""
    try:
        content = path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return UserConfig()
    except OSError as error:
        raise UsageError(f"cannot read configuration {quoted(path)}: {error.strerror}") from error
    try:
        text = content.decode()
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise UsageError(f"{path}:{line}: configuration is not UTF-8 text") from error
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise _malformed(path, str(error)) from error
    return _Reader(path, text).config(document)


def _malformed(path: Path, complaint: str) -> UsageError:
    # tomllib says where only inside its message, as "(at line 3, column 7)" or "(at end of document)".
    place = re.search(r" \(at line (\d+), column \d+\)$", complaint)
    if place is None:
        return UsageError(f"{path}: malformed TOML: {complaint}")
    return UsageError(f"{path}:{place[1]}: malformed TOML: {complaint[: place.start()]}")


class _Reader:
    """One document with the text it came from, so that complaints can name lines."""

    def __init__(self, path: Path, text: str) -> None:
        self._path = path
        self._text = text

    def config(self, document: Mapping[str, object]) -> UserConfig:
        self._refuse_unknown((), document, known={"workspace"})
        workspace = document.get("workspace", {})
        if not isinstance(workspace, dict):
            raise self._complaint(("workspace",), f"expected a table, found {_kind(workspace)}")
        self._refuse_unknown(("workspace",), workspace, known={"root", "mode"})
        return UserConfig(
            root=self._root(workspace.get("root")), mode=self._mode(workspace.get("mode", "rw"))
        )

    def _root(self, value: object) -> Path | None:
        key = ("workspace", "root")
        if value is None:
            return None
        if not isinstance(value, str):
            raise self._complaint(key, f"expected a string, found {_kind(value)}")
        try:
            root = Path(value).expanduser()
        except RuntimeError as error:
            raise self._complaint(key, f"no such user in {quoted(value)}") from error
        if not root.is_absolute() or "\0" in value:
            raise self._complaint(
                key, f"expected an absolute path or one starting with '~', found {quoted(value)}"
            )
        return root

    def _mode(self, value: object) -> Mode:
        key = ("workspace", "mode")
        if value == "ro" or value == "rw":
            return value
        found = quoted(value) if isinstance(value, str) else _kind(value)
        raise self._complaint(key, f"expected 'ro' or 'rw', found {found}")

    def _refuse_unknown(self, table: tuple[str, ...], content: Mapping[str, object], known: set[str]) -> None:
        for key in content:
            if key in known:
                continue
            if (*table, key) in _NOT_YET:
                raise self._complaint((*table, key), "not supported yet by this version of sandboxfs")
            expected = " or ".join(quoted(word) for word in sorted(known))
            raise self._complaint((*table, key), f"unknown key; expected {expected}")

    def _complaint(self, key: tuple[str, ...], complaint: str) -> UsageError:
        line = _line_of(self._text, key)
        place = f"{self._path}:{line}" if line else str(self._path)
        return UsageError(f"{place}: {quoted('.'.join(key))}: {complaint}")


def _line_of(text: str, key: tuple[str, ...]) -> int | None:
    """Find the line that sets *key* in the usual ways of writing TOML; None when it is written otherwise."""
    table: list[str] = []
    for number, line in enumerate(text.splitlines(), start=1):
        header = re.match(r"\s*\[\[?\s*([^\]]+?)\s*\]\]?", line)
        if header:
            table = _words(header[1])
            if tuple(table[: len(key)]) == key:
                return number
            continue
        assignment = re.match(r"\s*([^=#\s][^=#]*?)\s*=", line)
        if assignment and (*table, *_words(assignment[1]))[: len(key)] == key:
            return number
    return None


def _words(dotted: str) -> list[str]:
    return [word.strip().strip("\"'") for word in dotted.split(".")]


def _kind(value: object) -> str:
    names = {
        bool: "a boolean",
        int: "a number",
        float: "a number",
        str: "a string",
        list: "an array",
        dict: "a table",
    }
    return names.get(type(value), "a date or time")
