"""With any sequence of operations, answers and revocations: is nothing read that no person allowed?

Each file of the workspace tells in its content where it comes from. Random verbs move, link, exchange and
change files, and open them; random answers allow or refuse what is asked, for once, a path, a directory or a
pattern. Whatever can be read through any open file must be allowed to that file by an answer that still
stands, if a rule asks about the place that it comes from.
"""

import os
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from hypothesis import given, settings
from hypothesis import strategies as st

from sandboxfs.daemon.pending_question import GivenAnswer, PendingOpen
from sandboxfs.daemon.program_lookup import ProgramSeen
from sandboxfs.daemon.questions import Questions
from sandboxfs.overlay.decisions import PolicyDenied
from sandboxfs.overlay.filesystem import ROOT_INODE, Postponed
from sandboxfs.policy.explain import decide
from sandboxfs.policy.grants import ProcessMark, extent_of
from sandboxfs.policy.model import Access, Mode, Policy, Rule, RuleSource, Ruling, SourceKind
from tests.support.tree import Tree
from tests.unit.overlay.test_guard_properties import ME, MOVES, NAMES, WORKSPACE, Kernel, Step, numbers

PATHS = ["a/a", "a/b", "a/ab", "b/a", "b/b", "b/c/a", "b/c/b", "n", "ab"]
SEED: Tree = {path: f"<{path}>" for path in PATHS}
EVERYWHERE = 64


class Alone:
    """Processes, of which there is one."""

    def exe(self, thread: int) -> str | None:
        return "/usr/bin/test"

    def line(self, thread: int) -> list[ProgramSeen]:
        return [ProgramSeen(thread, 1, self.exe(thread), "test")]

    def marks(self, thread: int) -> tuple[ProcessMark, ...]:
        return (ProcessMark(thread, 1),)

    def lives(self, mark: ProcessMark) -> bool:
        return True


class Unrecorded:
    def event(self, event: str, **details: object) -> None:
        """Nobody reads it."""


class Reply(NamedTuple):
    """An answer to the oldest question."""

    allows: bool
    extent: str


class Revoke(NamedTuple):
    """Takes back one of the grants."""

    number: int


class Person(Kernel):
    """The kernel, and a person who answers what it is told to wait for."""

    def __init__(self, place: Path, policy: Policy) -> None:
        self.queue = Questions(Alone(), Unrecorded(), WORKSPACE, lambda: 0.0, timeout=60)
        self.queue.follow()
        super().__init__(place, policy, self.queue, SEED)
        self.queue.grants.withdrawn = self.withdrawn
        self.policy = policy
        self.over: list[tuple[PendingOpen, int]] = []
        # The contents that were allowed by each grant, as the files were when it was given.
        self.allowed: dict[int, set[str]] = {}

    def withdrawn(self, grants: set[int]) -> None:
        self.guard.withdraw(grants)

    def open(self, path: str, flags: int) -> None:
        entry = self.find(path)
        with suppress(IsADirectoryError):
            self.try_open(entry.ino, flags, None)

    def try_open(self, ino: int, flags: int, waited: PendingOpen | None) -> None:
        try:
            handle = self.guard.open(ino, flags, ME if waited is None else waited.caller).handle
        except Postponed as postponed:
            wait = postponed.wait
            assert isinstance(wait, PendingOpen)
            wait.when_over(lambda: self.over.append((wait, flags)))
        else:
            self.handles[handle] = ino, flags & os.O_ACCMODE

    def resume(self) -> None:
        over, self.over = self.over, []
        for wait, flags in over:
            with suppress(OSError):
                self.try_open(wait.asked.ino, flags, wait)

    def reply(self, reply: Reply) -> None:
        for question in self.queue.asked()[:1]:
            extent, target = extent_of(reply.extent, question.attempt.path, None)
            answer = GivenAnswer(reply.allows, extent, target)
            meant = {
                content
                for path, content in self.contents()
                if path == question.attempt.path or answer_covers(reply.extent, question.attempt.path, path)
            }
            standing = self.queue.answer(question.number, answer)
            if standing is not None and reply.allows:
                self.allowed[standing.grant.number] = meant
            self.resume()

    def revoke(self, revoke: Revoke) -> None:
        grants = [standing.grant.number for standing in self.queue.grants.in_force()]
        if grants:
            self.queue.grants.revoke({grants[revoke.number % len(grants)]})

    def contents(self) -> list[tuple[str, str]]:
        """The path and content of every file that is there, read around the guard."""
        found = []
        for path, is_dir in list(self.overlay.walk(ROOT_INODE, b"")):
            if not is_dir:
                entry = self.whatever(os.fsdecode(path))
                if entry is not None:
                    found.append((os.fsdecode(path), entry))
        return found

    def whatever(self, path: str) -> str | None:
        ino, held = ROOT_INODE, []
        try:
            for name in path.split("/"):
                entry = self.overlay.lookup(ino, name.encode())
                if entry is None:
                    return None
                held.append(entry.ino)
                ino = entry.ino
            with suppress(OSError):
                fd = self.overlay.readable(ino)
                try:
                    return os.pread(fd, EVERYWHERE, 0).decode()
                finally:
                    os.close(fd)
            return None
        finally:
            for one in held:
                self.overlay.forget(one, 1)

    def use_handles(self) -> None:
        standing = {standing.grant.number for standing in self.queue.grants.in_force()}
        allowed = {content for number, some in self.allowed.items() if number in standing for content in some}
        for handle, (_, flags) in self.handles.items():
            if flags == os.O_WRONLY:
                continue
            with suppress(PolicyDenied):
                read = bytes(self.guard.read(handle, 0, EVERYWHERE)).decode()
                if self.is_asked_about(read):
                    assert read in allowed, f"{read} was read, and allowed is {allowed}"

    def is_asked_about(self, content: str) -> bool:
        home = content.strip("<>")
        if home not in PATHS:
            return False
        return decide(self.policy, home, root=WORKSPACE).ruling(Access.READ) is Ruling.ASK

    def check_view(self) -> None:
        """What is seen is for other tests."""


def answer_covers(extent: str, shown: str, path: str) -> bool:
    if extent == "directory":
        above = shown.rpartition("/")[0]
        return not above or path.startswith(above + "/")
    return extent == "**"


ASKED = ["a/a", "a", "**/a", "b/c", "*b", "b", "a/**", "**"]
asking_policies = st.lists(
    st.builds(
        Rule,
        st.sampled_from(ASKED),
        st.sampled_from([Mode.ASK, Mode.ASK, Mode.ASK, Mode.RW, Mode.DENY]),
        st.just(RuleSource(SourceKind.COMMAND_LINE)),
    ),
    min_size=1,
    max_size=3,
).map(lambda rules: Policy(tuple(rules)))
OPENING = ["do_open", "do_open", "do_open_to_write"]
step = st.builds(
    Step,
    st.sampled_from(MOVES) | st.sampled_from(OPENING),
    numbers,
    numbers,
    st.sampled_from(NAMES),
    st.sampled_from([False, False, True]),
)
reply = st.builds(
    Reply,
    st.sampled_from([True, True, True, False]),
    st.sampled_from(["once", "path", "path", "directory", "**"]),
)
steps = st.lists(
    st.sampled_from([step, step, step, reply, reply, st.builds(Revoke, numbers)]).flatmap(lambda one: one),
    min_size=5,
    max_size=20,
)


@given(asking_policies, steps)
@settings(max_examples=settings().max_examples * 4)
def test_nothing_is_read_that_no_person_allowed(policy: Policy, todo: "list[Step | Reply | Revoke]") -> None:
    umask = os.umask(0)
    place = Path(tempfile.mkdtemp(prefix="sandboxfs-test-"))
    person = Person(place, policy)
    try:
        for one in todo:
            match one:
                case Reply():
                    person.reply(one)
                case Revoke():
                    person.revoke(one)
                case Step():
                    with suppress(OSError):
                        getattr(person, one.verb)(*person.chosen(one))
            person.use_handles()
        person.queue.end()
        person.resume()
        person.finish()
    finally:
        person.overlay.close()
        shutil.rmtree(place)
        os.umask(umask)
