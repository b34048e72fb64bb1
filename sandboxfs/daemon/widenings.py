"""Widenings: directories that a program asks for while it runs, and the runs that can show them.

A program in the view writes a line of JSON to `.sandboxfs/request`. That becomes a question like any other,
and what became of it can be read, and waited for: OPEN of `.sandboxfs/answers/ID` is postponed. Nothing else
is done for a program: what it asks for is looked at on the host only for the person who is asked, so that a
request tells nothing about the host before somebody has allowed it.

A directory that was granted appears in the runs of this view. Each `run` follows the widenings over a
connection to this daemon as long as its program runs, has the directory served and mounted, and says how that
went. They are told one after the other: the first starts what serves the directory, the others join it.
"""

import errno
import json
import os
import stat
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import trio

from sandboxfs.control.control_socket import Request
from sandboxfs.daemon.control_peers import Peer
from sandboxfs.daemon.control_server import Handler
from sandboxfs.daemon.pending_question import Outcome
from sandboxfs.daemon.program_lookup import ProgramSeen
from sandboxfs.daemon.questions import Questions
from sandboxfs.daemon.standing_grants import Record, StandingGrant
from sandboxfs.errors import SandboxBusy, UsageError
from sandboxfs.overlay.filesystem import Caller, Postponed, host_error
from sandboxfs.paths import quoted
from sandboxfs.policy.grants import Attempt, Wish
from sandboxfs.policy.model import Mode, Rule, RuleSource, SourceKind

_LONGEST_LINE = 8192
_LONGEST_PATH = 4096
_LONGEST_REASON = 500
# Runs that follow, requests that are remembered, and those that wait for one answer.
MOST_RUNS = 16
_REMEMBERED = 200
# Undecided requests of one program, and of all: fewer than of questions, so that they crowd out no others.
_MOST_OF_ONE, _MOST_UNDECIDED = 16, 32
_MOST_WAITING = 256
# Seconds for looking at a path on the host, for a run to show a directory, and to take it away.
_LOOKING = 2.0
_SHOWING = 90.0
_TAKING_AWAY = 15.0
_MODES = {mode.value: mode for mode in (Mode.RO, Mode.RW)}

NO_RUN = "nothing runs here that a directory could be shown to"
PLAIN = (
    "no 'sandboxfs run' goes on here, whose programs alone can be shown more; "
    "in a plain mount other paths are not kept from programs"
)

README = b"""\
This directory is a view of sandboxfs. What is changed here stays in the sandbox until a person commits it.
Read here: what was changed (changes), what was refused (denials), the rules (policy), and what became of
each question to a person (requests/ID).

A directory that is not there can be asked for, and a person decides:

    sandboxfs request /path/of/it rw --reason 'why it is needed'

or write one line to the file request, and read the answer from the same descriptor:

    exec 3<> .sandboxfs/request
    echo '{"path": "/path/of/it", "mode": "rw", "reason": "why it is needed"}' >&3
    read -r answer <&3                # {"id": 7, "state": "waiting", ...}
    cat .sandboxfs/answers/7          # waits until it is decided

The mode is "ro" or "rw". Once its state is "granted" the directory is there, at its own path.
"""

# What each state means to the program: whether asking again makes sense, and what to do.
_ADVICE = {
    "waiting": (False, "a person is asked; opening .sandboxfs/answers/ID waits for the answer"),
    "allowed": (False, "a person said yes; it is being mounted"),
    "granted": (False, "it is there, at its own path; what is written to it stays in the sandbox"),
    "denied": (False, "do without it: a person said no"),
    "timeout": (True, "ask again when a person follows the questions"),
    "withdrawn": (True, "ask again when a person follows the questions"),
    "ended": (False, "the session ends"),
    "failed": (False, "do without it"),
    "revoked": (False, "it was taken back"),
}
_OVER = frozenset(_ADVICE) - {"waiting", "allowed"}


@dataclass(eq=False)
class WideningRequest:
    """What one program asked for. Waits for its question; *reason* is the answer's, once there is one."""

    number: int
    path: str
    mode: Mode
    note: str | None
    line: list[ProgramSeen]
    uid: int
    began: float
    decided: Callable[["WideningRequest"], None]
    given_up: Callable[["WideningRequest"], None]
    state: str = "waiting"
    reason: str | None = None
    shown: str | None = None
    attempt: Attempt | None = None
    waits: list["PostponedAnswer"] = field(default_factory=list)

    @property
    def exe(self) -> str | None:
        return _exe(self.line)

    def over(self, verdict: object) -> None:
        self.decided(self)

    def report(self) -> bytes:
        retry, advice = _ADVICE[self.state]
        described = {
            "id": self.number,
            "state": self.state,
            "access": Wish.WIDEN.value,
            "path": self.path if self.shown is None else self.shown,
            "mode": self.mode.value,
            "reason": self.reason,
            "retry": retry,
            "advice": advice.replace("ID", str(self.number)),
        }
        return json.dumps(described).encode() + b"\n"


@dataclass(eq=False)
class PostponedAnswer:
    """One OPEN that waits for the end of a request. Implements `Wait` for the server."""

    request: WideningRequest
    caller: Caller
    _tell: Callable[[], None] | None = None

    def when_over(self, tell: Callable[[], None]) -> None:
        self._tell = tell

    def give_up(self) -> None:
        self._tell = None
        if self in self.request.waits:
            self.request.waits.remove(self)
            self.request.given_up(self.request)

    def go_on(self) -> None:
        tell, self._tell = self._tell, None
        if tell is not None:
            tell()


@dataclass(eq=False)
class FollowingRun:
    """A run that follows; *obstacle* says why nothing can be shown to its program, if so."""

    number: int
    obstacle: str | None
    events: "trio.MemorySendChannel[dict[str, object]]"
    answered: trio.Event = field(default_factory=trio.Event)
    # The widening that it was told of last, and what it said about that: a problem, or None.
    told: int = 0
    problem: str | None = None


class Widenings:
    """The widenings of one session."""

    def __init__(self, questions: Questions, record: Record, workspace: Path) -> None:
        self._questions = questions
        self._record = record
        self._workspace = workspace
        self._requests: OrderedDict[int, WideningRequest] = OrderedDict()
        self._runs: dict[int, FollowingRun] = {}
        # What is granted, by the number of its grant, with the requests for it; and what is shown already.
        self._granted: dict[int, list[WideningRequest]] = {}
        self._shown: set[int] = set()
        self._looking, self._to_look = trio.open_memory_channel[WideningRequest](_MOST_UNDECIDED)
        self._deciding, self._to_show = trio.open_memory_channel[StandingGrant](_MOST_UNDECIDED)
        self._turn = trio.Lock()
        self._gone: set[int] = set()
        self._taking = trio.Event()

    # For programs in the view

    def submit(self, line: bytes, caller: Caller) -> bytes:
        """Take a request; return what is answered at once: its number, and how things stand."""
        path, mode, note = _parse(line)
        undecided = [one for one in self._requests.values() if one.state not in _OVER]
        for one in undecided:
            if (one.path, one.mode, one.uid) == (path, mode, caller.uid):
                return one.report()
        # Now: the program may not wait for the answer.
        line_of_caller = self._questions.line(caller.pid)
        same = [one for one in undecided if one.exe == _exe(line_of_caller)]
        if len(undecided) >= _MOST_UNDECIDED or len(same) >= _MOST_OF_ONE:
            raise host_error(errno.EAGAIN)
        request = WideningRequest(
            self._questions.next_number(),
            path,
            mode,
            note,
            line_of_caller,
            caller.uid,
            trio.current_time(),
            self._decided,
            self._given_up,
        )
        self._remember(request)
        problem, state = self._objection(Path(path), mode), "failed"
        if problem is None:
            problem, state = self._questions.objection(), "withdrawn"
        if problem is None:
            # There is room for as many as may be undecided.
            self._looking.send_nowait(request)
        else:
            # Not recorded: a program could push out of the log what is.
            self._finish(request, state, problem)
        return request.report()

    def numbers(self) -> list[int]:
        return list(self._requests)

    def report(self, number: int) -> bytes | None:
        request = self._requests.get(number)
        return None if request is None else request.report()

    def answer(self, number: int, caller: Caller) -> bytes:
        """Return what became of a request; raise `Postponed` as long as that is open."""
        request = self._requests.get(number)
        if request is None:
            raise host_error(errno.ESTALE)
        if request.state in _OVER:
            return request.report()
        if sum(len(one.waits) for one in self._requests.values()) >= _MOST_WAITING:
            raise host_error(errno.EAGAIN)
        wait = PostponedAnswer(request, caller)
        request.waits.append(wait)
        raise Postponed(wait)

    def _objection(self, path: Path, mode: Mode) -> str | None:
        """Say why a path cannot be shown, as far as the program knows that itself."""
        workspace = self._workspace
        if path.is_relative_to(workspace):
            return f"it is in the workspace: a rule decides, and 'sandboxfs allow {quoted(path)}' changes it"
        if workspace.is_relative_to(path):
            return "the workspace lies inside it"
        return self._obstacle(path, mode)

    def _obstacle(self, path: Path, mode: Mode) -> str | None:
        """Say why nothing can be shown to any program, if so."""
        if any(run.obstacle is None for run in self._runs.values()):
            return None
        obstacles = [run.obstacle for run in self._runs.values() if run.obstacle is not None]
        option = quoted(f"{path}:{mode.value}")
        return f"{(obstacles or [PLAIN])[0]}; to have it in the next run: --allow {option}"

    def _remember(self, request: WideningRequest) -> None:
        self._requests[request.number] = request
        over = [number for number, one in self._requests.items() if one.state in _OVER]
        for number in over[: max(0, len(over) - _REMEMBERED)]:
            del self._requests[number]

    def _finish(self, request: WideningRequest, state: str, reason: str | None) -> None:
        request.state, request.reason = state, reason
        waits, request.waits = request.waits, []
        for wait in waits:
            wait.go_on()

    def _given_up(self, request: WideningRequest) -> None:
        """One of those who waited does so no more: it was interrupted, or ended."""
        if not request.waits and request.state == "waiting":
            self._finish(request, "withdrawn", "nobody waits for it any more")
            self._questions.give_up_wish(request)

    # Asking

    async def run(self) -> None:
        """Ask about what programs ask for, show what was granted, and take away what was taken back."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._take_away)
            nursery.start_soon(self._show_all)
            async for request in self._to_look.clone():
                await self._ask(request)

    async def _show_all(self) -> None:
        async for standing in self._to_show.clone():
            await self._show(standing)

    async def _ask(self, request: WideningRequest) -> None:
        place: str = request.path
        problem: str | None = "it cannot be looked at"
        # Without a thread to look in the person is told that it could not be looked at.
        with trio.move_on_after(_LOOKING), suppress(RuntimeError):
            place, problem = await trio.to_thread.run_sync(
                _look, request.path, self._workspace, abandon_on_cancel=True
            )
        if request.state in _OVER:
            return
        request.attempt = self._attempt(place, request.mode, "sandboxfs request")
        refusal = self._questions.grants.refusing(request.attempt)
        standing = self._standing(request.attempt)
        if refusal is not None:
            self._finish(request, "denied", refusal.grant.reason or "refused by an answer that stays")
        elif standing is not None and standing.grant.number in self._granted:
            self._join(request, standing)
        else:
            objection = self._questions.propose(
                request.attempt, request.number, request.line, request, request.note, problem
            )
            if objection is not None:
                self._finish(request, "withdrawn", objection)

    def _attempt(self, place: str, mode: Mode, by: str) -> Attempt:
        rule = Rule(place, mode, RuleSource(SourceKind.RUNTIME, by))
        return Attempt(Wish.WIDEN, rule, place, str(self._workspace))

    def _standing(self, attempt: Attempt) -> StandingGrant | None:
        """Return the grant by which what an attempt is about is shown, in its mode."""
        for standing in self._questions.grants.in_force():
            grant = standing.grant
            about = grant.access is Wish.WIDEN and grant.target == attempt.path
            if about and grant.allows and grant.rule.mode is attempt.rule.mode:
                return standing
        return None

    def _decided(self, request: WideningRequest) -> None:
        """The question of a request is over."""
        attempt = request.attempt
        closed = next(
            (one for one in reversed(self._questions.over.values()) if one.question.attempt == attempt), None
        )
        if closed is None:
            self._finish(request, "ended", None)
        elif closed.outcome is not Outcome.ALLOWED:
            self._finish(request, closed.outcome.value, closed.reason)
        else:
            request.state, request.reason = "allowed", closed.reason
            standing = None if attempt is None else self._standing(attempt)
            if standing is None:
                self._finish(request, "ended", None)
            elif standing.grant.number in self._granted:
                self._join(request, standing)
            else:
                self._granted[standing.grant.number] = [request]
                # There are not more of them than undecided requests.
                self._deciding.send_nowait(standing)

    def _join(self, request: WideningRequest, standing: StandingGrant) -> None:
        """Have a request end as the one before it for the same directory."""
        number, request.state = standing.grant.number, "allowed"
        self._granted[number].append(request)
        if number in self._shown:
            request.shown = standing.grant.target
            self._finish(request, "granted", None)

    # Showing

    async def _show(self, standing: StandingGrant) -> str | None:
        """Have all runs show what was granted; return why none does, if so."""
        grant, problems, shown = standing.grant, [], 0
        event = {"event": "widen", "id": grant.number, "path": grant.target, "mode": grant.rule.mode.value}
        async with self._turn:
            for run in [one for one in self._runs.values() if one.obstacle is None]:
                problem = await self._told(run, event, grant.number, _SHOWING)
                shown += problem is None
                problems += [] if problem is None else [problem]
        why = None if shown else (problems or [NO_RUN])[0]
        self._record.event(
            "widened",
            grant=grant.number,
            path=grant.target,
            mode=grant.rule.mode.value,
            runs=shown,
            problem=problems[0] if problems else why,
        )
        for request in self._granted.get(grant.number, ()):
            request.shown = grant.target
            self._finish(
                request, "granted" if why is None else "failed", request.reason if why is None else why
            )
        if why is None:
            self._shown.add(grant.number)
        else:
            self._granted.pop(grant.number, None)
            self._questions.grants.drop(grant.number)
        return why

    async def _told(
        self, run: FollowingRun, event: dict[str, object], number: int, patience: float
    ) -> str | None:
        """Tell a run, and wait for what it says about it; return the problem, if any."""
        if run.number not in self._runs:
            return "the run has ended"
        run.told, run.problem, run.answered = number, "the run did not answer in time", trio.Event()
        try:
            run.events.send_nowait(event)
        except (trio.WouldBlock, trio.BrokenResourceError, trio.ClosedResourceError):
            return "the run does not listen any more"
        with trio.move_on_after(patience):
            await run.answered.wait()
        # A later answer is told that it was not waited for.
        run.told = 0
        return run.problem

    def withdrawn(self, grants: set[int]) -> None:
        """Grants are gone: what was shown because of them is taken away."""
        mine = grants & self._granted.keys()
        if mine:
            self._gone |= mine
            self._taking.set()

    async def settled(self) -> None:
        """Wait until everything that was taken back is taken away."""
        await self._take_away_now()

    async def _take_away(self) -> None:
        while True:
            await self._taking.wait()
            await self._take_away_now()

    async def _take_away_now(self) -> None:
        async with self._turn:
            gone, self._gone = self._gone, set()
            self._shown -= gone
            self._taking = trio.Event()
            for number in sorted(gone):
                problems = [
                    await self._told(run, {"event": "narrow", "id": number}, number, _TAKING_AWAY)
                    for run in list(self._runs.values())
                    if run.obstacle is None
                ]
                found = [problem for problem in problems if problem is not None]
                self._record.event("narrowed", grant=number, problem=found[0] if found else None)
                for request in self._granted.pop(number, ()):
                    request.state = "revoked"

    # Verbs

    def handlers(self) -> dict[str, Handler]:
        return {"widenings": self.follow, "widened": self.widened, "widen": self.widen}

    def follow(self, request: Request, peer: Peer) -> object:
        if len(self._runs) >= MOST_RUNS:
            raise SandboxBusy(f"{MOST_RUNS} runs follow the widenings of this sandbox already")
        return self._events(request.optional_text("obstacle"))

    async def _events(self, obstacle: str | None) -> AsyncIterator[object]:
        send, receive = trio.open_memory_channel[dict[str, object]](_REMEMBERED)
        run = FollowingRun(self._questions.next_number(), obstacle, send)
        self._runs[run.number] = run
        try:
            yield {"event": "begin", "run": run.number}
            async for event in receive:
                yield event
        finally:
            del self._runs[run.number]
            run.problem = "the run has ended"
            run.answered.set()

    def widened(self, request: Request, peer: Peer) -> object:
        run = self._runs.get(request.whole_number("run"))
        if run is None or run.told != request.whole_number("id"):
            raise UsageError("nothing of that number is to be shown")
        run.problem = request.optional_text("problem")
        run.answered.set()
        return {}

    async def widen(self, request: Request, peer: Peer) -> object:
        """Show a directory that a person names without having been asked."""
        path, mode = request.text("path"), _MODES.get(request.optional_text("mode") or Mode.RW.value)
        if mode is None or _fault(path) is not None:
            raise UsageError(f"'widen' needs an absolute path, and 'ro' or 'rw': {quoted(path)}")
        obstacle = self._obstacle(Path(path), mode)
        if obstacle is not None:
            raise UsageError(f"{quoted(path)} cannot be shown now: {obstacle}")
        attempt = self._attempt(path, mode, "sandboxfs allow")
        standing = self._standing(attempt)
        if standing is None:
            standing = self._questions.grants.add_wish(attempt)
            self._granted[standing.grant.number] = []
            problem = await self._show(standing)
            if problem is not None:
                raise UsageError(f"{quoted(path)} cannot be shown: {problem}")
        elif standing.grant.number not in self._shown:
            raise SandboxBusy(f"{quoted(path)} is being shown at this moment")
        return {"grant": standing.grant.number, "path": path, "mode": mode.value}


def _exe(line: list[ProgramSeen]) -> str | None:
    return line[0].exe if line else None


def _parse(line: bytes) -> tuple[str, Mode, str | None]:
    """Read what a program wrote: the path, the mode and the reason; EINVAL where it makes no sense."""
    try:
        found: object = json.loads(line) if len(line) <= _LONGEST_LINE else None
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict) or not found.keys() <= {"path", "mode", "reason"}:
        raise host_error(errno.EINVAL)
    path, mode, note = found.get("path"), found.get("mode", Mode.RW.value), found.get("reason")
    if not isinstance(path, str) or not isinstance(mode, str) or mode not in _MODES or _fault(path):
        raise host_error(errno.EINVAL)
    if note is not None and not (
        isinstance(note, str) and len(note) <= _LONGEST_REASON and note.isprintable()
    ):
        raise host_error(errno.EINVAL)
    return path, _MODES[mode], note or None


def _fault(path: str) -> str | None:
    try:
        encoded = os.fsencode(path)
    except UnicodeEncodeError:
        return "it is no name"
    plain = path.startswith("/") and os.path.normpath(path) == path and not path.startswith("//")
    return None if plain and b"\0" not in encoded and len(encoded) < _LONGEST_PATH else "it is not absolute"


def _look(path: str, workspace: Path) -> tuple[str, str | None]:
    """Find where *path* leads on the host, and why that cannot be shown, if so. May wait for a disk."""
    try:
        place = Path(path).resolve(strict=True)
        if not stat.S_ISDIR(place.stat().st_mode):
            return str(place), "it is not a directory"
    except (OSError, RuntimeError) as error:
        return path, getattr(error, "strerror", None) or str(error)
    if place.is_relative_to(workspace) or workspace.is_relative_to(place):
        return str(place), "it and the workspace lie inside one another"
    return str(place), None
