"""Picking hunks at the terminal, for `commit -p` and `discard -p`, with the keys of `git add -p`.

The end of input quits: what was taken before stays taken. Ctrl-C is not caught, so that nothing is done at
all.

A hunk is edited as a file in a private directory that exists only meanwhile. The editor is the one that the
person's environment names, never one that a workspace asks for, and it works in that directory: neither a
relative PATH nor a configuration file where the person is can make it run something from a workspace.
"""

import os
import shlex
import signal
import subprocess
import tempfile
import termios
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from sandboxfs.cli.terminal import Style, Terminal
from sandboxfs.paths import make_directories, quoted
from sandboxfs.review.hunks import text_lines
from sandboxfs.service.pick import (
    BadEdit,
    CannotAnswer,
    Picking,
    Question,
    comment_lines,
    editing_directory,
    without_comments,
)

_FALLBACK = "vi"


class EditorFailed(Exception):
    """The editor did not do its work; the message says why."""


def edit(text: bytes, name: str, terminal: int, environment: Mapping[str, str] = os.environ) -> bytes:
    """Return what the person made of *text*, in a file called *name*, with the editor on *terminal*."""
    named = environment.get("VISUAL") or environment.get("EDITOR") or _FALLBACK
    try:
        words = shlex.split(named)
    except ValueError as error:
        raise EditorFailed(f"cannot understand the editor {quoted(named)}: {error}") from None
    with _private_directory(environment) as folder:
        file = folder / name
        try:
            file.write_bytes(text)
            _run([*words, str(file)], folder, terminal)
            return file.read_bytes()
        except OSError as error:
            raise EditorFailed(f"cannot give {quoted(file)} to the editor: {error.strerror}") from error


@contextmanager
def _private_directory(environment: Mapping[str, str]) -> Iterator[Path]:
    # Not in TMPDIR, which may lie anywhere.
    parent = editing_directory(environment)
    try:
        make_directories(parent)
        made = tempfile.TemporaryDirectory(dir=parent, ignore_cleanup_errors=True)
    except OSError as error:
        raise EditorFailed(f"cannot make a file to edit in {quoted(parent)}: {error.strerror}") from error
    with made as folder:
        yield Path(folder)


def _run(command: list[str], folder: Path, terminal: int) -> None:
    attributes = termios.tcgetattr(terminal)
    try:
        with _signals_for_the_editor():
            ending = subprocess.run(
                command, cwd=folder, stdin=terminal, stdout=terminal, stderr=terminal, check=False
            )
    except OSError as error:
        raise EditorFailed(f"cannot run the editor {quoted(command[0])}: {error.strerror}") from error
    finally:
        # An editor that died may have left the terminal without echo or lines.
        termios.tcsetattr(terminal, termios.TCSADRAIN, attributes)
    if ending.returncode < 0:
        name = signal.Signals(-ending.returncode).name
        raise EditorFailed(f"the editor {quoted(command[0])} was ended by {name}")
    if ending.returncode:
        raise EditorFailed(f"the editor {quoted(command[0])} ended with status {ending.returncode}")


@contextmanager
def _signals_for_the_editor() -> Iterator[None]:
    """Leave Ctrl-C and Ctrl-\\ to the editor, which may use them as keys."""

    def nothing(number: int, frame: FrameType | None) -> None:
        # Not SIG_IGN: that would be inherited by the editor.
        return

    before = {number: signal.signal(number, nothing) for number in (signal.SIGINT, signal.SIGQUIT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


_FILE_NAME = "hunk.diff"
_LISTED_AT_ONCE = 20
_STYLES = {
    b"@": Style.PLACE,
    b"-": Style.REMOVED,
    b"+": Style.ADDED,
    b" ": Style.PLAIN,
    b"\\": Style.PLAIN,
}

_HELP = {
    "y": "{verb} {what}",
    "n": "do not {verb} {what}",
    "q": "quit: {verb} nothing more, neither this nor what is still undecided",
    "a": "{verb} {what}, and all later ones of this path",
    "d": "{verb} neither this nor any later one of this path",
    "j": "leave this undecided, see the next undecided one",
    "J": "leave this undecided, see the next one",
    "k": "leave this undecided, see the previous undecided one",
    "K": "leave this undecided, see the previous one",
    "g": "go to one by its number",
    "/": "search for one that matches a pattern",
    "s": "split this hunk into smaller ones",
    "e": "edit this hunk by hand, and {verb} the result",
    "p": "print this again",
    "?": "print this help",
}

# Five lines at either end: editors look that far for commands to them, which the text between may hold.
_GUIDE_ABOVE = """\
Edit this hunk to {verb} only a part of it; how is explained below it.

{outcome}
Remove all lines to leave the hunk as it is.

"""
_GUIDES_BELOW: dict[str, str] = {
    "commit": """\

To leave out a '-' line (keep what it removes), make the '-' a blank.
To leave out a '+' line, delete it.
Other lines must stay as they are; new '+' lines may be added.
Lines that start with # are ignored.
""",
    "discard": """\

To keep a '+' line in the sandbox, make the '+' a blank.
To keep a '-' line removed, delete it.
Other lines must stay as they are; new '-' lines may be added.
Lines that start with # are ignored.
""",
}


def open_terminal(verb: str) -> Terminal:
    """Open the terminal to ask on; `UsageError` where there is none."""
    hint = f"name hunks with '{verb} --hunk ID'; 'sandboxfs diff --json' shows their ids"
    return Terminal.open(f"{verb} by hunk", hint)


def ask_by_hunk(picking: Picking) -> None:
    """Ask all questions of *picking* on the terminal."""
    with open_terminal(picking.verb) as terminal:
        pick(picking, terminal)


def pick(picking: Picking, terminal: Terminal) -> None:
    """Ask all questions of *picking* on *terminal*."""
    asker = _Asker(picking, terminal)
    while (question := picking.question) is not None:
        asker.ask(question)


class _Asker:
    """Shows questions, and understands what is typed."""

    def __init__(self, picking: Picking, terminal: Terminal) -> None:
        self._picking = picking
        self._verb: str = picking.verb
        self._terminal = terminal
        self._position = 0
        self._text: tuple[int, bytes] | None = None

    def ask(self, question: Question) -> None:
        """Ask once, and do what is answered."""
        self._show(question)
        line = self._terminal.ask(_prompt(question, self._verb))
        if line is None:
            self._picking.answer("q")
        elif line:
            self._do(line, question)

    def _do(self, line: str, question: Question) -> None:
        letter, argument = line[0], line[1:].strip()
        if letter not in question.letters and letter.lower() in "ynqadgsep":
            letter = letter.lower()
        if argument and letter not in "g/":
            self._complain(f"One letter is expected, not '{line}'.")
            return
        match letter:
            case "?":
                self._help(question)
            case "p":
                self._text = None
            case "e" if "e" in question.letters:
                self._edit(question)
            case "g" | "/" if letter in question.letters and not argument:
                self._answer_with_more(letter)
            case _:
                self._answer(letter, argument)

    def _show(self, question: Question) -> None:
        """Show the part that is asked about, unless it is what was shown last."""
        if question.position != self._position:
            for line in question.header:
                self._terminal.show(line, Style.META)
            self._position, self._text = question.position, None
        if self._text != (question.number, question.part.text):
            for line in text_lines(question.part.text):
                self._terminal.show(line, _style(line))
            self._text = question.number, question.part.text

    def _answer_with_more(self, letter: str) -> None:
        """Ask for what the letter needs; nothing typed takes the letter back."""
        argument = self._ask_where() if letter == "g" else self._terminal.ask("search for pattern?")
        if argument:
            self._answer(letter, argument)

    def _ask_where(self) -> str | None:
        lines = self._picking.overview()
        while True:
            for line in lines[:_LISTED_AT_ONCE]:
                self._terminal.show(line)
            del lines[:_LISTED_AT_ONCE]
            answer = self._terminal.ask(f"go to which number{' (Enter shows more)' if lines else ''}?")
            if answer != "" or not lines:
                return answer

    def _edit(self, question: Question) -> None:
        """Have the hunk edited until it fits or the person gives up."""
        body, outcome = question.part.text, f"What is left of it is marked to {self._verb}."
        while True:
            guided = _guided(body, self._verb, outcome)
            # An editor may leave nothing of what was on the screen.
            self._text = None
            try:
                text = edit(guided, _FILE_NAME, self._terminal.fileno())
            except EditorFailed as failure:
                self._complain(f"The hunk stays as it was: {failure}.")
                return
            try:
                if not self._picking.edit(text):
                    self._terminal.say("Nothing is left of the hunk: it stays as it was.")
                return
            except BadEdit as reason:
                self._complain(f"The edited hunk cannot be used: {reason}.")
                body, outcome = without_comments(text), f"It could not be used: {reason}."
            if not self._wants("Edit again ('n' leaves the hunk as it was)"):
                return

    def _wants(self, question: str) -> bool:
        while True:
            answer = self._terminal.ask(f"{question} [y,n]?")
            if answer is None or answer.lower() in ("y", "n"):
                return answer is not None and answer.lower() == "y"

    def _help(self, question: Question) -> None:
        for letter in question.letters:
            words = _HELP[letter].format(verb=self._verb, what=_what(question))
            self._terminal.say(f"{letter} - {words}")

    def _answer(self, letter: str, argument: str) -> None:
        try:
            sentence = self._picking.answer(letter, argument)
        except CannotAnswer as refusal:
            self._complain(str(refusal))
            return
        if sentence:
            self._terminal.say(sentence, Style.META)

    def _complain(self, sentence: str) -> None:
        self._terminal.show(sentence.encode(errors="surrogateescape"), Style.TROUBLE)


def _prompt(question: Question, verb: str) -> str:
    decided = question.part.taken
    was = "" if decided is None else f" (was: {'y' if decided else 'n'})"
    what, letters = _what(question), ",".join(question.letters)
    return f"({question.number}/{question.count}) {verb.capitalize()} {what}{was} [{letters}]?"


def _what(question: Question) -> str:
    """Name what is asked about."""
    return f"this {question.part.subject}{' and all that changed in it' if question.takes_all else ''}"


def _style(line: bytes) -> Style:
    return _STYLES.get(line[:1], Style.META)


def _guided(body: bytes, verb: str, outcome: str) -> bytes:
    """Put *body* between comments that say what to do with it."""
    above = comment_lines(_GUIDE_ABOVE.format(verb=verb, outcome=outcome))
    return b"".join((*above, body, *comment_lines(_GUIDES_BELOW[verb])))
