"""Prompt for questions: a person in a second terminal decides what programs may read and execute.

One question is shown at a time. Its clock stands still for a minute after each line that is typed, so that it
goes on when nobody is there. Answers are single letters with Enter, and Enter alone means nothing but that
somebody is there. What was typed before a question was shown is no answer to it. Everything shown
may be of a hostile program's making, so that all of it is spelled out by `Terminal.show`.
"""

import os
import select
import time
from pathlib import Path

from sandboxfs.cli import output
from sandboxfs.cli.terminal import Style, Terminal
from sandboxfs.errors import UsageError
from sandboxfs.paths import counted
from sandboxfs.service.question_preview import FileHead, file_head
from sandboxfs.service.questions import (
    AnswerTerms,
    FollowedQuestions,
    OverQuestion,
    SeenProcess,
    WaitingQuestion,
    over_of,
)

# So many lines of a file, and bytes of each, are shown.
_LINES = 5
_WIDTH = 160
# A line that comes so soon after another question was put in place of the shown one was meant for that.
_TOO_SOON = 0.7
# Where questions end by themselves more often than this, the next one is shown after so many seconds.
_PAUSE = 1.0
# Who typed so many seconds ago still reads what is shown next.
_ATTENTION = 60.0

_HELP = """\
o  allow once: what waits for this path now
d  allow this directory, and all below, for the session
s  allow this path for the session; of a new program, its content wherever it is
n  deny once; what is typed behind it is told to the program: n use config.example
N  deny for the session, likewise
always, never: the word in full allows or denies the path of s, in this workspace, now and in
   later sessions: it is written to your configuration; 'sandboxfs revoke' takes it out
?  this help; with it, and with Enter alone, the clock stands still for a minute, ten in all
Ctrl-D or Ctrl-C leaves; when nobody else follows, what waits is refused then."""


class QuestionPrompt:
    """One person at one *terminal*."""

    def __init__(self, terminal: Terminal, followed: FollowedQuestions) -> None:
        self._terminal = terminal
        self._followed = followed
        self._waiting: dict[int, WaitingQuestion] = {}
        self._shown: WaitingQuestion | None = None
        self._mine: set[int] = set()
        self._displaced = float("-inf")
        self._quiet_until = float("-inf")
        self._typed = float("-inf")

    def run(self) -> None:
        """Ask until the session ends, or the person leaves."""
        waiting = select.poll()
        waiting.register(self._followed, select.POLLIN)
        waiting.register(self._terminal, select.POLLIN)
        self._terminal.say("questions appear here; Ctrl-C leaves", Style.META)
        for event in self._followed.begun:
            self._tell(event)
        try:
            self._show_next()
            while not self._followed.ended:
                ready = {descriptor for descriptor, _ in waiting.poll(self._patience())}
                # First: what was typed may be meant for a question that is over.
                if self._followed.fileno() in ready:
                    for event in self._followed.arrived():
                        self._tell(event)
                if self._terminal.fileno() in ready and not self._take_line():
                    return
                self._show_next()
        finally:
            self._leave()
        self._followed.session.check_ended()

    def _patience(self) -> int | None:
        """The milliseconds until the next question is shown; None where that depends on events only."""
        if self._shown is not None or not self._waiting:
            return None
        return max(0, int((self._quiet_until - time.monotonic()) * 1000) + 1)

    def _leave(self) -> None:
        shown, self._shown = self._shown, None
        if shown is not None:
            self._followed.session.reading(shown.id, over=True)

    def _tell(self, event: WaitingQuestion | OverQuestion) -> None:
        if isinstance(event, WaitingQuestion):
            self._waiting.setdefault(event.id, event)
            return
        self._waiting.pop(event.id, None)
        if self._shown is not None and self._shown.id == event.id:
            self._show(f"\n{ending(event)}")
            # A program that asks and gives up all the time does not scroll the terminal.
            now = time.monotonic()
            self._quiet_until = now + _PAUSE if now - self._displaced < _PAUSE else now
            self._shown, self._displaced = None, now
        elif event.id in self._mine:
            self._mine.discard(event.id)

    def _show_next(self) -> None:
        if self._shown is None and self._waiting and time.monotonic() >= self._quiet_until:
            self._shown = next(iter(self._waiting.values()))
            attended = time.monotonic() - self._typed < _ATTENTION
            if attended:
                self._followed.session.reading(self._shown.id)
            self._describe(self._shown)
            if not attended:
                self._show("    its time runs: Enter stops the clock for a minute")
            self._terminal.forget_typed()
            self._ask()

    def _ask(self) -> None:
        self._terminal.prompt("allow? [o,d,s,n,N,?]")

    def _describe(self, question: WaitingQuestion) -> None:
        more = len(self._waiting) - 1
        besides = f"  ({counted(more, 'question')} more)" if more else ""
        self._show(f"[{question.id}] {question.deed} {_path(question.path)}{besides}", Style.META)
        for line in described(question):
            self._show(f"    {line}")
        self._preview(file_head(self._followed.session, question))

    def _preview(self, found: FileHead | None) -> None:
        if found is None:
            return
        self._show(f"    {output.human_size(found.size)}" + (":" if found.head else ""))
        if b"\0" in found.head:
            self._show("    binary")
            return
        for line in found.head.split(b"\n", _LINES)[:_LINES]:
            if line:
                cut = " …" if len(line) > _WIDTH else ""
                self._terminal.show(b"    | " + line[:_WIDTH] + cut.encode())

    def _take_line(self) -> bool:
        """Do what the person typed; return whether the person stays."""
        line = self._terminal.line()
        if line is None:
            return False
        shown, self._typed = self._shown, time.monotonic()
        if shown is None:
            # Nothing is asked; or what is next is not shown yet.
            return True
        if time.monotonic() - self._displaced < _TOO_SOON:
            self._show("typed too soon after this question came up: not taken")
            self._ask()
            return True
        terms = terms_of(shown, line)
        if terms is None:
            self._followed.session.reading(shown.id)
            if line:
                self._terminal.say(_HELP)
            self._ask()
        else:
            self._answer(shown, *terms)
        return True

    def _answer(self, question: WaitingQuestion, decision: str, terms: AnswerTerms) -> None:
        self._mine.add(question.id)
        try:
            grant = self._followed.session.answer(question.id, decision, terms).grant
            if grant is not None and grant.kept is not None:
                self._show(f"[{question.id}] written to {_path(grant.kept.file)}:{grant.kept.line}")
        except UsageError as error:
            over = over_of(error)
            self._mine.discard(question.id)
            self._show(ending(over) if over is not None else error.message)
            if over is None:
                self._ask()
                return
        self._waiting.pop(question.id, None)
        self._shown = None

    def _show(self, line: str, style: Style = Style.PLAIN) -> None:
        for one in line.split("\n"):
            self._terminal.show(os.fsencode(one), style)


def terms_of(question: WaitingQuestion, line: str) -> tuple[str, AnswerTerms] | None:
    """Return what a *line*, a letter and perhaps a reason, answers; None where it is no answer."""
    key, _, reason = line.partition(" ")
    # A new program is known by its content; wherever it is, it is the same.
    itself = "path" if question.content is None else "content"
    extents = {"o": "once", "d": "directory", "s": itself, "n": "once", "N": itself}
    # Words, so that no slip of a key writes to the configuration.
    extents |= {"always": itself, "never": itself}
    denies = key in ("n", "N", "never")
    if key not in extents or (reason and not denies):
        return None
    during = "always" if key in ("always", "never") else "session"
    terms = AnswerTerms(extents[key], during, reason=reason.strip() or None)
    return "deny" if denies else "allow", terms


def described(question: WaitingQuestion) -> list[str]:
    """Say who asks, which rule asks, and since when; a name in it may hold anything."""
    program = question.program
    called = program.argv0 or ""
    by = f"by {process(program)}" + (f" {_path(program.exe)}" if program.exe else "")
    lines = [by + (f", called {_path(called)}" if called not in ("", program.exe, program.command) else "")]
    if program.parents:
        lines.append("started by " + ", ".join(map(process, program.parents)))
    if question.mode is None:
        lines.append(f"asked by rule '{question.rule}' ({question.rule.source})")
    if question.reason is not None:
        lines.append(f"it says: {question.reason}")
    if question.problem is not None:
        lines.append(f"cannot be shown: {question.problem}")
    waiting = f", {counted(question.requests, 'open')} waiting" if question.requests > 1 else ""
    others = f", {counted(question.more, 'path')} more in its directory" if question.more else ""
    lines.append(f"since {output.local_time(question.since)}{waiting}{others}")
    return lines


def ending(over: OverQuestion) -> str:
    """Say how a question ended, and who answered."""
    by = "" if over.by is None else f" by {over.by.command or '?'}[{over.by.pid}]"
    why = f": {over.reason}" if over.reason else ""
    words = {
        "timeout": "refused: nobody answered in time",
        "withdrawn": "withdrawn: nobody waits for it any more, or nothing asks about it",
        "ended": "refused: the session ends",
    }
    return f"[{over.id}] {words.get(over.outcome, over.outcome)}{by}{why}"


def process(seen: SeenProcess) -> str:
    """Name a process for a person."""
    return f"{seen.command or '?'}[{'?' if seen.pid is None else seen.pid}]"


def _path(path: str) -> str:
    return output.shown(Path(path))
