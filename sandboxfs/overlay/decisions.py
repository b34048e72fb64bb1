"""Cache of policy decisions, per inode and name; of one generation of the policy.

A decision belongs to a path; a new policy empties the cache. For each inode that the kernel remembers, the
state of the compiled policy at the inode's path is kept, worked out once from the state of its directory and
its name, until the policy or the path changes. A file with several names gets the strictest state of those
known. A directory that a redirect shows at another path than in the workspace is judged by both paths, as is
everything in it: the stricter decides. So a redirect shows nothing that a rule hides or denies at the
redirect's source, whichever program wrote the redirect, and whichever rules held then.
"""

import errno
import os
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import NamedTuple, Protocol

from sandboxfs.overlay.asking import Person
from sandboxfs.overlay.filesystem import ROOT_INODE, Caller, LocatedFilesystem, Seen
from sandboxfs.paths import joined
from sandboxfs.policy.compiled import Compiled, State, settle
from sandboxfs.policy.model import Access, Decision, Mode, RuleCondition, Ruling

_OUT_OF_SIGHT = (Mode.HIDE, Mode.DENY)
_NOWHERE: list[tuple[int, bytes]] = []
# The arguments of `Journal.record`.
_Note = tuple[str, Access, bytes, bytes | None, Decision, Caller, int]


class PolicyDenied(OSError):
    """A rule refused; the caller gets the errno."""

    def __init__(self, number: int, decision: Decision) -> None:
        super().__init__(number, os.strerror(number))
        self.decision = decision


class ShownInode(NamedTuple):
    """An inode that the kernel may be showing, and the directory and name of each of its places."""

    ino: int
    places: list[tuple[int, bytes]]


class Journal(Protocol):
    """Records decisions: *error* is 0 for one that allowed. Recording must not wait for anything."""

    reads: bool
    """Whether lookups and reads are recorded too."""

    def count_read(self, decision: Decision) -> None:
        """Count a file that was opened for reading, where counting is enough."""

    def record(
        self,
        op: str,
        access: Access,
        path: bytes,
        to: bytes | None,
        decision: Decision,
        caller: Caller,
        error: int,
    ) -> None: ...


class Notes(list[_Note]):
    """Records of changes, written only after the changes have been answered."""

    def __init__(self, journal: Journal) -> None:
        super().__init__()
        self._journal = journal

    def settle(self) -> None:
        """Write the records."""
        while self:
            self._journal.record(*self.pop(0))


class Decisions:
    """The policy states of one tree, under one policy at a time."""

    def __init__(self, tree: LocatedFilesystem, policy: Compiled, journal: Journal) -> None:
        self._tree = tree
        self._policy = policy
        self.journal = journal
        self._states: dict[int, State] = {ROOT_INODE: policy.start}
        self.hides = _hides(policy)
        self.covers = _covers(policy)
        self.asks = _asks(policy)
        self.asks_git = policy.policy.asks_git
        self.new_programs = policy.policy.new_program_rule
        self._record: Callable[[*_Note], None] = journal.record

    def defer(self) -> Notes:
        """Collect the records of changes in the returned `Notes`, which writes them when asked."""
        notes = Notes(self.journal)

        def later(*note: *_Note) -> None:
            notes.append(note)

        self._record = later
        return notes

    def replace(self, policy: Compiled) -> list[ShownInode]:
        """Decide by another policy from now on; the inodes that became visible or invisible."""
        # Only these concern what the kernel shows; it asks before it opens or changes anything. Of files that
        # the policy asks about, the kernel may have pages, and programs may have them open.
        watched = self.covers or self.asks or _covers(policy) or _asks(policy)
        before = {ino: _sight(self.of(ino)) for ino in self._tree.inodes()} if watched else {}
        self._policy = policy
        self._states = {ROOT_INODE: policy.start}
        self.covers = _covers(policy)
        self.hides = _hides(policy)
        self.asks = _asks(policy)
        self.asks_git = policy.policy.asks_git
        self.new_programs = policy.policy.new_program_rule
        changed = []
        for ino, sight in before.items():
            now = _sight(self.of(ino))
            if now is not sight:
                covered = now in _OUT_OF_SIGHT or sight in _OUT_OF_SIGHT
                changed.append(ShownInode(ino, self._tree.places(ino) if covered else _NOWHERE))
        return changed

    def closed_by(self, policy: Compiled, inodes: Iterable[int]) -> list[ShownInode]:
        """The members of *inodes* that could be written, and could no longer be under another policy."""
        other = Decisions(self._tree, policy, self.journal)
        return [
            ShownInode(ino, [])
            for ino in inodes
            if self.of(ino).decision.allows(Access.WRITE) and not other.of(ino).decision.is_free
        ]

    # States

    def of(self, ino: int) -> State:
        state = self._states.get(ino)
        return state if state is not None else self._work_out(ino)

    def child(self, parent: int, name: bytes, is_dir: bool) -> State:
        state = self._states.get(parent) or self._work_out(parent)
        if state.quiet:
            return state
        state = self._policy.step(state, name, is_dir)
        return state if state.asks is None else self._settled(state, parent, name, is_dir)

    def step(self, state: State, parent: int, name: bytes, is_dir: bool, at: bytes | None = None) -> State:
        """The state of a name in the directory *parent*, if that had *state* and were at the path *at*."""
        state = self._policy.step(state, name, is_dir)
        return state if state.asks is None else self._settled(state, parent, name, is_dir, at)

    def moved(self, ino: int, state: State) -> State:
        """The state of an inode whose name has *state*: judged by the sources of redirects as well."""
        if self._tree.redirected:
            for origin in self._tree.origins(ino):
                state = self._policy.both(state, self._at_origin(origin))
        return state

    def _at_origin(self, path: bytes) -> State:
        """The state of a workspace directory, which is in the workspace, as conditions of rules want it."""
        state = self._policy.start
        here = b""
        for name in path.split(b"/"):
            here = joined(here, name)
            state = settle(self._policy.step(state, name, True), partial(self._is_so, here))
        return state

    def _is_so(self, path: bytes, needs: RuleCondition) -> bool:
        return needs is not RuleCondition.IGNORED or self._policy.ignored(path, True)

    def learn(self, ino: int, state: State, *, alone: bool) -> None:
        """Keep the state of an inode's only name; with several names (not *alone*), the state is worked out
        when needed."""
        if alone:
            self._states[ino] = state
        else:
            self._states.pop(ino, None)

    def unlearn(self, ino: int) -> None:
        if ino != ROOT_INODE:
            self._states.pop(ino, None)

    def unlearn_all(self) -> None:
        """Forget every state: paths have changed."""
        self._states = {ROOT_INODE: self._policy.start}

    def _work_out(self, ino: int) -> State:
        # Down from the nearest directory with a known state: a loop, because trees can be deep.
        chain = [ino]
        while (places := self._tree.places(chain[-1])) and places[0][0] not in self._states:
            chain.append(places[0][0])
        while len(chain) > 1:
            self._state_at(chain.pop())
        return self._state_at(ino)

    def _state_at(self, ino: int) -> State:
        """The strictest state of an inode's names; the root's state where no name is known."""
        state = self._policy.start
        places = self._tree.places(ino)
        if places:
            is_dir = self._tree.is_dir(ino)
            states = [self.child(parent, name, is_dir) for parent, name in places]
            state = states[0]
            for other in states[1:]:
                state = self._policy.both(state, other)
            if is_dir:
                state = self.moved(ino, state)
        self._states[ino] = state
        return state

    def _settled(
        self, state: State, parent: int, name: bytes, is_dir: bool, at: bytes | None = None
    ) -> State:
        """Answer the questions of a *state* about the workspace, for a name in the directory *parent*.

        *at* is the path that the directory would have. In a directory that a redirect shows, git may ignore
        the name at one of its paths and not at another; then the stricter of both answers decides.
        """
        while state.asks is not None:
            if state.asks is RuleCondition.IGNORED:
                ignored = {self._policy.ignored(path, is_dir) for path in self._paths_of(parent, name, at)}
                if len(ignored) > 1:
                    state = self._policy.both(state.yes, state.no)
                    continue
                holds = ignored.pop()
            else:
                named = name if state.asks is RuleCondition.ENTRY else None
                holds = self._tree.in_workspace(parent, named, at)
            state = state.yes if holds else state.no
        return state

    def _paths_of(self, parent: int, name: bytes, at: bytes | None) -> Iterator[bytes]:
        """The path of a name in the view, and those from which redirects of directories around it lead."""
        yield self._tree.path_to(parent, name) if at is None else joined(at, name)
        if not self._tree.redirected:
            return
        below, ino = name, parent
        while ino != ROOT_INODE:
            for origin in self._tree.origins(ino):
                yield joined(origin, below)
            places = self._tree.places(ino)
            if not places:
                return
            ino, above = places[0]
            below = joined(above, below)

    # Decisions about a name

    def check(
        self,
        op: str,
        access: Access,
        parent: int,
        name: bytes,
        is_dir: bool,
        caller: Caller,
        *,
        creating: bool = False,
        ino: int | None = None,
    ) -> State:
        """The state of a name, if the policy allows the access; raises otherwise.

        *ino* is the directory that has, or is about to have, the name.
        """
        state = self._states.get(parent) or self._work_out(parent)
        if not state.quiet:
            # The same as `child`, written out: every change comes through here.
            state = self._policy.step(state, name, is_dir)
            if state.asks is not None:
                state = self._settled(state, parent, name, is_dir)
        if ino is not None:
            state = self.moved(ino, state)
        if not state.free and not state.decision.allows(access):
            raise self.refusal(op, access, parent, name, state, caller, creating=creating)
        return state

    def refusal(
        self,
        op: str,
        access: Access,
        parent: int,
        name: bytes,
        state: State,
        caller: Caller,
        *,
        creating: bool = False,
    ) -> PolicyDenied:
        """Record a refused access to a name; gives the error to raise."""
        number = state.decision.errno(access, creating=creating)
        path = self._tree.path_to(parent, name)
        self.journal.record(op, access, path, None, state.decision, caller, number)
        return PolicyDenied(number, state.decision)

    def note(self, op: str, access: Access, parent: int, name: bytes, state: State, caller: Caller) -> None:
        """Record a finished change."""
        self._record(op, access, self._tree.path_to(parent, name), None, state.decision, caller, 0)

    # Decisions about an inode

    def check_inode(self, op: str, access: Access, ino: int, caller: Caller) -> State:
        """The state of an inode, if the policy allows the access; raises otherwise."""
        state = self._states.get(ino) or self._work_out(ino)
        if not state.free and not self.permits(state, access, ino):
            raise self.refuse(op, access, ino, state.decision, caller)
        return state

    def permits(self, state: State, access: Access, ino: int) -> bool:
        """Whether an access to an inode happens at once. Reading what the sandbox itself made never asks."""
        ruling = state.decision.ruling(access)
        return ruling.permits or (
            ruling is Ruling.ASK and access is Access.READ and self._tree.made_here(ino)
        )

    def refuse(self, op: str, access: Access, ino: int, decision: Decision, caller: Caller) -> PolicyDenied:
        """Record a refused access to an inode; gives the error to raise."""
        number = decision.errno(access)
        self.journal.record(op, access, self._tree.path(ino), None, decision, caller, number)
        return PolicyDenied(number, decision)

    def asked_paths(self, ino: int, access: Access) -> tuple[bytes, ...]:
        """The names of an inode about which a rule asks; all of them where it asks about none by its name."""
        places = self._tree.places(ino)
        asking = [
            place for place in places if self.child(*place, False).decision.ruling(access) is Ruling.ASK
        ]
        paths = [self._tree.path_to(*place) for place in asking or places]
        return tuple(sorted(paths)) or (self._tree.path(ino),)

    def keep_covered(
        self,
        op: str,
        seen: Seen,
        old: State,
        new: State,
        names: tuple[bytes, bytes],
        person: Person,
        caller: Caller,
    ) -> None:
        """Raise where a file would get a name by which its content could be read or executed more freely.

        *names* are the old and the new one.
        """
        if seen.is_dir:
            return
        access = self.uncovers(old, new, seen.ino, names, person)
        if access is not None:
            self.journal.record(op, access, names[0], None, old.decision, caller, errno.EACCES)
            raise PolicyDenied(errno.EACCES, old.decision)

    def uncovers(
        self, old: State, new: State, ino: int, names: tuple[bytes, bytes], person: Person
    ) -> Access | None:
        """How a file's content could be used more freely by its new name than by its old one, if it could.

        What the sandbox made itself may get any name: only the workspace's content is behind questions.
        """
        if old.free:
            return None
        access = old.decision.uncovered_by(new.decision)
        if access is None and old.decision.asks is not None and not person.keeps_apart(*names):
            access = old.decision.asks
        return None if access is None or self._tree.made_here(ino) else access

    def check_shown(self, op: str, ino: int, caller: Caller) -> State:
        """The state of an inode whose names and attributes may be looked at; raises otherwise.

        A rule that asks before content is read lets everybody see that the content is there.
        """
        state = self._states.get(ino) or self._work_out(ino)
        if state.free or state.decision.ruling(Access.READ) is Ruling.ASK:
            return state
        return self.check_inode(op, Access.READ, ino, caller)

    def note_inode(self, op: str, access: Access, ino: int, state: State, caller: Caller) -> None:
        """Record a finished access to an inode."""
        self._record(op, access, self._tree.path(ino), None, state.decision, caller, 0)

    def note_move(self, path: bytes, parent: int, name: bytes, state: State, caller: Caller) -> None:
        """Record that the entry from *path* is now at a name of *parent*."""
        to = self._tree.path_to(parent, name)
        self._record("rename", Access.WRITE, path, to, state.decision, caller, 0)


def _sight(state: State) -> Mode | None:
    """The mode that keeps a path or its content out of sight, None for one in sight."""
    mode = state.decision.reading.mode
    return mode if mode in _OUT_OF_SIGHT or mode is Mode.ASK else None


def _asks(policy: Compiled) -> bool:
    """Whether any rule may ask before a file is read."""
    return policy.policy.enabled and any(rule.mode is Mode.ASK for rule in policy.policy.rules)


def _hides(policy: Compiled) -> bool:
    """Whether any rule may hide a name."""
    return policy.policy.enabled and any(rule.mode is Mode.HIDE for rule in policy.policy.rules)


def _covers(policy: Compiled) -> bool:
    """Whether any rule may hide or deny a name."""
    return policy.policy.enabled and any(rule.mode in _OUT_OF_SIGHT for rule in policy.policy.rules)
