"""The guard: the overlay behind a policy, which decides and delegates.

`Guard` implements every verb of `Filesystem`; a forgotten verb would be a type error, never a hole. A hidden
name is not found and not listed, whether it exists or not. A refusal raises `PolicyDenied` and is recorded;
every finished change is recorded too.
"""

import errno
import os
import stat
from collections.abc import Callable, Iterator, Set
from functools import partial
from typing import NamedTuple

from sandboxfs.hostfs.copy import ACCESS_LIST, DEFAULT_LIST
from sandboxfs.hostfs.syscalls import RENAME_EXCHANGE
from sandboxfs.overlay.asking import Asked, ContentDigests, Nobody, Person
from sandboxfs.overlay.decisions import Decisions, Journal, Notes, PolicyDenied, ShownInode
from sandboxfs.overlay.filesystem import (
    AttributeChange,
    Caller,
    Entry,
    LocatedFilesystem,
    OpenedFile,
    Seen,
    host_error,
    stale,
)
from sandboxfs.overlay.guard_paths import LinkGuard, refuse_escape
from sandboxfs.policy.compiled import Compiled, State
from sandboxfs.policy.model import Access, Decision, Rule, Ruling, stricter

READ, WRITE, DELETE, EXECUTE = Access.READ, Access.WRITE, Access.DELETE, Access.EXECUTE

# The flag that the kernel adds when it opens a file to run the file: __FMODE_EXEC.
_TO_EXECUTE = 0x20
_EXECUTING, _WRITING, _READING, _READING_AND_WRITING = (EXECUTE,), (WRITE,), (READ,), (READ, WRITE)
_DOTS = (b".", b"..")
_LISTS = (ACCESS_LIST, DEFAULT_LIST)


class _Move(NamedTuple):
    """One direction of a rename, approved by the policy.

    *state* is that of the old name; *displaces* says whether entries below get other states.
    """

    state: State
    inodes: list[int]
    displaces: bool


class _Opened(NamedTuple):
    """An open file: what it was opened for, and the *grants* by which it was, where a rule asked."""

    ino: int
    caller: Caller
    reading: Access = READ
    grants: tuple[int, ...] = ()
    new_program: bool = False


class Guard:
    """A filesystem that asks a policy before each verb of the inner filesystem."""

    def __init__(
        self,
        inner: LocatedFilesystem,
        policy: Compiled,
        journal: Journal,
        links: LinkGuard,
        person: Person | None = None,
    ) -> None:
        """*person* answers where a rule asks; without one, the access is refused."""
        self._inner = inner
        self._decisions = Decisions(inner, policy, journal)
        self._journal = journal
        self._links = links
        self._person = person or Nobody()
        self._digests = ContentDigests()
        self._handles: dict[int, _Opened] = {}
        self._listings: dict[int, tuple[int, Caller]] = {}
        # Handles opened under an earlier policy: decided again at each use, until the policy allows writing.
        self._unsure: set[int] = set()
        # Handles whose next write is recorded: they were opened before an observation began.
        self._unrecorded: set[int] = set()
        # Directories whose listings under this policy the kernel may have cached.
        self._listed: set[int] = set()

    def defer_records(self) -> Notes:
        """Collect the records of changes in the returned `Notes`, which writes them after the answer."""
        return self._decisions.defer()

    def closed_by(self, policy: Compiled) -> list[ShownInode]:
        """The open files that could be written, and could not be under *policy*."""
        return self._decisions.closed_by(policy, {opened.ino for opened in self._handles.values()})

    def set_policy(self, policy: Compiled) -> list[ShownInode]:
        """Decide by *policy* from now on; the inodes that became visible or invisible."""
        self._unsure.update(self._handles)
        hid = self._decisions.hides
        changed = self._decisions.replace(policy)
        if hid or self._decisions.hides:
            changed += [ShownInode(ino, []) for ino in self._listed]
            # A listing that is being read now must not be cached either.
            self._listed.clear()
        return changed

    def withdraw(self, grants: Set[int]) -> list[ShownInode]:
        """Decide again about the files that are open because of *grants*; the inodes of these files."""
        found = [handle for handle, opened in self._handles.items() if not grants.isdisjoint(opened.grants)]
        self._unsure.update(found)
        return [ShownInode(ino, []) for ino in {self._handles[handle].ino for handle in found}]

    def decide_anew(self) -> None:
        """Make every decision again: the workspace may have other entries than before."""
        self._unsure.update(self._handles)
        self._decisions.unlearn_all()

    def watch_handles(self) -> None:
        """Record the next write of every handle that is open now."""
        self._unrecorded.update(self._handles)

    # Looking

    def lookup(self, parent: int, name: bytes, caller: Caller) -> Entry | None:
        entry = self._inner.lookup(parent, name, caller)
        is_dir = entry is not None and stat.S_ISDIR(entry.stat.st_mode)
        state = self._decisions.child(parent, name, is_dir)
        if is_dir and entry is not None:
            state = self._decisions.moved(entry.ino, state)
        if not state.free:
            decision = state.decision
            if decision.denies and is_dir and not state.quiet and entry is not None:
                # The directory leads to entries that an earlier rule allows; it cannot be listed.
                return self._shown(entry)._replace(guarded=True)
            if decision.hides or (entry is not None and decision.denies):
                if entry is not None:
                    self._inner.forget(entry.ino, 1)
                raise self._decisions.refusal("lookup", READ, parent, name, state, caller)
        if entry is None:
            return None
        self._decisions.learn(entry.ino, state, alone=entry.nlink == 1)
        if self._journal.reads:
            self._decisions.note("lookup", READ, parent, name, state, caller)
        return entry if stat.S_ISREG(entry.stat.st_mode) else self._shown(entry)

    def absence_lasts(self, parent: int) -> bool:
        return self._inner.absence_lasts(parent)

    def remember(self, ino: int) -> None:
        self._inner.remember(ino)

    def forget(self, ino: int, count: int) -> bool:
        gone = self._inner.forget(ino, count)
        if gone:
            self._decisions.unlearn(ino)
            self._listed.discard(ino)
        return gone

    def getattr(self, ino: int, caller: Caller) -> Entry:
        state = self._decisions.of(ino)
        if not state.free or self._journal.reads:
            if self._is_way(state) and self._inner.is_dir(ino):
                return self._shown(self._inner.getattr(ino, caller))._replace(guarded=True)
            self._check_read("getattr", ino, caller)
        entry = self._inner.getattr(ino, caller)
        return entry if stat.S_ISREG(entry.stat.st_mode) else self._shown(entry)

    def readlink(self, ino: int, caller: Caller) -> bytes:
        self._check_read("readlink", ino, caller)
        target = self._inner.readlink(ino, caller)
        return self._links.answer(ino, target, caller, self._visible)

    def getxattr(self, ino: int, name: bytes, caller: Caller) -> bytes:
        if not (name in _LISTS and self._inner.is_dir(ino) and self._is_way(self._decisions.of(ino))):
            self._check_read("getxattr", ino, caller)
        return self._inner.getxattr(ino, name, caller)

    def listxattr(self, ino: int, caller: Caller) -> list[bytes]:
        self._check_read("listxattr", ino, caller)
        return self._inner.listxattr(ino, caller)

    def statfs(self) -> os.statvfs_result:
        return self._inner.statfs()

    # Changing

    def setattr(self, ino: int, change: AttributeChange, handle: int | None, caller: Caller) -> Entry:
        state = self._decisions.check_inode("setattr", WRITE, ino, caller)
        entry = self._inner.setattr(ino, change, handle, caller)
        self._decisions.note_inode("setattr", WRITE, ino, state, caller)
        return self._shown(entry)

    def setxattr(self, ino: int, name: bytes, value: bytes, flags: int, caller: Caller) -> None:
        state = self._decisions.check_inode("setxattr", WRITE, ino, caller)
        self._inner.setxattr(ino, name, value, flags, caller)
        self._decisions.note_inode("setxattr", WRITE, ino, state, caller)

    def removexattr(self, ino: int, name: bytes, caller: Caller) -> None:
        state = self._decisions.check_inode("removexattr", WRITE, ino, caller)
        self._inner.removexattr(ino, name, caller)
        self._decisions.note_inode("removexattr", WRITE, ino, state, caller)

    # Names

    def mknod(
        self, parent: int, name: bytes, mode: int, device: int, caller: Caller, *, umask: int = 0
    ) -> Entry:
        inner = partial(self._inner.mknod, parent, name, mode, device, caller, umask=umask)
        return self._made("mknod", parent, name, False, caller, inner)

    def mkdir(self, parent: int, name: bytes, mode: int, caller: Caller, *, umask: int = 0) -> Entry:
        inner = partial(self._inner.mkdir, parent, name, mode, caller, umask=umask)
        return self._made("mkdir", parent, name, True, caller, inner)

    def symlink(self, parent: int, name: bytes, target: bytes, caller: Caller) -> Entry:
        inner = partial(self._inner.symlink, parent, name, target, caller)
        return self._made("symlink", parent, name, False, caller, inner)

    def _made(
        self, op: str, parent: int, name: bytes, is_dir: bool, caller: Caller, make: Callable[[], Entry]
    ) -> Entry:
        state = self._check_making(op, parent, name, is_dir, caller)
        entry = make()
        self._decisions.learn(entry.ino, state, alone=True)
        self._decisions.note(op, WRITE, parent, name, state, caller)
        return self._shown(entry)

    def _check_making(self, op: str, parent: int, name: bytes, is_dir: bool, caller: Caller) -> State:
        """Check a name that the kernel found free.

        A rule may hide an entry there: a directory where the new entry is none, or the reverse, or a
        redirect's directory. The hidden entry must not become known by being in the way.
        """
        state = self._decisions.check(op, WRITE, parent, name, is_dir, caller, creating=True)
        if not self._decisions.hides:
            return state
        other = self._decisions.child(parent, name, not is_dir)
        if other.decision.hides or self._inner.redirected:
            there = self._peek(parent, name, caller)
            if there is not None and there.decision.hides:
                raise self._decisions.refusal(op, WRITE, parent, name, there, caller, creating=True)
        return state

    def link(self, ino: int, parent: int, name: bytes, caller: Caller) -> Entry:
        # A second name is a second way in: a file that may not be changed by one name must not get another.
        old = self._decisions.check_inode("link", WRITE, ino, caller)
        state = self._check_making("link", parent, name, False, caller)
        source = self._inner.path(ino)
        names = source, self._inner.path_to(parent, name)
        self._decisions.keep_covered("link", Seen(ino, False), old, state, names, self._person, caller)
        entry = self._inner.link(ino, parent, name, caller)
        self._decisions.learn(entry.ino, state, alone=False)
        self._journal.record(
            "link", WRITE, source, self._inner.path_to(parent, name), state.decision, caller, 0
        )
        return self._shown(entry)

    def unlink(self, parent: int, name: bytes, caller: Caller) -> None:
        state = self._decisions.check("unlink", DELETE, parent, name, False, caller)
        self._inner.unlink(parent, name, caller)
        self._decisions.note("unlink", DELETE, parent, name, state, caller)

    def rmdir(self, parent: int, name: bytes, caller: Caller) -> None:
        state = self._decisions.check("rmdir", DELETE, parent, name, True, caller)
        there = self._peek(parent, name, caller) if self._inner.redirected else None
        if there is not None and not there.decision.allows(DELETE):
            raise self._decisions.refusal("rmdir", DELETE, parent, name, there, caller)
        try:
            self._inner.rmdir(parent, name, caller)
        except OSError as error:
            if error.errno == errno.ENOTEMPTY:
                self._explain_not_empty(parent, name, caller)
            raise
        self._decisions.note("rmdir", DELETE, parent, name, state, caller)

    def rename(
        self, parent: int, name: bytes, new_parent: int, new_name: bytes, flags: int, caller: Caller
    ) -> None:
        moves: list[_Move] = []

        def approve(source: Seen | None, target: Seen | None) -> None:
            moves[:] = [self._check_move(source, parent, name, target, new_parent, new_name, caller)]
            if flags & RENAME_EXCHANGE:
                moves.append(self._check_move(target, new_parent, new_name, source, parent, name, caller))

        path = self._inner.path_to(parent, name)
        self._inner.move(parent, name, new_parent, new_name, flags, approve)
        done = moves[0]
        if done.displaces or moves[-1].displaces:
            self._decisions.unlearn_all()
        for ino in done.inodes:
            self._decisions.unlearn(ino)
        self._decisions.note_move(path, new_parent, new_name, done.state, caller)

    def _check_move(
        self,
        source: Seen | None,
        parent: int,
        name: bytes,
        target: Seen | None,
        new_parent: int,
        new_name: bytes,
        caller: Caller,
    ) -> "_Move":
        """Check both names and everything below them."""
        is_dir = source is not None and source.is_dir
        ino = source.ino if source is not None and is_dir else None
        old = self._decisions.check("rename", DELETE, parent, name, is_dir, caller, ino=ino)
        at_target = new_parent, new_name
        if target is not None:
            other = target.ino if target.is_dir else None
            self._decisions.check(
                "rename", DELETE, *at_target, target.is_dir, caller, creating=True, ino=other
            )
        new = self._decisions.check("rename", WRITE, *at_target, is_dir, caller, creating=True, ino=ino)
        inodes = [seen.ino for seen in (source, target) if seen is not None]
        if source is None or not is_dir:
            if source is not None:
                names = self._inner.path_to(parent, name), self._inner.path_to(*at_target)
                self._decisions.keep_covered("rename", source, old, new, names, self._person, caller)
            return _Move(old, inodes, displaces=False)
        to = self._inner.path_to(new_parent, new_name)
        refuse_escape(self._inner, self._decisions, self._person, source.ino, old, new, to, caller)
        return _Move(old, inodes, displaces=not (old is new and old.quiet))

    # Files

    def open(self, ino: int, flags: int, caller: Caller) -> OpenedFile:
        accesses = _accesses(flags)
        state = self._decisions.of(ino)
        grants: list[int] = []
        if not state.free:
            for access in accesses:
                if not self._decisions.permits(state, access, ino):
                    self._ask(access, ino, state.decision, caller, grants)
        asked = len(grants)
        if accesses is _EXECUTING and self._decisions.new_programs is not None:
            self._check_new_program(ino, state, self._decisions.new_programs, caller, grants)
        opened = self._inner.open(ino, flags, caller)
        self._handles[opened.handle] = (
            _Opened(ino, caller)
            if accesses is not _EXECUTING and not grants
            else _Opened(ino, caller, accesses[0], tuple(grants), len(grants) > asked)
        )
        for grant in grants:
            self._person.opened(grant)
        if accesses[-1] is WRITE or self._journal.reads:
            self._decisions.note_inode("open", accesses[-1], ino, state, caller)
        else:
            self._journal.count_read(state.decision)
        return opened

    def _check_new_program(
        self, ino: int, state: State, rule: Rule, caller: Caller, grants: list[int]
    ) -> None:
        """Check that a file that the sandbox made or changed may be executed, unless a rule says so."""
        decided = state.decision.executing.execute is not None or not state.decision.allows(EXECUTE)
        if decided or not self._inner.changed_here(ino):
            return
        decision = stricter(state.decision, Decision.by(rule))
        content = None
        if decision.ruling(EXECUTE) is Ruling.ASK:
            content = self._digests.of(ino, self._inner.readable(ino))
        self._ask(EXECUTE, ino, decision, caller, grants, content)

    def _ask(
        self,
        access: Access,
        ino: int,
        decision: Decision,
        caller: Caller,
        grants: list[int],
        content: str | None = None,
    ) -> None:
        """Raise unless a person allows an access that does not happen at once; adds the grant to *grants*."""
        if decision.ruling(access) is Ruling.ASK:
            paths = self._decisions.asked_paths(ino, access)
            verdict = self._person.permit(Asked(access, ino, paths, decision, content), caller)
            if verdict.allows:
                grants += [] if verdict.grant is None else [verdict.grant]
                return
        raise self._decisions.refuse("open", access, ino, decision, caller)

    def create(
        self, parent: int, name: bytes, mode: int, flags: int, caller: Caller, *, umask: int = 0
    ) -> tuple[OpenedFile, Entry]:
        state = self._check_making("create", parent, name, False, caller)
        asks = state.decision.ruling(READ) is Ruling.ASK
        try:
            # The host may have made the file after the kernel had found the name free. Opening what is there
            # is for `open`, which asks: the kernel comes back with it.
            opened, entry = self._inner.create(
                parent, name, mode, flags | os.O_EXCL if asks else flags, caller, umask=umask
            )
        except FileExistsError:
            raise (stale() if asks and not flags & os.O_EXCL else host_error(errno.EEXIST)) from None
        self._handles[opened.handle] = _Opened(entry.ino, caller)
        self._decisions.learn(entry.ino, state, alone=entry.nlink == 1)
        self._decisions.note("create", WRITE, parent, name, state, caller)
        return opened, entry

    def read(self, handle: int, offset: int, size: int) -> bytes | memoryview:
        if handle in self._unsure:
            self._decide_again(handle, "read", self._handles[handle].reading)
        return self._inner.read(handle, offset, size)

    def write(self, handle: int, offset: int, data: bytes | memoryview, *, strip: bool = False) -> int:
        if handle in self._unsure:
            self._decide_again(handle, "write", WRITE)
        if handle in self._unrecorded:
            self._unrecorded.discard(handle)
            ino, caller, *_ = self._handles[handle]
            self._decisions.note_inode("write", WRITE, ino, self._decisions.of(ino), caller)
        return self._inner.write(handle, offset, data, strip=strip)

    def release(self, handle: int) -> None:
        opened = self._handles.pop(handle, None)
        for grant in () if opened is None else opened.grants:
            self._person.closed(grant)
        self._unsure.discard(handle)
        self._unrecorded.discard(handle)
        self._inner.release(handle)

    def fsync(self, handle: int, datasync: bool) -> None:
        self._inner.fsync(handle, datasync)

    # Directories

    def opendir(self, ino: int, caller: Caller) -> int:
        self._check_read("opendir", ino, caller)
        handle = self._inner.opendir(ino, caller)
        self._listings[handle] = ino, caller
        return handle

    def listing_lasts(self, handle: int) -> bool:
        return self._listings[handle][0] in self._listed and self._inner.listing_lasts(handle)

    def familiar(self, handle: int, start: int) -> bool:
        return self._inner.familiar(handle, start)

    def readdir(self, handle: int, start: int, *, brief: bool = False) -> Iterator[tuple[bytes, Entry, int]]:
        ino, caller = self._listings[handle]
        state = self._decisions.check_shown("readdir", ino, caller)
        if start == 0:
            self._listed.add(ino)
        entries = self._inner.readdir(handle, start, brief=brief)
        # A redirect can bring a covered entry into a directory that no rule is about.
        if not state.quiet or self._decisions.covers:
            return self._seen(entries, ino, state)
        return self._links_sized(entries) if self._links.rewrites else entries

    def _links_sized(self, entries: Iterator[tuple[bytes, Entry, int]]) -> Iterator[tuple[bytes, Entry, int]]:
        is_link, sized = stat.S_ISLNK, self._links.sized
        for listed in entries:
            if is_link(listed[1].stat.st_mode):
                yield listed[0], sized(listed[1]), listed[2]
            else:
                yield listed

    def _seen(
        self, entries: Iterator[tuple[bytes, Entry, int]], ino: int, state: State
    ) -> Iterator[tuple[bytes, Entry, int]]:
        # One request consumes the iterator, so *state* stays the directory's.
        step, hides = self._decisions.step, self._decisions.hides
        for name, entry, following in entries:
            if entry.mentioned and not hides:
                # A mention tells the kernel the name only.
                yield name, entry, following
                continue
            is_dir = stat.S_ISDIR(entry.stat.st_mode)
            entry = self._shown(entry)
            if is_dir and name in _DOTS:
                yield name, entry, following
                continue
            found = step(state, ino, name, is_dir)
            if is_dir and not entry.mentioned:
                found = self._decisions.moved(entry.ino, found)
            if found.free or not ((decision := found.decision).hides or decision.denies):
                yield name, entry, following
            elif decision.hides:
                self._inner.forget(entry.ino, 0)
            else:
                # Listed, but the kernel must ask before it shows more than the name.
                yield name, entry._replace(guarded=True), following

    def releasedir(self, handle: int) -> None:
        self._listings.pop(handle, None)
        self._inner.releasedir(handle)

    def fsyncdir(self, ino: int, datasync: bool) -> None:
        self._inner.fsyncdir(ino, datasync)

    def close(self) -> None:
        self._inner.close()

    # Helpers

    def _shown(self, entry: Entry) -> Entry:
        """A directory without its link count, which would tell how many hidden directories are in it; a
        symlink with the size of the answered target.
        """
        mode = entry.stat.st_mode
        if stat.S_ISLNK(mode):
            return self._links.sized(entry)
        return entry._replace(nlink=1) if self._decisions.hides and stat.S_ISDIR(mode) else entry

    @staticmethod
    def _is_way(state: State) -> bool:
        """Whether a directory is denied, but leads to entries that an earlier rule allows.

        Its attributes are shown, and its access lists, by which the kernel decides which users may pass.
        """
        return state.decision.denies and not state.quiet

    def _visible(self, parent: int, name: bytes, caller: Caller) -> Entry | None:
        """The result of a lookup, without a record; None also where the lookup would be refused."""
        entry = self._inner.lookup(parent, name, caller)
        if entry is None:
            return None
        state = self._state_of(parent, name, entry)
        decision = state.decision
        is_way = self._is_way(state) and stat.S_ISDIR(entry.stat.st_mode)
        if decision.hides or (decision.denies and not is_way):
            self._inner.forget(entry.ino, 1)
            return None
        return entry

    def _check_read(self, op: str, ino: int, caller: Caller) -> None:
        state = self._decisions.check_shown(op, ino, caller)
        if self._journal.reads:
            self._decisions.note_inode(op, READ, ino, state, caller)

    def _decide_again(self, handle: int, op: str, access: Access) -> None:
        ino, caller, _, grants, new_program = self._handles[handle]
        state = self._decisions.of(ino)
        decision = state.decision
        rule = self._decisions.new_programs
        if new_program and rule is not None and access is EXECUTE:
            decision = stricter(decision, Decision.by(rule))
        granted = decision.ruling(access) is Ruling.ASK and any(
            self._person.stands(grant, decision, access) for grant in grants
        )
        own = access is READ and self._decisions.permits(state, READ, ino)
        if not (granted or own or decision.allows(access)):
            raise self._decisions.refuse(op, access, ino, decision, caller)
        if state.free and not new_program:
            self._unsure.discard(handle)

    def _peek(self, parent: int, name: bytes, caller: Caller) -> State | None:
        """The state of the entry at a name, None where there is no entry."""
        entry = self._inner.lookup(parent, name, caller)
        if entry is None:
            return None
        try:
            return self._state_of(parent, name, entry)
        finally:
            self._inner.forget(entry.ino, 1)

    def _state_of(self, parent: int, name: bytes, entry: Entry) -> State:
        """The state of an entry at a name: a directory is judged by its redirect's source as well."""
        is_dir = stat.S_ISDIR(entry.stat.st_mode)
        state = self._decisions.child(parent, name, is_dir)
        return self._decisions.moved(entry.ino, state) if is_dir and not entry.mentioned else state

    def _explain_not_empty(self, parent: int, name: bytes, caller: Caller) -> None:
        """Raise a denial when all entries are hidden: the caller sees an empty directory."""
        entry = self._inner.lookup(parent, name, caller)
        if entry is None:
            return
        handle = self._inner.opendir(entry.ino, caller)
        try:
            hidden = None
            for inner_name, inside, _ in self._inner.readdir(handle, 0):
                if inner_name in _DOTS:
                    continue
                state = self._state_of(entry.ino, inner_name, inside)
                if not state.decision.hides:
                    return
                hidden = state.decision
            if hidden is not None:
                path = self._inner.path_to(parent, name)
                self._journal.record("rmdir", DELETE, path, None, hidden, caller, errno.EACCES)
                raise PolicyDenied(errno.EACCES, hidden)
        finally:
            self._inner.releasedir(handle)
            self._inner.forget(entry.ino, 1)


def _accesses(flags: int) -> tuple[Access, ...]:
    """The accesses that opening with these flags attempts; the weightiest last."""
    if flags & _TO_EXECUTE:
        return _EXECUTING
    wanted = flags & os.O_ACCMODE
    if wanted == os.O_WRONLY:
        return _WRITING
    return _READING_AND_WRITING if wanted != os.O_RDONLY or flags & os.O_TRUNC else _READING
