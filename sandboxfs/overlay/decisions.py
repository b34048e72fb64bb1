"""What does the policy say about this inode, or this name?

A decision belongs to a path. For each inode that the kernel remembers, the state of the compiled policy at
its path is kept, worked out once from its directory's state and its name, until the policy or the path
changes. A file with several names is treated as the strictest of those that are known.
"""

import os
from collections.abc import Callable, Iterable
from typing import NamedTuple, Protocol

from sandboxfs.overlay.filesystem import ROOT_INODE, Caller, Tree
from sandboxfs.policy.compiled import Compiled, State, settle
from sandboxfs.policy.model import Access, Decision, Mode, Needs

_OUT_OF_SIGHT = (Mode.HIDE, Mode.DENY)
# What `Journal.record` is told.
_Note = tuple[str, Access, bytes, bytes | None, Decision, Caller, int]


class PolicyDenied(OSError):
    """A rule refused; the errno is what the caller gets."""

    def __init__(self, number: int, decision: Decision) -> None:
        super().__init__(number, os.strerror(number))
        self.decision = decision


class Shown(NamedTuple):
    """An inode that the kernel may be showing, and the directory and name of each place it is shown at."""

    ino: int
    places: list[tuple[int, bytes]]


class Journal(Protocol):
    """Where decisions are recorded: *error* is 0 for one that allowed. Must not wait for anything."""

    reads: bool
    """Whether looking is to be recorded too."""

    def count_read(self, decision: Decision) -> None:
        """Count a file that was opened to be read, where that is all that is wanted of it."""

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
    """Changes that were made and are recorded only when they have been answered."""

    def __init__(self, journal: Journal) -> None:
        super().__init__()
        self._journal = journal

    def settle(self) -> None:
        """Record them."""
        while self:
            self._journal.record(*self.pop(0))


class Decisions:
    """The states of one tree under one policy at a time."""

    def __init__(self, tree: Tree, policy: Compiled, journal: Journal) -> None:
        self._tree = tree
        self._policy = policy
        self.journal = journal
        self._states: dict[int, State] = {ROOT_INODE: policy.start}
        self.hides = _hides(policy)
        self._covers = _covers(policy)
        self._record: Callable[[*_Note], None] = journal.record

    def defer(self) -> Notes:
        """Have changes that were made recorded only when that is asked of what is given."""
        notes = Notes(self.journal)

        def later(*note: *_Note) -> None:
            notes.append(note)

        self._record = later
        return notes

    def replace(self, policy: Compiled) -> list[Shown]:
        """Decide by another policy; what came into sight or went out of it."""
        # Only these modes are about what the kernel may show; it asks before it opens or changes anything.
        watched = self._covers or _covers(policy)
        before = {ino: self.of(ino).decision.mode for ino in self._tree.inodes()} if watched else {}
        self._policy = policy
        self._states = {ROOT_INODE: policy.start}
        self._covers = _covers(policy)
        self.hides = _hides(policy)
        return [
            Shown(ino, self._tree.places(ino))
            for ino, mode in before.items()
            if (now := self.of(ino).decision.mode) is not mode
            and (now in _OUT_OF_SIGHT or mode in _OUT_OF_SIGHT)
        ]

    def closed_by(self, policy: Compiled, inodes: Iterable[int]) -> list[Shown]:
        """Those of *inodes* that could be written and could no longer be under another policy."""
        other = Decisions(self._tree, policy, self.journal)
        return [
            Shown(ino, [])
            for ino in inodes
            if self.of(ino).decision.mode is Mode.RW and other.of(ino).decision.mode is not Mode.RW
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
        return state if state.asks is None else settle(state, self._workspace_has(parent, name, None))

    def step(self, state: State, parent: int, name: bytes, is_dir: bool, at: bytes | None = None) -> State:
        """The state of a name in the directory *parent*, if that had *state* and were at the path *at*."""
        state = self._policy.step(state, name, is_dir)
        return state if state.asks is None else settle(state, self._workspace_has(parent, name, at))

    def learn(self, ino: int, state: State, *, alone: bool) -> None:
        """Keep the state of an inode's name; one with other names than this is worked out when it is
        asked."""
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
        # From the nearest directory whose state is known down: a loop, because trees can be deep.
        chain = [ino]
        while (places := self._tree.places(chain[-1])) and places[0][0] not in self._states:
            chain.append(places[0][0])
        while len(chain) > 1:
            self._state_at(chain.pop())
        return self._state_at(ino)

    def _state_at(self, ino: int) -> State:
        """The strictest state of an inode's names; the root's own where none is known."""
        state = self._policy.start
        places = self._tree.places(ino)
        if places:
            is_dir = self._tree.is_dir(ino)
            states = [self.child(parent, name, is_dir) for parent, name in places]
            state = states[0]
            for other in states[1:]:
                if other.decision.mode.stricter_than(state.decision.mode):
                    state = other
        self._states[ino] = state
        return state

    def _workspace_has(self, parent: int, name: bytes, at: bytes | None) -> Callable[[Needs], bool]:
        return lambda needs: self._tree.in_workspace(parent, name if needs is Needs.ENTRY else None, at)

    # Asking about a name

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
    ) -> State:
        """The state of a name that may be accessed so; raises otherwise."""
        state = self._states.get(parent) or self._work_out(parent)
        if not state.quiet:
            # What `child` does, in place: this is asked for every change.
            state = self._policy.step(state, name, is_dir)
            if state.asks is not None:
                state = settle(state, self._workspace_has(parent, name, None))
        if not state.free and not state.decision.mode.allows(access):
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
        """Record a refused access to a name; the error to raise."""
        number = state.decision.errno(access, creating=creating)
        path = self._tree.path_to(parent, name)
        self.journal.record(op, access, path, None, state.decision, caller, number)
        return PolicyDenied(number, state.decision)

    def note(self, op: str, access: Access, parent: int, name: bytes, state: State, caller: Caller) -> None:
        """Record a change that was made."""
        self._record(op, access, self._tree.path_to(parent, name), None, state.decision, caller, 0)

    # Asking about an inode

    def check_inode(self, op: str, access: Access, ino: int, caller: Caller) -> State:
        """The state of an inode that may be accessed so; raises otherwise."""
        state = self._states.get(ino) or self._work_out(ino)
        if not state.free and not state.decision.mode.allows(access):
            number = state.decision.errno(access)
            self.journal.record(op, access, self._tree.path(ino), None, state.decision, caller, number)
            raise PolicyDenied(number, state.decision)
        return state

    def note_inode(self, op: str, access: Access, ino: int, state: State, caller: Caller) -> None:
        """Record what was done to an inode."""
        self._record(op, access, self._tree.path(ino), None, state.decision, caller, 0)

    def note_move(self, path: bytes, parent: int, name: bytes, state: State, caller: Caller) -> None:
        """Record that what was at *path* is now at a name."""
        to = self._tree.path_to(parent, name)
        self._record("rename", Access.WRITE, path, to, state.decision, caller, 0)


def _hides(policy: Compiled) -> bool:
    """Whether anything may be hidden at all."""
    return policy.policy.enabled and any(rule.mode is Mode.HIDE for rule in policy.policy.rules)


def _covers(policy: Compiled) -> bool:
    """Whether anything may be hidden or denied."""
    return policy.policy.enabled and any(rule.mode in _OUT_OF_SIGHT for rule in policy.policy.rules)
