"""How does a command talk with the person in front of it?

Through the terminal itself, whatever stdin and stdout are. What is shown was written by the program in the
sandbox, so nothing of it reaches the terminal that could move the cursor, hide or reorder text: whatever is
not plainly visible is spelled out.
"""

import io
import locale
import os
import sys
from collections.abc import Mapping
from enum import StrEnum
from types import TracebackType

from sandboxfs.errors import UsageError

_DEVICE = "/dev/tty"


class Style(StrEnum):
    """How something looks, in a terminal that has colours."""

    PLAIN = ""
    META = "1"
    PLACE = "36"
    REMOVED = "31"
    ADDED = "32"
    PROMPT = "1;34"
    TROUBLE = "1;31"


class Terminal:
    """An open terminal; it is left by the one who opened it."""

    def __init__(self, descriptor: int, environment: Mapping[str, str] = os.environ) -> None:
        """Take *descriptor* over; the *environment* says whether there are colours."""
        self._file = io.FileIO(descriptor, "r+")
        self._lines = io.BufferedReader(self._file)
        self._colours = wants_colours(environment)

    @classmethod
    def open(cls, purpose: str, hint: str | None = None) -> "Terminal":
        """Open the terminal of this process, or the one on stdin; `UsageError` where there is none."""
        for name in (_DEVICE, _name_of_stdin()):
            try:
                if name is not None:
                    # O_NOCTTY: a terminal that is only looked at must not begin to send signals.
                    return cls(os.open(name, os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC))
            except OSError:
                continue
        raise UsageError(f"cannot {purpose}: there is no terminal to ask on", hint=hint)

    def __enter__(self) -> "Terminal":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._lines.close()

    def fileno(self) -> int:
        """Return the descriptor, for a program that is to use the terminal meanwhile."""
        return self._file.fileno()

    def say(self, text: str, style: Style = Style.PLAIN) -> None:
        """Show *text*, of our own making, as one line or several."""
        self._write(self._styled(text, style) + "\n")

    def show(self, line: bytes, style: Style = Style.PLAIN) -> None:
        """Show *line*, of anybody's making, with what is not visible spelled out."""
        marks = ("\x1b[7m", "\x1b[27m") if self._colours else ("", "")
        self.say(visible(line.removesuffix(b"\n"), *marks), style)

    def ask(self, prompt: str, style: Style = Style.PROMPT) -> str | None:
        """Show *prompt* and return the line that is answered, stripped; None at the end of input."""
        self._write(self._styled(prompt, style) + " ")
        try:
            line = self._lines.readline()
        except KeyboardInterrupt:
            self._write("\n")
            raise
        except OSError as error:
            raise UsageError(f"cannot read from the terminal: {error.strerror}") from error
        if not line:
            self._write("\n")
            return None
        return line.decode(errors="surrogateescape").strip()

    def _styled(self, text: str, style: Style) -> str:
        return f"\x1b[{style}m{text}\x1b[m" if style and text and self._colours else text

    def _write(self, text: str) -> None:
        data = memoryview(text.encode(locale.getpreferredencoding(False), "backslashreplace"))
        while data:
            data = data[os.write(self._file.fileno(), data) :]


def wants_colours(environment: Mapping[str, str]) -> bool:
    """Whether a terminal with this *environment* has colours, and its person wants them."""
    return not environment.get("NO_COLOR") and environment.get("TERM", "dumb") != "dumb"


def visible(data: bytes, before: str = "", after: str = "") -> str:
    """Decode *data*, with every byte and character that cannot be seen spelled out between the two marks."""
    text = data.decode(errors="surrogateescape")
    if text.replace("\t", "").isprintable():
        return text
    shown = (
        character if character.isprintable() or character == "\t" else f"{before}{_spelled(character)}{after}"
        for character in text
    )
    return "".join(shown)


def _spelled(character: str) -> str:
    if "\udc80" <= character <= "\udcff":
        return f"\\x{ord(character) - 0xDC00:02x}"
    return character.encode("unicode_escape").decode("ascii")


def _name_of_stdin() -> str | None:
    try:
        return os.ttyname(sys.__stdin__.fileno()) if sys.__stdin__ is not None else None
    except (OSError, ValueError):
        return None
