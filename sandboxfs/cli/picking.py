"""How is a person asked which hunks to commit or to discard?

`commit -p` and `discard -p`, with the keys of `git add -p`: what is asked and what an answer means is in
`changes.picking`; here it is shown, read, and edited. The end of input quits: what was taken before stays
taken. Ctrl-C is not caught, so that nothing is done at all.
"""

from collections.abc import Iterable, Iterator

from sandboxfs.changes.choice import Choice, Verb
from sandboxfs.changes.editing import COMMENT, BadEdit, without_comments
from sandboxfs.changes.hunks import text_lines
from sandboxfs.changes.offering import Item, Subject
from sandboxfs.changes.picking import CannotAnswer, Picking, Question
from sandboxfs.cli import editor
from sandboxfs.cli.terminal import Style, Terminal

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
_GUIDES_BELOW: dict[Verb, str] = {
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


def open_terminal(verb: Verb) -> Terminal:
    """Open the terminal to ask on; `UsageError` where there is none."""
    hint = f"name hunks with '{verb} --hunk ID'; 'sandboxfs diff --json' shows their ids"
    return Terminal.open(f"{verb} by hunk", hint)


def pick(items: Iterable[Item], verb: Verb, terminal: Terminal) -> Choice:
    """Ask about *items* and return what was chosen; an item is made only when its turn comes."""
    picking = Picking(items, verb)
    asker = _Asker(picking, verb, terminal)
    while (question := picking.question) is not None:
        asker.ask(question)
    return picking.choice


class _Asker:
    """Shows questions, and understands what is typed."""

    def __init__(self, picking: Picking, verb: Verb, terminal: Terminal) -> None:
        self._picking = picking
        self._verb: Verb = verb
        self._terminal = terminal
        self._item: Item | None = None
        self._text: tuple[int, bytes] | None = None

    def ask(self, question: Question) -> None:
        """Ask once, and do what is answered."""
        self._show(question)
        line = self._terminal.ask(_prompt(question, self._verb))
        try:
            if line is None:
                self._picking.answer("q")
            elif line:
                self._do(line, question)
        except CannotAnswer as refusal:
            self._complain(str(refusal))

    def _do(self, line: str, question: Question) -> None:
        letter, argument = line[0], line[1:].strip()
        if letter not in question.letters and letter.lower() in "ynqadgsep":
            letter = letter.lower()
        if argument and letter not in "g/":
            raise CannotAnswer(f"One letter is expected, not '{line}'.")
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
                self._tell(self._picking.answer(letter, argument))

    def _show(self, question: Question) -> None:
        """Show the part that is asked about, unless it is what was shown last."""
        if question.item is not self._item:
            for line in question.item.header:
                self._terminal.show(line, Style.META)
            self._item, self._text = question.item, None
        if self._text != (question.number, question.text):
            for line in text_lines(question.text):
                self._terminal.show(line, _style(line))
            self._text = question.number, question.text

    def _answer_with_more(self, letter: str) -> None:
        """Ask for what the letter needs; nothing typed takes the letter back."""
        argument = self._ask_where() if letter == "g" else self._terminal.ask("search for pattern?")
        if argument:
            self._tell(self._picking.answer(letter, argument))

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
        body, outcome = question.text, f"What is left of it is marked to {self._verb}."
        while True:
            guided = _guided(body, self._verb, outcome)
            # An editor may leave nothing of what was on the screen.
            self._text = None
            try:
                text = editor.edit(guided, _FILE_NAME, self._terminal.fileno())
            except editor.EditorFailed as failure:
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
            words = _HELP[letter].format(verb=self._verb, what=_what(question, self._verb))
            self._terminal.say(f"{letter} - {words}")

    def _tell(self, sentence: str) -> None:
        if sentence:
            self._terminal.say(sentence, Style.META)

    def _complain(self, sentence: str) -> None:
        self._terminal.show(sentence.encode(errors="surrogateescape"), Style.TROUBLE)


def _prompt(question: Question, verb: Verb) -> str:
    was = "" if question.was is None else f" (was: {'y' if question.was else 'n'})"
    what, letters = _what(question, verb), ",".join(question.letters)
    return f"({question.number}/{question.count}) {verb.capitalize()} {what}{was} [{letters}]?"


def _what(question: Question, verb: Verb) -> str:
    """Name what is asked about; without its rename nothing of a file's changes has a place."""
    all_of_it = question.subject is Subject.RENAME and verb == "discard" and question.count > 1
    return f"this {question.subject}{' and all that changed in it' if all_of_it else ''}"


def _style(line: bytes) -> Style:
    return _STYLES.get(line[:1], Style.META)


def _guided(body: bytes, verb: Verb, outcome: str) -> bytes:
    """Put *body* between comments that say what to do with it."""
    above = _commented(_GUIDE_ABOVE.format(verb=verb, outcome=outcome))
    return b"".join((*above, body, *_commented(_GUIDES_BELOW[verb])))


def _commented(text: str) -> Iterator[bytes]:
    for line in text.splitlines():
        yield (COMMENT + b" " + line.encode(errors="backslashreplace")).rstrip() + b"\n"
