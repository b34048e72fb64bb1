"""TOML with positions: configuration files, and the line that a complaint is about.

`tomllib` gives no lines, and an error message or a rule's source needs one. The scanner here reads only
documents that `tomllib` has accepted. It follows tables, arrays of tables, dotted and quoted keys, inline
tables, arrays and strings of every kind, and understands nothing else.

A `TomlTable` is one TOML table with the text it came from. Every method either gives a value of the right
kind or raises a `UsageError` with the file, the line, the key and the expected value. A key that no reader
asks for is refused with the nearest known key. A reader that wants all problems passes a list for them: then
nothing is raised, and a default replaces each wrong value. This module does not know the meaning of keys.

`codec` is not used here: it knows positions in a document, but no lines, no nearest key and no list of all
problems, which a person who edits a file by hand needs.
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

# A key from the top of the document: names of tables and keys, and numbers of elements in arrays.
Key = tuple[str | int, ...]

_SKIP = re.compile(r"(?:[ \t\r\n]|#[^\n]*)*")
_BLANKS = re.compile(r"[ \t]*")
_PART = r"""(?:[A-Za-z0-9_-]+|"(?:[^"\\\n]|\\.)*"|'[^'\n]*')"""
_KEY = re.compile(rf"{_PART}(?:[ \t]*\.[ \t]*{_PART})*")
_STRING = re.compile(
    r'"""(?:[^\\]|\\.)*?"""(?:""?)?(?!")'
    r"|'''.*?'''(?:''?)?(?!')"
    r'|"(?:[^"\\\n]|\\.)*"'
    r"|'[^'\n]*'",
    re.DOTALL,
)
_BARE = re.compile(r"[^,\]}#\n]*")


def key_lines(text: str) -> dict[Key, int]:
    """Return the line of every key, table and element of a document that `tomllib` accepts."""
    return _Scanner(text).document()


class _Scanner:
    def __init__(self, text: str) -> None:
        self._text = text
        self._place = 0
        self._lines: dict[Key, int] = {}
        # The number of the newest element of each array of tables.
        self._counts: dict[Key, int] = {}
        # The offset up to which lines are counted, so that a long document is read once.
        self._counted, self._line = 0, 1

    def document(self) -> dict[Key, int]:
        table: Key = ()
        while self._skip(_SKIP) < len(self._text):
            if self._text[self._place] == "[":
                table = self._header()
            else:
                self._assignment(table)
        return self._lines

    def _skip(self, pattern: re.Pattern[str]) -> int:
        found = pattern.match(self._text, self._place)
        if found:
            self._place = found.end()
        return self._place

    def _header(self) -> Key:
        many = self._text.startswith("[[", self._place)
        start = self._place
        self._place += 2 if many else 1
        self._skip(_BLANKS)
        names = self._key()
        self._skip(_BLANKS)
        self._place += 2 if many else 1
        table = self._inside(names[:-1])
        if many:
            array = (*table, names[-1])
            number = self._counts[array] = self._counts.get(array, -1) + 1
            self._note(array, start)
            table = (*array, number)
        else:
            table = self._inside(names)
        self._note(table, start)
        return table

    def _inside(self, names: list[str]) -> Key:
        """Return the key of the table called *names*: an array of tables stands for its newest element."""
        key: Key = ()
        for name in names:
            key = (*key, name)
            if key in self._counts:
                key = (*key, self._counts[key])
        return key

    def _assignment(self, table: Key) -> None:
        start = self._place
        names = self._key()
        for depth in range(1, len(names) + 1):
            self._note((*table, *names[:depth]), start)
        self._skip(_BLANKS)
        self._place += 1  # the equals sign
        self._skip(_BLANKS)
        self._value((*table, *names))

    def _key(self) -> list[str]:
        found = _KEY.match(self._text, self._place)
        if found is None:
            raise ValueError(f"no key at offset {self._place}")
        self._place = found.end()
        if not any(quote in found[0] for quote in "\"'"):
            return [name.strip() for name in found[0].split(".")]
        names = []
        value: object = tomllib.loads(f"{found[0]} = 0")
        while isinstance(value, dict):
            name, value = next(iter(value.items()))
            names.append(str(name))
        return names

    def _value(self, key: Key) -> None:
        character = self._text[self._place]
        if character == "[":
            self._elements(key)
        elif character == "{":
            self._inline_table(key)
        else:
            self._skip(_STRING if character in "\"'" else _BARE)

    def _elements(self, key: Key) -> None:
        self._place += 1
        number = 0
        while self._text[self._skip(_SKIP)] != "]":
            self._note((*key, number), self._place)
            self._value((*key, number))
            number += 1
            if self._text[self._skip(_SKIP)] == ",":
                self._place += 1
        self._place += 1

    def _inline_table(self, key: Key) -> None:
        self._place += 1
        while self._text[self._skip(_SKIP)] != "}":
            self._assignment(key)
            if self._text[self._skip(_SKIP)] == ",":
                self._place += 1
        self._place += 1

    def _note(self, key: Key, place: int) -> None:
        self._line += self._text.count("\n", self._counted, place)
        self._counted = max(self._counted, place)
        self._lines.setdefault(key, self._line)


# Some twenty thousand rules; a larger file is a mistake, and reading it would take too long.
SIZE_LIMIT = 1024 * 1024

_MOST_DOTS = 200

_T = TypeVar("_T")


Problems = list[str]


def read_document(
    path: Path, shown: str | None = None, *, flags: int = 0, problems: Problems | None = None
) -> "TomlTable | None":
    """Read the TOML file at *path*, called *shown* in error messages; None when there is no file."""
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
    return parse_document(name, content, problems)


def parse_document(name: str, content: bytes, problems: Problems | None = None) -> "TomlTable":
    """Read a TOML document; *name* is its name in error messages."""
    try:
        text = content.decode()
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise UsageError(f"{name}:{line}: configuration is not UTF-8 text") from error
    text = text.replace("\r\n", "\n")
    # tomllib takes time quadratic in the parts of a key, and a project's file is untrusted.
    for number, row in enumerate(text.split("\n"), 1):
        if row.count(".") > _MOST_DOTS:
            raise UsageError(f"{name}:{number}: more than {_MOST_DOTS} dots on one line")
    try:
        document, lines = tomllib.loads(text), key_lines(text)
    except ValueError as error:
        # Malformed, or a number of more digits than Python reads.
        raise _malformed(name, str(error)) from error
    except RecursionError as error:
        raise UsageError(f"{name}: malformed TOML: nested too deeply") from error
    return TomlTable(name, lines, (), document, problems)


def _malformed(name: str, complaint: str) -> UsageError:
    # tomllib gives the position only in its message, as "(at line 3, column 7)" or "(at end of document)".
    place = re.search(r" \(at line (\d+), column \d+\)$", complaint)
    if place is None:
        return UsageError(f"{name}: malformed TOML: {complaint}")
    return UsageError(f"{name}:{place[1]}: malformed TOML: {complaint[: place.start()]}")


class TomlTable:
    """One table of a document; with *problems*, errors are added there and nothing is raised."""

    def __init__(
        self,
        file: str,
        lines: Mapping[Key, int],
        key: Key,
        content: Mapping[str, object],
        problems: Problems | None = None,
    ) -> None:
        self.file = file
        self._problems = problems
        self._lines = lines
        self._key = key
        self._content = content

    def only(self, *known: str) -> None:
        """Refuse every key but the *known* ones."""
        for name in self._content:
            if name not in known:
                near = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
                meant = f"did you mean {quoted(near[0])}?" if near else f"expected {either(known)}"
                self.refuse(name, f"unknown key; {meant}")

    def line(self, name: str | None = None) -> int | None:
        """Return the line of the key called *name*, or of the table itself."""
        return self._lines.get(self._key if name is None else (*self._key, name))

    def table(self, name: str) -> "TomlTable":
        """Return the table called *name*, empty when there is none."""
        value = self._content.get(name, {})
        if not isinstance(value, dict):
            self.refuse(name, f"expected a table, found {_kind(value)}")
            value = {}
        return TomlTable(self.file, self._lines, (*self._key, name), value, self._problems)

    def tables(self, name: str) -> Iterator["TomlTable"]:
        """Return the tables of the array called *name*, none when there is none."""
        values = self._content.get(name, [])
        for number, value in enumerate(values if isinstance(values, list) else [values]):
            if isinstance(values, list) and isinstance(value, dict):
                yield TomlTable(self.file, self._lines, (*self._key, name, number), value, self._problems)
            else:
                self.refuse(name, f"expected [[{self._dotted(name)}]] tables, found {_kind(value)}")

    def text(self, name: str) -> str | None:
        """Return a string, None when it is not set."""
        value = self._content.get(name)
        if value is None or isinstance(value, str):
            return value
        self.refuse(name, f"expected a string, found {_kind(value)}")
        return None

    def texts(self, name: str) -> tuple[str, ...]:
        """Return an array of strings, which must be set."""
        value = self._content.get(name)
        if isinstance(value, list) and all(isinstance(one, str) for one in value):
            return tuple(value)
        wrong = "missing" if value is None else f"expected an array of strings, found {_kind(value)}"
        self.refuse(name, wrong)
        return ()

    def words(self, name: str) -> str | tuple[str, ...] | None:
        """Return a string or an array of strings, None when it is not set."""
        value = self._content.get(name)
        if value is None or isinstance(value, str):
            return value
        if isinstance(value, list) and all(isinstance(one, str) for one in value):
            return tuple(value)
        self.refuse(name, f"expected a string or an array of strings, found {_kind(value)}")
        return None

    def required(self, name: str) -> str | None:
        """Return a string that must be set; None only after a problem was added."""
        if name not in self._content:
            self.refuse(name, "missing")
        return self.text(name)

    def flag(self, name: str, default: bool) -> bool:
        """Return a boolean."""
        value = self._content.get(name, default)
        if not isinstance(value, bool):
            self.refuse(name, f"expected true or false, found {_kind(value)}")
            return default
        return value

    def number(self, name: str, default: int, *, least: int) -> int:
        """Return a whole number of at least *least*."""
        value = self._content.get(name, default)
        if not isinstance(value, int) or isinstance(value, bool) or value < least:
            found = value if isinstance(value, int) and not isinstance(value, bool) else _kind(value)
            self.refuse(name, f"expected a whole number of at least {least}, found {found}")
            return default
        return value

    def choice(self, name: str, convert: Callable[[str], _T], choices: tuple[str, ...], default: _T) -> _T:
        """Return one of *choices*, converted by *convert*."""
        value = self._content.get(name)
        if value is None:
            return default
        if not isinstance(value, str) or value not in choices:
            found = quoted(value) if isinstance(value, str) else _kind(value)
            self.refuse(name, f"expected {either(choices)}, found {found}")
            return default
        return convert(value)

    def refuse(self, name: str, complaint: str) -> None:
        """Report a problem with the key called *name*."""
        # A missing key is reported at the line of its table.
        line = self.line(name) or self.line()
        place = f"{self.file}:{line}" if line else self.file
        message = f"{place}: {quoted(self._dotted(name))}: {complaint}"
        if self._problems is None:
            raise UsageError(message)
        self._problems.append(message)

    def _dotted(self, name: str) -> str:
        return ".".join([*(part for part in self._key if isinstance(part, str)), name])


def either(words: tuple[str, ...]) -> str:
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
