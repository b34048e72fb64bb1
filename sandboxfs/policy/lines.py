"""On which line of a TOML document is a key written?

`tomllib` does not say, and a complaint or a rule's source must. The scanner here reads only documents that
`tomllib` has accepted; it follows tables, arrays of tables, dotted and quoted keys, inline tables, arrays and
strings of every kind, and understands nothing else.
"""

import re
import tomllib

# A key as seen from the top: names of tables and keys, and numbers of elements in arrays.
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
        # How often each array of tables was opened so far.
        self._counts: dict[Key, int] = {}
        # Where the line was last counted up to, so that a long document is read once.
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
