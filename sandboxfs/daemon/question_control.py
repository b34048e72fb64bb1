"""Question control: questions and grants over the control socket, and the clock that ends them.

A connection that follows counts as somebody who can be asked for as long as it lasts. A follower that takes
nothing is let go by the server, and is nobody any more.
"""

import json
import logging
import os
import time
from collections.abc import AsyncIterator, Callable, Mapping
from datetime import UTC, datetime
from typing import NamedTuple

import trio

from sandboxfs.control.control_socket import Request
from sandboxfs.daemon.control_peers import Peer
from sandboxfs.daemon.control_server import Handler
from sandboxfs.daemon.lasting_tasks import in_a_thread
from sandboxfs.daemon.pending_question import (
    Answerer,
    ClosedQuestion,
    GivenAnswer,
    Outcome,
    PendingQuestion,
    over_as_json,
)
from sandboxfs.daemon.program_lookup import ProgramSeen, arguments
from sandboxfs.daemon.questions import Questions
from sandboxfs.daemon.standing_grants import StandingGrant
from sandboxfs.daemon.widenings import Widenings
from sandboxfs.errors import SandboxBusy, UsageError
from sandboxfs.overlay.decisions import ShownInode
from sandboxfs.paths import quoted
from sandboxfs.policy.explain import described_rule
from sandboxfs.policy.grants import (
    Audience,
    Extent,
    KeptGrant,
    ProcessMark,
    Recipient,
    Wish,
    duration_of,
    extent_of,
)
from sandboxfs.state.audit_record import process_of
from sandboxfs.state.kept_grants import GrantFile

log = logging.getLogger(__name__)

MOST_FOLLOWERS = 8
# Programs whose arguments are kept.
_PROGRAMS = 256
_LONGEST_REASON = 1000
# Seconds between two looks at the clock, and for finding out how a program was called.
_TICK = 0.1
_PATIENCE = 0.5

Withdraw = Callable[[set[int]], list[ShownInode]]
Invalidate = Callable[[list[ShownInode]], None]


class _Told(NamedTuple):
    """Something that happened to a question."""

    question: PendingQuestion
    closed: ClosedQuestion | None


class _Follower:
    """What one follower has not been told yet: at most what waits, and the ends of what it was told of.

    So a program that asks without end makes nobody fall behind: what is over before its turn is not told.
    """

    def __init__(self, began: list[PendingQuestion]) -> None:
        """Have all told that comes after *began*."""
        self.began = began
        self._told = {question.number for question in began}
        self._news: dict[int, _Told] = {}
        self._wake = trio.Event()

    def tell(self, told: _Told) -> None:
        number = told.question.number
        if told.closed is None or number in self._told:
            self._news[number] = told
            self._wake.set()
        else:
            self._news.pop(number, None)

    async def next(self) -> _Told:
        """Wait for what is to be told next."""
        while not self._news:
            self._wake = trio.Event()
            await self._wake.wait()
        number = next(iter(self._news))
        told = self._news.pop(number)
        if told.closed is None:
            self._told.add(number)
        else:
            self._told.discard(number)
        return told


class QuestionControl:
    """The questions of one session, for persons."""

    def __init__(
        self, questions: Questions, widenings: Widenings, file: GrantFile | None = None, name: str = ""
    ) -> None:
        """Answers that are kept are written to *file*, as those of the sandbox called *name*."""
        self._questions = questions
        self._widenings = widenings
        self._file = file
        self._name = name
        # One edit of the file at a time.
        self._writing = trio.Lock()
        self._followers: set[_Follower] = set()
        self._withdraw: Withdraw = lambda grants: []
        self._invalidate: Invalidate = lambda shown: None
        self._outdated: list[ShownInode] = []
        self._wake = trio.Event()
        self._argv: dict[ProcessMark, str | None] = {}
        questions.told.append(self._tell)
        questions.grants.withdrawn = self._withdrawn
        questions.begun = self._rouse

    def serve(self, withdraw: Withdraw, invalidate: Invalidate) -> None:
        """Have files decided again by *withdraw*, and their pages dropped by *invalidate*, which may wait."""
        self._withdraw, self._invalidate = withdraw, invalidate

    async def run(self) -> None:
        """End by the clock what is over."""
        while True:
            await self._wake.wait()
            self._wake = trio.Event()
            while self._questions.needs_ticks or self._outdated:
                await trio.sleep(_TICK)
                self._questions.tick()
                await self._drop_pages()

    def handlers(self) -> dict[str, Handler]:
        return {
            "asks": self.asks,
            "reading": self.reading,
            "answer": self.answer,
            "grants": self.grants,
            "revoke": self.revoke,
        }

    # Verbs

    def asks(self, request: Request, peer: Peer) -> object:
        if not request.flag("follow"):
            return self._list()
        if len(self._followers) >= MOST_FOLLOWERS:
            raise SandboxBusy(f"{MOST_FOLLOWERS} connections follow the questions already")
        return self._follow(peer)

    async def reading(self, request: Request, peer: Peer) -> object:
        question = self._questions.find(request.whole_number("id"))
        now = trio.current_time()
        if request.flag("over"):
            question.unread(now)
        else:
            question.read(now)
        return {"question": await self._described(question)}

    async def answer(self, request: Request, peer: Peer) -> object:
        question = self._questions.find(request.whole_number("id"))
        described = await self._described(question)
        answer = _answer_in(request, question, peer)
        # Another answer may have come meanwhile: then this one is refused.
        if request.optional_text("during") == "always":
            standing = await self._answer_for_good(question, answer)
        else:
            standing = self._questions.answer(question.number, answer)
        grant = None if standing is None else self._described_grant(standing)
        return {"question": described, "decision": request.text("decision"), "grant": grant}

    def grants(self, request: Request, peer: Peer) -> object:
        return {"grants": [self._described_grant(one) for one in self._questions.grants.in_force()]}

    async def revoke(self, request: Request, peer: Peer) -> object:
        if request.flag("all"):
            numbers = {standing.grant.number for standing in self._questions.grants.in_force()}
        else:
            numbers = {request.whole_number("id")}
        gone = self._questions.grants.revoke(numbers)
        await self._drop_pages()
        await self._widenings.settled()
        removed = await self._take_out([one.kept for one in gone if one.kept is not None])
        return {
            "revoked": [
                self._described_grant(one) | ({} if one.kept is None else {"removed": one.kept in removed})
                for one in gone
            ]
        }

    # Kept answers

    async def _answer_for_good(self, question: PendingQuestion, answer: GivenAnswer) -> StandingGrant | None:
        """Write an answer down, then give it; where it comes too late, it is taken out again."""
        file = self._file
        if file is None:
            raise UsageError("answers of this session cannot be kept")
        # Another answer may have come meanwhile.
        attempt = self._questions.find(question.number).attempt
        grant = self._questions.grants.preview(attempt, answer)
        kept = KeptGrant.of(grant, str(file.workspace))
        standing = None
        # Shielded: whoever asked may be gone before the file is written.
        with trio.CancelScope(shield=True):
            async with self._writing:
                written = await in_a_thread(file.add, kept, self._about(question))
                try:
                    standing = self._questions.answer(question.number, answer, written)
                except UsageError:
                    await in_a_thread(file.remove, [kept])
                    raise
        return standing

    def _about(self, question: PendingQuestion) -> str:
        """The comment above a table: when, and the answer to which question."""
        attempt = question.attempt
        program = question.line[0] if question.line else None
        by = "" if program is None else f" by {quoted(program.exe or program.command)}"
        return (
            f"{_time(0)}: answer to question {question.number} of sandbox {quoted(self._name)}: "
            f"{attempt.access.value} {quoted(attempt.path)}{by}"
        )

    async def _take_out(self, kept: list[KeptGrant]) -> set[KeptGrant]:
        """Remove kept grants from the file; return those that were there."""
        if not kept or self._file is None:
            return set()
        try:
            with trio.CancelScope(shield=True):
                async with self._writing:
                    found = await in_a_thread(self._file.remove, kept)
                    lines = {one: one for one in await in_a_thread(self._file.read)}
        except UsageError as error:
            places = ", ".join(str(one.source) for one in kept)
            raise UsageError(
                f"taken back in this session, and still written at {places}: {error.message}", hint=error.hint
            ) from error
        # Tables below have moved up.
        for other in self._questions.grants.in_force():
            if other.kept is not None:
                other.kept = lines.get(other.kept, other.kept)
        return found

    # Following

    async def _list(self) -> object:
        return {
            "questions": [await self._described(one) for one in self._questions.asked()],
            "followers": self._questions.followers,
        }

    async def _follow(self, peer: Peer) -> AsyncIterator[object]:
        follower = _Follower(self._questions.asked())
        self._followers.add(follower)
        self._questions.follow()
        log.info("process %d follows the questions", peer.pid)
        try:
            yield {"event": "begin", "questions": [await self._described(one) for one in follower.began]}
            while True:
                told = await follower.next()
                if told.closed is None:
                    yield {"event": "question", "question": await self._described(told.question)}
                else:
                    yield over_as_json(told.closed)
        finally:
            self._followers.discard(follower)
            self._questions.unfollow()
            log.info("process %d follows the questions no more", peer.pid)

    def _tell(self, question: PendingQuestion, closed: ClosedQuestion | None) -> None:
        for follower in self._followers:
            follower.tell(_Told(question, closed))

    def _rouse(self) -> None:
        self._wake.set()

    def _withdrawn(self, grants: set[int]) -> None:
        self._outdated += self._withdraw(grants)
        self._widenings.withdrawn(grants)

    async def _drop_pages(self) -> None:
        """Have the kernel drop the pages of files that are decided again."""
        outdated, self._outdated = self._outdated, []
        if outdated:
            # In a thread: the kernel may make the call wait for a request that this thread has to answer.
            await in_a_thread(self._invalidate, outdated)

    # Descriptions

    async def _described(self, question: PendingQuestion) -> dict[str, object]:
        attempt = question.attempt
        remaining = self._questions.remaining(question)
        programs = [await self._program(one) for one in question.line]
        none = {"pid": None, "exe": None, "argv0": None, "command": None}
        return {
            "id": question.number,
            "access": attempt.access.value,
            **_path(attempt.path),
            "more": len(question.paths) - 1,
            "directory": question.key.directory,
            "content": attempt.content,
            "rule": described_rule(attempt.rule),
            **_wish(question),
            "program": {**(programs[0] if programs else none), "parents": programs[1:]},
            "requests": len(question.waits),
            "since": _time(trio.current_time() - question.asked_at),
            "remaining": None if remaining is None else round(remaining, 1),
        }

    async def _program(self, program: ProgramSeen) -> dict[str, object]:
        mark = ProcessMark(program.pid, program.started)
        if mark not in self._argv:
            if len(self._argv) > _PROGRAMS:
                self._argv.clear()
            found = None
            with trio.move_on_after(_PATIENCE):
                # The arguments of a process may lie in this mount, which this thread serves.
                found = await trio.to_thread.run_sync(arguments, mark, abandon_on_cancel=True)
            # Not before: another follower is told of the same question meanwhile.
            self._argv[mark] = found
        return {
            "pid": program.pid,
            "exe": program.exe,
            "argv0": self._argv.get(mark),
            "command": program.command,
        }

    def _described_grant(self, standing: StandingGrant) -> dict[str, object]:
        grant = standing.grant
        left = self._questions.grants.seconds_left(grant)
        root = grant.recipient.root
        return {
            "id": grant.number,
            "decision": "allow" if grant.allows else "deny",
            "access": grant.access.value,
            "for": grant.extent.value,
            **_path(grant.target),
            "rule": described_rule(grant.rule),
            "who": grant.recipient.audience.value,
            "exe": grant.recipient.exe,
            "pid": None if root is None else root.pid,
            "reason": grant.reason,
            "question": standing.question,
            "since": _time(trio.current_time() - standing.since),
            "remaining": None if left is None else round(left, 1),
            "during": "always" if standing.kept is not None else "session" if left is None else "time",
            "kept": _kept(standing.kept),
            "hits": standing.hits,
            "open": standing.open,
        }


def _wish(question: PendingQuestion) -> dict[str, object]:
    """Describe what is special to a wish: the mode, what the program says, and why it cannot be had."""
    attempt = question.attempt
    if not isinstance(attempt.access, Wish):
        return {}
    return {"mode": attempt.rule.mode.value, "reason": question.note, "problem": question.problem}


def _answer_in(request: Request, question: PendingQuestion, peer: Peer) -> GivenAnswer:
    """Read the arguments of `answer`."""
    decision = request.text("decision")
    if decision not in ("allow", "deny"):
        raise UsageError("'decision' of 'answer' is 'allow' or 'deny'")
    attempt = question.attempt
    word = request.optional_text("for") or "once"
    extent, target = extent_of(word, attempt.path, attempt.content)
    recipient = _recipient(request.args, request, question)
    if isinstance(attempt.access, Wish):
        if extent in (Extent.GLOB, Extent.CONTENT) or recipient != Recipient():
            raise UsageError("a directory is shown as it was asked for, and to all programs of the run")
        if decision == "allow" and question.problem is not None:
            raise UsageError(f"{quoted(attempt.path)} cannot be shown: {question.problem}")
        # The directory itself is meant, whatever it is called.
        extent = Extent.ONCE if decision == "deny" and extent is Extent.ONCE else Extent.PATH
        target = attempt.path
    reason = request.optional_text("reason")
    if reason is not None and (len(reason) > _LONGEST_REASON or not reason.isprintable()):
        raise UsageError(f"'reason' is one line of at most {_LONGEST_REASON} printable characters")
    process = process_of(peer.pid)
    return GivenAnswer(
        decision == "allow",
        extent,
        target,
        duration_of(request.optional_text("during") or "session"),
        recipient,
        reason,
        Answerer(peer.pid, None if process is None else process.command),
    )


def _recipient(args: Mapping[str, object], request: Request, question: PendingQuestion) -> Recipient:
    tree = args.get("tree", False)
    if request.flag("program"):
        if tree is not False:
            raise UsageError("'program' and 'tree' of 'answer' exclude each other")
        exe = question.line[0].exe if question.line else None
        if exe is None:
            raise UsageError("the program that asks cannot be told by its executable")
        return Recipient(Audience.PROGRAM, exe=exe)
    if tree is False or tree is None:
        return Recipient()
    for program in question.line:
        if tree in (True, program.pid):
            return Recipient(Audience.TREE, root=ProcessMark(program.pid, program.started))
    raise UsageError("'tree' of 'answer' is true, or the number of the process that asks or of a parent")


def _kept(kept: KeptGrant | None) -> dict[str, object] | None:
    if kept is None or kept.source is None:
        return None
    return {"file": kept.source.file, "line": kept.source.line}


def _path(path: str) -> dict[str, object]:
    try:
        path.encode()
    except UnicodeEncodeError:
        return {"path": path, "path_bytes": os.fsencode(path).hex()}
    return {"path": path}


def _time(ago: float) -> str:
    when = datetime.fromtimestamp(time.time() - ago, UTC)
    return when.isoformat(timespec="milliseconds").replace("+00:00", "Z")


_LATER = "open it again when a person follows the questions: ask for that"
# What each end of a question means to the program: whether opening again makes sense, and what to do.
_ADVICE = {
    Outcome.ALLOWED: (True, "open it again if you have not read it"),
    Outcome.DENIED: (False, "do without it: a person said no"),
    Outcome.TIMEOUT: (True, _LATER),
    Outcome.WITHDRAWN: (True, _LATER),
    Outcome.ENDED: (False, "the session ends"),
}


class RequestFiles:
    """The files of `.sandboxfs/requests`: what became of each question, for the program that waits for it."""

    def __init__(self, questions: Questions, widenings: Widenings) -> None:
        self._questions = questions
        self._widenings = widenings

    def numbers(self) -> list[int]:
        waiting = {question.number for question in self._questions.asked()}
        over = {closed.question.number for closed in self._questions.ended()}
        return sorted(waiting | over | set(self._widenings.numbers()))

    def report(self, number: int) -> bytes | None:
        widening = self._widenings.report(number)
        if widening is not None:
            return widening
        for question in self._questions.asked():
            if question.number == number:
                return _report(question, "waiting", None, False, "a person is asked; opening it waits")
        for closed in self._questions.ended():
            if closed.question.number == number:
                retry, advice = _ADVICE[closed.outcome]
                return _report(closed.question, closed.outcome.value, closed.reason, retry, advice)
        return None


def _report(question: PendingQuestion, state: str, reason: str | None, retry: bool, advice: str) -> bytes:
    attempt = question.attempt
    described = {
        "id": question.number,
        "state": state,
        "access": attempt.access.value,
        **_path(attempt.path),
        "rule": described_rule(attempt.rule),
        "reason": reason,
        "retry": retry,
        "advice": advice,
    }
    return json.dumps(described, indent=1).encode() + b"\n"
