"""The Python API: a sandbox as a block, the programs run in it, and the review of what they changed.

    with Sandbox("~/projects/app", rules=["**/.env*=hide"]) as sandbox:
        done = sandbox.run(["make", "test"])
        for change in sandbox.changes():
            print(change)
        if done.returncode == 0:
            sandbox.commit()

The block holds the view. Each program has a runner process of its own, so that any thread may start one and
several may run at once; nothing here forks, handles a signal or changes the current directory. Every failure
is a `SandboxError` of a kind that `sandboxfs` exports, an argument of the wrong type included.
"""

import os
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Literal
from weakref import WeakSet

from sandboxfs.api.arguments import Words, check_kind, failures, text_of, texts_of
from sandboxfs.api.block_programs import BlockPrograms, encoded
from sandboxfs.api.question_feed import (
    Answer,
    AnswerWord,
    OnQuestion,
    QuestionFeed,
    QuestionHandler,
    answer_of,
    note_failure,
    number_of,
)
from sandboxfs.errors import DaemonLost, NoSuchSandbox, SandboxError, UsageError
from sandboxfs.policy.config import PolicyRequest
from sandboxfs.runs.open_run import OpenRun, RunOpener
from sandboxfs.runs.run import Change, deeds, weaknesses
from sandboxfs.runs.run_views import (
    NOTHING_SEEN,
    Denied,
    RunRequest,
    RunStart,
    begin,
    confinement_called,
    home_called,
    observed,
    variables_of,
)
from sandboxfs.runs.running_program import Program, Stream
from sandboxfs.service.events import CallerContext, Unattended
from sandboxfs.service.questions import OverQuestion, ShownGrant, WaitingQuestion
from sandboxfs.service.remove import remove_made
from sandboxfs.service.select import ListedSandbox, exists, sandbox_called, sandboxes
from sandboxfs.service.workspace import current_directory, user_path

__all__ = [
    "Answer",
    "Change",
    "Denied",
    "ListedSandbox",
    "OverQuestion",
    "Program",
    "QuestionFeed",
    "Sandbox",
    "SandboxError",
    "ShownGrant",
    "WaitingQuestion",
]

# What paths that no rule names may be used for.
_MODES = ("ro", "rw")
PIPE, DEVNULL, STDOUT = subprocess.PIPE, subprocess.DEVNULL, subprocess.STDOUT

ModeWord = Literal["ro", "rw"]
HomeWord = Literal["private", "cow", "none"]
ConfineWord = Literal["auto", "bubblewrap", "landlock", "none"]
ConflictWord = Literal["fail", "merge", "skip", "ours", "theirs"]


_open: "WeakSet[Sandbox]" = WeakSet()


def _leave_to_parent() -> None:
    """Have what was forked from a program with open blocks not keep their views, when the program ends."""
    for sandbox in list(_open):
        sandbox._leave_to_parent()


os.register_at_fork(after_in_child=_leave_to_parent)


class Sandbox:
    """A sandbox of one workspace, mounted while its block is open; the changes stay in it afterwards.

    While the block is open, any thread may use it, and several programs may run at once. The block is of the
    process that entered it. One that is forked from it may run programs in the view as well, each of which
    ends with the process that runs it, but does not keep the view.
    """

    def __init__(
        self,
        workspace: Words,
        *,
        name: str | None = None,
        rules: Sequence[str] = (),
        allow: Sequence[str] = (),
        mode: ModeWord | None = None,
        network: bool = False,
        home: HomeWord = "private",
        confine: ConfineWord = "auto",
        env: Sequence[str] = (),
        resume: bool = False,
        new: bool = False,
        ephemeral: bool = False,
    ) -> None:
        """Prepare a sandbox of *workspace*; nothing happens before the block begins.

        *name* means that sandbox; without it the one of the workspace is meant, or one is made. One that
        holds changes already is refused unless *resume* is true: they would be committed with those of this
        block. With *new* another sandbox is made, also where there is one. An *ephemeral* one is new as well,
        and is removed at the end of the block with all changes that were not committed. *rules* are
        `PATTERN=MODE`, *allow* are `PATH[:MODE]`, *env* are `NAME[=VALUE]`, as on the command line, and so
        are the words of *mode*, *home* and *confine*.
        """
        if resume and (new or ephemeral):
            raise UsageError("resume=True goes on with changes, and a new sandbox has none: choose")
        if mode is not None and mode not in _MODES:
            raise UsageError(f"mode: expected one of {', '.join(_MODES)}, found {mode!r}")
        self._resume = resume
        self._ephemeral = ephemeral
        self._request = RunRequest(
            workspace=str(user_path(text_of("workspace", workspace))),
            sandbox=None if name is None else text_of("name", name),
            new=new or ephemeral,
            policy=PolicyRequest(
                mode=mode,
                rules=texts_of("rules", rules),
                allows=texts_of("allow", allow),
                roots=True,
            ),
            confine=confinement_called(confine),
            network=network,
            home=home_called(home),
            variables=variables_of(texts_of("env", env)),
        )
        self._opener: RunOpener | None = None
        self._session: OpenRun | None = None
        self._beginning: RunStart | None = None
        self._environment: dict[str, str] = {}
        self._warnings: list[str] = []
        self._programs = BlockPrograms()
        self._feeds: WeakSet[QuestionFeed] = WeakSet()

    # All sandboxes

    @classmethod
    def create(
        cls,
        workspace: Words,
        *,
        name: str | None = None,
        rules: Sequence[str] = (),
        allow: Sequence[str] = (),
        mode: ModeWord | None = None,
        network: bool = False,
        home: HomeWord = "private",
        confine: ConfineWord = "auto",
        env: Sequence[str] = (),
    ) -> "Sandbox":
        """Return a sandbox that is made when its block begins, called *name*, which must be free."""
        if name is not None and exists(text_of("name", name), os.environ):
            raise UsageError(f"there is a sandbox '{name}' already", hint="use Sandbox.open(name)")
        return cls(
            workspace,
            name=name,
            rules=rules,
            allow=allow,
            mode=mode,
            network=network,
            home=home,
            confine=confine,
            env=env,
            new=True,
        )

    @classmethod
    def open(
        cls,
        name: str,
        *,
        network: bool = False,
        home: HomeWord = "private",
        confine: ConfineWord = "auto",
        env: Sequence[str] = (),
    ) -> "Sandbox":
        """Return the sandbox called *name*, to go on in it under the rules that it has.

        `NoSuchSandbox` when there is none.
        """
        found = sandbox_called(text_of("name", name), os.environ)
        return cls(
            found.workspace, name=name, network=network, home=home, confine=confine, env=env, resume=True
        )

    @staticmethod
    def list() -> tuple[ListedSandbox, ...]:
        """Return all sandboxes, the last used first."""
        return sandboxes(os.environ)

    @staticmethod
    def remove(name: str, *, force: bool = False) -> None:
        """Remove the sandbox called *name*; one that holds changes only by *force*."""
        _remove(text_of("name", name), os.environ, force=force)

    # The block

    def __enter__(self) -> "Sandbox":
        if self._session is not None:
            raise UsageError("the sandbox is open already: its block cannot be entered twice")
        with failures("open the sandbox"):
            self._environment = dict(os.environ)
            begun = time.time_ns()
            self._opener = RunOpener(self._request, self._environment)
            self._session = self._opener.__enter__()
            _open.add(self)
            self._beginning = begin([self._session.view], begun)[0]
        try:
            self._warnings = [line for view in self._session.views for line in view.warnings]
            self._warnings += weaknesses(self._session)
            # A variable that is missing is told now, not by the first program.
            self._session.program_environment()
            self._check_leftovers()
        except BaseException:
            self.close()
            raise
        return self

    def _leave_to_parent(self) -> None:
        self._programs.leave_to_parent()
        for feed in list(self._feeds):
            feed.leave_to_parent()
        if self._session is not None:
            for view in self._session.views:
                view.leave_to_parent()

    def _check_leftovers(self) -> None:
        left = 0 if self._resume else len(self.changes())
        if left:
            raise UsageError(
                f"sandbox '{self.name}' holds changes from before: {left:,}",
                hint="go on with them by Sandbox(…, resume=True), or drop them: "
                f"sandboxfs discard -s {self.name} --all",
                details={"name": self.name, "changes": left},
            )

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the block: programs that still run are ended, and the view goes. May be called twice."""
        self._programs.end()
        for feed in list(self._feeds):
            feed.close()
        opener, session, beginning = self._opener, self._session, self._beginning
        self._opener = self._session = self._beginning = None
        if opener is None:
            return
        with failures("close the sandbox"):
            seen = None if beginning is None else observed(beginning, end=True)
            opener.__exit__()
            if session is None:
                return
            if self._ephemeral:
                with suppress(NoSuchSandbox):
                    _remove(session.name, self._environment, force=True)
            elif seen == NOTHING_SEEN:
                # A block that left nothing leaves no sandbox.
                remove_made(session.views)

    @property
    def name(self) -> str:
        """What the sandbox is called, for the verbs of the command line."""
        return self._opened().name

    @property
    def view(self) -> Path:
        """Where the view can be looked at from outside; programs in it see it at the workspace's own path."""
        return self._opened().view.record.mountpoint

    @property
    def warnings(self) -> tuple[str, ...]:
        """Say what about the policy or the confinement may not be meant as it is."""
        return tuple(self._warnings)

    # Programs

    def run(
        self,
        command: Sequence[Words],
        *,
        cwd: Words | None = None,
        env: Mapping[str, str] | None = None,
        input: str | None = None,  # noqa: A002 - as in subprocess
        capture_output: bool = False,
        timeout: float | None = None,
        check: bool = False,
        on_question: OnQuestion | None = None,
    ) -> "subprocess.CompletedProcess[str]":
        """Run *command* confined in the view and return how it ended.

        It starts in *cwd*, a directory of the workspace or of what is allowed beside it, else in the
        workspace. *env* are variables it gets besides; their values show in no list of processes. The return
        code is the program's own, 128 and its number for a signal, 126 when it cannot be executed, 127 when
        it is not found; with *check*, any but 0 raises `subprocess.CalledProcessError`. After *timeout*
        seconds the program is ended with all it started, and `TimedOut` carries what it had written until
        then. Its standard input is empty but for *input*.

        *on_question* is called, in a thread of its own, with each `WaitingQuestion` of the sandbox while the
        program runs, and returns an `Answer`, "allow", "deny", or None to leave the question to others. What
        it raises answers nothing, and is raised here when the program has ended.
        """
        if input is not None:
            check_kind("input", input, str)
        if timeout is not None and not isinstance(timeout, int | float):
            raise UsageError(f"timeout: expected a number of seconds, found {type(timeout).__name__}")
        data = None if input is None else encoded(input)
        pipe = PIPE if capture_output else None
        streams = (DEVNULL if input is None else PIPE, pipe, pipe)
        with self._asking(on_question):
            program = self._start(command, cwd, env, streams, terminal=True)
            done = self._programs.completed(program, data, timeout)
        if check:
            done.check_returncode()
        return done

    def popen(
        self,
        command: Sequence[Words],
        *,
        cwd: Words | None = None,
        env: Mapping[str, str] | None = None,
        stdin: Stream = DEVNULL,
        stdout: Stream = None,
        stderr: Stream = None,
        on_question: OnQuestion | None = None,
    ) -> Program:
        """Start *command* confined in the view and return at once.

        *cwd*, *env* and *on_question* are as for `run`, but what *on_question* raises is logged. *stdin*,
        *stdout* and *stderr* are as for `subprocess.Popen`: PIPE, DEVNULL, a descriptor, a file, or None for
        the caller's own; pipes carry bytes. The program has no terminal to itself. It ends with the block at
        the latest.
        """
        streams = stdin, stdout, stderr
        if on_question is None:
            return self._start(command, cwd, env, streams, terminal=False)
        handler = QuestionHandler(self.follow(), on_question)
        try:
            program = self._start(command, cwd, env, streams, terminal=False)
        except BaseException:
            handler.end()
            raise
        handler.end_with(program)
        return program

    def _start(
        self,
        command: Sequence[Words],
        cwd: Words | None,
        env: Mapping[str, str] | None,
        streams: tuple[Stream, Stream, Stream],
        *,
        terminal: bool,
    ) -> Program:
        return self._programs.start(
            self._opened(), command, cwd, env, streams, self._warnings.append, terminal=terminal
        )

    # What programs did

    def changes(self) -> tuple[Change, ...]:
        """Return what the sandbox has changed, sorted by path; *fresh* are those of this block."""
        with failures("read the changes"):
            return deeds(self._begun(), NOTHING_SEEN).changes

    def held(self) -> tuple[Change, ...]:
        """Return the changes that wait for an approval, and those that need one which does."""
        return tuple(change for change in self.changes() if change.held is not None)

    def denials(self) -> tuple[Denied, ...]:
        """Return what rules have refused since the block began."""
        with failures("read the denials"):
            seen = observed(self._begun(), end=False)
        if seen.lost is not None:
            raise DaemonLost(seen.lost)
        return seen.denials

    def commit(
        self,
        *paths: Words,
        on_conflict: ConflictWord = "fail",
        ignored: bool = False,
        approve: bool = False,
    ) -> None:
        """Apply the changes at and below *paths*, all without any, to the workspace: all of it or nothing.

        Where nothing has changed there is nothing to do. `CommitConflict.details` names the conflicts. Added
        files that the workspace's own rules ignore stay in the sandbox, unless *ignored* takes them or a path
        names them. What a rule holds stays as well, unless it was approved or *approve* takes it.
        """
        how = text_of("on_conflict", on_conflict)
        from sandboxfs.service.commit import ON_CONFLICT, CommitRequest, commit

        if how not in ON_CONFLICT:
            raise UsageError(f"on_conflict: expected one of {', '.join(ON_CONFLICT)}, found {how!r}")

        def carry_out(named: tuple[str, ...], caller: CallerContext) -> None:
            request = CommitRequest(
                self.name,
                named,
                how,
                everything=not named,
                ignored=ignored,
                approve=approve,
                confirmed=True,
            )
            commit(request, caller, Unattended()).check()

        self._review("commit", paths, carry_out)

    def approve(self, *paths: Words) -> None:
        """Let later commits take what a rule holds at and below *paths*, all without any, as it is now.

        `Change.held` says what is held. Where nothing is, naming a path is a `UsageError`.
        """
        from sandboxfs.service.approve import HeldRequest, approve

        def carry_out(named: tuple[str, ...], caller: CallerContext) -> None:
            approve(HeldRequest(self.name, named, everything=not named), caller, Unattended())

        self._review("approve", paths, carry_out)

    def reject(self, *paths: Words) -> None:
        """Drop what a rule holds at and below *paths*, all without any, with what cannot be without it."""
        from sandboxfs.service.approve import HeldRequest, reject

        def carry_out(named: tuple[str, ...], caller: CallerContext) -> None:
            request = HeldRequest(self.name, named, everything=not named)
            reject(request, caller, Unattended(), confirmed=True)

        self._review("reject", paths, carry_out)

    def discard(self, *paths: Words) -> None:
        """Drop the changes at and below *paths*, all without any."""
        from sandboxfs.service.discard import DiscardRequest, discard

        def carry_out(named: tuple[str, ...], caller: CallerContext) -> None:
            discard(DiscardRequest(self.name, named, confirmed=True), caller, Unattended())

        self._review("discard", paths, carry_out)

    def undo(self) -> None:
        """Take the last commit or discard back."""
        from sandboxfs.service.undo import UndoRequest, undo

        def carry_out(_: tuple[str, ...], caller: CallerContext) -> None:
            undo(UndoRequest(self.name, confirmed=True), caller, Unattended()).check()

        self._review("undo", (), carry_out)

    def _review(
        self,
        verb: str,
        paths: Sequence[Words],
        carry_out: Callable[[tuple[str, ...], CallerContext], None],
    ) -> None:
        """Do something to the changes at *paths*, but for those where there are none."""
        named = texts_of("paths", paths)
        caller = self._caller()
        with failures(verb):
            try:
                carry_out(named, caller)
            except UsageError as error:
                untouched = error.details.get("untouched")
                if not isinstance(untouched, Sequence):
                    raise
                rest = tuple(path for path in named if path not in untouched)
                if rest:
                    carry_out(rest, caller)

    # Questions

    def questions(self) -> tuple[WaitingQuestion, ...]:
        """Return the questions that wait for a person, the oldest first; nothing is consumed by it."""
        from sandboxfs.service.questions import waiting_questions

        with failures("read the questions"):
            return waiting_questions(self.name, self._caller(), Unattended()).questions

    def follow(self) -> QuestionFeed:
        """Return the questions as they come and go: a context manager that is an iterator.

        This process counts as somebody who can be asked from the beginning of its block to the end. It gives
        a `WaitingQuestion` for each that begins, those that wait already first, and an `OverQuestion` for the
        end of each that it gave. `SandboxBusy` when too many follow already.
        """
        from sandboxfs.service.questions import follow

        feed = QuestionFeed(lambda: follow(self.name, self._caller(), Unattended()), self.answer)
        self._opened()
        self._feeds.add(feed)
        return feed

    def answer(self, question: WaitingQuestion | int, answer: Answer | AnswerWord) -> ShownGrant | None:
        """Answer a question, or the one of that number; return the grant that stays, if any.

        The first answer counts. For a question that is over, `details` of the `UsageError` have `over`: how,
        and who answered.
        """
        from sandboxfs.service.questions import answer_question

        number, given = number_of(question), answer_of(answer)
        with failures("answer the question"):
            done = answer_question(number, given.decision, given, self.name, self._caller(), Unattended())
        return done.grant

    def grants(self) -> tuple[ShownGrant, ...]:
        """Return what was allowed or refused by answers, and still is."""
        from sandboxfs.service.questions import standing_grants

        with failures("read the grants"):
            return standing_grants(self.name, self._caller(), Unattended()).grants

    def revoke(self, grant: ShownGrant | int | None = None) -> tuple[ShownGrant, ...]:
        """Take a grant back, or the one of that number, all without any; return those that are gone.

        Files that are open because of it can be read no more.
        """
        from sandboxfs.service.questions import revoke_grants

        number = grant.id if isinstance(grant, ShownGrant) else grant
        if number is not None:
            check_kind("grant", number, int)
        with failures("take the grant back"):
            return revoke_grants(number, self.name, self._caller(), Unattended()).grants

    @contextmanager
    def _asking(self, on_question: OnQuestion | None) -> Iterator[None]:
        """Have *on_question* answer, and raise in the end what it raised."""
        if on_question is None:
            yield
            return
        handler = QuestionHandler(self.follow(), on_question)
        try:
            yield
        except BaseException as error:
            note_failure(error, handler.end())
            raise
        failure = handler.end()
        if failure is not None:
            raise failure

    def _caller(self) -> CallerContext:
        session = self._opened()
        directory = str(session.view.record.workspace)
        return CallerContext(directory, session.command_environment(), is_program=True)

    def _opened(self) -> OpenRun:
        if self._session is None:
            raise UsageError("the sandbox is not open: use it in its 'with' block")
        return self._session

    def _begun(self) -> RunStart:
        if self._beginning is None:
            raise UsageError("the sandbox is not open: use it in its 'with' block")
        return self._beginning


def _remove(name: str, environment: Mapping[str, str], *, force: bool) -> None:
    # Imported here: it reviews, which most blocks do without.
    from sandboxfs.service.remove import remove_sandboxes

    caller = CallerContext(current_directory(), environment, is_program=True)
    remove_sandboxes([name], caller, Unattended(), lambda _: None, force=force)
