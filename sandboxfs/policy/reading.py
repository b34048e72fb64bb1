"""How is a configuration file read, and how does a complaint about it name the place?

A `Table` is one TOML table with the text it came from. Every question put to it either gives a value of the
right kind or raises a `UsageError` that names the file, the line, the key and what was expected; a key that
nobody asks for is refused with the nearest one that exists. Nothing here knows what the keys mean.
"""

import difflib
import os
import re
import tomllib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TypeVar

from sandboxfs.errors import UsageError
from sandboxfs.paths import quoted
from sandboxfs.policy.lines import Key, key_lines

# Some twenty thousand rules; more is a mistake, and reading it would take longer than anybody waits.
SIZE_LIMIT = 1024 * 1024

_T = TypeVar("_T")


def read_document(path: Path, shown: str | None = None, *, flags: int = 0) -> "Table | None":
    """Read the TOML file at *path*, called *shown* in complaints; None when there is none."""
    name = shown or str(path)
    try:
        with open(os.open(path, os.O_RDONLY | os.O_CLOEXEC | flags), "rb") as file:  # noqa: PTH123
            content = file.read(SIZE_LIMIT + 1)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise UsageError(f"cannot read configuration {quoted(name)}: {reason}") from error
    if len(content) > SIZE_LIMIT:
        raise UsageError(f"{name}: configuration is larger than {SIZE_LIMIT // 1024} KiB")
    return parse_document(name, content)


def parse_document(name: str, content: bytes) -> "Table":
    """Read a TOML document; *name* is what complaints call it."""
    try:
        text = content.decode()
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise UsageError(f"{name}:{line}: configuration is not UTF-8 text") from error
    text = text.replace("\r\n", "\n")
    try:
        document, lines = tomllib.loads(text), key_lines(text)
    except tomllib.TOMLDecodeError as error:
        raise _malformed(name, str(error)) from error
    except RecursionError as error:
        raise UsageError(f"{name}: malformed TOML: nested too deeply") from error
    return Table(name, lines, (), document)


def _malformed(name: str, complaint: str) -> UsageError:
    # tomllib says where only inside its message, as "(at line 3, column 7)" or "(at end of document)".
    place = re.search(r" \(at line (\d+), column \d+\)$", complaint)
    if place is None:
        return UsageError(f"{name}: malformed TOML: {complaint}")
    return UsageError(f"{name}:{place[1]}: malformed TOML: {complaint[: place.start()]}")


class Table:
    """One table of a document."""

    def __init__(self, file: str, lines: Mapping[Key, int], key: Key, content: Mapping[str, object]) -> None:
        self.file = file
        self._lines = lines
        self._key = key
        self._content = content

    def only(self, *known: str) -> None:
        """Refuse every key but the *known* ones."""
        for name in self._content:
            if name not in known:
                near = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
                meant = f"did you mean {quoted(near[0])}?" if near else f"expected {_either(known)}"
                raise self.complaint(name, f"unknown key; {meant}")

    def line(self, name: str | None = None) -> int | None:
        """Return the line of the key called *name*, or of the table itself."""
        return self._lines.get(self._key if name is None else (*self._key, name))

    def table(self, name: str) -> "Table":
        """Return the table called *name*, empty when there is none."""
        value = self._content.get(name, {})
        if not isinstance(value, dict):
            raise self.complaint(name, f"expected a table, found {_kind(value)}")
        return Table(self.file, self._lines, (*self._key, name), value)

    def tables(self, name: str) -> Iterator["Table"]:
        """Return the tables of the array called *name*, none when there is none."""
        values = self._content.get(name, [])
        for number, value in enumerate(values if isinstance(values, list) else [values]):
            if not isinstance(values, list) or not isinstance(value, dict):
                raise self.complaint(name, f"expected [[{self._dotted(name)}]] tables, found {_kind(value)}")
            yield Table(self.file, self._lines, (*self._key, name, number), value)

    def text(self, name: str) -> str | None:
        """Return a string, None when it is not set."""
        value = self._content.get(name)
        if value is not None and not isinstance(value, str):
            raise self.complaint(name, f"expected a string, found {_kind(value)}")
        return value

    def required(self, name: str) -> str:
        """Return a string that must be set."""
        value = self.text(name)
        if value is None:
            raise self.complaint(name, "missing")
        return value

    def flag(self, name: str, default: bool) -> bool:
        """Return a boolean."""
        value = self._content.get(name, default)
        if not isinstance(value, bool):
            raise self.complaint(name, f"expected true or false, found {_kind(value)}")
        return value

    def number(self, name: str, default: int, *, least: int) -> int:
        """Return a whole number of at least *least*."""
        value = self._content.get(name, default)
        if not isinstance(value, int) or isinstance(value, bool) or value < least:
            found = value if isinstance(value, int) and not isinstance(value, bool) else _kind(value)
            raise self.complaint(name, f"expected a whole number of at least {least}, found {found}")
        return value

    def choice(self, name: str, convert: Callable[[str], _T], choices: tuple[str, ...], default: _T) -> _T:
        """Return one of *choices* as *convert* makes it."""
        value = self._content.get(name)
        if value is None:
            return default
        if not isinstance(value, str) or value not in choices:
            found = quoted(value) if isinstance(value, str) else _kind(value)
            raise self.complaint(name, f"expected {_either(choices)}, found {found}")
        return convert(value)

    def complaint(self, name: str, complaint: str) -> UsageError:
        """Make the error for the key called *name*."""
        # A key that is missing is complained about where its table is.
        line = self.line(name) or self.line()
        place = f"{self.file}:{line}" if line else self.file
        return UsageError(f"{place}: {quoted(self._dotted(name))}: {complaint}")

    def _dotted(self, name: str) -> str:
        return ".".join([*(part for part in self._key if isinstance(part, str)), name])


def _either(words: tuple[str, ...]) -> str:
    shown = [quoted(word) for word in words]
    return shown[0] if len(shown) == 1 else ", ".join(shown[:-1]) + " or " + shown[-1]


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
