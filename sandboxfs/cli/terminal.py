"""The terminal: questions, progress, Ctrl-C, and text that is not trusted.

Through the terminal itself, whatever stdin and stdout are. What is shown was written by the program in the
sandbox, so nothing of it reaches the terminal that could move the cursor, hide or reorder text: whatever is
not plainly visible is spelled out.

Up to the moment of the change they are taken as usual, and what was prepared is taken back. From then on they
wait until the change is complete: it takes a moment, and half of it would be worse than either end.

Nowhere else: in a pipe, a log or a test nobody looks at it.
"""

import io
import locale
import os
import signal
import sys
import termios
import time
from collections.abc import Callable, Iterable, Mapping
from enum import StrEnum
from functools import partial
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Self, TextIO

from sandboxfs.cli.output import human_size, local_time, note
from sandboxfs.errors import UsageError
from sandboxfs.paths import invisible_in, quoted
from sandboxfs.service.events import NO, YES, CallerContext, Prompt, SandboxPrompt, Unattended
from sandboxfs.service.workspace import current_directory

if TYPE_CHECKING:
    from sandboxfs.service.pick import Picking

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
        self.prompt(prompt, style)
        return self.line()

    def prompt(self, prompt: str, style: Style = Style.PROMPT) -> None:
        """Show *prompt*; what is typed is for `line`."""
        self._write(self._styled(prompt, style) + " ")

    def forget_typed(self) -> None:
        """Drop what was typed and not read: it was meant for something else."""
        termios.tcflush(self._file.fileno(), termios.TCIFLUSH)

    def line(self) -> str | None:
        """Return the next line that is typed, stripped; None at the end of input."""
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
    hidden = invisible_in(text)
    if not hidden and text.replace("\t", "").isprintable():
        return text
    shown = (
        character
        if (character.isprintable() or character == "\t") and place not in hidden
        else f"{before}{_spelled(character)}{after}"
        for place, character in enumerate(text)
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


def can_ask() -> bool:
    """Say whether a person sits at the terminal."""
    return sys.stdin.isatty() and sys.stderr.isatty()


def check_can_ask(verb: str, *, as_json: bool) -> None:
    """Raise unless there is a person to be asked; to be called where there is something to be asked about."""
    if as_json or not can_ask():
        raise UsageError(
            f"refusing to {verb} without being asked to by a person",
            hint=f"look with 'sandboxfs {verb} --dry-run', then use --yes",
        )


def confirmed(question: str) -> bool:
    """Ask *question* on the terminal; anything but yes is no."""
    sys.stderr.write(f"{question} [y/N] ")
    sys.stderr.flush()
    answer = sys.stdin.readline()
    if not answer:
        sys.stderr.write("\n")
    return answer.strip().lower() in ("y", "yes")


_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interrupts:
    """Turns signals into KeyboardInterrupt inside a with statement, until `hold` is called."""

    def __init__(self) -> None:
        self._held = False
        self._restore: list[Callable[[], object]] = []

    def hold(self) -> None:
        """Let everything wait from now on, to the end of the with statement."""
        self._held = True

    def __enter__(self) -> "Interrupts":
        for number in _SIGNALS:
            before = signal.signal(number, self._caught)
            # None: set by somebody else than Python, who cannot be given it back.
            self._restore.append(partial(signal.signal, number, signal.SIG_DFL if before is None else before))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for restore in self._restore:
            restore()

    def _caught(self, _number: int, _frame: FrameType | None) -> None:
        if not self._held:
            raise KeyboardInterrupt


_PATIENCE = 1.0
_INTERVAL = 0.1
_CLEAR = "\r\x1b[K"


class Progress:
    """A line that tells how much is done, in bytes or in things; gone at the end of the with statement."""

    def __init__(
        self,
        doing: str,
        stream: TextIO | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._doing = doing
        self._stream = sys.stderr if stream is None else stream
        self._clock = clock
        self._shows = self._stream.isatty()
        self._next = clock() + _PATIENCE
        self._shown = False
        self._done = 0
        self.total: int | None = None

    def __enter__(self) -> "Progress":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._shown:
            self._stream.write(_CLEAR)
            self._stream.flush()

    def phase(self, doing: str, total: int | None = None) -> None:
        """Begin to do something else."""
        self._doing, self._done, self.total = doing, 0, total

    def advance(self, count: int) -> None:
        """Note that *count* more bytes are dealt with."""
        self._done += count
        if self._is_due():
            self._show(self._amount())

    def __call__(self, done: int, total: int) -> None:
        """Note that *done* of *total* things are dealt with."""
        if self._is_due():
            self._show(f"{done:,} of {max(done, total):,}")

    def _is_due(self) -> bool:
        return self._shows and self._clock() >= self._next

    def _show(self, amount: str) -> None:
        self._next = self._clock() + _INTERVAL
        self._shown = True
        self._stream.write(f"{_CLEAR}{self._doing}: {amount}")
        self._stream.flush()

    def _amount(self) -> str:
        if not self.total:
            return human_size(self._done)
        share = min(100, self._done * 100 // self.total)
        return f"{human_size(self._done)} of {human_size(self.total)} ({share} %)"


def caller_context(*, as_json: bool) -> CallerContext:
    """Say where this command stands; one that answers *as_json* answers a program."""
    return CallerContext(current_directory(), os.environ, is_program=as_json)


class TerminalEvents(Unattended):
    """Events of a command, on its terminal; a line of progress is gone at the end of the with statement."""

    def __init__(self) -> None:
        self._progress: Progress | None = None
        self._phase: tuple[str, int | None] | None = None
        self._told = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._progress is not None:
            self._progress.__exit__(kind, error, trace)

    def note(self, text: str) -> None:
        note(text)

    def progress(self, done: int, total: int | None, what: str, *, in_bytes: bool = False) -> None:
        if self._progress is None:
            self._progress = Progress(what)
        if not in_bytes:
            self._progress(done, total or done)
            return
        if self._phase != (what, total) or done < self._told:
            self._phase, self._told = (what, total), 0
            self._progress.phase(what, total)
        self._progress.advance(done - self._told)
        self._told = done

    def ask(self, prompt: Prompt) -> str | None:
        if isinstance(prompt, SandboxPrompt):
            return ask_which_sandbox(prompt) if can_ask() else None
        return YES if confirmed(prompt.text) else NO

    def interruptible(self) -> Interrupts:
        return Interrupts()


class PreviewEvents(TerminalEvents):
    """Events of a *verb* that shows what will be done before it asks whether to do it.

    *preview* gives the lines to show before a question; None where the question is about something else.
    """

    def __init__(
        self, verb: str, preview: Callable[[Prompt], Iterable[str] | None], *, as_json: bool
    ) -> None:
        super().__init__()
        self._verb = verb
        self._preview = preview
        self._as_json = as_json

    def ask(self, prompt: Prompt) -> str | None:
        lines = self._preview(prompt)
        if lines is not None:
            check_can_ask(self._verb, as_json=self._as_json)
            for line in lines:
                note(line)
        return super().ask(prompt)


def ask_hunks(picking: "Picking") -> None:
    """Ask all questions of *picking* on the terminal."""
    # Imported here: it takes longer than all else, and few ask for it.
    from sandboxfs.cli.pick import ask_by_hunk

    ask_by_hunk(picking)


def ask_which_sandbox(prompt: SandboxPrompt) -> str:
    """Return the name that is typed, or that the number typed stands for; or whatever else is typed."""
    for number, one in enumerate(prompt.candidates, 1):
        used = local_time(one.used)
        note(f"  {number}  {one.name}  (last used {used}, of {quoted(one.workspace)})")
    sys.stderr.write(f"{prompt.text} [1-{len(prompt.choices)}] ")
    sys.stderr.flush()
    answer = sys.stdin.readline().strip()
    if answer in prompt.choices:
        return answer
    if answer.isascii() and answer.isdecimal() and 1 <= int(answer) <= len(prompt.choices):
        return prompt.choices[int(answer) - 1]
    return answer
