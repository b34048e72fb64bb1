"""Questions that wait for a person: listed, followed and answered, and the grants that answers leave.

A rule that asks makes a program wait in `open`. Whoever follows the questions counts as somebody who can be
asked, from `follow` to the end of its block; the first answer to a question counts, and everybody who follows
is told who gave it. What the daemon says is checked before it is believed, and passed on to programs whole.
"""

import select
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Annotated, TypeVar

from sandboxfs.codec import APART, OPTIONAL, Form, Malformed, decode, document
from sandboxfs.control.control_socket import EventStream, control_address
from sandboxfs.control.mount_table import MountTable, SandboxStatus, observe
from sandboxfs.errors import DaemonLost, UsageError
from sandboxfs.policy.grants import Extent, duration_of, names_path
from sandboxfs.service.events import CallerContext, Events
from sandboxfs.service.policy import ask_daemon, require_served
from sandboxfs.service.select import select_observed
from sandboxfs.state.store import SandboxRecord, Store

T = TypeVar("T")

# Extents that a path tells of: `once` is over with its files, and a content is not known by its path.
_BY_PATH = (Extent.PATH, Extent.DIRECTORY, Extent.GLOB)


def _seconds(found: object) -> float:
    if isinstance(found, bool) or not isinstance(found, int | float):
        raise Malformed("expected a number")
    return float(found)


Seconds = Annotated[float, Form[float](lambda seconds: seconds, _seconds)]


@dataclass(frozen=True)
class AskingRule:
    """The rule that asks, as a program is told of it."""

    pattern: str
    mode: str
    source: str
    kind: str
    hold: tuple[str, ...] = field(default=(), metadata=OPTIONAL)
    execute: str | None = field(default=None, metadata=OPTIONAL)
    ignored: bool = field(default=False, metadata=OPTIONAL)

    def __str__(self) -> str:
        more = ["ignored"] if self.ignored else []
        more += [f"hold {kind}" for kind in self.hold]
        more += [] if self.execute is None else [f"execute {self.execute}"]
        return ", ".join([f"{self.pattern} = {self.mode}", *more])


@dataclass(frozen=True)
class SeenProcess:
    """A process; what cannot be told of it is None."""

    pid: int | None
    exe: str | None
    argv0: str | None
    command: str | None


@dataclass(frozen=True)
class AskingProgram(SeenProcess):
    """The process that asks, with its parents, the nearest first."""

    parents: tuple[SeenProcess, ...]


@dataclass(frozen=True)
class WaitingQuestion:
    """A question that waits; *id* names it, and *path* is the one that a person is shown.

    So many *requests* wait, for this path and for *more* paths of its *directory*. *content* is the digest of
    a program that is new. *remaining* seconds are left, None while a person reads it. *answer* is as the
    daemon describes the question.

    Where a program asks for a directory that it cannot see, *access* is `widen`, *path* is the directory's on
    the host, *mode* what it is asked for as, *reason* the program's own words, and *problem* why it cannot be
    shown, if so.
    """

    id: int
    access: str
    path: str
    directory: str
    rule: AskingRule
    program: AskingProgram
    since: str
    requests: int
    more: int = field(default=0, metadata=OPTIONAL)
    content: str | None = field(default=None, metadata=OPTIONAL)
    mode: str | None = field(default=None, metadata=OPTIONAL)
    reason: str | None = field(default=None, metadata=OPTIONAL)
    problem: str | None = field(default=None, metadata=OPTIONAL)
    remaining: Seconds | None = field(default=None, metadata=OPTIONAL)
    answer: Mapping[str, object] = field(default_factory=dict, metadata=APART, compare=False)

    @property
    def deed(self) -> str:
        """What is asked for, in a word or two."""
        return self.access if self.mode is None else f"{self.access} {self.mode}"

    def as_json(self) -> dict[str, object]:
        return described(self.answer)


@dataclass(frozen=True)
class Responder:
    """The process that answered a question."""

    pid: int
    command: str | None


@dataclass(frozen=True)
class OverQuestion:
    """The end of the question *id*: `allowed`, `denied`, `timeout`, `withdrawn` or `ended`."""

    id: int
    outcome: str
    by: Responder | None
    reason: str | None

    def as_json(self) -> dict[str, object]:
        by = None if self.by is None else {"pid": self.by.pid, "command": self.by.command}
        return {"id": self.id, "outcome": self.outcome, "by": by, "reason": self.reason}


QuestionEvent = WaitingQuestion | OverQuestion


def event_line(event: QuestionEvent) -> str:
    """Write *event* as the line of JSON by which programs are told of it."""
    kind = "question" if isinstance(event, WaitingQuestion) else "over"
    return document({"event": kind, **event.as_json()}, indent=None)


@dataclass(frozen=True)
class WaitingQuestions:
    """The questions of a session, the oldest first; so many connections are *followers*."""

    record: SandboxRecord
    questions: tuple[WaitingQuestion, ...]
    followers: int

    @property
    def name(self) -> str:
        return self.record.name

    def as_json(self) -> dict[str, object]:
        questions = [question.as_json() for question in self.questions]
        return {**_whose(self.record), "questions": questions, "followers": self.followers}


@dataclass(frozen=True)
class AnswerTerms:
    """What an answer is for: paths (*extent*), a time, and whom.

    *extent* is `once`, `path`, `directory`, `content` or a pattern. *tree* is true for the process that asks
    and its children, or the number of one of its parents.
    """

    extent: str = "once"
    during: str = "session"
    program: bool = False
    tree: bool | int = False
    reason: str | None = None

    def checked(self) -> None:
        """Raise `UsageError` unless the terms make sense."""
        duration_of(self.during)
        if self.during != "always":
            return
        if self.extent == "once":
            raise UsageError(
                "an answer for once is not kept",
                hint="say what it is for: --for path, directory, content or a pattern",
            )
        if self.tree is not False:
            raise UsageError(
                "an answer for a process and its children ends with them, and is not kept",
                hint="--program is for the executable",
            )

    def arguments(self) -> dict[str, object]:
        """Return the arguments of the verb `answer`."""
        reason = {} if self.reason is None else {"reason": self.reason}
        return {
            "for": self.extent,
            "during": self.during,
            "program": self.program,
            "tree": self.tree,
            **reason,
        }


@dataclass(frozen=True)
class KeptPlace:
    """Where an answer is written down."""

    file: str
    line: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


@dataclass(frozen=True)
class ShownGrant:
    """An answer that stays: *extent* and *path* say for which paths. *answer* is what the daemon says.

    *during* is `session`, `time` or `always`; one that holds always is *kept* in the configuration. After it
    was taken back, *removed* says whether it was there.
    """

    id: int
    decision: str
    access: str
    extent: str
    path: str
    rule: AskingRule
    who: str
    exe: str | None
    pid: int | None
    reason: str | None
    since: str
    remaining: Seconds | None
    hits: int
    open: int
    during: str = field(default="session", metadata=OPTIONAL)
    kept: KeptPlace | None = field(default=None, metadata=OPTIONAL)
    removed: bool | None = field(default=None, metadata=OPTIONAL)
    answer: Mapping[str, object] = field(default_factory=dict, metadata=APART, compare=False)

    def as_json(self) -> dict[str, object]:
        return described(self.answer)


@dataclass(frozen=True)
class AnsweredQuestion:
    """A question that was answered, and the *grant* that stays, if any."""

    record: SandboxRecord
    question: WaitingQuestion
    decision: str
    grant: ShownGrant | None

    def as_json(self) -> dict[str, object]:
        grant = None if self.grant is None else self.grant.as_json()
        question = self.question.as_json()
        return {**_whose(self.record), "question": question, "decision": self.decision, "grant": grant}


@dataclass(frozen=True)
class GrantsInForce:
    """The grants of a session; after `revoke_grants`, those that are gone."""

    record: SandboxRecord
    grants: tuple[ShownGrant, ...]

    @property
    def name(self) -> str:
        return self.record.name


def waiting_questions(name: str | None, caller: CallerContext, events: Events) -> WaitingQuestions:
    """List the questions that wait; nothing is consumed by it."""
    session = QuestionSession.of(name, caller, events, changing=False)
    answer = session.ask("asks")
    followers = answer.get("followers")
    return WaitingQuestions(
        session.record,
        tuple(map(_question, _listed(answer, "questions"))),
        followers if isinstance(followers, int) else 0,
    )


def answer_question(
    number: int, decision: str, terms: AnswerTerms, name: str | None, caller: CallerContext, events: Events
) -> AnsweredQuestion:
    """Answer the question *number*: *decision* is `allow` or `deny`.

    Where it is over already, `details` of the `UsageError` have `over`: how, and who answered.
    """
    terms.checked()
    return QuestionSession.of(name, caller, events, changing=True).answer(number, decision, terms)


def standing_grants(name: str | None, caller: CallerContext, events: Events) -> GrantsInForce:
    """Return what was allowed or refused by answers, and still is."""
    session = QuestionSession.of(name, caller, events, changing=False)
    return GrantsInForce(session.record, tuple(map(_grant, _listed(session.ask("grants"), "grants"))))


def revoke_grants(
    number: int | None, name: str | None, caller: CallerContext, events: Events
) -> GrantsInForce:
    """Take the grant *number* back, or all; files that are open because of it can be read no more."""
    session = QuestionSession.of(name, caller, events, changing=True)
    answer = session.ask("revoke", {"all": True} if number is None else {"id": number})
    return GrantsInForce(session.record, tuple(map(_grant, _listed(answer, "revoked"))))


@dataclass(frozen=True)
class AskedPath:
    """What would answer a question about one path now.

    So many *followers* are connected. *questions* about it wait already, and of the *grants* that name it the
    newest that is for the program decides.
    """

    followers: int
    questions: tuple[WaitingQuestion, ...]
    grants: tuple[ShownGrant, ...]

    @property
    def outcome(self) -> str:
        """What would happen to a program of which nothing is known: `happens`, `waits` or `refused`."""
        for grant in self.grants:
            if grant.who == "anybody":
                return "happens" if grant.decision == "allow" else "refused"
        return "waits" if self.followers else "refused"

    def as_json(self) -> dict[str, object]:
        return {
            "followers": self.followers,
            "questions": [question.id for question in self.questions],
            "grants": [grant.as_json() for grant in self.grants],
        }


def asked_path(
    store: Store, sandbox: SandboxStatus, path: str, access: str, rule: Mapping[str, object]
) -> AskedPath:
    """Ask the daemon of *sandbox* who and what would answer, where *rule* asks about *access* to *path*."""
    session = QuestionSession(store, sandbox)
    place, root = path.rstrip("/"), str(sandbox.record.workspace)
    known = session.ask("asks")
    followers = known.get("followers")

    def answers(grant: ShownGrant) -> bool:
        return (
            grant.access == access
            and grant.answer.get("rule") == rule
            and grant.extent in _BY_PATH
            and names_path(Extent(grant.extent), grant.path, place, root)
        )

    return AskedPath(
        followers if isinstance(followers, int) else 0,
        tuple(
            question
            for question in map(_question, _listed(known, "questions"))
            if (question.path, question.access) == (place, access)
        ),
        tuple(filter(answers, reversed([*map(_grant, _listed(session.ask("grants"), "grants"))]))),
    )


@dataclass(frozen=True)
class AskingState:
    """How many could be asked in a session, how many questions wait, and how many grants there are."""

    followers: int
    questions: int
    grants: int

    def as_json(self) -> dict[str, object]:
        return {"followers": self.followers, "questions": self.questions, "grants": self.grants}


def asking_state(store: Store, sandbox: SandboxStatus) -> AskingState:
    """Ask the daemon of *sandbox* who could be asked, and what was."""
    session = QuestionSession(store, sandbox)
    known = session.ask("asks")
    followers = known.get("followers")
    return AskingState(
        followers if isinstance(followers, int) else 0,
        len(_listed(known, "questions")),
        len(_listed(session.ask("grants"), "grants")),
    )


class FollowedQuestions:
    """The questions of a session as they come and go, for as long as somebody follows them.

    *begun* is what was told first: the questions that waited already.
    """

    def __init__(self, session: "QuestionSession", stream: EventStream) -> None:
        self.session = session
        self._stream = stream
        # Only by its first event the daemon says that it counts this follower.
        self.begun = list(self.arrived())

    def fileno(self) -> int:
        """Return the descriptor that is readable when `arrived` need not wait."""
        return self._stream.fileno()

    @property
    def ended(self) -> bool:
        """Whether nothing more will come: the session is over, or this follower was too slow."""
        return self._stream.ended

    def arrived(self) -> Iterator[QuestionEvent]:
        """Wait until something happened, and tell what."""
        for event in self._stream.arrived():
            yield from question_events(event)


@contextmanager
def follow(name: str | None, caller: CallerContext, events: Events) -> Iterator[FollowedQuestions]:
    """Be somebody who can be asked, until the end of the block."""
    session = QuestionSession.of(name, caller, events, changing=True)
    with session.stream() as stream:
        yield FollowedQuestions(session, stream)


def follow_questions(
    told: Callable[[QuestionEvent], None],
    name: str | None,
    caller: CallerContext,
    events: Events,
    reader: int | None = None,
) -> None:
    """Tell of each question, and of the end of each, until the session ends; an exception ends it earlier.

    BrokenPipeError when the other end of the descriptor *reader* is closed: nobody is left to be asked then.
    """
    with follow(name, caller, events) as followed:
        waiting = select.poll()
        waiting.register(followed, select.POLLIN)
        if reader is not None:
            # Without any event that is wanted, only its end is told.
            waiting.register(reader, 0)
        for event in followed.begun:
            told(event)
        while not followed.ended:
            if any(descriptor == reader for descriptor, _ in waiting.poll()):
                raise BrokenPipeError
            for event in followed.arrived():
                told(event)
        followed.session.check_ended()


@dataclass(frozen=True)
class QuestionSession:
    """A session whose daemon is asked about questions."""

    store: Store
    sandbox: SandboxStatus

    @property
    def record(self) -> SandboxRecord:
        return self.sandbox.record

    @classmethod
    def of(
        cls, name: str | None, caller: CallerContext, events: Events, *, changing: bool
    ) -> "QuestionSession":
        store, sandbox = select_observed(name, caller, events, changing=changing, served=True)
        require_served(sandbox)
        return cls(store, sandbox)

    def ask(self, verb: str, args: Mapping[str, object] | None = None) -> dict[str, object]:
        return ask_daemon(self.store, self.sandbox, verb, args)

    def stream(self) -> EventStream:
        return EventStream(control_address(self.store.locations, self.record.name), "asks", {"follow": True})

    def answer(self, number: int, decision: str, terms: AnswerTerms) -> AnsweredQuestion:
        """Answer a question, as `answer_question` does."""
        answer = self.ask("answer", {"id": number, "decision": decision, **terms.arguments()})
        grant = answer.get("grant")
        return AnsweredQuestion(
            self.record,
            _question(answer.get("question")),
            decision,
            None if grant is None else _grant(grant),
        )

    def reading(self, number: int, *, over: bool = False) -> None:
        """Stop the clock of a question that a person reads for a minute, or with *over* let it go on.

        It is a sign that a person is there: to be sent again with each key, and never without one.

        A question that is over has no clock any more, nor has one of a session that ends: the stream says so.
        """
        try:
            self.ask("reading", {"id": number, "over": over})
        except (UsageError, DaemonLost):
            return

    def check_ended(self) -> None:
        """Raise `DaemonLost` when the session did not end as sessions do."""
        now = observe(self.store, self.record, MountTable.read())
        if now.state in ("dead", "mounted"):
            raise DaemonLost(
                f"the daemon of sandbox '{now.name}' ended the connection",
                hint="'sandboxfs status' says whether it is still served",
            )


def over_of(error: UsageError) -> OverQuestion | None:
    """Return the end of a question that is over, from the error of an answer that came late."""
    over = error.details.get("over")
    return _read(OverQuestion, over) if isinstance(over, dict) else None


def question_events(event: object) -> Iterator[QuestionEvent]:
    """Read one event that the daemon tells of; a newer daemon may tell of other things."""
    if not isinstance(event, dict):
        raise _senseless()
    match event.get("event"):
        case "begin":
            yield from map(_question, _listed(event, "questions"))
        case "question":
            yield _question(event.get("question"))
        case "over":
            yield _read(OverQuestion, event)
        case _:
            return


def described(answer: Mapping[str, object]) -> dict[str, object]:
    """Return what the daemon says without the bytes of names, which JSON documents have in another form."""
    return {key: value for key, value in answer.items() if not key.endswith("_bytes")}


def _question(answer: object) -> WaitingQuestion:
    if not isinstance(answer, dict):
        raise _senseless()
    return replace(_read(WaitingQuestion, answer), answer=answer)


def _grant(answer: object) -> ShownGrant:
    if not isinstance(answer, dict):
        raise _senseless()
    # `for` is no name that a field can have.
    return replace(_read(ShownGrant, answer | {"extent": answer.get("for")}), answer=answer)


def _listed(answer: Mapping[str, object], key: str) -> list[object]:
    found = answer.get(key)
    if not isinstance(found, list):
        raise _senseless()
    return found


def _read(kind: type[T], answer: object) -> T:
    try:
        # A newer daemon may say more.
        return decode(kind, answer, lenient=True)
    except Malformed as error:
        raise _senseless() from error


def _senseless() -> DaemonLost:
    return DaemonLost(
        "what the daemon says about questions makes no sense",
        hint="unmount and mount the sandbox to have it served by this version of sandboxfs",
    )


def _whose(record: SandboxRecord) -> dict[str, object]:
    return {"name": record.name, "workspace": str(record.workspace)}
